"""Hostile texts of locks stay text on the page, in each field, and move nothing."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import Story, Viewer
from tests.support.polls import ALL, OTHER_LETTERS, REAL

pytestmark = pytest.mark.browser

SCRIPT = "<script>alert(1)</script>"
IMAGE = "<img src=x onerror=alert(1)>"


def elements(page: Page) -> Any:
    """Count what could only have come out of a text; `main` has scripts and images nowhere."""
    return page.locator("main :is(script, img, iframe, style, [onerror], [onfocus], [onload])")


def test_hostile_text_in_updates_is_text_too(dash: str, story: Story, viewer: Viewer) -> None:
    with viewer(dash) as page:
        story.hold(IMAGE, hostname=SCRIPT)
        expect(page.get_by_role("link", name=IMAGE, exact=True)).to_be_visible(timeout=15_000)
        expect(page.locator("tbody tr")).to_contain_text(SCRIPT)
        expect(elements(page)).to_have_count(0)


def test_control_and_direction_characters_are_escaped(
    dash: str, story: Story, viewer: Viewer
) -> None:
    evil = "\u202eexe.gnp\u2066\x1b[2J\x07\u200b"
    shown = "\\u202eexe.gnp\\u2066\\x1b[2J\\x07\\u200b"
    harmless = story.hold("a", hostname="b", reason="c")
    place = {}
    with viewer(dash) as page:
        place["before"] = page.locator("tbody .c-hostname").bounding_box()
        story.release(harmless)
        story.hold("a", hostname=evil, reason=evil)
        reason = page.locator("tbody .c-reason")
        expect(reason).to_have_text(shown, timeout=15_000)
        expect(page.locator("tbody .c-hostname")).to_contain_text(shown)
        place["after"] = page.locator("tbody .c-hostname").bounding_box()
        before, after = place["before"], place["after"]
        assert before is not None
        assert after is not None
        assert (before["x"], before["width"]) == (after["x"], after["width"])


def test_look_alike_names_look_different(dash: str, story: Story, viewer: Viewer) -> None:
    names = ["a b", "a  b", "a\u200bb", "ab", " ab"]
    for name in names:
        story.hold(name)
    with viewer(f"{dash}/?sort=name") as page:
        expect(page.locator("tbody tr")).to_have_count(len(names))
        links = page.locator("tbody th a")
        looks = {(links.nth(i).inner_text(), _width(links.nth(i))) for i in range(len(names))}
        assert len(looks) == len(names)


def test_names_beyond_ascii_show_their_escaped_form_at_any_width(
    dash: str, story: Story, viewer: Viewer
) -> None:
    for name in (REAL, *ALL.values()):
        story.hold(name)
    for width in (360, 1280):
        with viewer(dash, viewport={"width": width, "height": 740}) as page:
            expect(page.locator("tbody .in-ascii")).to_have_count(len(OTHER_LETTERS))
            names = page.locator("tbody th").all_inner_texts()
            assert len({*names}) == len(ALL) + 1
            assert page.evaluate("document.documentElement.scrollWidth") == width


def _width(link: Any) -> float:
    return float(link.evaluate("node => node.getBoundingClientRect().width"))
