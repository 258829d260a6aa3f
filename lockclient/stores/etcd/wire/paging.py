"""Paging: a long range in pages of about the same number of bytes. No I/O.

What others have written may be large, and a limit of keys says nothing about that. So the first
page is of few keys, and each answer tells how many the next one may have: what its keys took on the
average, up to about `PAGE_BYTES` bytes, and no more than four times as many as before. Values may
grow from one key to the next all the same. An answer larger than `MAX_ANSWER_BYTES` is not taken by
gRPC, and one that is much larger does not even come in time; but etcd has made it by then, of half
a gigabyte or more where `MAX_KEYS` keys are as large as can be. So the next question is for as few
keys as are sure to fit (`SAFE_KEYS`), or half as many where that was not few enough, down to one.
The same large question is never asked twice, and there are few: it takes some small pages to come
to so many keys again.

Nothing tells beforehand how large values are, and etcd has them at hand even where it sends none
(`keys_only`): then there is nothing to learn by, and a page has `MAX_KEYS_UNSEEN` keys at most.

etcd walks all keys up to the end of the range that it is asked for, whatever the limit (it counts
them): with 1,100,000 keys each page of 1,000 cost it 0.3 s, in which nobody could write, and all of
them together minutes. So every page but the first ends at the next key that differs from its first
one within some leading bytes, and each answer says how many bytes are right for the next one: a
full page spans about what its first and last key have in common, one that is not full should be
wider. That is a guess, and a bad one costs an empty answer, or a longer walk, never a key.
"""

from __future__ import annotations

from itertools import takewhile

PAGE_BYTES = 1_000_000
"""Bytes of a page, about."""
MAX_ANSWER_BYTES = 16 * 1024 * 1024
"""Bytes of the largest answer that is taken: any one value that etcd takes, and then some."""
MAX_VALUE_BYTES = 1536 * 1024
"""Bytes of the largest value that an etcd takes which nobody has told otherwise."""
SAFE_KEYS = MAX_ANSWER_BYTES // MAX_VALUE_BYTES
"""Keys of which no answer is too large."""
FIRST_KEYS, MAX_KEYS, MAX_KEYS_UNSEEN = 64, 500, 250
"""Keys of the first page, of any, and of any without values."""


class Pages:
    """The pages of one range, in order: `key` up to `range_end` is the one to read next.

    Args:
        span: the first key and the end of the range, as for all keys below a prefix.
        most: keys of a page; None: `MAX_KEYS`.
    """

    def __init__(self, span: tuple[bytes, bytes], most: int | None = None) -> None:
        self.key, self.range_end = span
        self._most = MAX_KEYS if most is None else most
        self.limit = min(FIRST_KEYS, self._most)
        """How many keys to ask for."""
        self._end = span[1]
        self._same = len(span[0])

    def read(self, following: bytes, *, more: bool, keys: int, size: int) -> bool:
        """Go on after an answer; False if that was all.

        Args:
            following: the first key of use after the last one that it brought; not looked at
                without `more`.
            more: there are further keys before `range_end`.
            keys: how many it brought.
            size: its bytes.
        """
        if keys:
            fitting = PAGE_BYTES * keys // max(size, 1)
            self.limit = max(1, min(fitting, 4 * self.limit, self._most))
        if more:
            self._same = _in_common(self.key, following) + 1
            self.key = following
        elif self.range_end == self._end:
            return False
        else:
            self._same -= 1
            self.key = self.range_end
        self.range_end = min(_after(self.key[: self._same]), self._end)
        return True

    def ask_for_fewer(self) -> bool:
        """Ask for less, because the answer was too large; False if it was for one key."""
        self.limit, before = max(1, min(self.limit // 2, SAFE_KEYS)), self.limit
        return before > 1


def _in_common(one: bytes, other: bytes) -> int:
    """Return how many leading bytes are the same."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


def _after(prefix: bytes) -> bytes:
    """Return the end of all keys that begin with `prefix`."""
    prefix = prefix.rstrip(b"\xff")
    return prefix[:-1] + bytes([prefix[-1] + 1])
