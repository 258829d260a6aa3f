"""Sorting and paging: which of very many rows stand on a page, without sorting all of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from heapq import nlargest, nsmallest
from typing import Any

from lockclient.overview.columns import SORTS
from mutexdash.data.query import WAITERS, Page, Query
from mutexdash.data.rows import Held

_HEAP_IF_FEWER = 10
"""A heap of the first so-and-so-many is quicker than sorting all when it is so much smaller."""


def urgency_of(held: Held) -> tuple[Any, ...]:
    """Return by what locks stand in the order `state`; no two of a picture have the same."""
    return held.urgency, held.holder.name


def select(rows: Sequence[Held], query: Query, gone: Iterable[Held] = ()) -> Page:
    """Return a page of `rows`, which stand in the order `state`, and in between those of `gone`
    that would stand there.

    Only `rows` count: which page of them it is does not change when something goes.
    """
    found = _matching(rows, query)
    start, end = (query.page - 1) * query.per_page, query.page * query.per_page
    # What is looked for most stands in its order already.
    upto = found[: end + 1] if query.sort == "state" else _first(found, query.sort, end + 1)
    items = upto[start:end]
    between = _matching(list(gone), query)
    if between and (items or query.page == 1):
        # On one page only: from its first row to the first of the next page.
        after = upto[end:]
        mixed = [*items, *after, *between]
        placed = _first(mixed, query.sort, len(mixed))
        first = placed.index(items[0]) if start else 0
        items = placed[first : placed.index(after[0]) if after else None]
    return Page(items, len(found), query.page, query.per_page)


def _matching(rows: Sequence[Held], query: Query) -> Sequence[Held]:
    if query.state == WAITERS:
        rows = [held for held in rows if held.waiters]
    elif query.state:
        rows = [held for held in rows if query.state in held.standing.words]
    if not query.text:
        return rows
    search = query.search
    return [held for held in rows if search.holds(held.holder, held.text, held.standing.words)]


def _first(rows: Sequence[Held], sort: str, count: int) -> Sequence[Held]:
    """Return the first rows of an order; of equal ones the one whose name comes first."""
    value = SORTS[sort.removeprefix("-")]
    backwards = sort.startswith("-")

    def place(held: Held) -> tuple[Any, str, bool]:
        return value(held), held.holder.name, held.ended is not None

    known = [held for held in rows if value(held) is not None]
    if count * _HEAP_IF_FEWER < len(known):
        first = (nlargest if backwards else nsmallest)(count, known, place)
    else:
        first = sorted(known, key=place, reverse=backwards)[:count]
    if len(first) < count and len(known) < len(rows):
        unknown = [held for held in rows if value(held) is None]
        unknown.sort(key=lambda held: held.holder.name)
        first += unknown[: count - len(first)]
    return first
