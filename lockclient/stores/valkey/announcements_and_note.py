"""Unlockers' announcements, the note that they share, and their walk for index entries.

The note is changed by CASPaxos. A reader has a majority promise to accept nothing with a lower
number than its own; each answers with its note, and the one with the highest number counts. The
reader writes its new note under the promised number, and the note is valid when a majority accepted
it. The next reader finds every note that stood, since two majorities share a server. It may find
one that a minority accepted, which becomes valid if the reader writes it again.

Once an hour an unlocker walks each server's keyspace and adds index entries for keys that were
written by hand.
"""

from __future__ import annotations

import math
import secrets
import threading
import time
from functools import partial
from typing import Final

from lockclient.model.clocks import Deadline, monotonic
from lockclient.stores.service_store import MAX_NOTE_BYTES, Note
from lockclient.stores.valkey import errors
from lockclient.stores.valkey.keys import milliseconds, number_of
from lockclient.stores.valkey.lua_scripts import DELETE, Answers, Command, writing_script
from lockclient.stores.valkey.voting.quorum import decoded
from lockclient.stores.valkey.voting.rounds import ROUND_PAUSES_S, Plan, Rounds
from lockclient.stores.valkey.wire.connection import Connection
from lockclient.threads.backoff import Backoff
from lockclient.threads.log_queue import get_logger
from lockclient.threads.pool import WorkerPool

log = get_logger(__name__)

_WALK_INTERVAL_S: Final = 3600.0
_WALK_PAUSE_S: Final = 0.01
"""Seconds between two pages: a million keys take half a minute."""

ANNOUNCE: Final = writing_script("""
-- KEYS server, announcement; ARGV run, terms, number, text, lifetime
if (tonumber(redis.call('HGET', KEYS[2], 'number')) or 0) <= tonumber(ARGV[3]) then
    enter(KEYS[2])
    redis.call('HSET', KEYS[2], 'number', ARGV[3], 'said', ARGV[4])
    redis.call('PEXPIRE', KEYS[2], ARGV[5])
end
return {'announced'}
""")
PROMISE: Final = writing_script("""
-- KEYS server, note; ARGV run, terms, number, the reader's nonce, the most bytes of the value
local has = redis.call('HMGET', KEYS[2], 'promised', 'whose', 'number', 'value')
local promised, number = tonumber(has[1]) or 0, tonumber(ARGV[3])
-- Another program may have written any number: one that no reader can exceed is replaced.
if promised > 9e15 or promised ~= math.floor(promised) then promised = 0 end
if promised > number or (promised == number and has[2] ~= ARGV[4]) then
    return {'promised_another', has[1]}
end
redis.call('HSET', KEYS[2], 'promised', ARGV[3], 'whose', ARGV[4])
return {'promised', has[3] or '0', string.sub(has[4] or '', 1, tonumber(ARGV[5]) + 1)}
""")

WRITE_PROMISED: Final = writing_script("""
-- KEYS server, note; ARGV run, terms, the promised number, the reader's nonce, the value
local has = redis.call('HMGET', KEYS[2], 'promised', 'whose')
if has[1] ~= ARGV[3] or has[2] ~= ARGV[4] then return {'promised_another'} end
redis.call('HSET', KEYS[2], 'number', ARGV[3], 'value', ARGV[5])
return {'written'}
""")


class Unlockers:
    """Announcements, the note and index entries, on all servers.

    Args:
        rounds: asks them.
        pool: a thread of it walks.
    """

    def __init__(self, rounds: Rounds, pool: WorkerPool) -> None:
        self._rounds = rounds
        self._pool = pool
        self._walk_due = -math.inf
        self._is_refusal_logged = False
        self._lock = threading.Lock()
        self._announced = self._promised = 0
        self._nonce = secrets.token_hex(8)  # distinguishes this process's numbers from others'

    def announce(self, unlocker: str, text: str, ttl: float, deadline: Deadline) -> None:
        """Have a majority write an announcement, which expires on each server by itself.

        Of two different ones that with the higher number is the later: the time in milliseconds, or
        one more than before. Numbers of two unlockers are not compared.
        """
        self._announced = max(self._announced + 1, time.time_ns() // 10**6)
        keys, rounds = self._rounds.keys, self._rounds
        command = Command(
            ANNOUNCE,
            (keys.server, keys.announcement(unlocker)),
            (str(self._announced), text, milliseconds(ttl)),
        )
        rounds.call(Plan(command, rounds.is_majority, lambda *_: None), deadline)
        if monotonic() >= self._walk_due:
            self._walk_due = monotonic() + _WALK_INTERVAL_S
            self._pool.submit(self._walk)

    def withdraw_announcement(self, unlocker: str, deadline: Deadline) -> None:
        rounds = self._rounds
        command = Command(DELETE, (rounds.keys.announcement(unlocker),), ())
        rounds.call(Plan(command, rounds.is_majority, lambda *_: None), deadline)

    # ------------------------------------------------------------ the note

    def read_note(self, deadline: Deadline) -> Note:
        rounds, pauses = self._rounds, Backoff(*ROUND_PAUSES_S)
        while True:
            with self._lock:
                number = self._promised = max(self._promised + 1, time.time_ns() // 10**6)
            keys = rounds.keys.server, rounds.keys.note
            command = Command(PROMISE, keys, (str(number), self._nonce, str(MAX_NOTE_BYTES)))
            plan = Plan(command, rounds.quorum.decides("promised"), partial(self._read, number))
            if (note := rounds.call(plan, deadline)) is not None:
                return note
            time.sleep(pauses.next())

    def _read(self, number: int, answers: Answers, _resent: bool) -> Note | None:
        """Return the note; None: a higher number was promised to another reader."""
        if self._rounds.quorum.agrees(answers, "promised"):
            replies = (reply.rest for reply in answers.values() if reply.kind == "promised")
            _, value = max((number_of(number, 16), value) for number, value in replies)
            return Note(value if len(value) <= MAX_NOTE_BYTES else b"", number)
        others = (reply.rest[0] for reply in answers.values() if reply.kind != "promised")
        with self._lock:  # another thread may have taken a higher number meanwhile
            self._promised = max(self._promised, *(number_of(other, 16) for other in others))
        return None

    def write_note(self, value: bytes, seen: Note, deadline: Deadline) -> bool:
        rounds, quorum = self._rounds, self._rounds.quorum
        command = Command(
            WRITE_PROMISED,
            (rounds.keys.server, rounds.keys.note),
            (str(seen.version), self._nonce, value.decode()),
        )

        def read(answers: Answers, _resent: bool) -> bool:
            return quorum.agrees(answers, "written")

        return rounds.call(Plan(command, quorum.decides("written"), read), deadline)

    # ------------------------------------------------------------ the index

    def _walk(self) -> None:
        for endpoint, found in self._rounds.servers.open_all():
            try:
                if isinstance(found, Connection):
                    self._walk_server(found)
            except errors.FAILED as error:
                if not self._is_refusal_logged:
                    self._is_refusal_logged = True
                    reason = errors.classify(error).reason
                    log.warning("%s: keys written by hand are not listed: %s", endpoint, reason)

    def _walk_server(self, connection: Connection) -> None:
        keys = self._rounds.keys
        for page in connection.scan(("SCAN",), "MATCH", f"{keys.all}*"):
            if self._rounds.servers.closed:
                return
            for index in (keys.lock_index, keys.unlocker_index, keys.record_index):
                found = [name for name in map(decoded, page) if name.startswith(f"{index}/")]
                if found:
                    entries = (name.removeprefix(f"{index}/") for name in found)
                    connection.command("SADD", index, *entries)
            time.sleep(_WALK_PAUSE_S)
