"""All servers at once: sends to each of them what is asked of it, and gathers their answers.

A round has three ends for a server: it *answered*; it is *silent*, so that what it was sent may
have been done, or may be yet; or it is *absent*, and was sent nothing. Nothing is sent twice here.
An answer that comes when nobody waits for it any more is never read: its connection is closed.

A server that failed is absent from all rounds until a thread in the background has reached it
again, so that one that hangs costs each program one wait, and not each of its requests.
"""

from __future__ import annotations

import logging
import select
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from queue import Empty, Queue
from threading import Lock
from typing import Final

from lockclient import timers
from lockclient.timers import Crew
from lockclient.timing import Deadline, monotonic
from lockclient.valkey import faults
from lockclient.valkey.faults import Trouble
from lockclient.valkey.keys import Keys
from lockclient.valkey.lines import Answer, Call, Line, Packed, Refusal, other_terms
from lockclient.valkey.place import Place

log = logging.getLogger(__name__)

GRACE: Final = 0.1
"""Seconds that those who have not answered yet have when the votes are enough already."""
_FIRST_PROBE, _LONGEST_PROBE = 0.05, 1.0
"""Seconds between two tries to reach a server again."""
_SAME: Final = 2.0
"""Seconds by which two answers may differ that tell of the same moment from which one votes."""
_FORGOT: Final = (
    "it is new to this keyspace, or was emptied, or restarted without appendfsync always"
)
_IDLE_LINES: Final = 16
"""Connections to each server that are kept for the next request."""

Enough = Callable[[Mapping[int, Answer]], bool]


@dataclass(slots=True)
class Round:
    """What came of one round; servers go by their place in the URL.

    Attributes:
        answers: of those that voted.
        silent: those that did not answer, and may have done it or do it yet.
        troubles: why each other one has no vote, the silent ones included.
    """

    answers: dict[int, Answer] = field(default_factory=dict)
    silent: set[int] = field(default_factory=set)
    troubles: dict[int, Trouble] = field(default_factory=dict)


class Servers:
    """The ways to all servers; safe to share between threads.

    Args:
        place: which they are.
        back: called with the number of a server that can be reached again.
    """

    def __init__(self, place: Place, back: Callable[[int], object]) -> None:
        self.place = place
        self.keys = Keys(place.root)
        self.all = range(len(place.endpoints))
        self.closed = False
        self._back = back
        self._idle: list[deque[Line]] = [deque() for _ in self.all]
        self._trouble: dict[int, Trouble] = {}
        self._runs: dict[int, str] = {}
        self._kept: dict[int, bool] = {}
        self._votes_at: dict[int, float] = {}  # of those that wait, by this machine's wall clock
        self._naming = Lock()
        self._since: dict[int, float] = {}
        self._crew = Crew("server", 2 * len(place.endpoints))

    # ------------------------------------------------------------ a round

    def ask(self, calls: Mapping[int, Call], until: Deadline, enough: Enough) -> Round:
        """Ask these servers at once, until `enough` have answered, or the deadline.

        Those that are left then have a moment more: a healthy one's answer is on its way.
        """
        found = Round()
        poll = select.poll()
        lines = self._lines(calls, until, found, poll)
        waiting: dict[int, int] = {}
        packed: dict[int, Packed] = {}  # once for all that are sent the same
        for i, line in lines.items():
            call = calls[i]
            if (words := packed.get(id(call))) is None:
                words = packed[id(call)] = call.packed(self.place.terms)
            try:
                line.send(words, until)
            except faults.Unanswered as error:
                poll.unregister(line.fd)
                self._lost(i, line, faults.failed(error), found)
            else:
                waiting[line.fd] = i
        began, last, satisfied = monotonic(), until, False
        while waiting:
            events = poll.poll(1000 * last.remaining())
            if not events:
                break
            for fd, _ in events:
                i = waiting[fd]
                if self._read(i, lines[i], calls[i], last, found):
                    poll.unregister(fd)
                    del waiting[fd]
            if waiting and not satisfied and enough(found.answers):
                satisfied = True
                now = monotonic()
                last = Deadline(min(until, now + GRACE + now - began))
        for i in waiting.values():
            self._lost(i, lines[i], Trouble("no answer in time"), found)
        return found

    def _read(self, i: int, line: Line, call: Call, until: Deadline, found: Round) -> bool:
        """Take a server's answer; False: it is yet to come."""
        try:
            answer = line.read(call, until)
        except faults.Refused as error:
            found.troubles[i] = trouble = faults.answered(error)
            # One key that another program has, or that this user may not touch, is no reason to
            # ask the server nothing else.
            self._fail(i, line, trouble) if trouble.astray else self._give_back(i, line)
            return True
        except faults.Unanswered as error:
            self._lost(i, line, faults.failed(error), found)
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
            found.troubles[i] = Trouble(f"{_FORGOT}: it votes in {seconds:.0f} s")
        elif answer.kind == "terms":
            found.troubles[i] = other_terms(answer, self.place)
        else:
            found.answers[i] = answer
            if i in self._votes_at and call.votes:  # what needs no vote tells nothing of it
                self._wait(i, 0.0)
        self._give_back(i, line)
        return True

    def _lost(self, i: int, line: Line, trouble: Trouble, found: Round) -> None:
        """A connection broke, or its answer is late: what was sent by it may be done."""
        found.silent.add(i)
        found.troubles[i] = trouble
        self._fail(i, line, trouble)

    def _wait(self, i: int, seconds: float) -> None:
        """Take note that a server votes in so many seconds, and tell of it once."""
        if not seconds:
            self._votes_at.pop(i, None)
            return
        at = time.time() + seconds
        if at > self._votes_at.get(i, 0.0) + _SAME:
            self._votes_at[i] = at
            log.warning("%s has no vote for %.0f s: %s.", self.place.endpoints[i], seconds, _FORGOT)

    # ------------------------------------------------------------ connections

    def _lines(
        self, which: Collection[int], until: Deadline, found: Round, poll: select.poll
    ) -> dict[int, Line]:
        """Return a connection to each server that there is one to; the others have a trouble.

        All of them are in the poll then. By one look at it those are told from which something came
        that nobody waits for: most likely their end.
        """
        lines: dict[int, Line] = {}
        missing: list[int] = []
        wanted = which
        while wanted:
            for i in wanted:
                if (line := self._borrow(i)) is None:
                    missing.append(i)
                else:
                    lines[i] = line
                    poll.register(line.fd, select.POLLIN)
            ended = {fd for fd, _ in poll.poll(0)}
            wanted = [i for i, line in lines.items() if line.fd in ended] if ended else ()
            for i in wanted:
                poll.unregister(lines[i].fd)
                lines.pop(i).close()
        if missing:
            self._open_all(missing, lines, until, found)
            for i in missing:
                if i in lines:
                    poll.register(lines[i].fd, select.POLLIN)
        return lines

    def _open_all(
        self, missing: Iterable[int], lines: dict[int, Line], until: Deadline, found: Round
    ) -> None:
        """Open connections to those servers that have no trouble."""
        opened: Queue[tuple[int, Line | None]] = Queue()
        opening = 0
        for i in missing:
            if i not in self._trouble:
                self._crew.do(partial(self._open_for, i, opened))
                opening += 1
        for _ in range(opening):
            try:
                i, line = opened.get(timeout=until.remaining())
            except Empty:
                break
            if line is not None:
                lines[i] = line
        for i in missing:
            if i not in lines:
                found.troubles[i] = self._trouble.get(i) or Trouble("no connection in time")

    def _borrow(self, i: int) -> Line | None:
        if i in self._trouble:
            return None
        try:
            return self._idle[i].pop()
        except IndexError:
            return None

    def _give_back(self, i: int, line: Line) -> None:
        if self.closed or len(self._idle[i]) >= _IDLE_LINES:
            line.close()
        else:
            self._idle[i].append(line)

    def _open_for(self, i: int, opened: Queue[tuple[int, Line | None]]) -> None:
        line = None
        try:
            line = self.open(i)
        except Refusal as refusal:
            self._fail(i, None, refusal.trouble)
        finally:
            opened.put((i, line))

    def open(self, i: int, *, vouched: bool = False) -> Line:
        """Return a new connection to a server.

        Raises:
            Refusal: there is none, or none to a server that gives locks.
        """
        line = None
        try:
            line = Line(self.place, self.place.endpoints[i])
            line.settle(self.keys, vouched=vouched)
            with self._naming:  # looked up and noted at once: two names may be opened at a time
                twin = next((each for each in self.all if self._runs.get(each) == line.run), i)
                if twin != i:
                    other = self.place.endpoints[twin]
                    raise Refusal(Trouble(f"it is the same server as {other}", refused=True))
                new, self._runs[i] = self._runs.get(i) != line.run, line.run
                self._kept[i] = line.kept
        except (Refusal, faults.Refused, *faults.Unanswered) as error:
            if line is not None:
                line.close()
            if isinstance(error, Refusal):
                raise
            raise Refusal(faults.told(error)) from error
        if not line.kept and new:
            log.warning(
                "%s does not write down all that it answers (appendonly yes, appendfsync always): "
                "after a restart it gives no locks for %.0f s.",
                *(self.place.endpoints[i], self.place.longest),
            )
        self._wait(i, line.waits)
        return line

    def _fail(self, i: int, line: Line | None, trouble: Trouble) -> None:
        """A server failed: until it is reached again, it is absent."""
        if line is not None:
            line.close()
        new = i not in self._trouble
        self._trouble[i] = trouble
        while self._idle[i]:
            self._idle[i].pop().close()
        if new and not self.closed:
            timers.clock.after(_FIRST_PROBE, partial(self._probe, i, _FIRST_PROBE))

    def _probe(self, i: int, pause: float) -> None:
        self._crew.do(partial(self._reach, i, pause))

    def _reach(self, i: int, pause: float) -> None:
        """Try to reach a server again, for as long as it takes."""
        if self.closed:
            return
        line = None
        try:
            line = self.open(i)
        except Refusal as refusal:
            self._trouble[i] = refusal.trouble
            if i not in self._since and pause >= _LONGEST_PROBE:  # not for a hiccup
                self._since[i] = monotonic()
                endpoint = self.place.endpoints[i]
                log.warning("%s has no vote (%s); trying on.", endpoint, refusal.trouble.words)
            return
        finally:
            if line is None:  # whatever kept it: a server that nobody tries to reach stays absent
                again = min(2 * pause, _LONGEST_PROBE)
                timers.clock.after(again, partial(self._probe, i, again))
        self._idle[i].append(line)
        self._trouble.pop(i, None)
        since = self._since.pop(i, None)
        if since is not None:
            endpoint = self.place.endpoints[i]
            log.warning("%s can be reached again after %.1f s.", endpoint, monotonic() - since)
        self._back(i)

    # ------------------------------------------------------------ for people

    def remarks(self) -> Iterator[str]:
        """Say of each server why it has no vote, and which may lose what they have answered.

        The same words as long as it stays so: no seconds are counted down.
        """
        for endpoint, why in self.votes().items():
            if why:
                yield f"{endpoint} has no vote: {why}."
        if loose := [self.place.endpoints[i] for i in self.all if not self._kept.get(i, True)]:
            yield (
                f"{', '.join(loose)} may lose what {'it has' if len(loose) == 1 else 'they have'} "
                "answered (no appendonly yes with appendfsync always), and would vote again "
                f"{self.place.longest:g} s after a restart."
            )

    def votes(self) -> dict[str, str]:
        """Return by the servers' addresses why each has no vote, by what was last seen; empty: it
        has one."""
        return {endpoint: self._why_not(i) for i, endpoint in enumerate(self.place.endpoints)}

    def _why_not(self, i: int) -> str:
        if (trouble := self._trouble.get(i)) is not None:
            return trouble.words
        at = self._votes_at.get(i)
        return "" if at is None else f"{_FORGOT}; it votes from {_time(at)} on"

    def reachable(self, i: int) -> bool:
        """Tell whether a server answered the last time."""
        return i not in self._trouble

    def vouch(self) -> None:
        """Let all servers vote at once, for somebody who knows that nobody holds a lock.

        Raises:
            Refusal: one could not be told.
        """
        for i in self.all:
            self._give_back(i, self.open(i, vouched=True))

    def close(self) -> None:
        """Close all connections."""
        self.closed = True
        for idle in self._idle:
            while idle:
                idle.pop().close()
        self._crew.close()


def _time(at: float) -> str:
    return time.strftime("%H:%M:%S UTC", time.gmtime(at))
