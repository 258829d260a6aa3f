"""Reads: each as a script, and as plain commands in one transaction for users without `EVAL`.

A user who only reads has no right to `EVAL` (nor to `EVAL_RO`): a script that never ends would stop
the server for all clients. Each transaction also reads what scripts check before a vote (see
`lua_scripts`), so the check here holds for the moment at which the rest was read.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Mapping, Sequence
from hashlib import sha1
from typing import Any, Final

from lockclient.model.holder import MAX_VALUE_BYTES, SUBKEYS
from lockclient.model.removal import MAX_RECORD
from lockclient.stores.valkey import errors
from lockclient.stores.valkey.errors import ErrorReply
from lockclient.stores.valkey.keys import LATE_REQUEST_S, number_of
from lockclient.stores.valkey.lua_scripts import NUMBERS, REGISTER, Reply, Script, voting_script

Words = tuple[str, ...]
Exchange = Generator[Sequence[Words], list[Any], Reply]
"""Yields commands, is sent their answers, errors included, and returns the reply."""
Steps = Generator[list[Words], list[Any], list[Any]]
"""Yields the commands of a transaction, is sent their answers, and returns what was read."""

_FIELDS: Final = (*SUBKEYS, *NUMBERS)


def transactions(script: Script, keys: Words, args: Words, run_id: str, terms: str) -> Exchange:
    """Yield one transaction after the other; return what the script would answer."""
    kind, steps = _PLAIN[script]
    reading, now = steps(keys, args, " expire=1" in terms), 0
    answers: Any = None
    while True:
        try:
            commands = reading.send(answers)
        except StopIteration as end:
            return Reply(kind, [*end.value, now] if kind == "listed" else end.value)
        received = yield [
            ("MULTI",),
            ("INFO", "replication"),
            ("HMGET", keys[0], "run", "terms", "votes_at", "replid2", "kept"),
            ("TIME",),
            *commands,
            ("EXEC",),
        ]
        errors.check(*received)  # the first error is the reason of the later ones
        replication, server, time, *answers = received[-1]
        errors.check(replication, server)
        now = 1000 * int(time[0]) + int(time[1]) // 1000
        if (refusal := _refusal(replication.decode(), server, run_id, terms, now)) is not None:
            return refusal


def has_plain(script: Script) -> bool:
    """Tell whether plain commands can replace a script."""
    return script in _PLAIN


def _refusal(
    replication: str, server: Sequence[bytes | None], run_id: str, terms: str, now: int
) -> Reply | None:
    """Return why the server has no vote, as scripts do; see `lua_scripts`."""
    info = dict(line.split(":", 1) for line in replication.splitlines() if ":" in line)
    past = info.get("master_replid2", "")
    run, server_terms, votes_at, replid2, kept = server
    if run is None:
        return Reply("empty", [])
    promoted = past.strip("0") != "" and past.encode() != replid2
    if run != run_id.encode() or promoted or info.get("role") == "slave":
        return Reply("another", [])
    if server_terms != terms.encode():
        return Reply("terms", [server_terms or b""])
    wait = number_of(votes_at or b"", 15) - now
    return Reply("waits", [wait, kept]) if wait > 0 else None


def _is_over(left: Any, expires: bool) -> bool:
    return expires and isinstance(left, int) and 0 <= left < 1000 * LATE_REQUEST_S


def _register(keys: Words, _: Words, __: bool) -> Steps:
    """See `lua_scripts.REGISTER`. This user writes nothing: another client has registered it."""
    return [0, *(yield [("HGET", keys[0], "kept")])]


# ---------------------------------------------------------------- one lock

READ: Final = voting_script(
    """
-- KEYS server, lock, record; ARGV run, terms, 1 to read all fields and the record
local found, record = {}, ''
if ARGV[3] ~= '' then
    found = whole(KEYS[2])
    record = string.sub(redis.call('GET', KEYS[3]) or '', 1, RECORD_BYTES)
else
    local has = redis.call('HMGET', KEYS[2], 'uuid', 'push')
    if has[1] then found = {'uuid', has[1], 'push', has[2] or '0'} end
end
if over(KEYS[2]) then found = {} end
return {'read', found, record}
""".replace("RECORD_BYTES", str(MAX_RECORD + 1))
)


def _read(keys: Words, args: Words, expires: bool) -> Steps:
    fields = _FIELDS if args[0] else ("uuid", "push")
    record = [("GETRANGE", keys[2], "0", str(MAX_RECORD))] if args[0] else []
    values, left, *records = yield [("HMGET", keys[1], *fields), ("PTTL", keys[1]), *record]
    errors.check(values, *records)
    found: list[bytes] = []
    if not _is_over(left, expires):
        for field, value in zip(fields, values, strict=True):
            if value is not None:
                found += [field.encode(), value[: MAX_VALUE_BYTES + 1]]
    return [found, records[0] if records else b""]


# ---------------------------------------------------------------- many locks

LIST: Final = voting_script("""
-- KEYS server; ARGV run, terms, an index, a cursor, COUNT, what to return for each key: the number
-- in this field of a hash and its uuid; `size` of a string; or `sum`, a checksum of all names
local found, sum = {}, 0
local page = redis.call('SSCAN', ARGV[3], ARGV[4], 'COUNT', math.min(ARGV[5], 1000))
for _, entry in ipairs(page[2]) do
    local key = ARGV[3] .. '/' .. entry
    if ARGV[6] == 'sum' then
        sum = sum + tonumber(string.sub(redis.sha1hex(key), 1, 8), 16)
    elseif ARGV[6] == 'size' then
        local size = redis.pcall('STRLEN', key)
        if type(size) == 'number' and size > 0 then found[entry] = tostring(size) .. ' ' end
    else
        local has = redis.pcall('HMGET', key, 'uuid', ARGV[6])
        if ARGV[6] == 'number' and has[2] or has[1] and not over(key) then
            local number = string.sub(has[2] or '0', 1, 20)
            found[entry] = number .. ' ' .. string.sub(has[1] or '', 1, 256)
        end
    end
end
return {'listed', page[1], cjson.encode(found), string.format('%d', sum), string.format('%d', now)}
""")


def _list(_: Words, args: Words, expires: bool) -> Steps:
    index, cursor, count, what = args
    (page,) = yield [("SSCAN", index, cursor, "COUNT", count)]
    errors.check(page)
    keys = {entry: f"{index}/{entry}" for entry in (at.decode(errors="replace") for at in page[1])}
    found, total = {}, 0
    if what == "sum":
        sums = (sha1(key.encode()).hexdigest() for key in keys.values())  # noqa: S324 - as LIST
        total = sum(int(digest[:8], 16) for digest in sums)
    elif what == "size":
        sizes = yield [("STRLEN", key) for key in keys.values()]
        for entry, size in zip(keys, sizes, strict=True):
            if isinstance(size, int) and size > 0:
                found[entry] = f"{size} "
    else:
        times = [("PTTL", key) for key in keys.values() if expires]
        answers = yield [*(("HMGET", key, "uuid", what) for key in keys.values()), *times]
        lefts = answers[len(keys) :] if expires else [None] * len(keys)
        for entry, values, left in zip(keys, answers[: len(keys)], lefts, strict=True):
            if isinstance(values, ErrorReply):
                continue
            uuid, number = ((value or b"").decode(errors="replace") for value in values)
            over = _is_over(left, expires)
            if values[1] is not None if what == "number" else uuid and not over:
                found[entry] = f"{number[:20] or '0'} {uuid[:256]}"
    return [page[0], json.dumps(found).encode(), str(total).encode()]


SHOW: Final = voting_script("""
-- KEYS server; ARGV run, terms, the most bytes of a value, the number of fields, these, then keys
-- (with no fields they are strings)
local most, fields = tonumber(ARGV[3]), math.max(0, tonumber(ARGV[4]))
local found = {}
for i = 5 + fields, #ARGV do
    local has
    if fields > 0 then
        has = redis.pcall('HMGET', ARGV[i], unpack(ARGV, 5, 4 + fields))
    else
        has = {redis.pcall('GET', ARGV[i])}
        if type(has[1]) == 'table' then has = {err = true} end
    end
    if has.err then has = {false} end
    for k = 1, #has do has[k] = has[k] and string.sub(has[k], 1, most) end
    table.insert(found, has)
end
return {'shown', found}
""")


def _show(_: Words, args: Words, __: bool) -> Steps:
    most, number = int(args[0]), int(args[1])
    fields, names = args[2 : 2 + number], args[2 + number :]
    if fields:
        answers = yield [("HMGET", name, *fields) for name in names]
    else:
        texts = yield [("GETRANGE", name, "0", args[0]) for name in names]
        answers = [[text or None] for text in texts]
    shown = [
        [None] * len(fields or (0,))
        if isinstance(values, ErrorReply) or isinstance(values[0], ErrorReply)
        else [None if value is None else value[:most] for value in values]
        for values in answers
    ]
    return [shown]


_PLAIN: Final[Mapping[Script, tuple[str, Callable[[Words, Words, bool], Steps]]]] = {
    REGISTER: ("registered", _register),
    READ: ("read", _read),
    LIST: ("listed", _list),
    SHOW: ("shown", _show),
}
"""Kind of reply and plain commands, by the script that they replace."""
