"""Next steps about a stuck lock: commands for any shell, and sections of the runbook."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple
from urllib.parse import quote

from lockclient.model.holder import ALERT, BROKEN, OVERDUE, UNDECIDED, Holder
from lockclient.model.ticket import Ticket
from lockclient.overview.lock_status import DEADLOCK, HELD_TOO_LONG, LockStatus

_HOST: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,252}")
"""A host for `ssh`: neither an option nor a user."""

_POD: Final = re.compile(r"([a-z0-9][a-z0-9-]{0,62})/([a-z0-9][a-z0-9.-]{0,252})")
"""A namespace and a pod by the rules of Kubernetes, which no shell interprets."""

_BARE: Final = re.compile(r"[A-Za-z0-9._/][A-Za-z0-9._/-]*")
"""A word that no shell interprets and no program takes for an option."""
_BARE_URL: Final = re.compile(r"[A-Za-z0-9._/:,%-]+")
_HEXADECIMAL: Final = " (Name and uuid are in hexadecimal, so no shell can misread them.)"

_SECTIONS: Final = {
    ALERT: "LockPastAlert",
    OVERDUE: "LockOverdue",
    UNDECIDED: "LockUndecided",
    BROKEN: "BrokenLock",
    DEADLOCK: "LockDeadlock",
    HELD_TOO_LONG: "LockHeldTooLong",
}


class Step(NamedTuple):
    """One step: `what` it is for, a sentence, and its `command`."""

    what: str
    command: str


def runbook_sections(status: LockStatus) -> list[str]:
    """Return the sections of the runbook about a lock with this status."""
    words = dict.fromkeys((status.verdict, *status.words))
    return [_SECTIONS[word] for word in words if word in _SECTIONS]


def steps_about_holder(holder: Holder, url: str) -> Iterator[Step]:
    """Yield what a person does about a lock that is stuck, in order; `url`: of the store."""
    what = "Check that its process still runs, and that it is the one that took the lock:"
    yield from _visits(holder, "the holder", what, python="python" in (holder.client or "python"))
    if holder.uuid is not None and not holder.uuid.startswith("unreadable-"):
        what = (
            "If the holder is dead, or may continue without the lock, force-unlock it (only "
            "this holder; you see it again and give a reason):"
        )
        words = (holder.uuid, holder.name)
        if bare := all(map(_BARE.fullmatch, words)):
            uuid, name = words
        else:
            uuid, name = (word.encode(errors="replace").hex() for word in words)
        yield Step(
            what if bare else what + _HEXADECIMAL,
            f"clustermutex force-unlock --url {url_word(url)} {'' if bare else '--hex '}"
            f"--uuid {uuid} -- {name}",
        )


def steps_about_waiter(head: Ticket) -> Iterator[Step]:
    """Yield what a person does about the next waiter if it does not take a free lock."""
    yield from _visits(
        head, "the next waiter", "Check whether its process still runs:", python=True
    )


def _visits(who: Holder | Ticket, whose: str, process: str, *, python: bool) -> Iterator[Step]:
    host = who.hostname or ""
    pod = _POD.fullmatch((isinstance(who, Holder) and who.container) or "")
    if pod:
        namespace, name = pod.groups()
        yield Step(
            f"Go to the pod that {whose} names (check that it is one of yours).",
            f"kubectl exec -n {namespace} -it {name} -- sh",
        )
    elif _HOST.fullmatch(host):
        yield Step(
            f"Go to the host that {whose} names (check that it is one of yours).", f"ssh {host}"
        )
    if who.pid is not None:
        yield Step(process, f"ps -o pid,stat,lstart,args -p {who.pid}")
        if python:
            yield Step(
                f"See what it is doing; if it hangs, end it by kill -INT {who.pid}:",
                f"py-spy dump --pid {who.pid}",
            )


def url_word(url: str) -> str:
    """Return the URL of a store as a word of a command line for any shell.

    Shells read a quote or a backslash inside of quotes differently. So unusual characters are
    percent-encoded first.
    """
    url = quote(url, safe="/:,?=&[]~")
    return url if _BARE_URL.fullmatch(url) else f"'{url}'"
