"""Unlockers' announcements, documents that they share, and their walk for index entries.

Each document is changed by CASPaxos. A reader has a majority promise to accept nothing with a lower
number than its own; each answers with its value, and the one with the highest number counts. The
reader writes its new value under the promised number, and that is valid when a majority accepted
it. The next reader finds every value that stood, since two majorities share a server. It may find
one that a minority accepted, which becomes valid if the reader writes it again. A server that
accepts a value also promises the writer's next number, so the writer may write again at once.

An empty value deletes a document. A key without a value expires a day after its last promise or
write. No request arrives that late, and a server accepts no value without its promise to the
writer. So a forgotten promise lets no earlier request in; and numbers are times, so that later
values have higher ones. But a server that the deletion has not reached keeps the old value. If
nobody deletes the document again within that day, the old value is read again, and the document is
to be deleted once more. A value that a majority has accepted is never forgotten.

Once an hour an unlocker walks each server's keyspace and adds index entries for keys that were
written by hand.
"""

from __future__ import annotations

import math
import secrets
import threading
import time
from collections.abc import Iterator
from functools import partial
from typing import Final

from lockclient.model.clocks import Deadline, monotonic
from lockclient.stores.service_store import MAX_DOCUMENT_BYTES, MAX_DOCUMENTS, Document
from lockclient.stores.valkey import errors
from lockclient.stores.valkey.keys import LATE_REQUEST_S, milliseconds, number_of
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
-- KEYS server, document; ARGV run, terms, number, the reader's nonce, the most bytes of the value,
-- the lifetime of a promise without a value in milliseconds
local has = redis.call('HMGET', KEYS[2], 'promised', 'whose', 'number', 'value')
local promised, number = tonumber(has[1]) or 0, tonumber(ARGV[3])
-- Another program may have written any number: one that no reader can exceed is replaced.
if promised > 9e15 or promised ~= math.floor(promised) then promised = 0 end
if promised > number or (promised == number and has[2] ~= ARGV[4]) then
    return {'promised_another', has[1]}
end
redis.call('HSET', KEYS[2], 'promised', ARGV[3], 'whose', ARGV[4])
if (has[4] or '') == '' then redis.call('PEXPIRE', KEYS[2], ARGV[6]) end
return {'promised', has[3] or '0', string.sub(has[4] or '', 1, tonumber(ARGV[5]) + 1)}
""")

WRITE_PROMISED: Final = writing_script("""
-- KEYS server, document; ARGV run, terms, the promised number, the reader's nonce, the value, the
-- lifetime of an empty one in milliseconds, the next number
local has = redis.call('HMGET', KEYS[2], 'promised', 'whose')
if has[2] ~= ARGV[4] then return {'promised_another'} end
if has[1] == ARGV[7] then return {'written'} end -- by this request, whose answer was lost
if has[1] ~= ARGV[3] then return {'promised_another'} end
-- It promises the writer's next number, too. So the writer knows the value of that without reading
-- it, and no two values are written under one number.
redis.call('HSET', KEYS[2], 'number', ARGV[3], 'value', ARGV[5], 'promised', ARGV[7])
if ARGV[5] == '' then redis.call('PEXPIRE', KEYS[2], ARGV[6])
else redis.call('PERSIST', KEYS[2]) end
return {'written'}
""")


class Unlockers:
    """Announcements, documents and index entries, on all servers.

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
        """By document the last number under which this process has sent a value."""
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

    # ------------------------------------------------------------ documents

    def read_document(self, name: str, deadline: Deadline) -> Document:
        rounds, pauses = self._rounds, Backoff(*ROUND_PAUSES_S)
        while True:
            number = self._next_number()
            command = Command(
                PROMISE,
                (rounds.keys.server, rounds.keys.documents + name),
                (str(number), self._nonce, str(MAX_DOCUMENT_BYTES), milliseconds(LATE_REQUEST_S)),
            )
            plan = Plan(command, rounds.quorum.decides("promised"), partial(self._read, number))
            if (found := rounds.call(plan, deadline)) is not None:
                return found
            time.sleep(pauses.next())

    def _next_number(self) -> int:
        with self._lock:
            self._promised = max(self._promised + 1, time.time_ns() // 10**6)
            return self._promised

    def _read(self, number: int, answers: Answers, _resent: bool) -> Document | None:
        """Return the document; None: a higher number was promised to another reader."""
        if self._rounds.quorum.agrees(answers, "promised"):
            replies = (reply.rest for reply in answers.values() if reply.kind == "promised")
            _, value = max((number_of(number, 16), value) for number, value in replies)
            return Document(value if len(value) <= MAX_DOCUMENT_BYTES else None, number)
        others = (reply.rest[0] for reply in answers.values() if reply.kind != "promised")
        with self._lock:  # another thread may have taken a higher number meanwhile
            self._promised = max(self._promised, *(number_of(other, 16) for other in others))
        return None

    def write_document(
        self, name: str, value: bytes, seen: Document, deadline: Deadline
    ) -> Document | None:
        rounds, quorum = self._rounds, self._rounds.quorum
        number = self._next_number()
        lifetime, seen_number = milliseconds(LATE_REQUEST_S), str(seen.version)
        command = Command(
            WRITE_PROMISED,
            (rounds.keys.server, rounds.keys.documents + name),
            (seen_number, self._nonce, value.decode(), lifetime, str(number)),
        )

        def read(answers: Answers, _resent: bool) -> Document | None:
            return Document(value, number) if quorum.agrees(answers, "written") else None

        return rounds.call(Plan(command, quorum.decides("written"), read), deadline)

    def document_names(self, deadline: Deadline) -> list[str]:
        """Return the names that any server has with a value: such a key does not expire.

        Scans all keys of each server; until the next deletion a server may have a deleted document.
        """
        rounds, names = self._rounds, set[str]()
        failures = dict[int, errors.VoteFailure]()
        for i, (_, server) in enumerate(rounds.servers.open_all()):
            try:
                if isinstance(server, errors.VoteFailure):
                    failures[i] = server
                else:
                    names.update(self._documents_of(server, deadline))
            except errors.FAILED as error:
                failures[i] = errors.classify(error)
        if len(failures) > rounds.quorum.servers - rounds.quorum.majority:
            raise errors.no_majority(rounds.location, failures, unknown=False)
        return sorted(names)[:MAX_DOCUMENTS]

    def _documents_of(self, server: Connection, deadline: Deadline) -> Iterator[str]:
        prefix = self._rounds.keys.documents
        for page in server.scan(("SCAN",), "MATCH", f"{prefix}*"):
            if deadline.expired():
                raise TimeoutError
            for key in page:
                if server.command("PTTL", name := decoded(key)) == -1:
                    yield name.removeprefix(prefix)

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
