"""Reading a long range page by page, against a store that is a sorted list of keys."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockclient.stores.etcd.wire import paging
from lockclient.stores.etcd.wire.paging import Pages

SPAN = (b"/locks/", b"/locks0")


class Store:
    """Answers as etcd does, and counts the keys that etcd walks for it.

    Args:
        keys: what it holds; a key's value has `size_of(key)` bytes.
        taken: bytes of an answer that is taken, more are refused.
    """

    def __init__(
        self,
        keys: list[bytes],
        size_of: Callable[[bytes], int] = len,
        taken: float = math.inf,
    ) -> None:
        self.keys = sorted(keys)
        self.walked: list[int] = []
        self.sizes: list[int] = []
        self.asked: list[tuple[bytes, bytes, int]] = []
        self._size_of = size_of
        self._taken = taken

    def read_all(self, most: int | None = None) -> list[bytes]:
        """Return all keys of the span; `most`: of a page."""
        found: list[bytes] = []
        pages, going_on = Pages(SPAN, most), True
        while going_on:
            assert pages.key < pages.range_end <= SPAN[1]
            self.asked.append((pages.key, pages.range_end, pages.limit))
            start = bisect_left(self.keys, pages.key)
            end = bisect_left(self.keys, pages.range_end)
            self.walked.append(end - start)
            page = self.keys[start : min(end, start + pages.limit)]
            size = sum(map(self._size_of, page))
            if size > self._taken:
                assert pages.ask_for_fewer(), "a single key is taken"
                continue
            found += page
            self.sizes.append(size)
            more = end - start > pages.limit
            following = page[-1] + b"\0" if more else b""
            going_on = pages.read(following, more=more, keys=len(page), size=size)
        return found


def below(names: list[str]) -> list[bytes]:
    return [f"/locks/{name}/{part}".encode() for name in names for part in ("alert_at", "uuid")]


keys = st.lists(
    st.binary(min_size=1, max_size=6) | st.text("ab/%", min_size=1, max_size=9).map(str.encode),
    max_size=60,
    unique=True,
)


@given(keys, st.integers(1, 9))
def test_each_key_is_read_once_and_in_order(keys: list[bytes], limit: int) -> None:
    inside = [SPAN[0] + key for key in keys]
    outside = [b"/lock", b"/locks", b"/locks0", b"/queue/x/y"]
    store = Store(inside + outside)
    assert store.read_all(limit) == sorted(inside)
    assert len(store.walked) <= 40 * (len(keys) + 1)


@given(keys, st.lists(st.integers(0, 3_000_000), min_size=1, max_size=9), st.integers(1, 64))
def test_no_page_is_requested_twice(keys: list[bytes], sizes: list[int], taken: int) -> None:
    inside = [SPAN[0] + key for key in keys]
    store = Store(inside, lambda key: sizes[hash(key) % len(sizes)], max(*sizes, taken * 1_000_000))
    assert store.read_all() == sorted(inside)
    assert len(set(store.asked)) == len(store.asked)


@pytest.mark.parametrize("size", [10, 450, 16_000, 64_000, 1_500_000])
def test_a_page_is_of_about_a_million_bytes(size: int) -> None:
    store = Store(below([f"job-{number:05}" for number in range(3000)]), lambda _: size)
    assert len(store.read_all()) == 6000
    assert store.sizes[0] == paging.FIRST_KEYS * size
    assert max(store.sizes[1:]) <= max(paging.PAGE_BYTES, size)
    assert store.asked[0][2] == paging.FIRST_KEYS
    least = 6000 * size / min(paging.PAGE_BYTES, paging.MAX_KEYS * size)
    assert len(store.asked) <= 6 * least + 10


@pytest.mark.parametrize(
    "names",
    [
        [f"bench-{number:06d}" for number in range(20_000)],
        [f"bench-{number}" for number in range(20_000)],
        [f"{number * 2654435761 % 2**32:08x}" for number in range(20_000)],
        [f"team-{number % 7}%2Fservice-{number % 113}%2F{number}" for number in range(20_000)],
    ],
    ids=["counted", "counted without zeros", "random", "by team and service"],
)
def test_a_long_range_is_not_walked_to_its_end_for_each_page(names: list[str]) -> None:
    """The first page is; all others together walk it a few times, in a few requests a page."""
    store = Store(below(names))
    limit = 400
    found = store.read_all(limit)
    assert found == store.keys
    least = len(found) / limit
    assert len(store.walked) <= 6 * least
    assert sum(store.walked[1:]) <= 0.15 * least * len(found), "half of it would be to the end"
