"""The pictures of the documentation: `make pictures` draws them into `docs/pictures/`.

And each page of each scene, light and dark, wide and narrow, into `artifacts/screenshots/`: look at
them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from playwright.sync_api import Browser, FloatRect, Page, ViewportSize, expect, sync_playwright

from tests.browser.scenes import SCENES, shown
from tests.support.processes import needed

FOLDER = Path(__file__).parents[2] / "docs" / "pictures"
SCREENSHOTS = Path(__file__).parents[2] / "artifacts" / "screenshots"
DOCUMENTED = ("locks", "lock", "force", "timeline")
SIZES: dict[str, ViewportSize] = {
    "wide": {"width": 1400, "height": 900},
    "narrow": {"width": 390, "height": 844},
}
SEEN: Final = 4000
"""Pixels from the top that a picture shows: of a hundred rows nobody looks at the last one."""


def draw(browser: Browser) -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    with shown(SCENES["day"]) as (url, paths, _):
        context = browser.new_context(
            viewport=SIZES["wide"], color_scheme="light", reduced_motion="reduce",
            timezone_id="Europe/Berlin",
        )  # fmt: skip
        page = context.new_page()
        for name in DOCUMENTED:
            page.goto(url + paths[name])
            expect(page.locator("#theme")).to_be_visible()
            page.screenshot(path=FOLDER / f"dashboard-{name}.png", full_page=name != "locks")
        context.close()


def draw_all(browser: Browser) -> None:
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    for scene, of in SCENES.items():
        with shown(of) as (url, paths, _):
            page = browser.new_page(reduced_motion="reduce")
            for name, path in paths.items():
                page.goto(url + path)
                expect(page.locator("#theme")).to_be_visible()
                for size, viewport in SIZES.items():
                    page.set_viewport_size(viewport)
                    for theme in ("light", "dark"):
                        page.emulate_media(color_scheme=theme)
                        shoot(page, SCREENSHOTS / f"{scene}-{name}-{theme}-{size}.png")
            page.close()


def shoot(page: Page, path: Path) -> None:
    """Write a picture of the page, or of its beginning if it is long."""
    size = page.evaluate("[innerWidth, document.documentElement.scrollHeight]")
    clip: FloatRect = {"x": 0, "y": 0, "width": size[0], "height": min(size[1], SEEN)}
    page.screenshot(path=path, full_page=True, clip=clip)


def main() -> None:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=needed("chromium"), args=["--no-sandbox"]
        )
        draw(browser)
        draw_all(browser)
        browser.close()


if __name__ == "__main__":
    main()
