"""Lists at a glance, and what clicks do: rows, hosts, links, times."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import Story, Viewer
from tests.browser.pictures import SIZES

pytestmark = pytest.mark.browser


def test_twenty_locks_fit_on_the_screen(dash: str, story: Story, viewer: Viewer) -> None:
    for number in range(40):
        story.hold(
            f"billing/tenant-{number:04}/invoice-run", 31.7 * number, pid=30_000 + number,
            hostname=f"bill-{number}.prod.example.com", reason="invoices of October, once more",
        )  # fmt: skip
    with viewer(dash, viewport=SIZES["wide"]) as page:
        rows = page.locator("tbody tr")
        expect(rows).to_have_count(40)
        heights = rows.evaluate_all("rows => rows.map(row => row.getBoundingClientRect().height)")
        assert max(heights) < 40, "one line"
        seen = rows.evaluate_all(
            "rows => rows.filter(row => row.getBoundingClientRect().bottom <= innerHeight).length"
        )
        assert seen >= 20
        for part in (".pid", ".c-locked_at", ".c-alive_at", ".left", ".host .head"):
            cut = page.locator(f"tbody {part}").evaluate_all(
                "all => all.filter(part => part.scrollWidth > part.clientWidth + 1 && "
                "part.clientWidth > 0).length"
            )
            assert cut == 0, part


def test_a_click_on_a_row_opens_its_page(dash: str, story: Story, viewer: Viewer) -> None:
    story.hold("deploy/prod", hostname="ci-1.example.com", reason="see https://ci.example.com/7")
    with viewer(dash) as page:
        link = page.get_by_role("link", name="https://ci.example.com/7")
        assert link.get_attribute("href") == "https://ci.example.com/7"
        page.locator("tbody .c-locked_at").click()
        expect(page.get_by_role("heading", level=1)).to_have_text("deploy/prod")
        page.go_back()
        page.locator("tbody .host").click()
        expect(page.get_by_role("heading", level=1)).to_have_text("ci-1.example.com")


def test_times_are_in_the_viewers_zone_and_in_utc_on_demand(
    dash: str, story: Story, viewer: Viewer
) -> None:
    story.hold("a", 3600)
    with viewer(f"{dash}/lock/a", timezone_id="Asia/Kolkata") as page:
        taken = page.locator("time.at").first
        expect(taken).to_have_text(re.compile(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d GMT\+5:30$"))
        local = taken.inner_text()
        page.get_by_role("button", name="Times").click()
        expect(taken).to_have_text(re.compile(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC$"))
        page.reload()
        expect(taken).to_have_text(re.compile("UTC$"))
        page.get_by_role("button", name="Times").click()
        expect(taken).to_have_text(local)
