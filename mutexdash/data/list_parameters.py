"""Query parameters of a list: search, state, sort order, page."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from lockclient.overview.columns_and_order import SORTS
from lockclient.overview.lock_status import VERDICTS
from lockclient.overview.search import Search

PER_PAGE: Final = 100
MAX_PER_PAGE: Final = 1000
_MAX_SEARCH_CHARS: Final = 300
_MAX_SEARCH_WORDS: Final = 20
"""A longer search is one phrase. With 50,000 locks each word takes some 20 ms of a core."""
_MAX_PAGE: Final = 1_000_000


class Page(NamedTuple):
    """The requested part of a list of `total` items."""

    items: Sequence[Any]
    total: int
    number: int
    size: int

    @property
    def last(self) -> int:
        """The number of the last page, 1 if there is nothing."""
        return max(1, -(-self.total // self.size))


WAITERS: Final = "waiters"
FILTERS: Final = (*VERDICTS, WAITERS)
"""Values of `state`: a verdict, or `waiters` for the locks that have some."""


class BadParameter(ValueError):
    """A parameter is malformed; the text is a sentence that names it and says what it takes."""


@dataclass(frozen=True, slots=True)
class Query:
    """A page of a list, `state` one of `FILTERS` or empty, `sort` with a leading `-` reversed."""

    text: str = ""
    state: str = ""
    sort: str = "state"
    page: int = 1
    per_page: int = PER_PAGE

    @property
    def search(self) -> Search:
        found = Search.read(self.text)
        # Pages and alerts link to the search for a lock's name, which may have more words.
        return found if len(found.terms) <= _MAX_SEARCH_WORDS else Search.of([self.text])

    def page_of(self, found: Sequence[Any]) -> Page:
        """Return the requested page of everything that was found."""
        start = (self.page - 1) * self.per_page
        return Page(found[start : start + self.per_page], len(found), self.page, self.per_page)

    @classmethod
    def read(cls, args: Mapping[str, str], taken: Collection[str]) -> Query:
        """Read a URL's parameters, or raise BadParameter if one is not in `taken` or malformed."""
        unknown = sorted(args.keys() - set(taken))
        if unknown:
            raise BadParameter(
                f"There is no parameter {unknown[0]!r} here; there are {', '.join(taken)}."
            )
        text = args.get("q", "").strip()
        if len(text) > _MAX_SEARCH_CHARS:
            raise BadParameter(
                f"The parameter q may have {_MAX_SEARCH_CHARS} characters; this one has "
                f"{len(text)}."
            )
        sort = args.get("sort") or "state"
        if sort.removeprefix("-") not in SORTS:
            raise BadParameter(
                f"The parameter sort must be one of {', '.join(SORTS)}, "
                f"or one of them with a - in front for the other way round; it is {sort!r}."
            )
        state = args.get("state", "")
        if state and state not in FILTERS:
            raise BadParameter(
                f"The parameter state must be one of {', '.join(FILTERS)}; it is {state!r}."
            )
        page = _number(args, "page", 1, _MAX_PAGE)
        return cls(text, state, sort, page, _number(args, "per_page", PER_PAGE, MAX_PER_PAGE))


def _number(args: Mapping[str, str], name: str, default: int, most: int) -> int:
    text = args.get(name)
    if text is None:
        return default
    # isdecimal alone takes digits of other scripts, and int() takes underscores and blanks.
    if text.isascii() and text.isdecimal() and len(text) < 10 and 1 <= int(text) <= most:
        return int(text)
    raise BadParameter(
        f"The parameter {name} must be a whole number from 1 to {most}; it is {text[:40]!r}."
    )
