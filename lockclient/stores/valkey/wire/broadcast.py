"""All servers at once: sends to each of them what is asked of it, and gathers their answers.

A round has three ends for a server: it *answered*; it is *silent*, so that what it was sent may
have been done, or may be yet; or it is *absent*, and was sent nothing. Nothing is sent twice here.
An answer that comes when nobody waits for it any more is never read: its connection is closed.

Who has a connection is asked at once. Others are asked as soon as they have let us in, and a round
waits for that as it does for answers: until there are enough, and a moment more.
"""

from __future__ import annotations

import select
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from lockclient.model.clocks import Deadline, monotonic
from lockclient.stores.valkey import errors
from lockclient.stores.valkey.errors import Trouble
from lockclient.stores.valkey.wire.connection import Command, Connection, Packed, Reply, other_terms
from lockclient.stores.valkey.wire.pending_connections import Openings
from lockclient.stores.valkey.wire.pool import FORGOT, Reaching

GRACE: Final = 0.1
"""Seconds that those who have not answered yet have when the votes are enough already."""

Enough = Callable[[Mapping[int, Reply]], bool]


@dataclass(slots=True)
class Round:
    """What came of one round; servers go by their place in the URL.

    Attributes:
        answers: of those that voted.
        silent: those that did not answer, and may have done it or do it yet.
        troubles: why each other one has no vote, the silent ones included.
    """

    answers: dict[int, Reply] = field(default_factory=dict)
    silent: set[int] = field(default_factory=set)
    troubles: dict[int, Trouble] = field(default_factory=dict)


class _Asked:
    """A round that is under way: whom what was sent by which connection."""

    __slots__ = ("_packed", "_terms", "calls", "found", "lines", "poll", "runs", "waiting")

    def __init__(self, calls: Mapping[int, Command], terms: str) -> None:
        self.calls = calls
        self.found = Round()
        self.lines: dict[int, Connection] = {}
        self.runs: set[str] = set()
        self.poll = select.poll()
        self.waiting: dict[int, int] = {}
        self._packed: dict[int, Packed] = {}
        self._terms = terms

    def words(self, i: int) -> Packed:
        """Return what a server is sent, packed once for all that are sent the same."""
        call = self.calls[i]
        if (words := self._packed.get(id(call))) is None:
            words = self._packed[id(call)] = call.packed(self._terms)
        return words


class Broadcast(Reaching):
    """All servers; safe to share between threads."""

    def ask(self, calls: Mapping[int, Command], until: Deadline, enough: Enough) -> Round:
        """Ask these servers at once, until `enough` have answered, or the deadline.

        Those that are left then have a moment more: a healthy one's answer is on its way.
        """
        asked = _Asked(calls, self.place.config_fingerprint)
        for i, line in self._idle_lines(calls, asked.poll).items():
            self._send(i, line, asked, until)
        openings = self._open_others(asked) if len(asked.lines) < len(calls) else None
        self._gather(asked, openings, until, enough)
        found = asked.found
        for i in asked.waiting.values():
            self._lost(i, asked.lines[i], Trouble("no answer in time"), found)
        if openings is not None:
            for i, late in openings.close():
                if late is not None:  # it came in the last moment, and is for the next round
                    self._give_back(i, late)
        if len(asked.lines) < len(calls):
            unreached = Trouble("no connection in time")
            found.troubles = {i: unreached for i in calls if i not in asked.lines} | found.troubles
        return found

    def _gather(
        self, asked: _Asked, openings: Openings | None, until: Deadline, enough: Enough
    ) -> None:
        """Take all answers until there are enough, or nobody is left who could give one."""
        began, last, satisfied = monotonic(), until, False
        while asked.waiting or (openings is not None and openings.pending):
            events = asked.poll.poll(1000 * last.remaining())
            if not events:
                return
            for fd, _ in events:
                if openings is not None and fd == openings.fd:
                    self._send_new(openings.take(), asked, until)
                elif self._read(asked.waiting[fd], asked, last):
                    asked.poll.unregister(fd)
                    del asked.waiting[fd]
            if not satisfied and enough(asked.found.answers):
                satisfied = True
                now = monotonic()
                last = Deadline(min(until, now + GRACE + now - began))

    # ------------------------------------------------------------ those without a connection

    def _open_others(self, asked: _Asked) -> Openings | None:
        """Have connections opened to those that have none; one in trouble gets none."""
        absent = {i: self._trouble.get(i) for i in asked.calls if i not in asked.lines}
        asked.found.troubles |= {i: why for i, why in absent.items() if why is not None}
        wanted = [i for i, why in absent.items() if why is None and not self._is_stuck(i)]
        if not wanted:
            return None
        try:
            openings = Openings(wanted)
        except OSError as error:  # too many open files
            trouble = Trouble(f"there can be no connection: {error.strerror}")
            asked.found.troubles |= dict.fromkeys(wanted, trouble)
            return None
        asked.poll.register(openings.fd, select.POLLIN)
        self._open(openings)
        return openings

    def _send_new(
        self, came: Iterable[tuple[int, Connection | None]], asked: _Asked, until: Deadline
    ) -> None:
        for i, line in came:
            if line is None:
                asked.found.troubles[i] = self._trouble.get(i) or Trouble("it was not reached")
            else:
                asked.poll.register(line.fd, select.POLLIN)
                self._send(i, line, asked, until)

    # ------------------------------------------------------------ those with one

    def _send(self, i: int, line: Connection, asked: _Asked, until: Deadline) -> None:
        asked.lines[i] = line
        if line.run in asked.runs:  # it goes by another name, too, and has one vote
            asked.found.troubles[i] = Trouble("it is the same server as another one", refused=True)
            asked.poll.unregister(line.fd)
            return self._give_back(i, line)
        asked.runs.add(line.run)
        try:
            line.send(asked.words(i), until)
        except errors.Unanswered as error:
            asked.poll.unregister(line.fd)
            self._lost(i, line, errors.failed(error), asked.found)
        else:
            asked.waiting[line.fd] = i

    def _read(self, i: int, asked: _Asked, until: Deadline) -> bool:
        """Take a server's answer; False: it is yet to come."""
        line, call, found = asked.lines[i], asked.calls[i], asked.found
        try:
            answer = line.read(call, until)
        except errors.Refused as error:
            found.troubles[i] = trouble = errors.answered(error)
            # One key that another program has, or that this user may not touch, is no reason to
            # ask the server nothing else.
            self._fail(i, line, trouble) if trouble.astray else self._give_back(i, line)
            return True
        except errors.Unanswered as error:
            self._lost(i, line, errors.failed(error), found)
            return True
        if answer is None:
            return False
        if answer.kind in ("empty", "another"):
            found.troubles[i] = trouble = Trouble("it was emptied, or is new to this keyspace")
            self._fail(i, line, trouble)
            return True
        if answer.kind == "waits":
            seconds = int(answer.rest[0]) / 1000
            self._wait(i, seconds)
            found.troubles[i] = Trouble(f"{FORGOT}: it votes in {seconds:.0f} s")
        elif answer.kind == "terms":
            found.troubles[i] = other_terms(answer, self.place)
        else:
            found.answers[i] = answer
            if i in self._votes_at and call.votes:  # what needs no vote tells nothing of it
                self._wait(i, 0.0)
        self._give_back(i, line)
        return True

    def _lost(self, i: int, line: Connection, trouble: Trouble, found: Round) -> None:
        """A connection broke, or its answer is late: what was sent by it may be done."""
        found.silent.add(i)
        found.troubles[i] = trouble
        self._fail(i, line, trouble)
