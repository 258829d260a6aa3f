"""Reading a long range page by page. No I/O.

etcd walks all keys up to the end of the range that it is asked for, whatever the limit (it counts
them): with 1,100,000 keys each page of 1,000 cost it 0.3 s, in which nobody could write, and all of
them together minutes. So every page but the first ends at the next key that differs from its first
one within some leading bytes, and each answer says how many bytes are right for the next one: a
full page spans about what its first and last key have in common, one that is not full should be
wider. That is a guess, and a bad one costs an empty answer, or a longer walk, never a key.
"""

from __future__ import annotations

from itertools import takewhile


class Pages:
    """The pages of one range, in order: `key` up to `range_end` is the one to read next.

    Args:
        span: the first key and the end of the range, as for all keys below a prefix.
    """

    def __init__(self, span: tuple[bytes, bytes]) -> None:
        self.key, self.range_end = span
        self._end = span[1]
        self._same = len(span[0])

    def read(self, last: bytes, *, more: bool) -> bool:
        """Go on after an answer; False if that was all.

        Args:
            last: the last key that it brought; not looked at without `more`.
            more: there are further keys before `range_end`.
        """
        if more:
            self._same = _in_common(self.key, last) + 1
            self.key = last + b"\0"
        elif self.range_end == self._end:
            return False
        else:
            self._same -= 1
            self.key = self.range_end
        self.range_end = min(_after(self.key[: self._same]), self._end)
        return True


def _in_common(one: bytes, other: bytes) -> int:
    """Return how many leading bytes are the same."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


def _after(prefix: bytes) -> bytes:
    """Return the end of all keys that begin with `prefix`."""
    prefix = prefix.rstrip(b"\xff")
    return prefix[:-1] + bytes([prefix[-1] + 1])
