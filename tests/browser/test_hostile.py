"""Whatever a lock says about itself is text on the page, in every field, and moves nothing."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import Story, Viewer
from tests.support.polls import ALL, REAL
from tests.support.soak import soaking

pytestmark = pytest.mark.browser

SCRIPT = "<script>alert(1)</script>"
IMAGE = "<img src=x onerror=alert(1)>"
TEXTS = (
    *(SCRIPT, IMAGE, "</script></pre></td></table>", "\"' onfocus=alert(1) autofocus x='"),
    *("javascript:alert(1)", "{{7*7}}{% raise %}", "&lt;b&gt;&#60;", "<svg/onload=alert(1)>"),
    *("<iframe srcdoc='<script>alert(1)</script>'>", "🔒" * 63, "<style>*{display:none}</style>"),
)


def elements(page: Page) -> Any:
    """Count what could only have come out of a text; `main` has scripts and images nowhere."""
    return page.locator("main :is(script, img, iframe, style, [onerror], [onfocus], [onload])")


@pytest.mark.parametrize("texts", [TEXTS[:4], *soaking((TEXTS[4:],))], ids=["some", "others"])
def test_markup_in_any_field_shows_as_text(
    texts: tuple[str, ...], forcing: str, story: Story, viewer: Viewer
) -> None:
    held, gone = {}, {}
    kinds = ("hostname", "thread", "reason", "identity", "client")
    for text in texts:
        fields: dict[str, Any] = dict.fromkeys(kinds, text)
        holder = story.hold(text, **fields, backtrace=text * 5)
        held[text] = holder.uuid
        story.wait(holder, hostname=text, thread=text, reason=text)
        dead = story.hold(f"-{text}", **fields)
        gone[text] = dead.uuid
        story.remove(dead, removed_at=5.0, removed_by=text, how=text, why=text)
    with viewer(forcing) as page:
        expect(page.locator("tbody tr:not(.ended)")).to_have_count(len(texts))
        for text in texts:
            path = quote(text, safe="")
            for address in (
                *(f"/lock/-{path}", f"/removal?name=-{path}&uuid={gone[text]}"),
                *(f"/locks/{path}/force-unlock?uuid={held[text]}", f"/?q={path}"),
            ):
                page.goto(forcing + address)
                expect(page.get_by_text(text, exact=True).first).to_be_visible()
                expect(elements(page)).to_have_count(0)
            page.locator("tbody th").get_by_role("link", name=text, exact=True).click()
            expect(page.get_by_role("heading", level=1)).to_have_text(text)
            expect(page.locator("pre")).to_have_text(text * 5)
            expect(elements(page)).to_have_count(0)
        for address in ("/removed", "/timeline"):
            page.goto(forcing + address)
            for text in texts:
                expect(page.get_by_text(text, exact=True).first).to_be_visible()
            expect(elements(page)).to_have_count(0)


def test_hostile_text_that_comes_in_later_is_text_too(
    dash: str, story: Story, viewer: Viewer
) -> None:
    """The way through the script that puts new answers into an open page."""
    with viewer(dash) as page:
        story.hold(IMAGE, hostname=SCRIPT)
        expect(page.get_by_role("link", name=IMAGE, exact=True)).to_be_visible(timeout=15_000)
        expect(page.locator("tbody tr")).to_contain_text(SCRIPT)
        expect(elements(page)).to_have_count(0)


def test_controls_and_direction_marks_show_and_move_nothing(
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


def test_two_names_that_look_alike_look_different(dash: str, story: Story, viewer: Viewer) -> None:
    names = ["a b", "a  b", "a\u200bb", "ab", " ab"]
    for name in names:
        story.hold(name)
    with viewer(f"{dash}/?sort=name") as page:
        expect(page.locator("tbody tr")).to_have_count(len(names))
        links = page.locator("tbody th a")
        looks = {(links.nth(i).inner_text(), _width(links.nth(i))) for i in range(len(names))}
        assert len(looks) == len(names)


def test_names_that_look_like_another_s_say_so_on_any_width(
    dash: str, story: Story, viewer: Viewer
) -> None:
    for name in (REAL, *ALL.values()):
        story.hold(name)
    for width in (360, 1280):
        with viewer(dash, viewport={"width": width, "height": 740}) as page:
            expect(page.locator("tbody .alike")).to_have_count(len(ALL) + 1)
            names = page.locator("tbody th a").all_inner_texts()
            assert len({*names}) == len(ALL) + 1
            assert all(name.isascii() for name in names)
            assert page.evaluate("document.documentElement.scrollWidth") == width


def _width(link: Any) -> float:
    return float(link.evaluate("node => node.getBoundingClientRect().width"))


def test_a_backtrace_of_angle_brackets_scrolls_inside_its_box(
    dash: str, story: Story, viewer: Viewer
) -> None:
    story.hold("a", backtrace="<" * 16_000)
    with viewer(f"{dash}/lock/a", viewport={"width": 360, "height": 740}) as page:
        expect(page.locator("pre")).to_contain_text("<<<")
        assert page.evaluate("document.documentElement.scrollWidth") == 360
