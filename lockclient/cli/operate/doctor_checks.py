"""Checks of `clustermutex doctor` that all stores share: unlockers, clocks, locks. No I/O."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from lockclient.cli.output import counted, counted_locks
from lockclient.model.announcement import (
    CLOCKS_UNKNOWN,
    announced,
    damaged_recipients,
    failing_recipients,
)
from lockclient.model.deadlocks import Deadlock
from lockclient.model.fields import NEVER
from lockclient.model.holder import ALERT, BROKEN, OK, OVERDUE, UNDECIDED
from lockclient.overview.listed_locks import Listed
from lockclient.overview.lock_presentation import no_unlock
from lockclient.overview.rows import Row
from lockclient.stores.findings import ERROR, FINE, WARNING, Clock, Finding
from lockclient.text.durations import duration
from lockclient.text.escaping import plain, shown_name

MAX_CLOCK_OFFSET_S = 2.0
"""Seconds that clocks may differ: more, and an unlocker does not believe its own."""
OVERDUE_GRACE_S = 30.0
"""Seconds after its auto-unlock in which an unlocker should have removed a lock."""


def unlockers(found: Mapping[str, str], *, needed: bool = True) -> Finding:
    """Return whether an unlocker runs; `needed`: locks do not expire by themselves."""
    if not found and not needed:
        return Finding(
            "unlocker",
            FINE,
            "None is running: locks expire by themselves (expire=1), and nobody is alerted.",
        )
    if not found:
        return Finding(
            "unlocker",
            ERROR,
            "No unlocker is running: nobody is alerted, and abandoned locks stay for ever.",
            "Start the program `unlocker`, better two of it.",
        )
    named = ", ".join(f"{plain(name)}{_version_of(value)}" for name, value in found.items())
    return Finding("unlocker", FINE, f"{len(found)} running: {named}.")


def recipients(found: Mapping[str, str]) -> Iterator[Finding]:
    """Yield the recipients of notifications that fail, as unlockers announce."""
    if names := failing_recipients(found.values()):
        yield Finding(
            "unlocker",
            WARNING,
            f"Notifications by {plain(', '.join(names))} have failed for ten minutes or longer.",
            "`apprise -vv -b test URL` says why; what is wrong by then comes when it works.",
        )
    if names := damaged_recipients(found.values()):
        yield Finding(
            "unlocker",
            WARNING,
            f"Unlockers can't read what {plain(', '.join(names))} was sent.",
            "Within a minute they replace it, and send what is wrong now. Who else writes below "
            "`notifications/`?",
        )


def _version_of(announcement: str) -> str:
    version = announced(announcement).get("version")
    return f" (version {plain(version)})" if isinstance(version, str) and version else ""


# ---------------------------------------------------------------- clocks


def clocks_of_unlockers(found: Mapping[str, str]) -> Iterator[Finding]:
    """Yield the unlockers that announce that they can't compare clocks."""
    for name, value in found.items():
        if announced(value).get("clocks") == CLOCKS_UNKNOWN:
            yield Finding(
                "clock",
                WARNING,
                f"Unlocker {plain(name)} can't compare clocks: no server of the store tells its "
                "time. So it alerts on locks with four plain keys later, and does not auto-unlock "
                "them.",
                "Let it reach etcd's HTTP, which tells the time, on the address that it uses (no "
                "--listen-client-http-urls).",
            )


def of_holder(row: Row, wall: float, monotonic: float, delay: float = 0.0) -> Clock | None:
    """Return the clock of a lock's host by its last heartbeat, or None."""
    alive_at, host = row.holder.alive_at, row.holder.hostname
    if alive_at is None or host is None:
        return None
    ahead = alive_at - (wall - (monotonic - row.seen_at))
    # Found: the heartbeat was at any earlier time, so only a stamp from the future is of use.
    return Clock(f"host {plain(host)}", ahead, float("inf") if row.found else ahead + delay)


def clocks(seen: Sequence[Clock]) -> Iterator[Finding]:
    """Yield the clocks that differ from that of this machine."""
    wrong: dict[str, Clock] = {}
    known = set()
    for clock in seen:
        if clock.most != float("inf"):
            known.add(clock.whose)
        if clock.least > MAX_CLOCK_OFFSET_S or clock.most < -MAX_CLOCK_OFFSET_S:
            wrong.setdefault(clock.whose, clock)
    for whose, clock in wrong.items():
        ahead = clock.least > 0
        by = duration(clock.least if ahead else -clock.most)
        yield Finding(
            "clock",
            WARNING,
            f"The clock of {whose} is {by} {'ahead of' if ahead else 'behind'} this machine's.",
            "Set both by NTP (chrony, systemd-timesyncd): alerts come at wrong times, and so do "
            "the states that are shown of locks.",
        )
    if not wrong:
        listed = ", ".join(sorted(known)) or "no other clock could be seen"
        yield Finding(
            "clock", FINE, f"Within {MAX_CLOCK_OFFSET_S:g} s of this machine's: {listed}."
        )


# ---------------------------------------------------------------- locks


def deadlocked(found: Sequence[Deadlock], unread: int) -> Iterator[Finding]:
    """Yield the deadlocks; `unread`: number of waiters that could not be searched."""
    if unread:
        yield Finding(
            "locks",
            WARNING,
            f"{unread:,} waiters have too long tickets, or are too many, to be looked at: a "
            "deadlock among them is not seen.",
            "See who they are, and what for: `clustermutex ls` says for which locks they wait.",
        )
    for deadlock in found:
        yield Finding(
            "locks",
            WARNING,
            deadlock.text,
            "Look at each (`clustermutex show NAME`, py-spy): unless one of these waits has a "
            "limit, `clustermutex force-unlock NAME` for one of them lets the others continue.",
        )


def locks(found: Sequence[Listed], wall: float) -> Iterator[Finding]:
    """Yield the locks that are late, held too long, broken, undecided, or never expire."""
    in_state: defaultdict[str, list[Listed]] = defaultdict(list)
    staying: defaultdict[str, list[Listed]] = defaultdict(list)
    for lock in found:
        in_state[lock.status.state].append(lock)
        staying[no_unlock(lock.holder)].append(lock)
    overdue = in_state[OVERDUE]
    longest = max((wall - (lock.holder.auto_unlock_at or wall) for lock in overdue), default=0.0)
    for wrong, level, text, advice in (
        (in_state[BROKEN], ERROR, "broken and can't be judged", "`clustermutex show NAME` says "
         "what is wrong; if it is no longer held, `clustermutex force-unlock NAME`."),
        (in_state[ALERT], WARNING, "past the alert, without a heartbeat for too long", "Look at "
         "the holder (`clustermutex show NAME`): it died, hangs, or needs more expected runtime."),
        (overdue, ERROR if longest > OVERDUE_GRACE_S else WARNING,
         f"past the auto-unlock and still there, for {duration(longest)} at most",
         "An unlocker removes what it has seen silent for its whole time, counted from its "
         "own start. If it does not: check that one runs, and what its log says (rights, "
         "restarts, too many removals at once)."),
        ([lock for lock in found if lock.status.held_too_long], WARNING,
         "held for longer than its max_hold", "Look at the holder (`clustermutex show NAME`, "
         "py-spy): it hangs while its heartbeats go on, or its max_hold is too short."),
        (staying[NEVER], WARNING, "without an auto-unlock", "Should the holder die, only "
         "`clustermutex force-unlock NAME` frees it: set an auto_unlock_after, unless you "
         "want that."),
        (staying[UNDECIDED], WARNING, "undecided, which no unlocker removes", "`clustermutex show "
         "NAME` says why: its holder's next heartbeat may put it right, or an upgrade; if the "
         "holder is dead, `clustermutex force-unlock NAME`."),
    ):  # fmt: skip
        if wrong:
            yield Finding("locks", level, f"{_names(wrong)} {text}.", advice)
    well = sum(lock.status.words == (OK,) for lock in found)
    others = f", {len(found) - well} not, as listed above" if well < len(found) else ""
    held = f"{counted(len(found), 'lock')} held: {well} well{others}."
    yield Finding("locks", FINE, held if found else "No lock is held.")


def thin_locks(found: Mapping[str, int], servers: int) -> Iterator[Finding]:
    """Yield the locks that are on few of the servers that vote."""
    for number in sorted(set(found.values())):
        names = [plain(name) for name, on in sorted(found.items()) if on == number]
        yield Finding(
            "locks",
            WARNING,
            f"{counted_locks(names)} held on {number} of {servers} servers.",
            "A server that votes and has lost a lock gets it back by the holder's next "
            "heartbeat. Let no other server lose its data before that.",
        )


def _names(found: Sequence[Listed]) -> str:
    named = counted_locks([shown_name(lock.holder.name) for lock in found])
    return f"{named} {'is' if len(found) == 1 else 'are'}"
