"""Pages that update without a reload."""

from __future__ import annotations

import re
import statistics
import time
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from lockclient import ClusterMutex
from lockclient.cli.setup.etcd_server import Etcd
from lockclient.model.clocks import Deadline
from lockclient.stores.settings import Settings
from tests.browser.conftest import Story, Viewer
from tests.support.processes import Figure
from tests.support.unlocker_process import mutexdash

pytestmark = pytest.mark.browser

SOON = 60_000
"""Milliseconds: a page asks every two seconds, and this machine may be busy."""


def mark(page: Page) -> None:
    """Leave something on the page that would not survive its being loaded again."""
    page.evaluate("document.documentElement.dataset.mark = 'here'")


def marked(page: Page) -> bool:
    return bool(page.evaluate("document.documentElement.dataset.mark === 'here'"))


def test_a_lock_appears_passes_its_alert_recovers_and_ends(
    dash: str, store: Any, viewer: Viewer
) -> None:
    with viewer(dash) as page:
        expect(page.get_by_text("No lock is held right now.")).to_be_visible()
        mark(page)
        mutex = ClusterMutex(
            "nightly", store=store, expected_runtime=15, auto_unlock_after=900, reason="totals"
        )
        mutex.acquire()
        row = page.locator("tbody tr")
        expect(row).to_contain_text("nightly", timeout=SOON)
        expect(row.locator(".badge")).to_have_text("OK")
        expect(row.locator(".badge")).to_have_text("Past alert", timeout=SOON)
        expect(page.locator(".tile.alert b")).to_have_text("1")
        mutex.alive(force=True)
        expect(row.locator(".badge")).to_have_text("OK", timeout=SOON)
        mutex.release()
        expect(page.get_by_text("No lock is held right now.")).to_be_visible(timeout=SOON)
        assert marked(page)


def test_a_change_is_seen_within_three_seconds(
    dash: str, store: Any, viewer: Viewer, figure: Figure
) -> None:
    seen = []
    with viewer(dash) as page:
        for number in range(3):
            mutex = ClusterMutex(f"quick-{number}", store=store)
            for change, looks in ((mutex.acquire, "ok"), (mutex.release, "ended")):
                began = time.monotonic()
                change()
                page.locator(f"tbody tr.{looks}", has_text=mutex.name).wait_for()
                seen.append(time.monotonic() - began)
    middle = statistics.median(seen)
    figure(f"from a change to the page: {middle:.1f} s in the middle, {max(seen):.1f} s at most")
    assert middle < 15, "as often as a page asks that is in sight"


def test_a_lock_page_follows_its_holder(dash: str, story: Story, viewer: Viewer) -> None:
    """Taken, waited for, removed; the page tells each, and the code that took it."""
    with viewer(f"{dash}/lock/deploy%2Fprod") as page:
        expect(page.get_by_text("Nobody holds this lock.")).to_be_visible()
        mark(page)
        holder = story.hold("deploy/prod", backtrace='File "release.py", line 7, in main')
        expect(page.locator("pre")).to_contain_text('"release.py", line 7', timeout=SOON)
        story.wait(holder, hostname="next-1", pid=5)
        expect(page.locator(".queue li")).to_contain_text("next-1 : 5", timeout=SOON)
        story.remove(holder, removed_at=1.0, removed_by="ann", how="force-unlock", why="hung")
        expect(page.get_by_text("Not held")).to_be_visible(timeout=SOON)
        expect(page.get_by_text("force-unlock")).to_be_visible()
        expect(page.locator("pre")).to_contain_text('"release.py", line 7')
        assert marked(page)


def test_times_and_bars_go_on_between_two_answers(dash: str, story: Story, viewer: Viewer) -> None:
    story.hold("a", held_for=10, unlock=60, alert=30)
    with viewer(dash) as page:
        held, bar = page.locator("tbody .c-locked_at time"), page.locator(".filled")
        expect(held).to_be_visible(timeout=SOON)
        page.route("**/*", lambda route: route.abort())  # the page is on its own now
        first, width = held.inner_text(), bar.get_attribute("width") or ""
        expect(held).not_to_have_text(first, timeout=SOON)
        expect(bar).not_to_have_attribute("width", width, timeout=SOON)


def test_the_age_of_the_page_restarts_with_each_answer(dash: str, viewer: Viewer) -> None:
    with viewer(dash) as page:
        age = page.locator("#updated time")
        since = age.get_attribute("data-since")
        expect(age).not_to_have_attribute("data-since", since or "", timeout=SOON)
        expect(age).to_have_text(re.compile("^[0-5] s$"), timeout=SOON)
        page.route("**/*", lambda route: route.abort())
        expect(age).to_have_text(re.compile("^([7-9]|\\d\\d) s$"), timeout=SOON)


def test_the_timeline_stays_with_one_process(dash: str, story: Story, viewer: Viewer) -> None:
    story.hold("a", held_for=10)
    with viewer(f"{dash}/timeline") as page:
        expect(page.locator(".lanes .c-name")).to_have_text("a", timeout=SOON)
        answers = []

        def of_another(route: Any) -> None:
            answers.append(route.fetch(headers={**route.request.headers, "if-none-match": ""}))
            html = answers[-1].text()
            html = re.sub('data-process="[^"]*"', 'data-process="another"', html)
            route.fulfill(response=answers[-1], body=html.replace(">a<", ">another<"))

        page.route("**/timeline", of_another)
        while len(answers) < 2:
            page.wait_for_timeout(100)
        expect(page.locator(".lanes .c-name")).to_have_text("a")
        page.unroute("**/timeline")
        story.hold("b", held_for=5)
        expect(page.locator(".lanes .c-name")).to_have_count(2, timeout=SOON)


def test_the_page_writes_durations_as_the_server_does(
    dash: str, story: Story, viewer: Viewer
) -> None:
    expected = {-50: "0 s", 40: r"\d\d s", 150: r"2 min \d+ s", 9010: "2 h 30 min"}
    expected |= {90100: "1 d 1 h", 10**7 + 3000: "115 d 1[78] h"}
    with viewer(dash) as page:
        page.evaluate(
            """(ages) => {
                const now = Number(document.getElementById("main").dataset.now);
                for (const age of ages) {
                    const time = document.createElement("time");
                    time.dataset.since = now - age;
                    document.body.append(time);
                }
            }""",
            list(expected),
        )
        for index, text in enumerate(expected.values()):
            times = page.locator("body > time")
            expect(times.nth(index)).to_have_text(re.compile(f"^{text}$"), timeout=SOON)


def test_focus_and_opened_details_stay_while_rows_come_and_go(
    dash: str, story: Story, viewer: Viewer
) -> None:
    first, middle = story.hold("a-first"), story.hold("m-middle")
    with viewer(f"{dash}/?sort=name") as page:
        page.get_by_role("link", name="m-middle").focus()
        story.hold("b-new")
        story.hold("z-new")
        story.remove(first, removed_at=1.0, removed_by="x", how="auto-unlock", why="y")
        expect(page.locator("tbody tr")).to_have_text(
            [re.compile("b-new"), re.compile("m-middle"), re.compile("z-new")], timeout=SOON
        )
        assert page.evaluate("document.activeElement.textContent") == "m-middle"
        page.evaluate("document.activeElement.mark = 'here'")
        focused = "document.activeElement.mark"
        banner = page.get_by_text("No unlocker is running.")
        story.store.withdraw_announcement("watchdog-1:77", Deadline.after(30))
        expect(banner).to_be_visible(timeout=SOON)
        assert page.evaluate(focused) == "here", "a banner above the rows replaces none"
        story.unlocker()
        expect(banner).to_be_hidden(timeout=SOON)
        assert page.evaluate(focused) == "here"

    with viewer(f"{dash}/removed") as page:
        page.get_by_text("More").click()
        story.remove(middle, removed_at=2.0, removed_by="x", how="auto-unlock", why="y")
        expect(page.locator("tbody tr")).to_have_count(2, timeout=SOON)
        opened = page.locator("details[open]")
        expect(opened).to_have_count(1)
        expect(page.locator("tr", has=opened)).to_contain_text("a-first")


def test_search_updates_while_typing(dash: str, story: Story, viewer: Viewer) -> None:
    story.hold("deploy", reason="release")
    story.hold("report", reason="totals")
    with viewer(dash) as page:
        mark(page)
        with page.expect_response(lambda answer: answer.url == f"{dash}/"):
            pass  # from now on the page has an ETag, which is not the one of what is searched for
        box = page.get_by_role("searchbox")
        box.press_sequentially("TOTALS")
        expect(page.locator("tbody tr")).to_have_count(1, timeout=SOON)
        expect(page.locator("tbody tr")).to_contain_text("report")
        assert page.url == f"{dash}/?q=TOTALS"
        story.hold("other", reason="totals")  # an answer comes while the box has the focus
        expect(page.locator("tbody tr")).to_have_count(2, timeout=SOON)
        expect(box).to_be_focused()
        expect(box).to_have_value("TOTALS")
        assert marked(page)
        page.reload()
        expect(page.locator("tbody tr")).to_have_count(2)
        page.get_by_role("link", name="Clear the filter").click()
        expect(page.locator("tbody tr")).to_have_count(3)


def test_banners_come_and_go(own_etcd: Etcd, own_store: Any, viewer: Viewer) -> None:
    """No unlocker, etcd or the dashboard unreachable: each has a banner while it lasts."""
    settings = Settings(endpoints=(own_etcd.endpoint,))
    story = Story(own_store)
    story.hold("held")
    with mutexdash(settings) as dash, viewer(dash.url) as page:
        mark(page)
        unlocker, away = (
            page.get_by_text("No unlocker is running."),
            page.get_by_text("is unreachable."),
        )
        expect(unlocker).to_be_visible(timeout=SOON)
        story.unlocker()
        expect(unlocker).to_be_hidden(timeout=SOON)
        own_etcd.stop()
        expect(away).to_be_visible(timeout=SOON)
        expect(page.locator("main.outdated tbody tr")).to_contain_text("held")
        own_etcd.start()
        expect(away).to_be_hidden(timeout=60_000)
        assert marked(page)
        port = dash.url.rpartition(":")[2]
        dash.terminate()
        lost = page.get_by_text("The dashboard does not respond.")
        expect(lost).to_be_visible(timeout=60_000)
        with mutexdash(settings, "--listen", f"127.0.0.1:{port}"):
            expect(lost).to_be_hidden(timeout=60_000)
            assert marked(page)


def test_the_theme_is_chosen_and_kept(dash: str, viewer: Viewer) -> None:
    def ground(page: Page) -> str:
        return str(page.evaluate("getComputedStyle(document.body).backgroundColor"))

    with viewer(dash, color_scheme="dark") as page:
        button = page.get_by_role("button", name="Theme")
        dark = ground(page)
        expect(button).to_have_text("Theme: auto")
        button.click()
        expect(button).to_have_text("Theme: light")
        assert ground(page) != dark
        page.goto(f"{dash}/removed")
        expect(button).to_have_text("Theme: light")
        assert ground(page) != dark
        button.click()
        expect(button).to_have_text("Theme: dark")
        assert ground(page) == dark


def test_without_javascript_everything_works_by_reload(
    dash: str, story: Story, viewer: Viewer
) -> None:
    story.hold("deploy/prod", reason="release")
    story.hold("..", reason="dots")
    with viewer(dash, java_script_enabled=False) as page:
        expect(page.locator("#theme")).to_be_hidden()
        page.get_by_role("searchbox").fill("dots")
        page.get_by_role("button", name="Search").click()
        expect(page.locator("tbody tr")).to_have_count(1)
        page.get_by_role("link", name="..", exact=True).click()
        expect(page.get_by_role("heading", level=1)).to_have_text("..")
        page.get_by_role("link", name="All locks").click()
        page.get_by_role("link", name="deploy/prod").click()
        expect(page.get_by_role("heading", level=1)).to_have_text("deploy/prod")


def test_rows_keep_their_order_under_the_pointer(dash: str, story: Story, viewer: Viewer) -> None:
    held = {name: story.hold(name) for name in ("b", "d", "f")}
    with viewer(f"{dash}/?sort=name") as page:
        rows = page.locator("tbody tr")
        expect(rows).to_have_count(3)
        row = rows.filter(has=page.get_by_role("link", name="d", exact=True))
        row.hover()
        place = row.bounding_box()
        story.hold("a")
        story.hold("c", reason="new")
        story.release(held["b"])
        expect(page.get_by_role("link", name="c", exact=True)).to_be_visible(timeout=SOON)
        expect(page.locator("tr.ended")).to_contain_text("b", timeout=SOON)
        names = page.locator("tbody th")
        expect(names).to_have_text(["b", "d", "f", "a", "c"])
        assert row.bounding_box() == place
        page.mouse.move(2, 2)
        expect(names).to_have_text([re.compile(name) for name in "acdf"], timeout=SOON)


def test_focus_and_scroll_stay_when_rows_come_in_above(
    dash: str, story: Story, viewer: Viewer
) -> None:
    for number in range(60):
        story.hold(f"lock-{number:02}")
    with viewer(f"{dash}/?sort=name") as page:
        link = page.get_by_role("link", name="lock-40", exact=True)
        link.focus()
        link.evaluate("node => node.scrollIntoView({block: 'center'})")
        place = link.bounding_box()
        for number in range(5):
            story.hold(f"above-{number}")
        expect(page.locator("tbody tr")).to_have_count(65, timeout=SOON)
        expect(link).to_be_focused()
        after = link.bounding_box()
        assert place is not None
        assert after is not None
        assert abs(after["y"] - place["y"]) < 2


def test_keys_reach_everything(dash: str, story: Story, viewer: Viewer) -> None:
    """`/` searches, arrows go through the rows, Enter opens, Escape leaves the search."""
    for name in ("one", "two", "three"):
        story.hold(name)
    with viewer(f"{dash}/?sort=name") as page:
        page.keyboard.press("/")
        search = page.get_by_role("searchbox")
        expect(search).to_be_focused()
        page.keyboard.type("t")
        expect(page.locator("tbody tr")).to_have_count(2, timeout=SOON)
        page.keyboard.press("/")
        expect(search).to_have_value("t/")
        page.keyboard.press("Backspace")
        page.keyboard.press("Escape")
        expect(search).not_to_be_focused()
        expect(page.locator("tbody tr")).to_have_count(2, timeout=SOON)
        page.keyboard.press("ArrowDown")
        expect(page.get_by_role("link", name="three", exact=True)).to_be_focused()
        page.keyboard.press("ArrowDown")
        page.keyboard.press("ArrowDown")
        expect(page.get_by_role("link", name="two", exact=True)).to_be_focused()
        page.keyboard.press("ArrowUp")
        page.keyboard.press("Enter")
        expect(page.get_by_role("heading", level=1)).to_have_text("three")


def test_a_paused_page_does_not_change(dash: str, story: Story, viewer: Viewer) -> None:
    story.hold("before")
    with viewer(dash) as page:
        asked: list[str] = []
        expect(page.locator("tbody tr")).to_have_count(1, timeout=SOON)
        page.get_by_role("button", name="Pause").click()
        # Of the page, that is: Chromium fetches its icon when it finds the time.
        page.on("request", lambda asks: asked.append(asks.resource_type))
        story.hold("meanwhile")
        expect(page.locator("#paused")).to_have_text(
            re.compile(r"([3-9]|\d\d) s old"), timeout=SOON
        )
        assert "fetch" not in asked
        expect(page.locator("tbody tr")).to_have_count(1)
        page.get_by_role("button", name="Resume").click()
        expect(page.locator("tbody tr")).to_have_count(2, timeout=SOON)
        expect(page.locator("#paused")).to_be_hidden()
