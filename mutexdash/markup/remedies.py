"""Commands to copy about a lock that is stuck, quoted for a shell, and sections of the runbook."""

from __future__ import annotations

import re
from collections.abc import Iterator
from shlex import quote
from typing import Final, NamedTuple

from lockclient.model.holder import ALERT, BROKEN, OVERDUE, UNDECIDED, Holder
from lockclient.model.ticket import Ticket
from lockclient.text.escaping import plain

_HOST: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,252}")
"""What `ssh` may be given: nothing that it would take for an option, nor for a user."""

_SECTIONS: Final = {
    ALERT: "LockPastAlert",
    OVERDUE: "LockOverdue",
    UNDECIDED: "LockUndecided",
    BROKEN: "BrokenLock",
}
_DEADLOCK: Final = "LockDeadlock"


class Remedy(NamedTuple):
    """One step: `what` it is for, a sentence, and the `command` that does it."""

    what: str
    command: str


def runbook(state: str, deadlock: object = None) -> list[str]:
    """Return the sections of the runbook about a lock in this state; none if all is well."""
    stuck = [_DEADLOCK] if deadlock else []
    return [*stuck, _SECTIONS[state]] if state in _SECTIONS else stuck


def remedies(holder: Holder, url: str) -> Iterator[Remedy]:
    """Yield what a person does about a lock that is stuck, in order."""
    what = "Does its process still run, and is it the one that took the lock?"
    yield from _visits(holder, "the holder", what, python="python" in (holder.client or "python"))
    if holder.uuid is not None and not holder.uuid.startswith("unreadable-"):
        yield Remedy(
            "If the holder is dead, or may go on without the lock: take the lock from it, and from "
            "no other. It is shown once more, and you are asked why.",
            f"clustermutex force-unlock --url {quoted(url)} --uuid {quoted(holder.uuid)} "
            f"-- {quoted(holder.name)}",
        )


def visits(head: Ticket) -> Iterator[Remedy]:
    """Yield what a person does about who is next in line and does not take a lock that is free."""
    yield from _visits(head, "who is next", "Does its process still run?", python=True)


def _visits(who: Holder | Ticket, whose: str, process: str, *, python: bool) -> Iterator[Remedy]:
    host = who.hostname or ""
    if _HOST.fullmatch(host):
        yield Remedy(f"Go to the host of {whose}.", f"ssh {host}")
    if who.pid is not None:
        yield Remedy(process, f"ps -o pid,stat,lstart,args -p {who.pid}")
        if python:
            yield Remedy("What is it doing?", f"py-spy dump --pid {who.pid}")


def quoted(text: str) -> str:
    """Quote a text for a shell; what can't be seen, or copied off a page, is written as bash does.

    So nothing that is pasted runs, whatever a lock is called.
    """
    if plain(text) == text:
        return quote(text)
    return "$'" + "".join(map(_bash, text)) + "'"


def _bash(char: str) -> str:
    if char in "\\'":
        return f"\\{char}"
    if char.isascii() and char.isprintable():
        return char
    code = ord(char)
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
