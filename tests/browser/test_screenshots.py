"""A picture of each page, light and dark, wide and narrow, in `artifacts/screenshots/`.

Look at them. What a program can tell is checked: nothing sticks out to the side, and axe finds
nothing serious, in either theme: contrast, names, roles, headings, what the keyboard reaches.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

import pytest
from axe_playwright_python.sync_playwright import Axe  # type: ignore[import-untyped]
from playwright.sync_api import Page, expect

from lockclient.cli.local import Etcd
from lockclient.etcd.store import EtcdStore
from lockclient.record import Holder
from lockclient.settings import Settings
from tests.browser.conftest import Story, Viewer
from tests.processes import Service, start_service

pytestmark = pytest.mark.browser

FOLDER = Path(__file__).parents[2] / "artifacts" / "screenshots"
SIZES = {"wide": {"width": 1280, "height": 800}, "narrow": {"width": 360, "height": 740}}
BACKTRACE = """\
  File "/srv/billing/run.py", line 88, in <module>
    main(sys.argv[1:])
  File "/srv/billing/run.py", line 71, in main
    invoices.create(month)
  File "/srv/billing/invoices.py", line 214, in create
    with ClusterMutex("billing/invoice-run", reason=f"invoices of {month}"):
"""


RELEASE = """\
  File "/srv/ci/runner.py", line 31, in <module>
    app.worker_main()
  File "/srv/ci/.venv/lib/python3.11/site-packages/celery/app/base.py", line 388, in worker_main
    self.start(argv)
  File "/srv/ci/release/roll_out.py", line 57, in roll_out
    stack.enter_context(ClusterMutex("deploy/prod", reason=f"release {version}"))
  File "/usr/lib/python3.11/contextlib.py", line 502, in enter_context
    result = _enter(cm)
"""

RULES = {"resultTypes": ["violations"]}


def barriers(page: Page) -> list[str]:
    """Return what axe finds serious, a line each."""
    found = Axe().run(page, options=RULES).response["violations"]
    return [
        f"{each['impact']} {each['id']}: {[node['target'] for node in each['nodes']][:5]}"
        for each in found
        if each["impact"] in ("serious", "critical")
    ]


def take(viewer: Viewer, url: str, name: str) -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    # Whatever moves on its own would make each picture a little different from the last one.
    with viewer(url, reduced_motion="reduce") as page:
        expect(page.locator("#theme")).to_be_visible()
        for size, viewport in SIZES.items():
            page.set_viewport_size(viewport)
            assert page.evaluate("document.documentElement.scrollWidth") == viewport["width"]
            for theme in ("light", "dark"):
                page.emulate_media(color_scheme=theme)
                page.screenshot(path=FOLDER / f"{name}-{theme}-{size}.png", full_page=True)
                if size == "wide":
                    assert barriers(page) == [], f"{name}, {theme}"


def tell(story: Story) -> Holder:
    """A cluster on an ordinary bad day; return one holder that is past its alert."""
    story.hold(
        *("billing/invoice-run", 1503), hostname="billing-1.fra", pid=2207, backtrace=BACKTRACE,
        reason="invoices of October, second attempt after the payment gateway's timeout",
    )  # fmt: skip
    release = story.hold(
        "deploy/prod", 424, hostname="ci-runner-3", pid=881, reason="release 2026.11.3",
        backtrace=RELEASE, identity="runner-3",
    )  # fmt: skip
    story.hold("nightly-report", 98, hostname="batch-07.fra", pid=20713, reason="rebuild totals")
    story.hold("schema-migration", 4980, 9000, None, hostname="db-admin", pid=66, reason="v41")
    story.hold("search/reindex", 12, hostname="search-2", pid=5120, reason="full reindex")
    for number in range(6):
        story.hold(
            f"compact/shard-{number:02}", 31.7 * number, hostname=f"worker-{number % 3}",
            pid=1000 + 7 * number, reason=f"compaction, level {number % 4}",
        )  # fmt: skip
    for number in reversed(range(5)):
        ago = 1800 + 5000 * number
        dead = story.hold(
            f"sync/region-{number}", ago + 910, hostname=f"sync-{number}", pid=300 + number,
            reason="copy objects", backtrace=BACKTRACE,
        )  # fmt: skip
        story.remove(
            dead, removed_at=time.time() - ago, removed_by="ann@desk" if number == 2 else
            "watchdog-1:77", how="force-unlock" if number == 2 else "auto-unlock",
            why="worker hung in D state" if number == 2 else
            "no sign of life for 900 s, its time ran out 10 s ago",
        )  # fmt: skip
    return release


def go_on(story: Story, release: Holder) -> None:
    """What does not last: waiters in line, and somebody who is done just now."""
    for number in (4, 5):
        story.wait(
            release, hostname=f"ci-runner-{number}", pid=900 + number, thread="MainThread",
            reason=f"release 2026.11.{number}", since=time.time() - 700 + 60 * number,
        )  # fmt: skip
    story.release(story.hold("backup/weekly", 212, hostname="backup-1", pid=70, reason="snapshots"))


def test_pages(
    forcing: Service, story: Story, root: str, etcdctl: Callable[..., str], viewer: Viewer
) -> None:
    take(viewer, forcing.url, "empty")
    take(viewer, f"{forcing.url}/removed", "removed-empty")
    release = tell(story)
    etcdctl("put", f"{root}/locks/half-written/uuid", "u1")
    etcdctl("put", f"{root}/locks/half-written/alert_at", "tomorrow")
    etcdctl("put", f"{root}/locks/half-written/reason", "a shell script that was interrupted")
    paths = {
        "removed": "/removed",
        "removal": f"/removal?name=sync%2Fregion-2&uuid={story.removals[2].uuid}",
        "timeline": "/timeline?span=21600",
        "no-match": "/?q=nothing+like+this",
        "lock-overdue": "/lock/billing%2Finvoice-run",
        "lock-broken": "/lock/half-written",
        "lock-removed": "/lock/sync%2Fregion-2",
        "lock-not-held": "/lock/never-taken",
        "bad-request": "/?sort=colour",
    }
    for name, path in paths.items():
        take(viewer, forcing.url + path, name)
    go_on(story, release)
    take(viewer, forcing.url, "locks")
    take(viewer, f"{forcing.url}/lock/deploy%2Fprod", "lock-alert")
    form = f"{forcing.url}/locks/deploy%2Fprod/force-unlock?uuid={release.uuid}"
    take(viewer, form, "force")


def test_hostile_pages(forcing: Service, story: Story, viewer: Viewer) -> None:
    text = "<img src=x onerror=alert(1)>\u202egnp.exe\u200b"
    holder = story.hold(text, hostname=text, reason=text * 3, thread=text, backtrace=text * 40)
    story.hold("🔒" * 63, hostname="h" * 500, reason="Z̷̛͓a̴l̸g̶o̵" * 20)
    story.wait(holder, hostname=text, reason=text * 3)
    gone = story.hold("x" * 255, hostname=text, reason="y" * 400)
    story.remove(gone, removed_at=5.0, removed_by=text, how=text, why=json.dumps(text) * 3)
    form = f"/locks/{quote(text, safe='')}/force-unlock?uuid={holder.uuid}"
    take(viewer, forcing.url, "hostile")
    take(viewer, forcing.url + form, "hostile-force")
    take(viewer, f"{forcing.url}/timeline", "hostile-timeline")
    take(viewer, f"{forcing.url}/lock/{quote(text, safe='')}", "hostile-lock")
    take(viewer, f"{forcing.url}/removed", "hostile-removed")


def test_pages_of_an_outage(own_etcd: Etcd, viewer: Viewer) -> None:
    settings = Settings(endpoints=(own_etcd.endpoint,))
    store = EtcdStore(settings)
    story = Story(store)
    go_on(story, tell(story))
    with start_service(["mutexdash", "--url", settings.url(), "--listen", "127.0.0.1:0"]) as dash:
        take(viewer, dash.url, "no-unlocker")
        own_etcd.stop()
        with viewer(dash.url) as page:
            expect(page.get_by_text("etcd is away.")).to_be_visible(timeout=60_000)
        take(viewer, dash.url, "etcd-away")
        take(viewer, f"{dash.url}/lock/deploy%2Fprod", "etcd-away-lock")
    store.close()
    with start_service(["mutexdash", "--url", settings.url(), "--listen", "127.0.0.1:0"]) as dash:
        take(viewer, dash.url, "not-yet-read")
        with viewer(dash.url) as page:
            own_etcd.start()
            expect(page.get_by_role("link", name="deploy/prod")).to_be_visible(timeout=60_000)
