"""Which servers can be reached, and have a vote: connections, failures, and the way back.

A server that failed is absent from all rounds until a thread in the background has reached it
again, so that one that hangs costs each program one wait, and not each of its requests. Nobody
waits for a connection that can have the votes of others: whatever keeps a server from letting us
in (a name that is not found, a network that swallows, a server that is slow), it is its own thread
that waits.
"""

from __future__ import annotations

import logging
import select
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from threading import Lock
from typing import Final

from lockclient.model.clocks import monotonic
from lockclient.stores.valkey import errors
from lockclient.stores.valkey.errors import Trouble
from lockclient.stores.valkey.keys import Keys
from lockclient.stores.valkey.location import ValkeyLocation
from lockclient.stores.valkey.wire.connection import Connection, Refusal
from lockclient.stores.valkey.wire.pending_connections import Openings
from lockclient.threads import scheduler
from lockclient.threads.pool import WorkerPool

log = logging.getLogger(__name__)

SLOW: Final = 2.0
"""Seconds in which a server has to let a client in, six answers: as long as one round lasts."""
_LONG: Final = 0.5
"""Seconds after which no round waits any more for a connection to that server."""
_FIRST_PROBE, _LONGEST_PROBE = 0.05, 1.0
"""Seconds between two tries to reach a server again."""
_SAME: Final = 2.0
"""Seconds by which two answers may differ that tell of the same moment from which one votes."""
FORGOT: Final = (
    "it is new to this keyspace, or was emptied, or restarted without appendfsync always"
)
_IDLE_LINES: Final = 16
"""Connections to each server that are kept for the next request."""


class Reaching:
    """Who can be reached, and the connections; safe to share between threads.

    Args:
        place: which they are.
        back: called with the number of a server that can be reached again.
    """

    def __init__(self, place: ValkeyLocation, back: Callable[[int], object]) -> None:
        self.place = place
        self.keys = Keys(place.root)
        self.all = range(len(place.endpoints))
        self.closed = False
        self._back = back
        self._idle: list[deque[Connection]] = [deque() for _ in self.all]
        self._trouble: dict[int, Trouble] = {}
        self._runs: dict[int, str] = {}  # of those that are reached
        self._last: dict[int, str] = {}  # of each, when it was
        self._kept: dict[int, bool] = {}
        self._votes_at: dict[int, float] = {}  # of those that wait, by this machine's wall clock
        self._naming = Lock()
        self._since: dict[int, float] = {}
        self._crews = [WorkerPool("server", 2) for _ in self.all]
        self._opening: list[dict[object, float]] = [{} for _ in self.all]  # since when

    def _wait(self, i: int, seconds: float) -> None:
        """Take note that a server votes in so many seconds, and tell of it once."""
        if not seconds:
            self._votes_at.pop(i, None)
            return
        at = time.time() + seconds
        if at > self._votes_at.get(i, 0.0) + _SAME:
            self._votes_at[i] = at
            log.warning("%s has no vote for %.0f s: %s.", self.place.endpoints[i], seconds, FORGOT)

    # ------------------------------------------------------------ connections

    def _idle_lines(self, which: Iterable[int], poll: select.poll) -> dict[int, Connection]:
        """Return a connection to each server that has an idle one; all are in the poll then.

        By one look at it those are told from which something came that nobody waits for: most
        likely their end.
        """
        lines: dict[int, Connection] = {}
        wanted = which
        while wanted:
            for i in wanted:
                if (line := self._borrow(i)) is not None:
                    lines[i] = line
                    poll.register(line.fd, select.POLLIN)
            ended = {fd for fd, _ in poll.poll(0)}
            wanted = [i for i, line in lines.items() if line.fd in ended] if ended else ()
            for i in wanted:
                poll.unregister(lines[i].fd)
                lines.pop(i).close()
                self._runs.pop(i, None)  # who is there now is yet to be seen
        return lines

    def _borrow(self, i: int) -> Connection | None:
        if i in self._trouble:
            return None
        try:
            return self._idle[i].pop()
        except IndexError:
            return None

    def _give_back(self, i: int, line: Connection) -> None:
        if self.closed or len(self._idle[i]) >= _IDLE_LINES:
            line.close()
        else:
            self._idle[i].append(line)

    def _open(self, openings: Openings) -> None:
        """Have connections opened, each by a thread of its server's: one that hangs delays none."""
        for i in openings.pending:
            self._crews[i].submit(partial(self._open_for, i, openings))

    def _is_stuck(self, i: int) -> bool:
        """Tell whether a server lets somebody wait at its door for so long that nobody else should
        as well."""
        now = monotonic()
        return any(now - since > _LONG for since in [*self._opening[i].values()])

    def _open_for(self, i: int, openings: Openings) -> None:
        line, opening = None, self._opening[i]
        opening[openings] = monotonic()
        try:
            # By now it may have a trouble, or nobody wait any more, and others stand behind this.
            if i not in self._trouble and not openings.over:
                line = self.open(i)
        except Refusal as refusal:
            self._fail(i, None, refusal.trouble)
        finally:
            del opening[openings]
            if not openings.came(i, line) and line is not None:
                self._give_back(i, line)

    def open(self, i: int, *, vouched: bool = False) -> Connection:
        """Return a new connection to a server.

        Raises:
            Refusal: there is none, or none to a server that gives locks.
        """
        line, began = None, monotonic()
        try:
            line = Connection(self.place, self.place.endpoints[i])
            line.settle(self.keys, vouched=vouched)
            if (took := monotonic() - began) > SLOW:  # its answers would be late as well
                raise Refusal(Trouble(f"it is slow: it took {took:.1f} s to let us in"))
            with self._naming:  # looked up and noted at once: two names may be opened at a time
                twin = next((each for each in self.all if self._runs.get(each) == line.run), i)
                if twin != i:
                    other = self.place.endpoints[twin]
                    raise Refusal(Trouble(f"it is the same server as {other}", refused=True))
                new, self._last[i] = self._last.get(i) != line.run, line.run
                self._runs[i], self._kept[i] = line.run, line.kept
        except (Refusal, errors.Refused, *errors.Unanswered) as error:
            if line is not None:
                line.close()
            if isinstance(error, Refusal):
                raise
            raise Refusal(errors.told(error, self.place)) from error
        if not line.kept and new:
            log.warning(
                "%s does not write down all that it answers (appendonly yes, appendfsync always): "
                "after a restart it gives no locks for %.0f s.",
                *(self.place.endpoints[i], self.place.longest),
            )
        self._wait(i, line.waits)
        return line

    def _fail(self, i: int, line: Connection | None, trouble: Trouble) -> None:
        """A server failed: until it is reached again, it is absent."""
        if line is not None:
            line.close()
        new = i not in self._trouble
        self._trouble[i] = trouble
        self._runs.pop(i, None)  # another one may be there by now, and it elsewhere
        while self._idle[i]:
            self._idle[i].pop().close()
        if new and not self.closed:
            scheduler.shared.after(_FIRST_PROBE, partial(self._probe, i, _FIRST_PROBE))

    def _probe(self, i: int, pause: float) -> None:
        self._crews[i].submit(partial(self._reach, i, pause))

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
                scheduler.shared.after(again, partial(self._probe, i, again))
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
        if i not in self._runs:
            return "it has not been reached yet"
        at = self._votes_at.get(i)
        return "" if at is None else f"{FORGOT}; it votes from {_time(at)} on"

    def reachable(self, i: int) -> bool:
        """Tell whether a server answered the last time."""
        return i not in self._trouble

    def close(self) -> None:
        """Close all connections."""
        self.closed = True
        for idle in self._idle:
            while idle:
                idle.pop().close()
        for crew in self._crews:
            crew.close()


def _time(at: float) -> str:
    return time.strftime("%H:%M:%S UTC", time.gmtime(at))
