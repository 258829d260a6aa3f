"""What stands in the servers, as services read it: a scan of all at once, then what is new.

**A look** goes through the keys of each server, in steps so small that nobody waits for one, and
has of each lock its uuid and the number of its last push. What these say is compared; only of what
is not known yet the rest is asked, by one server that says the same. So a look reads no backtrace
twice. A server that does not answer to the end has no vote in this look.

**Who has a lock** is what a majority says. While some servers are away it is listed, too, where
their votes may make it a majority: it may be held, and must not seem to be gone because a server
is. What fewer say (a take that is being undone, a key that a killed taker left, a release that has
not arrived everywhere) is no lock, and is left out. Of both `remarks` tell: on how many servers.

**Records of removals** and signs of life are shown if any server has them, as `show` does it; a
record is left out as long as its lock is still held: then the removal came to nothing.
"""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from statistics import median
from typing import Final, NamedTuple, TypeVar
from urllib.parse import quote, unquote

from lockclient.errors import InvalidLockName, StoreUnavailable
from lockclient.model.clocks import Deadline, monotonic
from lockclient.model.holder import MAX_UUID, MAX_VALUE, STAMPS, SUBKEYS, Found
from lockclient.model.lock_name import check_name
from lockclient.model.removal import MAX_RECORD
from lockclient.stores.common.polling import Item, Key, Known
from lockclient.stores.requests import Read, RequestState
from lockclient.stores.valkey import errors, lua_scripts
from lockclient.stores.valkey.errors import Trouble
from lockclient.stores.valkey.keys import number_of, revision_of, token_of
from lockclient.stores.valkey.voting.lock_view import Views
from lockclient.stores.valkey.voting.quorum import text
from lockclient.stores.valkey.voting.rounds import LEAST, PAUSES, TRY, Rounds
from lockclient.stores.valkey.voting.scan_merge import Folder, Stand, latest, recorded
from lockclient.stores.valkey.wire.connection import Command
from lockclient.threads.backoff import Backoff

_STEP: Final = "500"
"""Keys that a server looks at in one step: less than a millisecond."""
_TOLD: Final = 20
"""Names that are told of that too few servers have."""
_SHOWN: Final = 100
"""Locks that are read whole in one step."""
_AGAIN: Final = 3.0
"""Seconds for which a look that had too few answers is begun anew."""

_FOLDERS: Final = ("locks", "unlockers", "removed")
_is_plain: Final = re.compile("[A-Za-z0-9_.-]+").fullmatch

_What = TypeVar("_What")


class Scan(NamedTuple):
    """What a scan has found.

    Attributes:
        folders: of each server that told all.
        records: of each what is another one when it has other records.
    """

    folders: dict[int, dict[str, Folder]]
    records: dict[int, tuple[int, int]]

    def each(self, folder: str) -> dict[int, Folder]:
        """Return what each server has in a folder."""
        return {i: said[folder] for i, said in self.folders.items()}


class Listing:
    """Reads what stands in the servers; see `polling.Source`.

    Args:
        at: the way to them.
    """

    def __init__(self, at: Rounds) -> None:
        self._at = at
        self._views = Views(at.keys, at.quorum)
        self._ahead: dict[int, float] = {}
        self._first: float | None = None
        self._records: dict[int, tuple[int, int]] = {}
        self._told_of = 0
        self._held: dict[str, tuple[str, int]] = {}
        self._few: dict[str, str] | None = None
        self._lasting: dict[str, str] = {}

    def now(self) -> float:
        """See `polling.Source`: as the servers' clocks in the middle were at the first look.

        No server's clock is the store's, and any of them may be set: from then on it is ours that
        goes, so that revisions never fall. Those of two processes nobody compares here.
        """
        return 0.0 if self._first is None else monotonic() + self._first

    def ahead(self) -> Mapping[int, float]:
        """Return how many seconds each server's clock is ahead of our monotonic one."""
        return self._ahead

    def told_of(self) -> int:
        return self._told_of

    # ------------------------------------------------------------ reading all

    def live(self, deadline: Deadline, known: Mapping[Key, Known]) -> Iterator[Sequence[Item]]:
        scan = self._scan("live", deadline)
        if scan.records != self._records:
            self._records = scan.records
            self._told_of += 1
        held, few = self._locks(scan.each("locks"))
        lately = few if self._few is None else self._few
        self._held, self._few = held, few
        self._lasting = {name: said for name, said in few.items() if lately.get(name) == said}
        now, same = self.now(), list[Item]()
        new: dict[str, tuple[Stand, int]] = {}
        for name, (said, i) in held.items():
            before = known.get(("locks", name, ""))
            if before is not None and before.version == hash(said):
                same.append(Item("locks", name, "", before.version, now, {}))
            else:
                new[name] = Stand.said(said), i
        yield same
        yield from self._whole(new, deadline)
        yield list(self._signs_of_life(scan.each("unlockers"), deadline))

    def records(self, deadline: Deadline, known: Mapping[Key, Known]) -> Iterator[Sequence[Item]]:
        scan = self._scan("removed", deadline)
        now, same = self.now(), list[Item]()
        new: dict[str, tuple[Key, int, int]] = {}
        for rest, (number, i) in recorded(scan.each("removed")).items():
            segment, _, last = rest.partition("/")
            name, uuid = _named(segment), unquote(last)
            whole = name is not None and 0 < len(uuid.encode(errors="replace")) <= MAX_UUID
            if name is None or not whole or self._holds(name, uuid):
                continue
            key: Key = ("removed", name, uuid)
            before = known.get(key)
            if before is not None and before.version == number:
                same.append(Item(*key, number, now, {}))
            else:
                new[rest] = key, number, i
        yield same
        for part in _parts(new):
            place = {rest: i for rest, (_, _, i) in part.items()}
            values = self._show(self._at.keys.removed, place, (), MAX_RECORD, deadline)
            if len(values) < len(part):  # they are not read again before there are others
                where = ", ".join(self._at.place.endpoints)
                raise StoreUnavailable(f"One of {where} ended as it was read.", unknown=False)
            yield [
                Item(*key, number, now, {key[2]: (values[rest][0], number)})
                for rest, (key, number, _) in part.items()
                if values[rest][0] is not None
            ]

    def held(self, prefix: str, deadline: Deadline) -> Iterator[str]:
        """Yield the names of held locks that begin with `prefix`."""
        for name in self._locks(self._scan("live", deadline).each("locks"))[0]:
            if name.startswith(prefix):
                yield name

    # ------------------------------------------------------------ votes

    def remarks(self) -> Iterator[str]:
        """Say of which names fewer servers than a majority say that somebody has them.

        What two looks have found, one after the other, or the only one: a take or a release that
        was under way as it was looked is in none of the two, or in one.
        """
        for name, said in islice(sorted(self._lasting.items()), _TOLD):
            yield f"{name!r}: {said}."
        if len(self._lasting) > _TOLD:
            yield f"And {len(self._lasting) - _TOLD} more names are on too few servers."

    def _holds(self, name: str, uuid: str) -> bool:
        return name in self._held and Stand.said(self._held[name][0]).uuid == uuid

    def _locks(
        self, said: Mapping[int, Folder]
    ) -> tuple[dict[str, tuple[str, int]], dict[str, str]]:
        """Return by the names of locks what is said of each, and by which server.

        And of names that have fewer votes than a majority, how many that are.
        """
        found, few = dict[str, tuple[str, int]](), dict[str, str]()
        least = self._at.quorum.majority - (len(self._at.all) - len(said))
        order, servers = list(said), list(said.values())
        for segment in set[str]().union(*servers):
            texts = [folder.get(segment) for folder in servers]
            one = texts[0]
            if one is not None and texts.count(one) == len(texts):
                if (name := _named(segment)) is not None:
                    found[name] = one, order[0]
                continue
            stands = [(Stand.said(each), i) for each, i in zip(texts, order, strict=True) if each]
            votes = Counter(stand.uuid for stand, _ in stands)
            if (name := _named(segment)) is None:
                continue
            uuid = self._likely(name, votes, stands, least)
            most = votes[uuid]
            if most < self._at.quorum.majority:
                few[name] = self._at.quorum.few(votes, len(said))
            if most >= least:
                stand, i = max(each for each in stands if each[0].uuid == uuid)
                found[name] = f"{stand.number} {uuid}", i
        return found, few

    def _likely(
        self, name: str, votes: Counter[str], stands: Sequence[tuple[Stand, int]], least: int
    ) -> str:
        """Return who most likely has a lock: who has most votes; where several may have it, who
        had it when that was last known, as one may have been left there by a dead one; else whose
        push is the later one.
        """
        had = Stand.said(self._held[name][0]).uuid if name in self._held else ""
        newest = {stand.uuid: stand.number for stand, _ in sorted(stands)}

        def likely(each: str) -> tuple[bool, bool, int, int, str]:
            decided = votes[each] >= self._at.quorum.majority
            return decided, each == had and votes[each] >= least, votes[each], newest[each], each

        return max(votes, key=likely)

    def _signs_of_life(self, said: Mapping[int, Folder], deadline: Deadline) -> Iterator[Item]:
        newest = latest(said)
        for part in _parts(newest):
            place = {segment: i for segment, (_, i) in part.items()}
            values = self._show(self._at.keys.unlockers, place, ("said",), MAX_VALUE, deadline)
            for segment, (value, *_) in values.items():
                name, number = unquote(segment), part[segment][0]
                if value is not None and quote(name, safe="") == segment:
                    found: dict[str, Found] = {"": (value, number)}
                    yield Item("unlockers", name, "", number, self.now(), found)

    # ------------------------------------------------------------ what is not known yet

    def _whole(
        self, new: Mapping[str, tuple[Stand, int]], deadline: Deadline
    ) -> Iterator[Sequence[Item]]:
        """Read all that locks say, of servers that have the state that was seen.

        Where that has changed meanwhile it is asked as for one lock, of a majority.
        """
        for part in _parts(new):
            place = {quote(name, safe=""): i for name, (_, i) in part.items()}
            values = self._show(self._at.keys.locks, place, (*SUBKEYS, "push"), MAX_VALUE, deadline)
            found: list[Item] = []
            for name, (stand, _) in part.items():
                told = values.get(quote(name, safe=""), ())
                said = dict(zip((*SUBKEYS, "push"), told, strict=False))
                item = self._item(name, said)
                if item is None or item.version != stand.version():
                    item = self._item(name, self._voted(name, deadline))
                if item is not None:
                    found.append(item)
            yield found

    def _item(self, name: str, said: Mapping[str, bytes | None]) -> Item | None:
        uuid = said.get("uuid")
        if uuid is None:
            return None
        whose = uuid[: MAX_UUID + 1].decode(errors="replace")
        stand = Stand(number_of(said["push"] or b""), whose)
        token, now = token_of(stand.uuid), revision_of(stand.uuid, stand.number)
        values: dict[str, Found] = {
            part: (said[part], now if part in STAMPS else token)
            for part in SUBKEYS
            if said.get(part) is not None
        }
        return Item("locks", name, "", stand.version(), self.now(), values)

    def _voted(self, name: str, deadline: Deadline) -> Mapping[str, bytes | None]:
        """Return what a majority says of a lock now."""
        call = self._views.call(name, whole=True)
        sending = RequestState(Read(name))
        answers = self._at.read(call, sending, deadline, self._views.known)
        return {"push": b"", **self._views.latest(answers)}

    def _show(
        self,
        folder: str,
        place: Mapping[str, int],
        fields: Sequence[str],
        most: int,
        deadline: Deadline,
    ) -> dict[str, list[bytes | None]]:
        """Read these keys' values, each in the server that is named for it; longer ones are cut
        so that it shows."""
        keys: dict[int, list[str]] = {}
        for segment, i in place.items():
            keys.setdefault(i, []).append(segment)
        calls = {
            i: Command(
                lua_scripts.SHOW,
                (self._at.keys.server,),
                (str(most + 1), str(len(fields)), *fields, *(f"{folder}{each}" for each in said)),
            )
            for i, said in keys.items()
        }
        found = self._at.servers.ask(
            calls, deadline.within(0.0, TRY), lambda said: len(said) == len(calls)
        )
        shown: dict[str, list[bytes | None]] = {}
        for i, answer in found.answers.items():
            shown.update(zip(keys[i], answer.rest[0], strict=True))
        return shown

    # ------------------------------------------------------------ the scan

    def _scan(self, what: str, deadline: Deadline) -> Scan:
        """Go through all servers' keys."""
        pauses, until = Backoff(*PAUSES), Deadline(min(deadline, Deadline.after(_AGAIN)))
        while True:
            try:
                return self._scan_once(what, deadline)
            except StoreUnavailable:
                pause = pauses.next()
                if self._at.servers.closed or until.remaining() < pause + LEAST:
                    raise
                time.sleep(pause)

    def _scan_once(self, what: str, deadline: Deadline) -> Scan:
        cursors = dict.fromkeys(self._at.all, "0")
        read: dict[int, dict[str, Folder]] = {i: {each: {} for each in _FOLDERS} for i in cursors}
        records, sums = dict.fromkeys(self._at.all, 0), dict.fromkeys(self._at.all, 0)
        ahead: dict[int, float] = {}
        troubles: dict[int, Trouble] = {}
        while cursors:
            calls = {
                i: Command(
                    lua_scripts.LIST,
                    (self._at.keys.server,),
                    (cursor, self._at.keys.all, _STEP, what),
                )
                for i, cursor in cursors.items()
            }
            found = self._at.servers.ask(
                calls, deadline.within(0.0, TRY), lambda said: len(said) == len(cursors)
            )
            troubles |= found.troubles
            for i in found.answers.keys() ^ cursors.keys():
                del cursors[i], read[i]
            if len(read) < self._at.quorum.majority:
                raise errors.no_majority(self._at.place, troubles, unknown=False)
            for i, answer in found.answers.items():
                cursor, page, count, total, now = answer.rest
                for folder, told in json.loads(page.decode(errors="replace"), strict=False).items():
                    read[i][folder].update(told)
                records[i] += count
                sums[i] += int(total)
                ahead[i] = int(now) / 1000 - monotonic()
                cursors[i] = text(cursor)
                if cursors[i] == "0":
                    del cursors[i]
        self._ahead = {i: ahead[i] for i in read}
        if self._first is None:
            self._first = median(self._ahead.values())
        return Scan(read, {i: (records[i], sums[i]) for i in read})


def _named(segment: str) -> str | None:
    """Return the lock that a key is about; None: no name of ours."""
    try:
        if _is_plain(segment):  # nearly all are
            return check_name(segment)
        name = check_name(unquote(segment, errors="strict"))
    except (InvalidLockName, UnicodeDecodeError):
        return None
    return name if quote(name, safe="") == segment else None


def _parts(of: Mapping[str, _What]) -> Iterator[dict[str, _What]]:
    items = iter(of.items())
    while part := dict(islice(items, _SHOWN)):
        yield part
