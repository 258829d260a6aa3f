"""Each page in each state: no horizontal overflow, and no serious finding of axe.

axe checks contrast, names, roles, headings and the reach of the keyboard, in both themes.
`make pictures` draws the pages for people.
"""

from __future__ import annotations

import pytest
from axe_playwright_python.sync_playwright import Axe  # type: ignore[import-untyped]
from playwright.sync_api import Page, ViewportSize, expect

from tests.browser.conftest import Viewer
from tests.browser.pictures import SIZES
from tests.browser.scenes import SCENES, shown
from tests.support.board import Board, served
from tests.support.soak import soaking

pytestmark = pytest.mark.browser

WIDTHS = (320, 390, 640, 700, 768, 992, 1200)
"""From the smallest phone on, and beside each change of the layout."""
_AXE = 'axe.run({resultTypes: ["violations"], preload: false}).then(found => found.violations)'
QUICK = ("day", "hostile")


def barriers(page: Page) -> list[str]:
    """Return the serious findings of axe, which the page has loaded, a line each."""
    return [
        f"{rule['impact']} {rule['id']}: {[node['target'] for node in rule['nodes']][:5]}"
        for rule in page.evaluate(_AXE)
        if rule["impact"] in ("serious", "critical")
    ]


def fit(page: Page, viewport: ViewportSize) -> None:
    """See that nothing sticks out to the side."""
    page.set_viewport_size(viewport)
    page.wait_for_function("width => innerWidth === width", arg=viewport["width"])
    assert page.evaluate("document.documentElement.scrollWidth") == viewport["width"]


@pytest.mark.parametrize("scene", [*QUICK, *soaking(*sorted(SCENES.keys() - set(QUICK)))])
def test_every_page_fits_and_has_no_barrier(scene: str, viewer: Viewer) -> None:
    """Axe, which takes longer than all else, sees each size and each theme once: what it says of
    colours depends on the theme, and all else on the size."""
    with shown(SCENES[scene]) as (url, paths, _), viewer(url, reduced_motion="reduce") as page:
        for name, path in paths.items():
            page.goto(url + path)
            expect(page.locator("#theme")).to_be_visible()
            page.evaluate(Axe().axe_script)
            for size, theme in (("wide", "light"), ("narrow", "dark")):
                page.emulate_media(color_scheme=theme)
                fit(page, SIZES[size])
                # Of more of the same axe says the same, slowly.
                assert scene == "many" or barriers(page) == [], f"{name}, {theme}, {size}"
            for width in WIDTHS:
                fit(page, {"width": width, "height": 740})
            assert page.evaluate("window.violations") == [], name


def test_a_page_before_anything_was_read_fills_itself(viewer: Viewer) -> None:
    board = Board()
    board.store.take("deploy/prod")
    with served(board.service) as url, viewer(url) as page:
        expect(page.get_by_text("has not answered so far")).to_be_visible()
        with board:
            expect(page.get_by_role("link", name="deploy/prod")).to_be_visible(timeout=60_000)
