"""Links in the documents lead somewhere: to files that are there, and to headings in them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[3]
DOCUMENTS = [*CHECKOUT.glob("*.md"), *(CHECKOUT / "docs").glob("*.md")]


def anchors(path: Path) -> set[str]:
    """Return what links into a page may end with, as GitHub makes it of headings."""
    headings = re.findall(r"^#+ (.+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    plain = (re.sub(r"[^\w\- ]", "", each.lower()) for each in headings)
    return {each.strip().replace(" ", "-") for each in plain}


@pytest.mark.parametrize("page", DOCUMENTS, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        if "://" not in link:
            name, _, anchor = link.partition("#")
            target = (page.parent / name).resolve() if name else page
            assert target.exists(), link
            if anchor and target.suffix == ".md":
                assert anchor in anchors(target), link
