"""The index of names, in Lua: one set for each folder of keys, so that a list needs no scan."""

from __future__ import annotations

from typing import Final

INDEX: Final = """
-- The set at a folder's own name has the rest of the name of each key below it. An entry proves
-- nothing. It is written with its key; a writer checks two other entries and removes those without
-- a key, so that about half of the entries are stale at most.
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
