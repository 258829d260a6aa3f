"""Reading a long range page by page, against a store that is a sorted list of keys."""

from __future__ import annotations

from bisect import bisect_left

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockclient.etcd.paging import Pages

SPAN = (b"/locks/", b"/locks0")


class Store:
    """Answers as etcd does, and counts the keys that etcd walks for it."""

    def __init__(self, keys: list[bytes]) -> None:
        self.keys = sorted(keys)
        self.walked: list[int] = []

    def read_all(self, limit: int) -> list[bytes]:
        """Return all keys of the span, read in pages of `limit`."""
        found: list[bytes] = []
        pages, going_on = Pages(SPAN), True
        while going_on:
            assert pages.key < pages.range_end <= SPAN[1]
            start = bisect_left(self.keys, pages.key)
            end = bisect_left(self.keys, pages.range_end)
            self.walked.append(end - start)
            page = self.keys[start : min(end, start + limit)]
            found += page
            more = end - start > limit
            going_on = pages.read(page[-1] if more else b"", more=more)
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
    """Whatever the keys are, also such as no client of ours would write, and however small a page
    is; keys outside of the range are left alone."""
    inside = [SPAN[0] + key for key in keys]
    outside = [b"/lock", b"/locks", b"/locks0", b"/queue/x/y"]
    store = Store(inside + outside)
    assert store.read_all(limit) == sorted(inside)
    assert len(store.walked) <= 40 * (len(keys) + 1)


def test_a_short_range_is_one_request() -> None:
    """As it is nearly everywhere."""
    store = Store(below([f"job-{number}" for number in range(50)]))
    assert len(store.read_all(100)) == 100
    assert store.walked == [100]


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
