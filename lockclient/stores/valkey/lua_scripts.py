"""Lua scripts: each is one atomic step on one server. `Command` is a script with its arguments.

Most scripts begin by checking that the server may vote: see `voting_servers`. A user without the
right to `EVAL` reads by plain commands: see `reads`.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha1
from typing import Any, Final, NamedTuple

from lockclient.model.holder import MAX_VALUE_BYTES, SUBKEYS
from lockclient.stores.valkey import voting_servers
from lockclient.stores.valkey.name_index import INDEX

NUMBERS: Final = ("take", "push", "expiry")
"""Fields of a lock in addition to its subkeys."""


class Script(NamedTuple):
    """A script, and the hash by which a server finds it.

    Before its own arguments one that `votes` gets the `run_id` of the process that the client
    expects, and the keyspace's `terms`.
    """

    source: str
    sha: str
    votes: bool


class Command(NamedTuple):
    """A script with its keys and arguments."""

    script: Script
    keys: tuple[str, ...]
    args: tuple[str, ...]


class Reply(NamedTuple):
    """A script's answer: its first word, and the values that follow."""

    kind: str
    rest: list[Any]


Answers = Mapping[int, Reply]
"""Replies by the servers' positions in the URL."""

_RUNS_IF_FULL: Final = """
-- A server at its maxmemory refuses a script whose first write may need memory, but not one that
-- began with a deletion. So this deletes a key that never exists. A user without the right to it is
-- refused as everywhere else.
redis.pcall('DEL', (string.gsub(KEYS[1], '[^/]+$', 'withdrawn/')))
"""
"""Begins each writing script whose first key is `<root>/server`, except `TAKE`: what extends or
frees a lock needs little memory."""

_WHOLE: Final = """
-- Other programs may have written values of any size.
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


def script(source: str, *, votes: bool = False) -> Script:
    """Return a script with the functions that it calls."""
    for function, definition in (("whole(", _WHOLE), ("enter(", INDEX), ("leave(", INDEX)):
        if function in source and definition not in source:
            source = definition + source
    source = voting_servers.MAY_VOTE + source if votes else source
    sha = sha1(source.encode()).hexdigest()  # noqa: S324 - Valkey names scripts by it
    return Script(source, sha, votes)


def voting_script(source: str) -> Script:
    """Return a script of a server that has lost nothing."""
    return script(source, votes=True)


def writing_script(source: str) -> Script:
    """Return a voting script that runs on a server without memory, too."""
    return voting_script(_RUNS_IF_FULL + source)


REGISTER: Final = script(_RUNS_IF_FULL + voting_servers.REGISTER)

TAKE: Final = voting_script("""
-- KEYS server, lock, tombstone; ARGV run, terms, uuid, number of the try, expiry, the
-- uuid from which it may be taken over and its push (empty: nobody, any), then the fields
local withdrawn = redis.call('GET', KEYS[3])
if withdrawn == 'all' then return {'uuid_spent'} end
if withdrawn and tonumber(withdrawn) >= tonumber(ARGV[4]) then return {'withdrawn'} end
local has = redis.call('HMGET', KEYS[2], 'uuid', 'take', 'push', 'expiry', 'run')
local expired = {}
if over(KEYS[2]) then has, expired = {}, whole(KEYS[2]) end
if has[1] == ARGV[3] then
    -- Each try has its own expiry, also if an earlier one was made permanent.
    if (tonumber(has[2]) or 0) < tonumber(ARGV[4]) then
        redis.call('HSET', KEYS[2], 'take', ARGV[4], 'expiry', ARGV[5])
        redis.call('PEXPIRE', KEYS[2], ARGV[5])
    end
    return {'already_taken'}
end
-- A prefix below this one that ends in /locks has its `server` key here.
if has[5] and not has[1] then return redis.error_reply('WRONGTYPE another prefix') end
-- A lower push is no later heartbeat: this server missed the one that another server has.
local later = ARGV[7] ~= '' and (tonumber(has[3]) or 0) > tonumber(ARGV[7])
if has[1] and (has[1] ~= ARGV[6] or later) then
    local left, expiry = redis.call('PTTL', KEYS[2]), tonumber(has[4]) or 0
    if expires and expiry > 0 and left > expiry then
        -- The server's clock was ahead when the lock was taken, and was set back since.
        redis.call('PEXPIRE', KEYS[2], expiry)
        left = expiry
    end
    return {'held', has[1], has[2] or '0', has[4] or '', left}
end
if redis.call('PTTL', KEYS[2]) ~= -2 then
    -- HSET precedes DEL, so that a server without memory refuses a take: see `_RUNS_IF_FULL`.
    redis.call('HSET', KEYS[2], 'take', ARGV[4])
    redis.call('DEL', KEYS[2])
end
enter(KEYS[2])
redis.call('HSET', KEYS[2], 'take', ARGV[4], 'push', '0', 'expiry', ARGV[5], unpack(ARGV, 8))
redis.call('PEXPIRE', KEYS[2], ARGV[5])
return {'taken', expired}
""")

PERSIST: Final = writing_script("""
-- KEYS server, lock; ARGV run, terms, uuid, number of the try that a majority gave: removes
-- the expiry of a lock that is never auto-unlocked
local has = redis.call('HMGET', KEYS[2], 'uuid', 'take')
if has[1] ~= ARGV[3] or has[2] ~= ARGV[4] then return {'not_holder'} end
redis.call('HSET', KEYS[2], 'expiry', '0')
redis.call('PERSIST', KEYS[2])
return {'persisted'}
""")

PUSH: Final = writing_script("""
-- KEYS server, lock, record; ARGV run, terms, uuid, the last known push, the number of this push,
-- alert_at, auto_unlock_at (or empty)
local has = redis.call('HMGET', KEYS[2], 'uuid', 'push', 'alert_at', 'expiry')
if over(KEYS[2]) then has = {} end
if has[1] ~= ARGV[3] then
    return {'not_holder', has[1] or '', redis.call('GET', KEYS[3]) or '', now}
end
if (tonumber(has[2]) or 0) > tonumber(ARGV[4]) then
    -- With this push's own stamp an earlier sending did it.
    return {has[3] == ARGV[6] and 'pushed' or 'moved', has[2]}
end
redis.call('HSET', KEYS[2], 'push', ARGV[5], 'alert_at', ARGV[6])
if ARGV[7] ~= '' then redis.call('HSET', KEYS[2], 'auto_unlock_at', ARGV[7]) end
local expiry = tonumber(has[4]) or 0
if expiry > 0 then redis.call('PEXPIRE', KEYS[2], expiry) end
return {'pushed', ARGV[5]}
""")

RESTORE_VOTE: Final = writing_script("""
-- KEYS server, lock, tombstone, record; ARGV run, terms, until when by this server's clock, number
-- of the try, expiry, then the fields: see `voting.push`
local up_to = redis.call('GET', KEYS[3])
local withdrawn = up_to and (up_to == 'all' or tonumber(up_to) >= tonumber(ARGV[4]))
if withdrawn or redis.call('GET', KEYS[4]) or redis.call('PTTL', KEYS[2]) ~= -2 then
    return {'refused'}
end
if now > tonumber(ARGV[3]) then return {'late'} end
enter(KEYS[2])
redis.call('HSET', KEYS[2], unpack(ARGV, 6))
if ARGV[5] ~= '0' then redis.call('PEXPIRE', KEYS[2], ARGV[5]) end
return {'restored'}
""")

REMOVE: Final = writing_script("""
-- KEYS server, lock, record, tombstone; ARGV run, terms, uuid, the last push that was read (or
-- empty), channel, record (or empty), lifetimes of record and tombstone in milliseconds
local has = redis.call('HMGET', KEYS[2], 'uuid', 'push')
if over(KEYS[2]) then has = {} end
if has[1] ~= ARGV[3] then
    return {'not_holder', has[1] or '', redis.call('GET', KEYS[3]) or ''}
end
-- A lower push is no later heartbeat: this server missed the one that another server has.
if ARGV[4] ~= '' and (tonumber(has[2]) or 0) > tonumber(ARGV[4]) then
    return {'moved', has[2]}
end
-- First the writes to which a user may lack the right: a script that fails is not rolled back.
if ARGV[6] ~= '' then
    enter(KEYS[3])
    redis.call('SET', KEYS[3], ARGV[6], 'PX', ARGV[7])
    redis.call('SET', KEYS[4], 'all', 'PX', ARGV[8])
end
redis.call('DEL', KEYS[2])
leave(KEYS[2])
return {'dropped', redis.pcall('PUBSUB', 'NUMSUB', ARGV[5])[2] or 1}
""")

DROP: Final = script("""
-- KEYS lock, tombstone, record; ARGV uuid, the last try to withdraw (or all), the tombstone's
-- lifetime (empty: none), channel, 1 to publish the release there (else the answer has the number
-- of subscribers). It needs no vote: it is right whatever the server has lost.
local has = redis.call('HMGET', KEYS[1], 'uuid', 'take')
local all = ARGV[2] == 'all'
local ours = has[1] == ARGV[1] and (all or (tonumber(has[2]) or 0) <= tonumber(ARGV[2]))
if ours then
    redis.call('DEL', KEYS[1])
    leave(KEYS[1])
end
if ARGV[3] ~= '' then
    local up_to = redis.call('GET', KEYS[2])
    if up_to ~= 'all' and (all or not up_to or tonumber(up_to) < tonumber(ARGV[2])) then
        redis.call('DEL', KEYS[2]) -- first, so that a server without memory runs this
        redis.call('SET', KEYS[2], ARGV[2], 'PX', ARGV[3])
    end
end
if not ours then return {'not_holder', has[1] or '', redis.call('GET', KEYS[3]) or ''} end
-- pcall: a user without the right to publish still deletes the lock.
if ARGV[5] == '1' then
    redis.pcall('PUBLISH', ARGV[4], ARGV[1])
    return {'dropped', 0}
end
return {'dropped', redis.pcall('PUBSUB', 'NUMSUB', ARGV[4])[2] or 1}
""")

RECORD: Final = script("""
-- KEYS record; ARGV record, its lifetime: writes it unless there is one
enter(KEYS[1])
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2], 'NX')
return {'done'}
""")

REPLACE_RECORD: Final = script("""
-- KEYS record; ARGV record of a removal that did not happen, the record that replaces it (or
-- empty), the lifetime of that
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

DELETE: Final = script("""
-- KEYS record or announcement
redis.call('DEL', KEYS[1])
leave(KEYS[1])
return {'done'}
""")

PUBLISH: Final = script("""
-- KEYS none; ARGV channel, message
return {'published', redis.call('PUBLISH', ARGV[1], ARGV[2])}
""")
