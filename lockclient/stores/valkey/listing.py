"""Listing of all locks for services: a scan of all servers' indexes at once, then what is new.

**A look** goes through the index of each server, in steps so small that nobody waits for one, and
has of each lock its uuid and the number of its last push. What these say is compared; only of what
is not known yet the rest is asked, by one server that says the same. So a look reads no backtrace
twice. A server that does not answer to the end has no vote in this look.

**Who has a lock** is what a majority says. While some servers are away it is listed, too, where
their votes may make it a majority: it may be held, and must not seem to be gone because a server
is. What fewer say (a take that is being undone, a key that a killed taker left, a release that has
not arrived everywhere) is no lock, and is left out. Of both `warnings` tell: on how many servers.

**Records of removals** and heartbeats are shown if any server has them, as `show` does it; a
record is left out as long as its lock is still held: then the removal came to nothing.
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
from lockclient.model.holder import MAX_UUID_BYTES, MAX_VALUE_BYTES, SUBKEYS, Found
from lockclient.model.removal import MAX_RECORD
from lockclient.stores.common.polling import Key, KnownItem, StoredItem
from lockclient.stores.common.segments import decode, encode
from lockclient.stores.valkey import errors, lua_scripts
from lockclient.stores.valkey.keys import number_of, subkeys_of
from lockclient.stores.valkey.lua_scripts import Script
from lockclient.stores.valkey.voting.quorum import decoded
from lockclient.stores.valkey.voting.rounds import (
    MIN_ROUND_S,
    ROUND_PAUSES_S,
    ROUND_TIMEOUT_S,
    Rounds,
)
from lockclient.stores.valkey.voting.scan_merge import Folder, ScannedKey, latest, recorded
from lockclient.stores.valkey.wire.broadcast import Round
from lockclient.stores.valkey.wire.connection import SCAN_COUNT, Command
from lockclient.stores.valkey.wire.server import Sent
from lockclient.threads.backoff import Backoff

_MAX_WARNINGS: Final = 20
"""Names in warnings that too few servers have."""
_MAX_READ_LOCKS: Final = 100
"""Locks that are read whole in one step."""
_RETRY_S: Final = 3.0
"""Seconds for which a look that had too few answers is begun anew."""


class _Read(NamedTuple):
    """A read of a folder's keys: the fields (none: the keys are no hashes), and the page size."""

    fields: tuple[str, ...]
    max_bytes: int


_READ: Final = {
    "locks": _Read((*SUBKEYS, "push"), MAX_VALUE_BYTES),
    "unlockers": _Read(("said",), MAX_VALUE_BYTES),
    "removed": _Read((), MAX_RECORD),
}
_LIVE: Final = {"removed": "sum", "locks": "push", "unlockers": "number"}
"""The fields that a poll reads of each key, see `LIST`; of records only a sum,
which changes when they do and so says when to read them.

The sum comes before locks. Else a lock that is removed in between is listed as held, so that its
record is left out, and no later sum is another one.
"""
Scan = tuple[dict[str, dict[int, Folder]], dict[int, int]]
"""What a scan has found, of each server that told all: by folders what it has there, and what is
another one when it has other records."""


class KeyListing:
    """Lists the keys of all servers; see `polling.Source`.

    Args:
        rounds: asks them.
    """

    def __init__(self, rounds: Rounds) -> None:
        self._rounds, self._all = rounds, rounds.all
        self._views = rounds.views
        self.ahead: Mapping[int, float] = {}
        """How many seconds each server's clock is ahead of our monotonic one."""
        self._first: float | None = None
        self._records: dict[int, int] = {}
        self._held: dict[str, tuple[str, int]] = {}
        self._few: dict[str, int | str] = {}
        """Names that not all servers have by the last two looks, or by the only one (a take or a
        release that is under way is in none of the two, or in one): how many have them or, where
        that is no majority, who has how many."""
        self._few_before: dict[str, int | str] | None = None

    def now(self) -> float:
        """See `polling.Source`: as the servers' clocks in the middle were at the first look.

        No server's clock is the store's, and any of them may be set: from then on it is ours that
        goes, so that revisions never fall. Those of two processes nobody compares here.
        """
        return 0.0 if self._first is None else monotonic() + self._first

    def record_version(self) -> int:
        return hash(frozenset(self._records.items()))

    # ------------------------------------------------------------ reading all

    def live(
        self, deadline: Deadline, known: Mapping[Key, KnownItem]
    ) -> Iterator[Sequence[StoredItem]]:
        folders, self._records = self._scan(deadline, _LIVE)
        self._held, few = self._merge_locks(folders["locks"])
        before = few if self._few_before is None else self._few_before
        self._few = {name: said for name, said in few.items() if before.get(name) == said}
        self._few_before = few
        locks: dict[Key, int] = {
            ("locks", name, ""): hash(text) for name, (text, _) in self._held.items()
        }
        yield (same := self._same(locks, known))
        new = self._held.keys() - {item.name for item in same}
        where = {encode(name): self._held[name][1] for name in self._held if name in new}
        for shown in self._values("locks", where, deadline):
            items = (self._lock(segment, values, deadline) for segment, values in shown.items())
            yield [item for item in items if item is not None]
        yield list(self._announcements(latest(folders["unlockers"]), deadline))

    def records(
        self, deadline: Deadline, known: Mapping[Key, KnownItem]
    ) -> Iterator[Sequence[StoredItem]]:
        folders, _ = self._scan(deadline, {"removed": "size"})
        new: dict[Key, tuple[int, str, int]] = {}
        for rest, (number, i) in recorded(folders["removed"]).items():
            segment, _, last = rest.partition("/")
            name, uuid = decode(segment), unquote(last)
            whole = 0 < len(uuid.encode(errors="replace")) <= MAX_UUID_BYTES
            if name is not None and whole and self._last_holder(name) != uuid:
                new["removed", name, uuid] = number, rest, i
        yield (same := self._same({key: number for key, (number, _, _) in new.items()}, known))
        for item in same:
            del new[item.key]
        keys = {rest: (key, number) for key, (number, rest, _) in new.items()}
        for shown in self._values("removed", {rest: i for _, rest, i in new.values()}, deadline):
            found = [(*keys[rest], values[0]) for rest, values in shown.items() if values]
            if len(found) < len(shown):  # they are not read again before there are others
                where = ", ".join(self._rounds.location.endpoints)
                raise StoreUnavailable(f"One of {where} ended as it was read.", unknown=False)
            yield [
                StoredItem(*key, number, self.now(), {key[2]: (value, number)})
                for key, number, value in found
                if value is not None
            ]

    def _same(self, found: Mapping[Key, int], known: Mapping[Key, KnownItem]) -> list[StoredItem]:
        """Return what stands there as it is known: by its version."""
        now = self.now()
        return [
            StoredItem(*key, version, now, {})
            for key, version in found.items()
            if key in known and known[key].version == version
        ]

    def held(self, deadline: Deadline) -> Iterable[str]:
        """Return the names of held locks."""
        folders, _ = self._scan(deadline, {"locks": "push"})
        return self._merge_locks(folders["locks"])[0]

    # ------------------------------------------------------------ votes

    def warnings(self) -> Iterator[str]:
        """Say of which names fewer servers than a majority say that somebody has them."""
        texts = sorted((name, said) for name, said in self._few.items() if isinstance(said, str))
        for name, text in texts[:_MAX_WARNINGS]:
            yield f"{name!r}: {text}."
        if len(texts) > _MAX_WARNINGS:
            yield f"And {len(texts) - _MAX_WARNINGS} more names are on too few servers."

    def thin(self) -> Mapping[str, int]:
        """Return of held locks that not all servers have how many have them."""
        return {name: said for name, said in self._few.items() if isinstance(said, int)}

    def _last_holder(self, name: str) -> str | None:
        """Return who had a lock by the last look."""
        return ScannedKey.parse(self._held[name][0]).uuid if name in self._held else None

    def _merge_locks(
        self, folders: Mapping[int, Folder]
    ) -> tuple[dict[str, tuple[str, int]], dict[str, int | str]]:
        """Return by the names of locks the text of each (`ScannedKey`), and a server that has it;
        and what `_few` has of names that not all servers have.
        """
        found, few = dict[str, tuple[str, int]](), dict[str, int | str]()
        quorum = self._rounds.quorum
        least = quorum.majority - (len(self._all) - len(folders))
        for segment in set[str]().union(*folders.values()):
            if (name := decode(segment)) is None:
                continue
            texts = {folder.get(segment) for folder in folders.values()}
            if len(texts) == 1 and (text := texts.pop()) is not None:
                found[name], number = (text, next(iter(folders))), len(folders)
            else:
                keys = [
                    (ScannedKey.parse(folder[segment]), i)
                    for i, folder in folders.items()
                    if segment in folder
                ]
                votes = Counter(key.uuid for key, _ in keys)
                uuid = self._likeliest_holder(name, votes, keys, least)
                number = votes[uuid]
                if number < quorum.majority:
                    few[name] = quorum.minority_text(votes, len(folders))
                if number >= least:
                    key, i = max((key, i) for key, i in keys if key.uuid == uuid)
                    found[name] = f"{key.number} {uuid}", i
            if quorum.majority <= number < quorum.servers:
                few[name] = number
        return found, few

    def _likeliest_holder(
        self, name: str, votes: Counter[str], keys: Sequence[tuple[ScannedKey, int]], least: int
    ) -> str:
        """Return who most likely has a lock: who has most votes; where several may have it, who
        had it when that was last known, as one may have been left there by a dead one; else whose
        push is the later one.
        """
        majority, last_holder = self._rounds.quorum.majority, self._last_holder(name)
        newest = {key.uuid: key.number for key, _ in sorted(keys)}

        def likelihood(uuid: str) -> tuple[bool, bool, int, int, str]:
            number = votes[uuid]
            still_held = uuid == last_holder and number >= least
            return number >= majority, still_held, number, newest[uuid], uuid

        return max(votes, key=likelihood)

    # ------------------------------------------------------------ reading what is new

    def _announcements(
        self, found: Mapping[str, tuple[int, int]], deadline: Deadline
    ) -> Iterator[StoredItem]:
        where = {segment: i for segment, (_, i) in found.items()}
        for shown in self._values("unlockers", where, deadline):
            for segment, values in shown.items():
                name, number = unquote(segment), found[segment][0]
                if values and values[0] is not None and encode(name) == segment:
                    said: dict[str, Found] = {"": (values[0], number)}
                    yield StoredItem("unlockers", name, "", number, self.now(), said)

    def _lock(
        self, segment: str, values: Sequence[bytes | None], deadline: Deadline
    ) -> StoredItem | None:
        """Return a lock as a server has it that had the state which the scan found.

        Where that has changed meanwhile it is asked as for one lock, of a majority.
        """
        name = decode(segment) or ""
        item = self._item(name, dict(zip(_READ["locks"].fields, values, strict=False)))
        if item is not None and item.version == hash(self._held[name][0]):
            return item
        command = self._views.read_command(name, whole=True)
        answers = self._rounds.read(command, deadline, self._views.is_known)
        return self._item(name, self._views.latest_fields(answers))

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
        """Read these keys' values, each in the server that is named for it, so many at once; longer
        ones are cut so that it shows. Of a server that ended there are none."""
        fields, max_bytes = _READ[folder]
        how = (str(max_bytes + 1), str(len(fields)), *fields)
        segments = iter(where)
        while part := [*islice(segments, _MAX_READ_LOCKS)]:
            keys: dict[int, list[str]] = {}
            for segment in part:
                keys.setdefault(where[segment], []).append(segment)
            begin = f"{self._rounds.keys.all}{folder}/"
            args = {i: (*how, *(begin + segment for segment in keys[i])) for i in keys}
            shown: dict[str, Sequence[bytes | None]] = dict.fromkeys(part, ())
            for i, reply in self._ask_all(lua_scripts.SHOW, args, deadline).answers.items():
                shown.update(zip(keys[i], reply.rest[0], strict=True))
            yield shown

    def _ask_all(
        self, script: Script, args: Mapping[int, tuple[str, ...]], deadline: Deadline
    ) -> Round:
        """Ask each of these servers the script with its own arguments, and wait for all."""
        keys = (self._rounds.keys.server,)
        return self._rounds.servers.ask(
            {i: Sent(Command(script, keys, args[i])) for i in args},
            deadline.within(0.0, ROUND_TIMEOUT_S),
            lambda answers: len(answers) == len(args),
        )

    # ------------------------------------------------------------ the index

    def _scan(self, deadline: Deadline, what: Mapping[str, str]) -> Scan:
        """Go through these indexes of all servers; `what` is said of each key, see `LIST`."""
        pauses, until = Backoff(*ROUND_PAUSES_S), deadline.within(0.0, _RETRY_S)
        while True:
            try:
                return self._scan_once(deadline, what)
            except StoreUnavailable:
                pause = pauses.next()
                if self._rounds.servers.closed or until.remaining() < pause + MIN_ROUND_S:
                    raise
                time.sleep(pause)

    def _scan_once(self, deadline: Deadline, what: Mapping[str, str]) -> Scan:
        read: dict[int, dict[str, Folder]] = {i: {name: {} for name in what} for i in self._all}
        sums = dict.fromkeys(self._all, 0)
        ahead: dict[int, float] = {}
        failures: dict[int, errors.VoteFailure] = {}
        for name in what:
            cursors = dict.fromkeys(read, "0")
            index = self._rounds.keys.all + name
            while cursors:
                args = {i: (index, cursors[i], SCAN_COUNT, what[name]) for i in cursors}
                result = self._ask_all(lua_scripts.LIST, args, deadline)
                failures |= result.failures
                for i in cursors.keys() - result.answers.keys():
                    del cursors[i], read[i]
                if len(read) < self._rounds.quorum.majority:
                    raise errors.no_majority(self._rounds.location, failures, unknown=False)
                for i, reply in result.answers.items():
                    cursor, page, total, now = reply.rest
                    found = json.loads(page.decode(errors="replace"), strict=False)
                    read[i][name].update(found)
                    sums[i] += int(total)
                    ahead[i] = int(now) / 1000 - monotonic()
                    cursors[i] = decoded(cursor)
                    if cursor == b"0":
                        del cursors[i]
        self.ahead = {i: ahead[i] for i in read}
        if self._first is None:
            self._first = median(self.ahead.values())
        folders = {name: {i: read[i][name] for i in read} for name in what}
        return folders, {i: sums[i] for i in read}
