"""Lua scripts: what a server does in one atomic step, and what it answers.

Most begin with the same question: is this the server that it was? `<root>/server` is
written when a server is first met, and says of which process that was (`run`, the server's
`run_id`), by which terms all clients use it (`terms`: how many servers there are, and how long a
lock may go without a heartbeat), and from when on it votes. A client with other terms is told
so, and has no vote: of three servers and of five a majority is another one.

- It is not there: the server was emptied (restarted without its data, `FLUSHALL`), or is new.
- It names another process than the one that the connection leads to: that was restarted, or it is
  another server that has copied this one's data.
- The server is a replica, or was one since it was met: its data was replaced by its primary's, and
  with it this key, which may name it, as its primary may have copied that from it. As it is
  promoted it keeps its `run_id`, but says by `master_replid2` whose history it went on with: an id
  that was never told twice, so that `replid2` in a copy of the key is an older one. (By
  `master_replid` it says nothing: a backup or a first replica changes that of a healthy server.)
  This each script asks anew, in the same step in which it votes: connections stay open meanwhile.

In each case it may not know of locks that it has given. `SETTLE` decides, as a connection is
opened: a server of which an operator has said that it writes everything down before
it answers (`kept`, by `clustermutex vouch --kept`), and which tells nothing to the contrary, goes
on; any other one votes when that longest time has passed, by its own clock. Until then its answer
is no vote, to nobody and for nothing: not even that a lock is not there. It is an operator's word
because only `CONFIG GET` would tell, and who may ask that may ask for the server's password.

Who only looks has no right to `EVAL`, and reads by plain commands: see `plain_reads`.
"""

from __future__ import annotations

from functools import partial
from hashlib import sha1
from typing import Any, Final, NamedTuple

from lockclient.model.holder import MAX_VALUE_BYTES, SUBKEYS
from lockclient.model.removal import MAX_RECORD
from lockclient.stores.valkey.keys import LATE_REQUEST_S

NUMBERS: Final = ("take", "push", "expiry")
"""Fields of a lock besides its subkeys."""


class Script(NamedTuple):
    """A script, and the name under which a server keeps it.

    One that `votes` is told besides which process it is taken for, and the keyspace's `terms`.
    """

    source: str
    sha: str
    votes: bool


class Reply(NamedTuple):
    """A script's answer: a word and its values."""

    kind: str
    rest: list[Any]


_PAST: Final = """
local replication = redis.call('INFO', 'replication')
local past = string.match(replication, 'master_replid2:(%x+)') or ''
if not string.find(past, '[^0]') then past = '' end
"""
_VOTES: Final = f"""{_PAST}
local said = redis.call('HMGET', KEYS[1], 'run', 'terms', 'votes_at', 'replid2')
if not said[1] then return {{'empty'}} end
local promoted = past ~= '' and past ~= said[4]
if said[1] ~= ARGV[1] or promoted or string.find(replication, 'role:slave', 1, true) then
    return {{'another'}}
end
if said[2] ~= ARGV[2] then return {{'terms', said[2] or ''}} end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local wait = (tonumber(said[3]) or 0) - now
if wait > 0 then return {{'waits', string.format('%d', wait)}} end
-- With expire=1 a lock is over with its time. It stays for its record alone, until somebody wants
-- it, or for a day.
local expires = string.find(ARGV[2], ' expire=1', 1, true)
local function over(key)
    if not expires then return false end
    local left = redis.call('PTTL', key)
    return left >= 0 and left < {LATE_REQUEST_S * 1000:.0f}
end
"""

_GOES_ON_IF_FULL: Final = """
-- A server at its maxmemory refuses a script whose first write may need memory, and goes on with
-- one that began with a deletion. So this deletes a key that never exists. Without the right to it
-- the script is refused as others are.
redis.pcall('DEL', (string.gsub(KEYS[1], '[^/]+$', 'withdrawn/')))
"""
"""Begins each script that writes and whose first key is `<root>/server`, but `TAKE`: what keeps or
frees a lock needs little memory, and a lock that was given can't be kept without it."""

_INDEX: Final = """
-- The entries of a folder are the rests of its keys' names, in a set at the folder's own name. An
-- entry proves nothing: it is written with its key, and whoever writes removes those of which the
-- key is gone. As two are looked at with each new one, no more are stale, about, than are not.
local function place(key)
    local index, entry = string.match(key, '^(.+/removed)/([^/]+/[^/]+)$')
    if not index then index, entry = string.match(key, '^(.+)/([^/]+)$') end
    return index, entry
end
local function enter(key)
    local index, entry = place(key)
    redis.call('SADD', index, entry)
    for _, other in ipairs(redis.call('SRANDMEMBER', index, 2)) do
        if redis.call('PTTL', index .. '/' .. other) == -2 and other ~= entry then
            redis.call('SREM', index, other)
        end
    end
end
local function leave(key)
    local index, entry = place(key)
    redis.pcall('SREM', index, entry)
end
"""

_WHOLE: Final = """
-- Whoever may write locks may have written anything there, of any size.
local function whole(key)
    local fields, found = {FIELDS}, {}
    local has = redis.call('HMGET', key, unpack(fields))
    for i = 1, #fields do
        if has[i] then
            table.insert(found, fields[i])
            table.insert(found, string.sub(has[i], 1, VALUE_BYTES))
        end
    end
    return found
end
""".replace("FIELDS", ", ".join(f"'{field}'" for field in (*SUBKEYS, *NUMBERS))).replace(
    "VALUE_BYTES", str(MAX_VALUE_BYTES + 1)
)


def _script(source: str, *, votes: bool = False) -> Script:
    """Return a script with the functions that it calls."""
    for function, definition in (("whole(", _WHOLE), ("enter(", _INDEX), ("leave(", _INDEX)):
        if function in source and definition not in source:
            source = definition + source
    source = _VOTES + source if votes else source
    sha = sha1(source.encode()).hexdigest()  # noqa: S324 - it is their name for it
    return Script(source, sha, votes)


_voting_script: Final = partial(_script, votes=True)


def _keeping_script(source: str) -> Script:
    return _voting_script(_GOES_ON_IF_FULL + source)


SETTLE: Final = _script(
    _GOES_ON_IF_FULL
    + _PAST
    + """
-- KEYS server; ARGV run, terms, whether nothing speaks against its keeping what it answers (1),
-- whether it does by somebody's word (1 or 0; empty: nobody says), votes (1: somebody vouches for
-- it), the longest that a lock may be silent, in milliseconds
local said = redis.call('HMGET', KEYS[1], 'run', 'terms', 'votes_at', 'kept', 'replid2', 'uuid')
if said[6] then return redis.error_reply('WRONGTYPE a lock of the prefix above') end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
if said[1] and said[2] ~= ARGV[2] then return {'terms', said[2] or ''} end
local promoted = past ~= '' and past ~= said[5]
local may_keep = ARGV[3] == '1' and not promoted
local longest = ARGV[6] * 1.01
-- It never has to wait for longer than that: else its clock was ahead and came back, and it waits
-- from now on.
local at = math.min(tonumber(said[3]) or 0, now + longest)
if not said[1] or promoted or (said[1] ~= ARGV[1] and not (said[4] == '1' and may_keep)) then
    at = now + longest
end
if ARGV[5] == '1' then at = 0 end
-- The word is for what this process writes from now on. It outlives a restart, and neither a server
-- that was emptied nor one that tells otherwise: that has written something without keeping it.
local kept = ARGV[4] ~= '' and ARGV[4] or said[1] and said[4] or '0'
if not may_keep then kept = '0' end
local text = string.format('%d', at)
-- What was its past is noted until there is another one: a server tells it for a while alone.
if past == '' then past = said[5] or '' end
if said[1] ~= ARGV[1] or said[3] ~= text or said[4] ~= kept or (said[5] or '') ~= past then
    redis.call('HSET', KEYS[1], 'run', ARGV[1], 'terms', ARGV[2], 'votes_at', text, 'kept', kept,
        'replid2', past)
end
return {'settled', string.format('%d', math.max(0, at - now)), kept}
"""
)

TAKE: Final = _voting_script("""
-- KEYS server, lock, mark; ARGV run, terms, uuid, number of the try, expiry, from whom it may be
-- taken over and at which push (empty: nobody, any), then the fields
local mark = redis.call('GET', KEYS[3])
if mark == 'all' then return {'used_up'} end
if mark and tonumber(mark) >= tonumber(ARGV[4]) then return {'given_up'} end
local has = redis.call('HMGET', KEYS[2], 'uuid', 'take', 'push', 'expiry', 'run')
local expired = {}
if over(KEYS[2]) then has, expired = {}, whole(KEYS[2]) end
if has[1] == ARGV[3] then
    -- A try has its own time, and none is kept because an earlier one was.
    if (tonumber(has[2]) or 0) < tonumber(ARGV[4]) then
        redis.call('HSET', KEYS[2], 'take', ARGV[4], 'expiry', ARGV[5])
        redis.call('PEXPIRE', KEYS[2], ARGV[5])
    end
    return {'had'}
end
-- Of a prefix below this one that ends in /locks, the state of its server stands here.
if has[5] and not has[1] then return redis.error_reply('WRONGTYPE another prefix') end
-- One that missed a push is no heartbeat: what was seen is the latest that any of them has.
local later = ARGV[7] ~= '' and (tonumber(has[3]) or 0) > tonumber(ARGV[7])
if has[1] and (has[1] ~= ARGV[6] or later) then
    local left, expiry = redis.call('PTTL', KEYS[2]), tonumber(has[4]) or 0
    if expires and expiry > 0 and left > expiry then
        -- The server's clock was ahead as it was taken, and came back.
        redis.call('PEXPIRE', KEYS[2], expiry)
        left = expiry
    end
    return {'held', has[1], has[2] or '0', has[4] or '', left}
end
if redis.call('PTTL', KEYS[2]) ~= -2 then
    -- Not the deletion first: a server without memory is to refuse a take, see `_GOES_ON_IF_FULL`.
    redis.call('HSET', KEYS[2], 'take', ARGV[4])
    redis.call('DEL', KEYS[2])
end
enter(KEYS[2])
redis.call('HSET', KEYS[2], 'take', ARGV[4], 'push', '0', 'expiry', ARGV[5], unpack(ARGV, 8))
redis.call('PEXPIRE', KEYS[2], ARGV[5])
return {'taken', expired}
""")

KEEP: Final = _keeping_script("""
-- KEYS server, lock; ARGV run, terms, uuid, number of the try: a lock that is never auto-unlocked
-- stays, of the try that a majority gave and of no later one
local has = redis.call('HMGET', KEYS[2], 'uuid', 'take')
if has[1] ~= ARGV[3] or has[2] ~= ARGV[4] then return {'gone'} end
redis.call('HSET', KEYS[2], 'expiry', '0')
redis.call('PERSIST', KEYS[2])
return {'kept'}
""")

PUSH: Final = _keeping_script("""
-- KEYS server, lock, record; ARGV run, terms, uuid, the last push that is known of, number,
-- alert_at, auto_unlock_at (or empty)
local has = redis.call('HMGET', KEYS[2], 'uuid', 'push', 'alert_at', 'expiry')
if over(KEYS[2]) then has = {} end
if has[1] ~= ARGV[3] then
    return {'gone', has[1] or '', redis.call('GET', KEYS[3]) or '', now}
end
if (tonumber(has[2]) or 0) > tonumber(ARGV[4]) then
    -- With its own stamps it is done, by an earlier sending.
    return {has[3] == ARGV[6] and 'pushed' or 'moved', has[2]}
end
redis.call('HSET', KEYS[2], 'push', ARGV[5], 'alert_at', ARGV[6])
if ARGV[7] ~= '' then redis.call('HSET', KEYS[2], 'auto_unlock_at', ARGV[7]) end
local expiry = tonumber(has[4]) or 0
if expiry > 0 then redis.call('PEXPIRE', KEYS[2], expiry) end
return {'pushed', ARGV[5]}
""")

GIVE: Final = _keeping_script("""
-- KEYS server, lock, mark, record; ARGV run, terms, until when by this server's clock, number of
-- the try, expiry, then the fields: a vote that was lost is given back, see `regrant`
local mark = redis.call('GET', KEYS[3])
local over = mark and (mark == 'all' or tonumber(mark) >= tonumber(ARGV[4]))
if over or redis.call('GET', KEYS[4]) or redis.call('PTTL', KEYS[2]) ~= -2 then
    return {'refused'}
end
if now > tonumber(ARGV[3]) then return {'late'} end
enter(KEYS[2])
redis.call('HSET', KEYS[2], unpack(ARGV, 6))
if ARGV[5] ~= '0' then redis.call('PEXPIRE', KEYS[2], ARGV[5]) end
return {'given'}
""")

READ: Final = _voting_script(
    """
-- KEYS server, lock, record; ARGV run, terms, whether to read it whole
local found, record = {}, ''
if ARGV[3] ~= '' then
    found = whole(KEYS[2])
    record = string.sub(redis.call('GET', KEYS[3]) or '', 1, RECORD_BYTES)
else
    local has = redis.call('HMGET', KEYS[2], 'uuid', 'push')
    if has[1] then found = {'uuid', has[1], 'push', has[2] or '0'} end
end
if over(KEYS[2]) then found = {} end
return {'seen', found, record}
""".replace("RECORD_BYTES", str(MAX_RECORD + 1))
)

REMOVE: Final = _keeping_script("""
-- KEYS server, lock, record, mark; ARGV run, terms, uuid, push as seen (or empty), channel,
-- record (or empty), for how long that stands, for how long the mark does
local has = redis.call('HMGET', KEYS[2], 'uuid', 'push')
if over(KEYS[2]) then has = {} end
if has[1] ~= ARGV[3] then
    return {'gone', has[1] or '', redis.call('GET', KEYS[3]) or ''}
end
-- A lower number is no heartbeat: this server missed the push that was seen on another.
if ARGV[4] ~= '' and (tonumber(has[2]) or 0) > tonumber(ARGV[4]) then
    return {'moved', has[2]}
end
-- First what a user may lack the right to: a script that fails does not undo what it has done.
if ARGV[6] ~= '' then
    enter(KEYS[3])
    redis.call('SET', KEYS[3], ARGV[6], 'PX', ARGV[7])
    redis.call('SET', KEYS[4], 'all', 'PX', ARGV[8])
end
redis.call('DEL', KEYS[2])
leave(KEYS[2])
return {'dropped', redis.pcall('PUBSUB', 'NUMSUB', ARGV[5])[2] or 1}
""")

DROP: Final = _script("""
-- KEYS lock, mark, record; ARGV uuid, up to which try (or all), for how long to mark that (or
-- empty), channel, whether to tell who listens (1; else it answers how many do). Whatever the
-- server has lost, this it may do.
local has = redis.call('HMGET', KEYS[1], 'uuid', 'take')
local all = ARGV[2] == 'all'
local ours = has[1] == ARGV[1] and (all or (tonumber(has[2]) or 0) <= tonumber(ARGV[2]))
if ours then
    redis.call('DEL', KEYS[1])
    leave(KEYS[1])
end
if ARGV[3] ~= '' then
    local mark = redis.call('GET', KEYS[2])
    if mark ~= 'all' and (all or not mark or tonumber(mark) < tonumber(ARGV[2])) then
        redis.call('DEL', KEYS[2]) -- first, so that a server without memory goes on
        redis.call('SET', KEYS[2], ARGV[2], 'PX', ARGV[3])
    end
end
if not ours then return {'gone', has[1] or '', redis.call('GET', KEYS[3]) or ''} end
-- A hint is not needed: a user who lacks the right to it has deleted the lock all the same.
if ARGV[5] == '1' then
    redis.pcall('PUBLISH', ARGV[4], ARGV[1])
    return {'dropped', 0}
end
return {'dropped', redis.pcall('PUBSUB', 'NUMSUB', ARGV[4])[2] or 1}
""")

RECORD: Final = _script("""
-- KEYS record; ARGV record, for how long: unless somebody has told how it went
enter(KEYS[1])
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2], 'NX')
return {'done'}
""")

UNRECORD: Final = _script("""
-- KEYS record; ARGV record, what stands instead (or empty), for how long: a removal that came to
-- nothing, or that another one has done
if redis.call('GET', KEYS[1]) == ARGV[1] then
    redis.call('DEL', KEYS[1])
    if ARGV[2] ~= '' then
        redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
    else
        leave(KEYS[1])
    end
end
return {'done'}
""")

FORGET: Final = _script("""
-- KEYS record, or announcement
redis.call('DEL', KEYS[1])
leave(KEYS[1])
return {'done'}
""")

LIST: Final = _voting_script(
    """
-- KEYS server; ARGV run, terms, an index, cursor, how many entries to look at, what to say of each
-- key: the number in this field of a hash and its uuid; `size` of a text; or `sum`, of all names
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
""",
)

SHOW: Final = _voting_script(
    """
-- KEYS server; ARGV run, terms, how many bytes of a value at most, how many fields, these, then
-- keys (with no fields they are no hashes)
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
""",
)

SAY: Final = _keeping_script("""
-- KEYS server, heartbeat; ARGV run, terms, number, what it says, for how long it stands
if (tonumber(redis.call('HGET', KEYS[2], 'number')) or 0) <= tonumber(ARGV[3]) then
    enter(KEYS[2])
    redis.call('HSET', KEYS[2], 'number', ARGV[3], 'said', ARGV[4])
    redis.call('PEXPIRE', KEYS[2], ARGV[5])
end
return {'said'}
""")

PROMISE: Final = _keeping_script("""
-- KEYS server, note; ARGV run, terms, number, whose that is, how many bytes of the value at most
--
-- The note is changed as CASPaxos has it. A reader has a majority promise to take nothing that has
-- a lower number than its own, and is told what each of them has; that with the highest number is
-- the note. It writes what it makes of that under the promised number, and it stands when a
-- majority took it. Whatever has stood is seen by the next reader, since two majorities have a
-- server in common; what a minority took may be seen, and stands then if something is made of it.
local has = redis.call('HMGET', KEYS[2], 'promised', 'whose', 'number', 'value')
local promised, number = tonumber(has[1]) or 0, tonumber(ARGV[3])
-- Whoever may write the note may have written any number: one that nobody can follow is replaced.
if promised > 9e15 or promised ~= math.floor(promised) then promised = 0 end
if promised > number or (promised == number and has[2] ~= ARGV[4]) then
    return {'promised_another', has[1]}
end
redis.call('HSET', KEYS[2], 'promised', ARGV[3], 'whose', ARGV[4])
return {'promised', has[3] or '0', string.sub(has[4] or '', 1, tonumber(ARGV[5]) + 1)}
""")

WRITE_PROMISED: Final = _keeping_script("""
-- KEYS server, note; ARGV run, terms, number that was promised, whose that is, the value
local has = redis.call('HMGET', KEYS[2], 'promised', 'whose')
if has[1] ~= ARGV[3] or has[2] ~= ARGV[4] then return {'promised_another'} end
redis.call('HSET', KEYS[2], 'number', ARGV[3], 'value', ARGV[5])
return {'written'}
""")

TELL: Final = _script("""
-- KEYS none; ARGV channel, what is told there
return {'told', redis.call('PUBLISH', ARGV[1], ARGV[2])}
""")
