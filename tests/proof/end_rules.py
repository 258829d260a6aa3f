"""The rules of a process's normal end; see `tests.proof.rules`."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator

from tests.proof.evidence import RECONNECTED_S, History
from tests.proof.history import Line
from tests.proof.reigns import Reign

TICKET_TTL_S = 10.0
"""The lifetime of a ticket that nobody renews."""
LATE_S = 2.0
"""Seconds by which etcd may delete a ticket late."""
AT_EXIT = "at exit"
"""The key of the lines of a client that the thread of `atexit` runs."""
RELEASED_AT_EXIT = "released at exit"
"""The key of an `acquired` line whose lock is released as the process ends."""


def _ends(history: History) -> Iterator[tuple[Line, Line]]:
    """Yield the begin and the end of each process that has ended normally."""
    begun = {line.process: line for line in history.by_what["ending"]}
    for line in history.by_what["ended"]:
        yield begun[line.process], line


def _is_quiet(history: History, began: Line, ended: Line) -> bool:
    """Return whether the process could reach its store while it ended."""
    return not any(
        line.process in ("", ended.process)
        and line.at < ended.at
        and line.at + (line.seconds or 0.0) + RECONNECTED_S > began.at
        for what in ("trouble", "frozen")
        for line in history.by_what[what]
    )


def _left_by(history: History, ended: Line) -> Iterator[Reign]:
    """Yield the locks of a process that stood in etcd after its end, or came later."""
    for reign in history.reigns.all:
        lag = history.limits.lag + reign.lag
        if reign.about.get("reason") == ended.process and reign.ended_at > ended.at + lag:
            yield reign


def end_names_leftovers(history: History) -> Iterator[str]:
    """Each lock that a process leaves as it ends is named in its log, unless it is lost."""
    named = {line.uuid for line in (*history.by_what["named"], *history.by_what["lost"])}
    for line in history.by_what["left"]:
        if line.uuid not in named:
            yield f"{line.process} left {line.lock} of {line.uuid}, which its log does not name"
    for _, ended in _ends(history):
        for reign in _left_by(history, ended):
            due_at = reign.last_push(ended.at) + (reign.auto_unlock or math.inf)
            if reign.uuid not in named and due_at > ended.at:
                yield (
                    f"{ended.process} ended at {ended.at:.3f}, and left {reign.lock} of "
                    f"{reign.uuid}, taken at {reign.began}, which its log does not name"
                )


def end_withdraws(history: History) -> Iterator[str]:
    """A process that reaches its store leaves no ticket, and no acquisition without an outcome.

    Else its tickets are gone when their lease has ended.
    """
    troubles = (*history.by_what["trouble"], *history.by_what["frozen"])
    over_at = max((line.at + (line.seconds or 0.0) for line in troubles), default=-math.inf)
    possible = {line.uuid for line in history.by_what["named"] if line.key == "granted"}
    for began, ended in _ends(history):
        is_quiet = _is_quiet(history, began, ended)
        latest = ended.at if is_quiet else max(ended.at, over_at) + TICKET_TTL_S + LATE_S
        for uuid, gone_at, lag in _tickets(history, ended.process):
            if gone_at > latest + history.limits.lag + lag:
                yield (
                    f"{ended.process} ended at {ended.at:.3f}, and its ticket {uuid} stood until "
                    f"{gone_at:.3f}"
                )
        for reign in _left_by(history, ended) if is_quiet else ():
            if reign.uuid in possible:
                yield f"{ended.process} ended, and did not withdraw {reign.uuid} from {reign.lock}"


def _tickets(history: History, process: str) -> Iterator[tuple[str, float, float]]:
    """Yield the uuid of each ticket of a process, when it went, and by how much that is late."""
    ours: dict[str, None] = {}
    for key, line in history.reigns.written:
        if key[0] != "queue":
            continue
        if line.value is None:
            if key[2] in ours:
                del ours[key[2]]
                yield key[2], line.at, line.seconds or 0.0
        elif json.loads(line.value).get("reason") == process:
            ours[key[2]] = None
    for uuid in ours:
        yield uuid, math.inf, 0.0


def end_returns_no_acquire(history: History) -> Iterator[str]:
    """No acquire of another thread returns once all are marked."""
    marked_at = {line.process: line.at for line in history.by_what["marked"]}
    for line in history.by_what["acquired"] if marked_at else ():
        latest = marked_at.get(line.process, math.inf) + history.limits.lag
        if line.key != AT_EXIT and line.at > latest:
            yield f"{line.process} ends, and acquired {line.lock} by {line.uuid} at {line.at:.3f}"


def end_in_time(history: History) -> Iterator[str]:
    """The end of a process takes no longer than its limit."""
    for began, ended in _ends(history):
        is_frozen = any(
            line.process == ended.process
            and line.at <= ended.at
            and line.at + (line.seconds or 0.0) >= began.at
            for line in history.by_what["frozen"]
        )
        if (ended.seconds or 0.0) > history.limits.ends_within and not is_frozen:
            yield f"{ended.process} ended within {ended.seconds} s"


END_RULES = (end_names_leftovers, end_withdraws, end_returns_no_acquire, end_in_time)
