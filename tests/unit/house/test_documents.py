"""The documents: links lead somewhere, no page repeats another, each promise has a test."""

from __future__ import annotations

import re
from itertools import combinations
from pathlib import Path

import pytest

from reference import api
from tests.proof.mutate import all_mutants

CHECKOUT = Path(__file__).parents[3]
DOCUMENTS = [*CHECKOUT.glob("*.md"), *(CHECKOUT / "docs").glob("*.md")]


def anchors(path: Path) -> set[str]:
    """Return what links into a page may end with, as GitHub makes it of headings."""
    headings = re.findall(r"^#+ (.+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    plain = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings)
    return {heading.strip().replace(" ", "-") for heading in plain}


@pytest.mark.parametrize("page", DOCUMENTS, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        if "://" not in link:
            name, _, anchor = link.partition("#")
            target = (page.parent / name).resolve() if name else page
            assert target.exists(), link
            if anchor and target.suffix == ".md":
                assert anchor in anchors(target), link


# ---------------------------------------------------------------- their length

GENERATED = {"api.md", "command.md"}
MOST_WORDS = 24_000
RUN, MOST_SHARED = 7, 5
"""Of so many words in a row, so many may be the same in two pages."""


def prose(path: Path) -> str:
    """Return a page's text without its code and tables."""
    text = re.sub(
        r"^```.*?^```", "", path.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE
    )
    return "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("|"))


def runs(path: Path) -> set[tuple[str, ...]]:
    """Return the runs of seven words in a page's prose."""
    words = re.findall(r"[\w'-]+", prose(path).lower())
    return {tuple(words[start : start + RUN]) for start in range(len(words) - RUN + 1)}


PAGES = [path for path in sorted((CHECKOUT / "docs").glob("*.md")) if path.name not in GENERATED]


def test_the_pages_stay_short() -> None:
    assert sum(len(prose(page).split()) for page in PAGES) <= MOST_WORDS


def test_no_two_pages_repeat_each_other() -> None:
    found = {page.name: runs(page) for page in [*PAGES, CHECKOUT / "README.md"]}
    for (one, here), (other, there) in combinations(found.items(), 2):
        shared = {" ".join(words) for words in here & there}
        assert len(shared) <= MOST_SHARED, f"{one} and {other} share {sorted(shared)}"


# ---------------------------------------------------------------- docs/api.md


def test_the_page_is_up_to_date() -> None:
    assert api.PAGE.read_text(encoding="utf-8") == api.text(), "make reference"


# ---------------------------------------------------------------- the promises of the README

_, _, _AFTER = (CHECKOUT / "README.md").read_text(encoding="utf-8").partition("## What is promised")
PROMISED = set(re.findall(r"^(\d+)\. ", _AFTER.partition("\n## ")[0], re.MULTILINE))
MARK = re.compile(r"^\s*@pytest\.mark\.promise\(number=(\d+)\)$", re.MULTILINE)


ROW = re.compile(r"^\| (\d) \| `(tests/\S+)` \| `(\S+)` \|$", re.MULTILINE)


def test_each_promise_has_a_test_that_finds_a_planted_bug() -> None:
    rows = ROW.findall((CHECKOUT / "docs/reliability.md").read_text(encoding="utf-8"))
    mutants = {mutant.name: mutant for mutant in all_mutants()}
    assert {number for number, _, _ in rows} == PROMISED
    for number, test, bug in rows:
        file, _, name = test.partition("::")
        assert mutants[bug].found_by == f"pytest {test}"
        source = (CHECKOUT / file).read_text(encoding="utf-8")
        above = source.partition(f"def {name.rpartition('::')[2]}(")[0].rpartition("\n\n")[2]
        assert number in MARK.findall(above), f"{test} has no marker of promise {number}"


def test_each_has_tests() -> None:
    """`pytest -m 'promise(number=3)'` finds them."""
    proved: set[str] = set()
    for path in (CHECKOUT / "tests").rglob("test_*.py"):
        proved.update(MARK.findall(path.read_text(encoding="utf-8")))
    assert PROMISED
    assert proved == PROMISED
