"""A waiter's ticket: its place in the queue."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from lockclient.model.backtrace import FRAME_BYTES, innermost_frame
from lockclient.model.fields import COUNT, TEXT, TIME, json_facts, size_of, to_json
from lockclient.model.holder import Holder


@dataclass(frozen=True, slots=True)
class Ticket:
    """A waiter's place in the queue, ordered by `revision`; `frame` is the waiting line of code."""

    name: str
    uuid: str
    hostname: str | None = None
    pid: int | None = None
    thread: str | None = None
    reason: str | None = None
    since: float | None = None
    revision: int = 0
    actor: str | None = None
    frame: str | None = None

    @classmethod
    def of(cls, holder: Holder, since: float) -> Ticket:
        """Return the ticket of a waiter that has waited since this wall-clock time.

        Args:
            holder: the record that the waiter will write when it acquires the lock.
        """
        return cls(
            holder.name,
            holder.uuid or "",
            hostname=holder.hostname,
            pid=holder.pid,
            thread=holder.thread,
            reason=holder.reason,
            since=round(since, 3),
            actor=holder.actor,
            frame=innermost_frame(holder.backtrace),
        )

    @classmethod
    def read(cls, name: str, uuid: str, value: bytes, revision: int) -> Ticket:
        """Return a ticket, read from its key and value; a field that can't be read is None."""
        facts = json_facts(value, _TICKET)
        if (frame := facts["frame"]) is not None and size_of(frame) > FRAME_BYTES:
            facts["frame"] = None  # another client wrote too long a text
        return cls(name, uuid, **facts, revision=revision)

    def listed(self) -> Ticket:
        from lockclient.model.cut_texts import shortened  # for services alone

        texts = (self.hostname, self.thread, self.reason, self.actor)
        hostname, thread, reason, actor = (text and shortened(text) for text in texts)
        return replace(self, hostname=hostname, thread=thread, reason=reason, actor=actor)

    def value(self) -> str:
        facts = {key: getattr(self, key) for key in _TICKET}
        if facts["frame"] is None:
            del facts["frame"]
        return to_json(facts)

    def facts(self) -> dict[str, Any]:
        """Return all facts for JSON."""
        return {key: value for key, value in asdict(self).items() if key != "name"}


_TICKET: Final = {
    "hostname": TEXT,
    "pid": COUNT,
    "thread": TEXT,
    "actor": TEXT,
    "reason": TEXT,
    "since": TIME,
    "frame": TEXT,
}
