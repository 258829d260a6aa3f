"""Paging: a long range in pages of about the same number of bytes. No I/O.

**How many keys.** Other clients' values may be large, and a limit counts keys. So the first page
has few keys. Each answer's bytes per key give the limit of the next page: about `PAGE_BYTES` bytes,
and at most four times the keys before. gRPC refuses an answer of more than `MAX_ANSWER_BYTES`,
which etcd made for nothing. Then the next page has `SAFE_KEYS` keys, which always fit, or half as
many. Where etcd sends no values (`keys_only`), it still reads them, and their size is unknown: such
a page has `MAX_KEYS_UNSEEN` keys at most.

**Where a page ends.** etcd walks all keys up to the end of the range, whatever the limit, to count
them: with 1,100,000 keys each page of 1,000 blocked all writes for 0.3 s. So the range of each page
but the first ends at the next key that differs from its first key within some leading bytes. A full
page's first and last key have about that many bytes in common; a page that is not full makes the
next range wider. A bad guess costs an empty answer or a longer walk, never a key.
"""

from __future__ import annotations

from itertools import takewhile

PAGE_BYTES = 1_000_000
"""Bytes that a page should have."""
MAX_ANSWER_BYTES = 16 * 1024 * 1024
"""Bytes of the largest answer that gRPC accepts: more than any value that etcd accepts."""
MAX_VALUE_BYTES = 1536 * 1024
"""Bytes of the largest value that etcd accepts by default."""
SAFE_KEYS = MAX_ANSWER_BYTES // MAX_VALUE_BYTES
"""Keys whose answer is never too large."""
FIRST_KEYS, MAX_KEYS, MAX_KEYS_UNSEEN = 64, 500, 250
"""Keys of the first page, and at most of a page with values and of one without."""


class Pages:
    """The pages of one range, in order; the next one is from `key` to `range_end`.

    Args:
        span: the first key and the end of the range.
        most: keys of a page; None: `MAX_KEYS`.
    """

    def __init__(self, span: tuple[bytes, bytes], most: int | None = None) -> None:
        self.key, self.range_end = span
        self._most = MAX_KEYS if most is None else most
        self.limit = min(FIRST_KEYS, self._most)
        """The limit of the next request."""
        self._end = span[1]
        self._same = len(span[0])

    def read(self, following: bytes, *, more: bool, keys: int, size: int) -> bool:
        """Continue after an answer; return False after the last page.

        Args:
            following: with `more`, the key at which the next page begins.
            more: there are further keys before `range_end`.
            keys: the answer's keys.
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
        """Lower the limit, because the answer was too large; return False if it was one key."""
        self.limit, before = max(1, min(self.limit // 2, SAFE_KEYS)), self.limit
        return before > 1


def _in_common(one: bytes, other: bytes) -> int:
    """Return the number of equal leading bytes."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


def _after(prefix: bytes) -> bytes:
    """Return the end of the range of keys that begin with `prefix`."""
    prefix = prefix.rstrip(b"\xff")
    return prefix[:-1] + bytes([prefix[-1] + 1])
