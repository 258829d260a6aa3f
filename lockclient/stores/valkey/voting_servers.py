"""The servers that may vote, in Lua: those that have lost nothing.

Most scripts begin with `MAY_VOTE`. It reads `<root>/server`, which is written when a client first
connects to a server. This key names the server's process (`run`, its `run_id`), the `terms` that
all clients share (the number of servers, and how long a lock may go without a heartbeat), and when
the server may vote. A client with other terms is refused: three servers and five have different
majorities. The server has no vote in these cases:

- The key is missing: the server was emptied (`FLUSHALL`, a restart without its data), or is new.
- It names another process: the server was restarted, or it has copied another server's data.
- The server is a replica, or was one since: its primary's data, this key included, replaced its
  own. When it is promoted its `run_id` stays, but `master_replid2` names the history that it
  continues, an id that is never used twice; so `replid2` in a copy of the key is an older one.
  (`master_replid` proves nothing: a backup or a first replica changes it on a healthy server.)
  Connections stay open meanwhile, so each script checks this in the step in which it votes.

In each case the server may have forgotten locks that it gave. `REGISTER` decides when a connection
is opened. An operator may vouch that the server writes everything to its disk before it answers
(`kept`, set by `clustermutex vouch --kept`); unless `INFO` contradicts that, the server continues
to vote. Any other server votes after `longest` by its own clock, and until then no answer of it
counts, not even that a lock is free. (Only `CONFIG GET` could prove it, and a user who may send
that can read the server's passwords.)
"""

from __future__ import annotations

from typing import Final

from lockclient.stores.valkey.keys import LATE_REQUEST_S

_PAST: Final = """
local replication = redis.call('INFO', 'replication')
local past = string.match(replication, 'master_replid2:(%x+)') or ''
if not string.find(past, '[^0]') then past = '' end
"""
MAY_VOTE: Final = f"""{_PAST}
local state = redis.call('HMGET', KEYS[1], 'run', 'terms', 'votes_at', 'replid2')
if not state[1] then return {{'empty'}} end
local promoted = past ~= '' and past ~= state[4]
if state[1] ~= ARGV[1] or promoted or string.find(replication, 'role:slave', 1, true) then
    return {{'another'}}
end
if state[2] ~= ARGV[2] then return {{'terms', state[2] or ''}} end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local wait = (tonumber(state[3]) or 0) - now
if wait > 0 then return {{'waits', string.format('%d', wait)}} end
-- With expire=1 a lock ends with its time. Its key stays for a day, or until a taker has recorded
-- that it expired.
local expires = string.find(ARGV[2], ' expire=1', 1, true)
local function over(key)
    if not expires then return false end
    local left = redis.call('PTTL', key)
    return left >= 0 and left < {LATE_REQUEST_S * 1000:.0f}
end
"""

REGISTER: Final = (
    _PAST
    + """
-- KEYS server; ARGV run, terms, 1 if the server has an append-only file, 1 or 0 if an operator
-- vouches that it is durable or is not (else empty), 1 if an operator vouches that nobody holds a
-- lock, `longest` in milliseconds
local state = redis.call('HMGET', KEYS[1], 'run', 'terms', 'votes_at', 'kept', 'replid2', 'uuid')
if state[6] then return redis.error_reply('WRONGTYPE a lock of the prefix above') end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
if state[1] and state[2] ~= ARGV[2] then return {'terms', state[2] or ''} end
local promoted = past ~= '' and past ~= state[5]
local may_keep = ARGV[3] == '1' and not promoted
local longest = ARGV[6] * 1.01
-- A later time was written when the server's clock was ahead: then the wait begins now.
local at = math.min(tonumber(state[3]) or 0, now + longest)
if not state[1] or promoted or (state[1] ~= ARGV[1] and not (state[4] == '1' and may_keep)) then
    at = now + longest
end
if ARGV[5] == '1' then at = 0 end
-- What an operator vouches for holds for later writes and survives a restart. It ends when the
-- server was emptied or contradicts it: then it has lost something that it answered.
local kept = ARGV[4] ~= '' and ARGV[4] or state[1] and state[4] or '0'
if not may_keep then kept = '0' end
local text = string.format('%d', at)
-- A server forgets `master_replid2` after a while, so the last one stays here.
if past == '' then past = state[5] or '' end
if state[1] ~= ARGV[1] or state[3] ~= text or state[4] ~= kept or (state[5] or '') ~= past then
    redis.call('HSET', KEYS[1], 'run', ARGV[1], 'terms', ARGV[2], 'votes_at', text, 'kept', kept,
        'replid2', past)
end
return {'registered', string.format('%d', math.max(0, at - now)), kept}
"""
)
