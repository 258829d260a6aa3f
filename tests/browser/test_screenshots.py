"""A picture of each page, light and dark, wide and narrow, in `artifacts/screenshots/`.

Look at them. What a program can tell is checked: nothing sticks out to the side, and axe finds
nothing serious, in either theme: contrast, names, roles, headings, what the keyboard reaches.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import pytest
from axe_playwright_python.sync_playwright import Axe  # type: ignore[import-untyped]
from playwright.sync_api import Browser, FloatRect, Page, ViewportSize, expect

from lockclient.cli.setup.etcd_server import Etcd
from lockclient.settings import Settings
from lockclient.stores.etcd.store import EtcdStore
from tests.browser.conftest import Story, Viewer
from tests.browser.pictures import AT, MIGRATION, RELEASE, draw, served
from tests.support.dashboard import Dashboard
from tests.support.etcd_binary import Etcdctl
from tests.support.unlocker_process import mutexdash

pytestmark = pytest.mark.browser

FOLDER = Path(__file__).parents[2] / "artifacts" / "screenshots"
SIZES: dict[str, ViewportSize] = {
    "wide": {"width": 1400, "height": 900},
    "narrow": {"width": 390, "height": 844},
}
LEAST: ViewportSize = {"width": 360, "height": 740}
"""The smallest phone that pages are to fit."""
SEEN: Final = 4000
"""Pixels from the top that a picture shows: of a hundred rows nobody looks at the last one."""
_AXE = 'axe.run({resultTypes: ["violations"], preload: false}).then(found => found.violations)'


def barriers(page: Page) -> list[str]:
    """Return what axe, which the page has, finds serious, a line each."""
    return [
        f"{rule['impact']} {rule['id']}: {[node['target'] for node in rule['nodes']][:5]}"
        for rule in page.evaluate(_AXE)
        if rule["impact"] in ("serious", "critical")
    ]


def take(viewer: Viewer, url: str, paths: Mapping[str, str], *, axe: bool = True) -> None:
    """Draw the pages at these paths, one after the other in one tab, by these names.

    Axe, which takes longer than all else, sees each size and each theme once: what it says of
    colours depends on the theme, and all else on the size.
    """
    FOLDER.mkdir(parents=True, exist_ok=True)
    first, *_ = paths.values()
    # Whatever moves on its own would make each picture a little different from the last one.
    with viewer(url + first, reduced_motion="reduce") as page:
        for name, path in paths.items():
            if path != first:
                page.goto(url + path)
            expect(page.locator("#theme")).to_be_visible()
            if axe:
                page.evaluate(Axe().axe_script)
            for size, viewport in SIZES.items():
                fit(page, viewport)
                for theme in ("light", "dark"):
                    page.emulate_media(color_scheme=theme)
                    shoot(page, FOLDER / f"{name}-{theme}-{size}.png")
                    if axe and (size, theme) in (("wide", "light"), ("narrow", "dark")):
                        assert barriers(page) == [], f"{name}, {theme}, {size}"
            fit(page, LEAST)
            assert page.evaluate("window.violations") == [], name


def shoot(page: Page, path: Path) -> None:
    """Write a picture of the page, or of its beginning if it is long."""
    size = page.evaluate("[innerWidth, document.documentElement.scrollHeight]")
    clip: FloatRect = {"x": 0, "y": 0, "width": size[0], "height": min(size[1], SEEN)}
    page.screenshot(path=path, full_page=True, clip=clip)


def fit(page: Page, viewport: ViewportSize) -> None:
    """See that nothing sticks out to the side."""
    page.set_viewport_size(viewport)
    page.wait_for_function("width => innerWidth === width", arg=viewport["width"])
    assert page.evaluate("document.documentElement.scrollWidth") == viewport["width"]


@pytest.mark.soak
def test_pages_without_locks(forcing: Dashboard, story: Story, viewer: Viewer) -> None:
    paths = {
        "empty": "/",
        "waiting-empty": "/waiting",
        "removed-empty": "/removed",
        "lock-not-held": "/lock/never-taken",
        "bad-request": "/?sort=colour",
    }
    take(viewer, forcing.url, paths)


def test_pages_of_a_day(viewer: Viewer) -> None:
    with served() as (url, day):
        paths = {
            "locks": "/",
            "lock-alert": "/lock/deploy%2Fprod",
            "waiting": "/waiting",
            "host": f"/host?name=ci-runner-3{AT}",
            "force": f"/locks/deploy%2Fprod/force-unlock?uuid={day.uuids['deploy/prod']}",
        }
        take(viewer, url, paths)


@pytest.mark.soak
def test_pages_of_what_went_wrong(viewer: Viewer) -> None:
    with served() as (url, day):
        paths = {
            "lock-overdue": "/lock/billing%2Finvoice-run",
            "removed": "/removed",
            "removal": f"/removal?name=sync%2Fregion-2&uuid={day.uuids['sync/region-2']}",
            "timeline": "/timeline?span=21600",
            "lock-broken": "/lock/half-written",
            "lock-removed": "/lock/sync%2Fregion-2",
        }
        take(viewer, url, paths)


LISTS = {
    "locks": "/",
    "waiting": "/waiting",
    "host": "/host?name=ci-runner-3.prod.example.com",
    "host-of-many": "/host?name=bill-3.prod.example.com",
}
OTHERS = {
    "timeline": "/timeline",
    "lock-in-deadlock": "/lock/deploy%2Fprod",
    "lock-for-a-person": "/lock/schema-migration",
    "search": "/?q=host:bill-3+-state:ok",
}


@pytest.mark.soak
@pytest.mark.parametrize("held", [8, 500])
@pytest.mark.parametrize("paths", [LISTS, OTHERS], ids=["lists", "others"])
def test_ordinary_names(
    held: int, paths: Mapping[str, str], forcing: Dashboard, story: Story, viewer: Viewer
) -> None:
    """Few locks and many, of hosts as they are called: who waits, who waits for each other."""
    migration = story.hold(
        *("schema-migration", 9000, 3600, None), hostname="db-admin" + AT, pid=66, reason="v41",
        actor="B", backtrace=MIGRATION,
    )  # fmt: skip
    release = story.hold(
        *("deploy/prod", 424), hostname="ci-runner-3" + AT, pid=30415, reason="release 2026.11.3",
        actor="A", backtrace=RELEASE,
    )  # fmt: skip
    for number in range(held - 2):
        story.hold(
            f"billing/tenant-{number:04}/invoice-run", 7.1 * (number % 100) + number // 4,
            unlock=None if number % 50 == 7 else 900, hostname=f"bill-{number % 40}" + AT,
            pid=30_000 + number, reason="invoices of October, once more after the timeout",
        )  # fmt: skip
    since = time.time() - 700
    lines: list[list[dict[str, Any]]] = [
        [{"hostname": "ci-runner-3" + AT, "pid": 30415, "actor": "A", "since": since + 60}],
        [{"hostname": "db-admin" + AT, "pid": 66, "actor": "B", "reason": "v41", "since": since}],
    ]
    for number in range(held // 4):
        lines[bool(number % 3)].append(
            {"hostname": f"ci-runner-{number}" + AT, "pid": 900 + number,
             "reason": f"release 2026.12.{number}", "since": since + number}
        )  # fmt: skip
    for holder, line in zip((migration, release), lines, strict=True):
        story.line_up(holder, sorted(line, key=lambda ticket: float(ticket["since"])))
    with viewer(forcing.url) as page:
        expect(page.get_by_text("This may be a deadlock.")).to_be_visible(timeout=60_000)
    named = {f"{held}-{name}": path for name, path in paths.items()}
    # Of more of the same axe says the same, slowly.
    take(viewer, forcing.url, named, axe=held < 100)


@pytest.mark.soak
def test_pictures_of_the_documentation(chromium: Browser) -> None:
    """`make pictures` puts the same into `docs/pictures/`."""
    draw(chromium, FOLDER / "docs")


@pytest.mark.soak
def test_pages_of_what_nobody_can_decide(
    forcing: Dashboard, story: Story, root: str, etcdctl: Etcdctl, viewer: Viewer
) -> None:
    facts: dict[str, Any] = {"hostname": "ci-runner-1", "pid": 44, "reason": "release 2026.11.4"}
    new = story.hold(
        "deploy/new", 200, **facts, backtrace=RELEASE, needs=("two-keys", "quorum-of-regions")
    )
    story.hold("deploy/moved", 400, **facts)
    etcdctl("put", f"{root}/locks/deploy%2Fmoved/auto_unlock_at", f"{time.time() + 86_400:.3f}")
    free = story.hold("waited-for")
    story.line_up(free, [{"hostname": "next-1", "pid": 71, "since": time.time() - 60}])
    story.release(free)
    paths = {
        "locks-undecided": "/",
        "lock-undecided": "/lock/deploy%2Fmoved",
        "lock-needs": "/lock/deploy%2Fnew",
        "force-needs": f"/locks/deploy%2Fnew/force-unlock?uuid={new.uuid}",
        "lock-free": "/lock/waited-for",
    }
    take(viewer, forcing.url, paths)


@pytest.mark.soak
def test_pages_of_a_bad_night(
    forcing: Dashboard, story: Story, root: str, etcdctl: Etcdctl, viewer: Viewer
) -> None:
    """Twelve troubles at once; that the store is unreachable is below."""
    dead = story.hold("nightly-report", 2000, hostname="batch-07" + AT, reason="rebuild totals")
    story.line_up(dead, _crowd(30))
    story.hold("video/convert", 40_000, 50_000, 60_000, hostname="gpu-2" + AT, keepalive=True,
               max_hold=7200.0, reason="hangs, and looks healthy")  # fmt: skip
    schema = story.hold("schema-migration", 400, 3600, None, actor="B", backtrace=MIGRATION)
    prod = story.hold("deploy/prod", 430, actor="A", backtrace=RELEASE, reason="release 2026.11.3")
    since = time.time() - 300
    story.line_up(prod, [{"hostname": "db-admin" + AT, "pid": 66, "actor": "B", "since": since}])
    story.line_up(schema, [{"hostname": "ci-3" + AT, "pid": 7, "actor": "A", "since": since}])
    story.hold("deploy/pr\u043ed", 100, reason="its o is Cyrillic")
    story.hold("job/" + "long-" * 40 + "end", 350, hostname="h" * 63 + AT, reason="why " * 100)
    story.hold(
        "\u0440\u0435\u0437\u0435\u0440\u0432/\u5099\u4efd \U0001f512",
        310,
        hostname="\u0441\u0435\u0440\u0432\u0435\u0440",
    )
    story.hold("from-go", 290, client="golocks/2.1 go/1.22", pid=None, thread=None, reason=None)
    story.hold("half-written", 60)
    etcdctl("put", f"{root}/locks/half-written/alert_at", "tomorrow")
    story.hold("deploy/moved", 60)
    etcdctl("put", f"{root}/locks/deploy%2Fmoved/auto_unlock_at", f"{time.time() + 86_400:.3f}")
    free = story.hold("waited-for")
    story.line_up(free, [{"hostname": "next-1", "pid": 71, "since": since}])
    story.release(free)
    with viewer(forcing.url) as page:
        expect(page.get_by_text("This may be a deadlock.")).to_be_visible(timeout=60_000)
    paths = {
        "night-locks": "/",
        "night-dead": "/lock/nightly-report",
        "night-hung": "/lock/video%2Fconvert",
        "night-deadlock": "/lock/deploy%2Fprod",
        "night-long": f"/lock/{quote('job/' + 'long-' * 40 + 'end', safe='')}",
        "night-waiting": "/waiting",
        "night-hosts": "/hosts",
        "night-timeline": "/timeline",
    }
    take(viewer, forcing.url, paths)


def _crowd(size: int) -> list[dict[str, Any]]:
    return [
        {"hostname": f"web-{number}" + AT, "pid": 900 + number, "reason": "needs the totals",
         "since": time.time() - 1500 + number}
        for number in range(size)
    ]  # fmt: skip


def test_hostile_pages(forcing: Dashboard, story: Story, viewer: Viewer) -> None:
    text = "<img src=x onerror=alert(1)>\u202egnp.exe\u200b"
    holder = story.hold(text, hostname=text, reason=text * 3, thread=text, backtrace=text * 40)
    story.hold("🔒" * 63, hostname="h" * 500, reason="Z̷̛͓a̴l̸g̶o̵" * 20)
    story.line_up(holder, [{"hostname": text, "reason": text * 3}])
    gone = story.hold("x" * 255, hostname=text, reason="y" * 400)
    story.remove(gone, removed_at=5.0, removed_by=text, how=text, why=json.dumps(text) * 3)
    paths = {
        "hostile": "/",
        "hostile-force": f"/locks/{quote(text, safe='')}/force-unlock?uuid={holder.uuid}",
        "hostile-timeline": "/timeline",
        "hostile-lock": f"/lock/{quote(text, safe='')}",
        "hostile-removed": "/removed",
    }
    take(viewer, forcing.url, paths)


@pytest.mark.soak
def test_pages_of_an_outage(own_etcd: Etcd, own_store: EtcdStore, viewer: Viewer) -> None:
    settings = Settings(endpoints=(own_etcd.endpoint,))
    story = Story(own_store)
    held = story.hold("deploy/prod", 424, hostname="ci-runner-3" + AT, backtrace=RELEASE)
    story.hold("nightly-report", 1503, hostname="batch-07" + AT, reason="rebuild totals")
    story.wait(held, hostname="ci-runner-4" + AT, pid=904, reason="release 2026.11.4")
    with mutexdash(settings) as dash:
        take(viewer, dash.url, {"no-unlocker": "/"})
        own_etcd.stop()
        with viewer(dash.url) as page:
            expect(page.get_by_text("etcd is unreachable.")).to_be_visible(timeout=60_000)
        take(viewer, dash.url, {"etcd-away": "/", "etcd-away-lock": "/lock/deploy%2Fprod"})


@pytest.mark.soak
def test_a_page_before_anything_was_read(
    own_etcd: Etcd, own_store: EtcdStore, viewer: Viewer
) -> None:
    Story(own_store).hold("deploy/prod")
    own_etcd.stop()
    with mutexdash(Settings(endpoints=(own_etcd.endpoint,))) as dash:
        take(viewer, dash.url, {"not-yet-read": "/"})
        with viewer(dash.url) as page:
            own_etcd.start()
            expect(page.get_by_role("link", name="deploy/prod")).to_be_visible(timeout=60_000)
