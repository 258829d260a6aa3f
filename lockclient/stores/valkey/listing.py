"""Listing of all locks for services: a scan of all servers' indexes at once, then what is new.

**A poll** scans the index of each server in small pages, and reads of each lock its uuid and the
number of its last push. It reads the rest only of locks for which these have changed, from one
server that answered the same. A server that does not answer all pages has no vote in this poll.

**The holder** of a lock is the uuid that a majority names. While servers are unreachable, a lock is
also listed if their votes could complete a majority: it may be held. Other uuids (a take that is
being withdrawn, a key of a killed taker, a release that has not arrived everywhere) hold no lock,
and are left out. `warnings` reports both.

**Records of removals** and announcements are listed if any server has them, as `show` does. A
record is left out as long as its lock is held: that removal did not happen.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from statistics import median
from typing import Final, NamedTuple
from urllib.parse import unquote

from lockclient.errors import StoreUnavailable
from lockclient.model.clocks import Deadline, monotonic
from lockclient.model.holder import MAX_UUID_BYTES, MAX_VALUE_BYTES, SUBKEYS
from lockclient.model.removal import MAX_RECORD
from lockclient.stores.common.polling import Key, KnownItem, StoredItem
from lockclient.stores.common.segments import decode, encode
from lockclient.stores.valkey import errors, reads
from lockclient.stores.valkey.keys import number_of, subkeys_of
from lockclient.stores.valkey.lua_scripts import Answers, Command, Script
from lockclient.stores.valkey.voting.quorum import decoded
from lockclient.stores.valkey.voting.rounds import (
    MIN_ROUND_S,
    ROUND_PAUSES_S,
    SETTLED_ROUNDS,
    Plan,
    Rounds,
)
from lockclient.stores.valkey.wire.broadcast import ROUND_TIMEOUT_S, Round
from lockclient.stores.valkey.wire.connection import SCAN_COUNT
from lockclient.threads.backoff import Backoff

_MAX_WARNINGS: Final = 20
_MAX_READ_LOCKS: Final = 100
_MAX_DIGITS: Final = 15
"""Digits of an announcement's number, as in JSON."""
_RETRY_S: Final = 3.0
"""Seconds for which a scan with too few answers is repeated."""

Folder = dict[str, str]
"""The keys of one folder on one server, by their last segments: `<number> <uuid>` of each, or the
length of a record. Equal texts are compared and not parsed: 20,000 locks on five servers need
nothing else."""
Folders = Mapping[int, Folder]
"""A folder on each server that answered all pages."""


class _Values(NamedTuple):
    """Values to read of a folder's keys: fields (none: strings), and the most bytes of each."""

    fields: tuple[str, ...]
    max_bytes: int


_VALUES: Final = {
    "locks": _Values((*SUBKEYS, "push"), MAX_VALUE_BYTES),
    "unlockers": _Values(("said",), MAX_VALUE_BYTES),
    "removed": _Values((), MAX_RECORD),
}
_LIVE: Final = {"removed": "sum", "locks": "push", "unlockers": "number"}
"""The part of each key that a poll reads, see `reads.LIST`: of records a checksum alone.

The checksum comes before the locks. Else a lock that is removed in between is listed as held, so
that its record is left out, and no later checksum differs.
"""


class KeyListing:
    """Lists the keys of all servers; see `polling.Source`.

    Args:
        rounds: asks them.
    """

    def __init__(self, rounds: Rounds) -> None:
        self._rounds, self._all = rounds, rounds.all
        self._quorum = rounds.quorum
        self.ahead: Mapping[int, float] = {}
        """Seconds that each server's clock is ahead of our monotonic one."""
        self._clock_offset: float | None = None  # the median of these in the first scan
        self._record_sums: dict[int, int] = {}
        self._held: dict[str, tuple[str, int]] = {}  # a lock's text, and a server that has it
        # Names that not all servers have: how many have them or, without a majority, a sentence.
        # Only those of two polls in a row: others are being taken or released.
        self._incomplete: dict[str, int | str] = {}
        self._incomplete_last_poll: dict[str, int | str] | None = None

    def now(self) -> float:
        """See `polling.Source`: by our clock, set to the median of the servers' at the first scan.

        Any server's clock may be set later, and revisions never go back. Nothing compares the
        revisions of two processes.
        """
        return 0.0 if self._clock_offset is None else monotonic() + self._clock_offset

    def record_version(self) -> int:
        return hash(frozenset(self._record_sums.items()))

    def live(
        self, deadline: Deadline, known: Mapping[Key, KnownItem]
    ) -> Iterator[Sequence[StoredItem]]:
        folders, self._record_sums = self._scan(deadline, _LIVE)
        self._held, incomplete = self._merge_locks(folders["locks"])
        before = incomplete if self._incomplete_last_poll is None else self._incomplete_last_poll
        self._incomplete_last_poll = incomplete
        self._incomplete = {
            name: votes for name, votes in incomplete.items() if before.get(name) == votes
        }
        locks: dict[Key, int] = {
            ("locks", name, ""): hash(text) for name, (text, _) in self._held.items()
        }
        yield (same := self._same(locks, known))
        new = self._held.keys() - {item.name for item in same}
        where = {encode(name): self._held[name][1] for name in self._held if name in new}
        for values in self._values("locks", where, deadline):
            items = (self._lock(segment, found, deadline) for segment, found in values.items())
            yield [item for item in items if item is not None]
        yield list(self._announcements(_latest(folders["unlockers"]), deadline))

    def records(
        self, deadline: Deadline, known: Mapping[Key, KnownItem]
    ) -> Iterator[Sequence[StoredItem]]:
        folders, _ = self._scan(deadline, {"removed": "size"})
        new: dict[Key, tuple[int, str, int]] = {}
        for rest, (length, i) in most_recorded(folders["removed"]).items():
            segment, _, last = rest.partition("/")
            name, uuid = decode(segment), unquote(last)
            is_whole = 0 < len(uuid.encode(errors="replace")) <= MAX_UUID_BYTES
            if name is not None and is_whole and self._last_holder(name) != uuid:
                new["removed", name, uuid] = length, rest, i
        yield (same := self._same({key: length for key, (length, _, _) in new.items()}, known))
        for item in same:
            del new[item.key]
        keys = {rest: (key, length) for key, (length, rest, _) in new.items()}
        for values in self._values("removed", {rest: i for _, rest, i in new.values()}, deadline):
            found = [(*keys[rest], value[0]) for rest, value in values.items() if value]
            if len(found) < len(values):  # no later poll would read them
                where = ", ".join(self._rounds.location.endpoints)
                raise StoreUnavailable(f"One of {where} ended as it was read.", unknown=False)
            yield [
                StoredItem(*key, length, self.now(), {key[2]: (value, length)})
                for key, length, value in found
                if value is not None
            ]

    def _same(self, found: Mapping[Key, int], known: Mapping[Key, KnownItem]) -> list[StoredItem]:
        """Return the items whose version is known."""
        now = self.now()
        return [
            StoredItem(*key, version, now, {})
            for key, version in found.items()
            if key in known and known[key].version == version
        ]

    def held(self, deadline: Deadline) -> Iterable[str]:
        folders, _ = self._scan(deadline, {"locks": "push"})
        return self._merge_locks(folders["locks"])[0]

    # ------------------------------------------------------------ votes

    def warnings(self) -> Iterator[str]:
        """Yield sentences about names that fewer servers than a majority have."""
        texts = [(name, text) for name, text in self._incomplete.items() if isinstance(text, str)]
        for name, text in sorted(texts)[:_MAX_WARNINGS]:
            yield f"{name!r}: {text}."
        if len(texts) > _MAX_WARNINGS:
            yield f"And {len(texts) - _MAX_WARNINGS} more names are on too few servers."

    def thin(self) -> Mapping[str, int]:
        return {name: votes for name, votes in self._incomplete.items() if isinstance(votes, int)}

    def _last_holder(self, name: str) -> str | None:
        return _parsed(self._held[name][0])[1] if name in self._held else None

    def _merge_locks(
        self, folders: Folders
    ) -> tuple[dict[str, tuple[str, int]], dict[str, int | str]]:
        """Return by name each lock's text and a server that has it, and the incomplete ones."""
        found, incomplete = dict[str, tuple[str, int]](), dict[str, int | str]()
        quorum = self._quorum
        least = quorum.majority - (len(self._all) - len(folders))
        for segment in set[str]().union(*folders.values()):
            if (name := decode(segment)) is None:
                continue
            texts = {folder.get(segment) for folder in folders.values()}
            if len(texts) == 1 and (text := texts.pop()) is not None:
                found[name], number = (text, next(iter(folders))), len(folders)
            else:
                keys = [
                    (*_parsed(folder[segment]), i)
                    for i, folder in folders.items()
                    if segment in folder
                ]
                votes = Counter(uuid for _, uuid, _ in keys)
                holder = self._likeliest_holder(name, votes, keys, least)
                number = votes[holder]
                if number < quorum.majority:
                    incomplete[name] = quorum.minority_text(votes, len(folders))
                if number >= least:
                    push, _, i = max(key for key in keys if key[1] == holder)
                    found[name] = f"{push} {holder}", i
            if quorum.majority <= number < quorum.servers:
                incomplete[name] = number
        return found, incomplete

    def _likeliest_holder(
        self, name: str, votes: Counter[str], keys: Sequence[tuple[int, str, int]], least: int
    ) -> str:
        """Return the uuid with a majority; else, of those that may have one, the last known holder,
        as another key may be left of an ended lock; else the one with the most votes, then with the
        latest push."""
        majority, last_holder = self._quorum.majority, self._last_holder(name)
        pushes = {uuid: push for push, uuid, _ in sorted(keys)}

        def likelihood(uuid: str) -> tuple[bool, bool, int, int, str]:
            number = votes[uuid]
            still_held = uuid == last_holder and number >= least
            return number >= majority, still_held, number, pushes[uuid], uuid

        return max(votes, key=likelihood)

    # ------------------------------------------------------------ values

    def _announcements(
        self, found: Mapping[str, tuple[int, int]], deadline: Deadline
    ) -> Iterator[StoredItem]:
        where = {segment: i for segment, (_, i) in found.items()}
        for values in self._values("unlockers", where, deadline):
            for segment, texts in values.items():
                name, number = unquote(segment), found[segment][0]
                if texts and texts[0] is not None and encode(name) == segment:
                    text = {"": (texts[0], number)}
                    yield StoredItem("unlockers", name, "", number, self.now(), text)

    def _lock(
        self, segment: str, values: Sequence[bytes | None], deadline: Deadline
    ) -> StoredItem | None:
        """Return a lock as on a server that had the state which the scan found.

        If that has changed since, a majority is asked for this lock.
        """
        name = decode(segment) or ""
        item = self._item(name, dict(zip(_VALUES["locks"].fields, values, strict=False)))
        if item is not None and item.version == hash(self._held[name][0]):
            return item
        plan = Plan(
            self._rounds.reading(name, whole=True),
            self._quorum.is_known,
            lambda answers, _: self._quorum.latest_fields(answers),
            settled=SETTLED_ROUNDS,
        )
        fields: Mapping[str, bytes] = self._rounds.call(plan, deadline)
        return self._item(name, fields)

    def _item(self, name: str, fields: Mapping[str, bytes | None]) -> StoredItem | None:
        if (text := fields.get("uuid")) is None:
            return None
        uuid = text[: MAX_UUID_BYTES + 1].decode(errors="replace")
        push = number_of(fields.get("push") or b"")
        values = subkeys_of(fields, uuid, push)
        return StoredItem("locks", name, "", hash(f"{push} {uuid}"), self.now(), values)

    def _values(
        self, folder: str, where: Mapping[str, int], deadline: Deadline
    ) -> Iterator[dict[str, Sequence[bytes | None]]]:
        """Yield these keys' values in pages, each read from the server that is named for it.

        Longer values are cut, one byte above the limit. There are none from a server that failed.
        """
        fields, max_bytes = _VALUES[folder]
        how = (str(max_bytes + 1), str(len(fields)), *fields)
        begin = f"{self._rounds.keys.all}{folder}/"
        segments = iter(where)
        while part := [*islice(segments, _MAX_READ_LOCKS)]:
            keys: dict[int, list[str]] = {}
            for segment in part:
                keys.setdefault(where[segment], []).append(segment)
            args = {i: (*how, *(begin + segment for segment in keys[i])) for i in keys}
            values: dict[str, Sequence[bytes | None]] = dict.fromkeys(part, ())
            for i, reply in self._ask_each(reads.SHOW, args, deadline).answers.items():
                values.update(zip(keys[i], reply.rest[0], strict=True))
            yield values

    def _ask_each(
        self, script: Script, args: Mapping[int, tuple[str, ...]], deadline: Deadline
    ) -> Round:
        """Send each of these servers a script with its own arguments, and wait for all."""
        keys = (self._rounds.keys.server,)
        commands = {i: Command(script, keys, args[i]) for i in args}
        return self._rounds.servers.ask(commands, deadline.within(0.0, ROUND_TIMEOUT_S))

    # ------------------------------------------------------------ the index

    def _scan(
        self, deadline: Deadline, what: Mapping[str, str]
    ) -> tuple[dict[str, Folders], dict[int, int]]:
        """Scan these indexes of all servers; `what` is read of each key, see `reads.LIST`.

        Return the folders, and the checksum of each server's records.
        """
        pauses, until = Backoff(*ROUND_PAUSES_S), deadline.within(0.0, _RETRY_S)
        while True:
            try:
                return self._scan_once(deadline, what)
            except StoreUnavailable:
                pause = pauses.next()
                if self._rounds.servers.closed or until.remaining() < pause + MIN_ROUND_S:
                    raise
                time.sleep(pause)

    def _scan_once(
        self, deadline: Deadline, what: Mapping[str, str]
    ) -> tuple[dict[str, Folders], dict[int, int]]:
        folders = {name: {i: Folder() for i in self._all} for name in what}
        sums, ahead, cursors = dict.fromkeys(self._all, 0), dict[int, float](), dict[int, str]()
        answering, failures = set(self._all), dict[int, errors.VoteFailure]()
        for name, folder in folders.items():
            cursors = dict.fromkeys(answering, "0")
            index = self._rounds.keys.all + name
            while cursors:
                args = {i: (index, cursors[i], SCAN_COUNT, what[name]) for i in cursors}
                result = self._ask_each(reads.LIST, args, deadline)
                failures |= result.failures
                answering -= cursors.keys() - result.answers.keys()
                if len(answering) < self._quorum.majority:
                    raise errors.no_majority(self._rounds.location, failures, unknown=False)
                cursors = _add_page(result.answers, folder, sums, ahead)
        self.ahead = {i: ahead[i] for i in answering}
        if self._clock_offset is None:
            self._clock_offset = median(self.ahead.values())
        complete: dict[str, Folders] = {
            name: {i: folder[i] for i in answering} for name, folder in folders.items()
        }
        return complete, {i: sums[i] for i in answering}


def _add_page(
    answers: Answers, folder: Folders, sums: dict[int, int], ahead: dict[int, float]
) -> dict[int, str]:
    """Add a page of each server; return the cursors of the servers that have more."""
    cursors: dict[int, str] = {}
    for i, reply in answers.items():
        cursor, page, total, now = reply.rest
        folder[i].update(json.loads(page.decode(errors="replace"), strict=False))
        sums[i] += int(total)
        ahead[i] = int(now) / 1000 - monotonic()
        if cursor != b"0":
            cursors[i] = decoded(cursor)
    return cursors


def _parsed(text: str) -> tuple[int, str]:
    """Return the number and the uuid of a key's text."""
    number, _, uuid = text.partition(" ")
    return number_of(number.encode(), _MAX_DIGITS), uuid


def _latest(folders: Folders) -> dict[str, tuple[int, int]]:
    """Return by segments the highest number, and a server that has it."""
    found: dict[str, tuple[int, int]] = {}
    for i, folder in folders.items():
        for segment, text in folder.items():
            found[segment] = max(found.get(segment, (-1, -1)), (_parsed(text)[0], i))
    return found


def most_recorded(folders: Folders) -> dict[str, tuple[int, int]]:
    """Return by segments the length of the record on most servers, and a server that has it.

    Servers differ only while two removers of one lock settle which of them removed it, or if one of
    them died meanwhile. `show` then compares texts (`quorum.record_of`); here lengths are enough: a
    poll in between may report the other remover, and both have removed it from some servers.
    """
    lengths: dict[str, Counter[int]] = {}
    where: dict[tuple[str, int], int] = {}
    for i, folder in folders.items():
        for segment, text in folder.items():
            length = _parsed(text)[0]
            lengths.setdefault(segment, Counter())[length] += 1
            where[segment, length] = i
    found: dict[str, tuple[int, int]] = {}
    for segment, votes in lengths.items():
        length = min(votes, key=lambda length: (-votes[length], length))
        found[segment] = length, where[segment, length]
    return found
