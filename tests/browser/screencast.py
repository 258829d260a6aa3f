"""The screencast of the README: `make screencast` draws it into `docs/pictures/`.

A holder is killed, its lock goes past its alert, the unlocker removes it, the next waiter has it:
real processes on a real etcd, with short times, as the real dashboard shows them.
"""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont
from playwright.sync_api import Page, expect, sync_playwright

from lockclient import Settings
from lockclient.cli.setup.etcd_server import etcd_in, find_etcd
from tests.browser.pictures import FOLDER
from tests.support.processes import needed, start_service
from tests.support.unlocker_process import mutexdash, when_ready

PICTURE = FOLDER / "kill-9.webp"
LARGEST_BYTES = 1_500_000
SIZE = {"width": 960, "height": 510}
CAPTION_PX = 44
LOCK = "nightly-report"
AUTO_UNLOCK_S = 20
WORKER = """
import socket, sys, time
name, host, reason, runtime, unlock = sys.argv[1:]
socket.gethostname = lambda: host
from lockclient import ClusterMutex
with ClusterMutex(name, reason=reason, expected_runtime=runtime, auto_unlock_after=unlock) as held:
    while True:
        held.alive()
        time.sleep(0.2)
"""
UNLOCKER = """
import socket
socket.gethostname = lambda: "watchdog-1"
from unlocker.__main__ import main
main()
"""
TOTALS = ("rebuild totals", "8s", f"{AUTO_UNLOCK_S}s")
OTHERS = (
    ("deploy/prod", "ci-runner-3", "release 2026.11.3", "5m", "15m"),
    ("search/reindex", "search-2", "full reindex", "5m", "15m"),
)


class Film:
    """Frames of a page, each with a caption above it."""

    def __init__(self, page: Page) -> None:
        self._page = page
        self._frames: list[Image.Image] = []
        self._durations_ms: list[int] = []
        self._font = ImageFont.load_default(size=20)

    def shoot(self, caption: str, shown_s: float) -> None:
        """Take a frame that is shown for so long."""
        shot = Image.open(io.BytesIO(self._page.screenshot())).convert("RGB")
        frame = Image.new("RGB", (shot.width, shot.height + CAPTION_PX), "#1f2430")
        frame.paste(shot, (0, CAPTION_PX))
        ImageDraw.Draw(frame).text((16, 10), caption, font=self._font, fill="#ffffff")
        self._frames.append(frame)
        self._durations_ms.append(round(1000 * shown_s))

    def save(self, path: Path) -> None:
        first, *rest = self._frames
        first.save(
            path, save_all=True, append_images=rest, duration=self._durations_ms, loop=0,
            lossless=True, quality=100, method=4,
        )  # fmt: skip


def worker(settings: Settings, *facts: str) -> subprocess.Popen[bytes]:
    """Start a process that takes a lock, or waits for it: name, host, reason, times."""
    words = [sys.executable, "-c", WORKER, *facts]
    return subprocess.Popen(words, env={**os.environ, "CLUSTERMUTEX_URL": settings.url()})


def play(page: Page, film: Film, settings: Settings, exits: ExitStack) -> None:
    """Play the story; what it starts ends with `exits`."""
    row = page.locator("tbody tr", has_text=LOCK)
    first = worker(settings, LOCK, "batch-07", *TOTALS)
    exits.callback(end, first)
    expect(row).to_contain_text("OK")
    second = worker(settings, LOCK, "batch-08", *TOTALS)
    exits.callback(end, second)
    expect(row).to_contain_text("1 waiting")
    for _ in range(2):
        film.shoot(f"{LOCK} is held and sends heartbeats; one client waits for it.", 1.5)
        time.sleep(1)
    first.send_signal(signal.SIGKILL)
    first.wait()
    killed = time.monotonic()
    film.shoot(f"$ kill -9 {first.pid}", 2)
    while page.get_by_text("Past alert", exact=True).count() == 0:
        film.shoot(f"$ kill -9 {first.pid}        No more heartbeats.", 0.5)
        time.sleep(1.5)
    film.shoot("Past its alert: people are alerted. Nothing is unlocked.", 2.5)
    while time.monotonic() < killed + AUTO_UNLOCK_S - 2:
        film.shoot("Past its alert: people are alerted. Nothing is unlocked.", 0.5)
        time.sleep(1.5)
    expect(row).to_contain_text(f": {second.pid}")
    film.shoot("The unlocker removed it. The next waiter has it.", 2.5)
    page.goto(page.url.rstrip("/") + "/removed")
    expect(page.get_by_text("Auto-unlocked")).to_be_visible()
    film.shoot("And there is a record: who lost the lock, when and why.", 4)


def draw(page: Page, path: Path) -> None:
    binary = find_etcd() or needed("etcd")
    with tempfile.TemporaryDirectory() as folder, etcd_in(binary, Path(folder), None) as etcd:
        settings = Settings(endpoints=(etcd.endpoint,))
        watchdog = [sys.executable, "-c", UNLOCKER, "--url", settings.url()]
        with (
            when_ready(start_service([*watchdog, "--listen", "127.0.0.1:0"])),
            when_ready(mutexdash(settings)) as dash,
            ExitStack() as exits,
        ):
            for facts in OTHERS:
                exits.callback(end, worker(settings, *facts))
            page.goto(dash.url)
            expect(page.get_by_text("1 unlocker")).to_be_visible()
            film = Film(page)
            play(page, film, settings, exits)
            film.save(path)
    size = path.stat().st_size
    assert size < LARGEST_BYTES, f"{path.name} has {size} bytes"


def end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()


def main() -> None:
    expect.set_options(timeout=60_000)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=needed("chromium"), args=["--no-sandbox"]
        )
        page = browser.new_page(viewport=SIZE, color_scheme="light", reduced_motion="reduce")  # type: ignore[arg-type]
        draw(page, PICTURE)
        browser.close()


if __name__ == "__main__":
    main()
