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
from lockclient.stores.valkey.lua_scripts import FOLDERS, NUMBERS, Script

Words = tuple[str, ...]
Answer = tuple[str, list[Any]]
"""What the script would answer: a word, and what follows it."""
Exchange = Generator[Sequence[Words], list[Any], Answer]
"""Yields commands, is sent their answers, errors as well, and returns what they come to."""
Steps = Generator[list[Words], list[Any], list[Any]]
"""Yields the commands of a transaction, is sent their answers, and returns what was read."""

_FIELDS: Final = (*SUBKEYS, *NUMBERS)
_NUMBER: Final = {"locks": "push", "unlockers": "number"}
"""By folders: the field that grows with each write."""


def transactions(script: Script, keys: Words, args: Words, run_id: str, terms: str) -> Exchange:
    """Yield one transaction after the other; return what the script answers."""
    kind, steps = _READS[script]
    reading, now = steps(keys, args, " expire=1" in terms), 0
    answers: Any = None
    while True:
        try:
            asked = reading.send(answers)
        except StopIteration as end:
            return kind, [*end.value, now] if kind == "listed" else end.value
        told = yield [
            ("MULTI",),
            ("INFO", "replication"),
            ("HMGET", keys[0], "run", "terms", "votes_at", "replid2"),
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
) -> Answer | None:
    """Return why the server has no vote, as scripts do; see `lua_scripts`."""
    info = dict(line.split(":", 1) for line in replication.splitlines() if ":" in line)
    past = info.get("master_replid2", "")
    run, said, votes_at, replid2 = server
    if run is None:
        return "empty", []
    promoted = past.strip("0") != "" and past.encode() != replid2
    if run != run_id.encode() or promoted or info.get("role") == "slave":
        return "another", []
    if said != terms.encode():
        return "terms", [said or b""]
    wait = number_of(votes_at or b"", 15) - now
    return ("waits", [wait]) if wait > 0 else None


def _is_over(left: Any, expires: bool) -> bool:
    return expires and isinstance(left, int) and 0 <= left < 1000 * LATE_REQUEST_S


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
    prefix, count, records, *cursors = args
    begins = {folder: at for folder, at in zip(FOLDERS, cursors, strict=True) if at}
    pages = yield [("SSCAN", prefix + folder, at, "COUNT", count) for folder, at in begins.items()]
    following = dict.fromkeys(FOLDERS, b"0")
    entries: dict[str, list[str]] = {folder: [] for folder in FOLDERS}
    errors.check(*pages)
    for folder, page in zip(begins, pages, strict=True):
        following[folder] = page[0]
        entries[folder] = [entry.decode(errors="replace") for entry in page[1]]
    found: dict[str, dict[str, str]] = {folder: {} for folder in FOLDERS}
    removed = [f"{prefix}removed/{entry}" for entry in entries["removed"]]
    number, total = 0, 0
    if records:
        sizes = yield [("STRLEN", key) for key in removed]
        for entry, size in zip(entries["removed"], sizes, strict=True):
            if isinstance(size, int) and size > 0:
                found["removed"][entry] = f"{size} "
    else:
        sums = (int(sha1(key.encode()).hexdigest()[:8], 16) for key in removed)  # noqa: S324 - as there
        number, total = len(removed), sum(sums)
        rows = [
            (folder, entry, f"{prefix}{folder}/{entry}")
            for folder in _NUMBER
            for entry in entries[folder]
        ]
        heads = [("HMGET", key, "uuid", _NUMBER[folder]) for folder, _entry, key in rows]
        times = [("PTTL", key) for *_, key in rows if expires]
        told = yield [*heads, *times]
        lefts = told[len(rows) :] if expires else [None] * len(rows)
        for (folder, entry, _key), has, left in zip(rows, told[: len(rows)], lefts, strict=True):
            if isinstance(has, ErrorReply):
                continue
            uuid, said = ((value or b"").decode(errors="replace") for value in has)
            over = _is_over(left, expires)
            if has[1] is not None if folder == "unlockers" else uuid and not over:
                found[folder][entry] = f"{said[:20] or '0'} {uuid[:256]}"
    return [[*following.values()], json.dumps(found).encode(), number, str(total).encode()]


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
    lua_scripts.READ: ("seen", _read),
    lua_scripts.LIST: ("listed", _list),
    lua_scripts.SHOW: ("shown", _show),
}


def has_plain(script: Script) -> bool:
    """Tell whether a script has plain commands in its place."""
    return script in _READS
