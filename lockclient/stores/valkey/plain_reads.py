"""Reads without scripts, for a user who only looks: plain commands in one transaction.

Such a user has no right to `EVAL`: any script could be sent, also one that never ends, and stops
the server for all (`EVAL_RO` as well). Each transaction asks first what `lua_scripts` asks before a
vote, and the answer is judged here. So it counts for the moment in which the rest was read.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Mapping, Sequence
from hashlib import sha1
from typing import Any, Final

from lockclient.model.holder import MAX_VALUE_BYTES, SUBKEYS
from lockclient.model.removal import MAX_RECORD
from lockclient.stores.valkey import errors, lua_scripts
from lockclient.stores.valkey.errors import ErrorReply
from lockclient.stores.valkey.keys import LATE_REQUEST_S, number_of
from lockclient.stores.valkey.lua_scripts import NUMBERS, Reply, Script

Words = tuple[str, ...]
Exchange = Generator[Sequence[Words], list[Any], Reply]
"""Yields commands, is sent their answers, errors as well, and returns what they come to."""
Steps = Generator[list[Words], list[Any], list[Any]]
"""Yields the commands of a transaction, is sent their answers, and returns what was read."""

_FIELDS: Final = (*SUBKEYS, *NUMBERS)


def transactions(script: Script, keys: Words, args: Words, run_id: str, terms: str) -> Exchange:
    """Yield one transaction after the other; return what the script answers."""
    kind, steps = _READS[script]
    reading, now = steps(keys, args, " expire=1" in terms), 0
    answers: Any = None
    while True:
        try:
            asked = reading.send(answers)
        except StopIteration as end:
            return Reply(kind, [*end.value, now] if kind == "listed" else end.value)
        told = yield [
            ("MULTI",),
            ("INFO", "replication"),
            ("HMGET", keys[0], "run", "terms", "votes_at", "replid2", "kept"),
            ("TIME",),
            *asked,
            ("EXEC",),
        ]
        errors.check(*told)  # that one says why the others were refused
        replication, server, time, *answers = told[-1]
        errors.check(replication, server)
        now = 1000 * int(time[0]) + int(time[1]) // 1000
        if (refusal := _refusal(replication.decode(), server, run_id, terms, now)) is not None:
            return refusal


def _refusal(
    replication: str, server: Sequence[bytes | None], run_id: str, terms: str, now: int
) -> Reply | None:
    """Return why the server has no vote, as scripts do; see `lua_scripts`."""
    info = dict(line.split(":", 1) for line in replication.splitlines() if ":" in line)
    past = info.get("master_replid2", "")
    run, said, votes_at, replid2, kept = server
    if run is None:
        return Reply("empty", [])
    promoted = past.strip("0") != "" and past.encode() != replid2
    if run != run_id.encode() or promoted or info.get("role") == "slave":
        return Reply("another", [])
    if said != terms.encode():
        return Reply("terms", [said or b""])
    wait = number_of(votes_at or b"", 15) - now
    return Reply("waits", [wait, kept]) if wait > 0 else None


def _is_over(left: Any, expires: bool) -> bool:
    return expires and isinstance(left, int) and 0 <= left < 1000 * LATE_REQUEST_S


def _settle(keys: Words, _: Words, __: bool) -> Steps:
    """See `lua_scripts.SETTLE`: of a server that votes. Nothing is written: another client has."""
    return [0, *(yield [("HGET", keys[0], "kept")])]


def _read(keys: Words, args: Words, expires: bool) -> Steps:
    """See `lua_scripts.READ`."""
    fields = _FIELDS if args[0] else ("uuid", "push")
    record = [("GETRANGE", keys[2], "0", str(MAX_RECORD))] if args[0] else []
    has, left, *records = yield [("HMGET", keys[1], *fields), ("PTTL", keys[1]), *record]
    errors.check(has, *records)
    found: list[bytes] = []
    if not _is_over(left, expires):
        for field, value in zip(fields, has, strict=True):
            if value is not None:
                found += [field.encode(), value[: MAX_VALUE_BYTES + 1]]
    return [found, records[0] if records else b""]


def _list(_: Words, args: Words, expires: bool) -> Steps:
    """See `lua_scripts.LIST`."""
    index, cursor, count, what = args
    (page,) = yield [("SSCAN", index, cursor, "COUNT", count)]
    errors.check(page)
    keys = {entry: f"{index}/{entry}" for entry in (at.decode(errors="replace") for at in page[1])}
    found, total = {}, 0
    if what == "sum":
        sums = (sha1(key.encode()).hexdigest() for key in keys.values())  # noqa: S324 - as there
        total = sum(int(digest[:8], 16) for digest in sums)
    elif what == "size":
        sizes = yield [("STRLEN", key) for key in keys.values()]
        for entry, size in zip(keys, sizes, strict=True):
            if isinstance(size, int) and size > 0:
                found[entry] = f"{size} "
    else:
        times = [("PTTL", key) for key in keys.values() if expires]
        told = yield [*(("HMGET", key, "uuid", what) for key in keys.values()), *times]
        lefts = told[len(keys) :] if expires else [None] * len(keys)
        for entry, has, left in zip(keys, told[: len(keys)], lefts, strict=True):
            if isinstance(has, ErrorReply):
                continue
            uuid, said = ((value or b"").decode(errors="replace") for value in has)
            over = _is_over(left, expires)
            if has[1] is not None if what == "number" else uuid and not over:
                found[entry] = f"{said[:20] or '0'} {uuid[:256]}"
    return [page[0], json.dumps(found).encode(), str(total).encode()]


def _show(_: Words, args: Words, __: bool) -> Steps:
    """See `lua_scripts.SHOW`."""
    most, number = int(args[0]), int(args[1])
    fields, names = args[2 : 2 + number], args[2 + number :]
    if fields:
        told = yield [("HMGET", name, *fields) for name in names]
    else:
        told = [[value or None] for value in (yield [("GETRANGE", n, "0", args[0]) for n in names])]
    shown = [
        [None] * len(fields or (0,))
        if isinstance(values, ErrorReply) or isinstance(values[0], ErrorReply)
        else [None if value is None else value[:most] for value in values]
        for values in told
    ]
    return [shown]


_READS: Final[Mapping[Script, tuple[str, Callable[[Words, Words, bool], Steps]]]] = {
    lua_scripts.SETTLE: ("settled", _settle),
    lua_scripts.READ: ("seen", _read),
    lua_scripts.LIST: ("listed", _list),
    lua_scripts.SHOW: ("shown", _show),
}


def has_plain(script: Script) -> bool:
    """Tell whether a script has plain commands in its place."""
    return script in _READS
