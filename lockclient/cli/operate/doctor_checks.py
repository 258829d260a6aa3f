"""What `clustermutex doctor` looks at. No I/O: from what was found to what is to be done."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import TypeGuard

from lockclient.cli.output import counted
from lockclient.cli.setup.etcd_server import DATA_LOSS_VERSIONS
from lockclient.cli.setup.setup_auth import WRITES
from lockclient.model.deadlocks import Deadlock
from lockclient.model.fields import NEVER
from lockclient.model.holder import ALERT, BROKEN, OK, OVERDUE, UNDECIDED
from lockclient.overview.columns import Listed
from lockclient.overview.lock_view import no_unlock
from lockclient.overview.rows import Row
from lockclient.stores.diagnosis_protocol import ERROR, FINE, WARNING, Finding, History, Member
from lockclient.text.durations import duration
from lockclient.text.escaping import plain

SLOW, VERY_SLOW = 0.1, 1.0
"""Seconds that one transaction in a hundred may take, before it is a warning, and an error."""
CLOCK = 2.0
"""Seconds that clocks may differ: more, and an unlocker does not believe its own (design, 6.2)."""
LONG = 4 * 3600.0
"""Seconds of history that an etcd which compacts does not keep: an hour, and one until the next."""
MANY = 1_000_000
"""Revisions of history that are too many, where nobody can tell how old they are."""
FULL = 0.8
"""The part of its quota that an etcd may fill before it is a warning."""
LATE = 30.0
"""Seconds after its auto-unlock at which a lock should be gone that an unlocker saw pushed."""
_NAMED = 5


def members(found: Sequence[Member]) -> Iterator[Finding]:
    """Judge the cluster: who answers, versions, alarms, and who is not named."""
    for each in found:
        if each.trouble:
            yield Finding(
                "member",
                ERROR if all(other.trouble for other in found) else WARNING,
                f"etcd at {each.endpoint} does not answer over HTTP: {each.trouble}.",
                "See that it runs and can be reached from here."
                + (" Until then the others serve." if len(found) > 1 else ""),
            )
            continue
        leads = ", the leader" if each.leader else ""
        size = f", {each.size / 2**20:.1f} MiB of data" if each.size else ""
        text = f"etcd at {each.endpoint} answers, version {each.version}{leads}{size}."
        yield Finding("member", FINE, text)
        yield from _version(each)
        yield from _space(each)
        yield from _pages(each)
        for alarm in each.alarms:
            yield Finding(
                "member",
                ERROR,
                f"etcd at {each.endpoint} raises an alarm: {plain(alarm)}.",
                "For NOSPACE: compact, defragment, then `etcdctl alarm disarm`; until then it "
                "takes no locks. For CORRUPT: replace that member.",
            )
    yield from _cluster(found)


def _version(member: Member) -> Iterator[Finding]:
    where = f"etcd at {member.endpoint} is {member.version}"
    if member.version in DATA_LOSS_VERSIONS:
        yield Finding(
            "version",
            WARNING,
            f"{where}, one of the versions 3.5.0 to 3.5.2, which can lose or corrupt data when "
            "they crash under load.",
            "Upgrade to 3.5.3 or later; don't run it in production.",
        )
    elif not _since(member.version, (3, 4)):
        yield Finding(
            "version", WARNING, f"{where}; ClusterMutex is tested with 3.4 and 3.5.", "Upgrade it."
        )


def _space(member: Member) -> Iterator[Finding]:
    if not member.quota or member.size < FULL * member.quota:
        return
    yield Finding(
        "space",
        WARNING,
        f"etcd at {member.endpoint} fills {member.size / member.quota:.0%} of its quota of "
        f"{member.quota / 2**20:,.0f} MiB, with {member.in_use / 2**20:,.0f} MiB of data; full, it "
        "takes no locks.",
        "Defragment its members, one after the other: most of the file is empty."
        if member.in_use < member.size / 2
        else "See that it compacts its history, and what else is kept in it; or raise its "
        "--quota-backend-bytes.",
    )


def _pages(member: Member) -> Iterator[Finding]:
    if not member.pages:
        return
    text = f"etcd at {member.endpoint} answers every web page"
    if member.auth:
        yield Finding("pages", FINE, f"{text}, but asks it for a user.")
        return
    yield Finding(
        "pages",
        WARNING,
        f"{text}: one that is open in a browser which reaches it can read, forge and delete all "
        "locks.",
        "Start it with --enable-grpc-gateway=false --cors=http://nobody.invalid:80 and, with the "
        "names by which it is asked, --host-whitelist=NAME,NAME.",
    )


def history(found: History, wall: float) -> Finding:
    """Judge whether etcd is compacted, by how long ago it can still show what was."""
    kept = found.revision - found.oldest
    then = announced(found.sign).get("now")
    age = wall - then if is_time(then) else None
    back = f", at least {duration(age)} back" if age is not None and age > 0 else ""
    text = f"etcd keeps {kept:,} revision{'s' * (kept != 1)} of history{back}."
    if (kept <= MANY) if age is None else (age <= LONG):
        return Finding("history", FINE, text)
    return Finding(
        "history",
        WARNING,
        f"{text} It is not compacted" + (", and never was." if found.oldest == 1 else "."),
        "Each push stays in it for ever, until it is full: start its members with "
        "--auto-compaction-mode=periodic --auto-compaction-retention=1h (unless this is meant so).",
    )


def _since(version: str, least: tuple[int, int]) -> bool:
    major, _, rest = version.partition(".")
    minor = rest.partition(".")[0]
    known = major.isdecimal() and minor.isdecimal()
    return not known or (int(major), int(minor)) >= least


def _cluster(found: Sequence[Member]) -> Iterator[Finding]:
    answered = [each for each in found if not each.trouble]
    versions = sorted({each.version for each in answered})
    if len(versions) > 1:
        yield Finding(
            "version",
            WARNING,
            f"The members run different versions: {', '.join(versions)}.",
            "Finish the upgrade that is under way.",
        )
    if answered and not any(each.cluster for each in answered):
        yield Finding("cluster", FINE, "etcd does not list its members to this user.")
        return
    cluster = max((each.cluster for each in answered), key=len, default=())
    listed = plain("; ".join(cluster))
    if len(cluster) > len(found):
        yield Finding(
            "cluster",
            WARNING,
            f"The cluster has {len(cluster)} members, of which {len(found)} are named: {listed}.",
            "Name them all in CLUSTERMUTEX_URL, so that clients go on when one is down (unless "
            "what is named is a load balancer).",
        )
    elif cluster:
        yield Finding("cluster", FINE, f"{counted(len(cluster), 'member')}: {listed}.")


def latency(seconds: Sequence[float], what: str) -> Finding:
    """Judge how long transactions took."""
    half, most = _percentile(seconds, 50), _percentile(seconds, 99)
    text = (
        f"{len(seconds)} transactions ({what}): p50 {half * 1000:.1f} ms, p99 {most * 1000:.1f} ms."
    )
    if most <= SLOW:
        return Finding("latency", FINE, text)
    advice = (
        "Look at etcd's disks (etcd_disk_wal_fsync_duration_seconds), the load of its machines and "
        "the network to them."
    )
    return Finding("latency", ERROR if most > VERY_SLOW else WARNING, text, advice)


def _percentile(values: Sequence[float], percent: int) -> float:
    return sorted(values)[ceil(len(values) * percent / 100) - 1]


def rights(found: Mapping[str, bool], user: str | None, *, auth: bool | None) -> Iterator[Finding]:
    """Judge what this user may do: `found` says which folders it may write to."""
    who = f"The user {user!r}" if user else "Everybody"
    if not found:
        text = f"{who} may read; the rest can't be told: etcd is out of space."
        yield Finding("rights", WARNING, text, "Free space first, then run this again.")
        return
    roles = [role for role, needs in WRITES.items() if all(found[folder] for folder in needs)]
    lacking = ", ".join(folder for folder in found if not found[folder])
    text = f"{who} may do what these need: {', '.join(roles)}."
    text += f" It may not write to {lacking}." if lacking else ""
    yield Finding("rights", FINE, text)
    partly = [
        role
        for role, needs in WRITES.items()
        if role not in roles and any(found[folder] for folder in needs)
    ]
    if lacking and roles == ["dashboard"] and partly:
        yield Finding(
            "rights",
            WARNING,
            f"{who} may write something, but not all that any program needs.",
            "`clustermutex setup-auth` prints the roles.",
        )
    if auth is False:
        yield Finding(
            "auth",
            WARNING,
            "etcd asks for no user: who reaches it may take, remove and forge any lock.",
            "`clustermutex setup-auth` prints roles for each program; or keep strangers off its "
            "network by TLS with client certificates.",
        )
    elif auth:
        yield Finding("auth", FINE, "etcd asks its clients for a user.")


def unlockers(found: Mapping[str, str], *, needed: bool = True) -> Finding:
    """Judge whether an unlocker runs, `needed` where locks don't go by themselves."""
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
    named = ", ".join(f"{plain(each)}{_version_of(value)}" for each, value in found.items())
    return Finding("unlocker", FINE, f"{len(found)} running: {named}.")


def _version_of(announcement: str) -> str:
    version = announced(announcement).get("version")
    return f" (version {plain(version)})" if isinstance(version, str) and version else ""


def announced(announcement: str) -> dict[str, object]:
    """Return what an unlocker says of itself; empty if it can't be read."""
    try:
        found = json.loads(announcement)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def is_time(said: object) -> TypeGuard[float]:
    """Tell whether this can be a moment: some thousand years, no NaN."""
    return isinstance(said, (int, float)) and abs(said) < 1e11


# ---------------------------------------------------------------- clocks


@dataclass(frozen=True, slots=True)
class Clock:
    """A clock that was seen: it is ahead of ours by `least` to `most` seconds."""

    whose: str
    least: float
    most: float


def of_member(member: Member) -> Clock | None:
    """Return a member's clock, which it tells in whole seconds."""
    if member.ahead is None:
        return None
    return Clock(f"etcd at {member.endpoint}", member.ahead - 0.5, member.ahead + 0.5)


def of_holder(row: Row, wall: float, monotonic: float, late: float = 0.0) -> Clock | None:
    """Return the clock of a lock's host, by its last push: seen live, or found when we began."""
    alive_at, host = row.holder.alive_at, row.holder.hostname
    if alive_at is None or host is None:
        return None
    ahead = alive_at - (wall - (monotonic - row.seen_at))
    # Found: the push was at any time before, so that only a stamp from the future tells something.
    return Clock(f"host {plain(host)}", ahead, float("inf") if row.found else ahead + late)


def clocks(seen: Sequence[Clock]) -> Iterator[Finding]:
    """Judge the clocks against that of this machine."""
    wrong: dict[str, Clock] = {}
    known = set()
    for clock in seen:
        if clock.most != float("inf"):
            known.add(clock.whose)
        if clock.least > CLOCK or clock.most < -CLOCK:
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
        yield Finding("clock", FINE, f"Within {CLOCK:g} s of this machine's: {listed}.")


# ---------------------------------------------------------------- locks


def deadlocked(found: Sequence[Deadlock]) -> Iterator[Finding]:
    """Tell who waits for each other."""
    for deadlock in found:
        yield Finding(
            "locks",
            WARNING,
            deadlock.text,
            "Look at each (`clustermutex show NAME`, py-spy): unless one of these waits has a "
            "limit, `clustermutex force-unlock NAME` for one of them lets the others go on.",
        )


def locks(found: Sequence[Listed], wall: float) -> Iterator[Finding]:
    """Judge the locks: past their alert or their auto-unlock, broken, never expiring."""
    for state, text, advice in (
        (BROKEN, "broken and can't be judged", "`clustermutex show NAME` says what is "
         "wrong; if nobody holds it any more, `clustermutex force-unlock NAME`."),
        (ALERT, "past the alert, without a sign of life for too long", "Look at the holder "
         "(`clustermutex show NAME`): it hangs, or its expected runtime is too short."),
    ):  # fmt: skip
        named = [lock for lock in found if lock.state == state]
        if named:
            level = ERROR if state == BROKEN else WARNING
            yield Finding("locks", level, f"{_names(named)} {text}.", advice)
    yield from _overdue([lock for lock in found if lock.state == OVERDUE], wall)
    for word, text, advice in (
        (NEVER, "without an auto-unlock", "Should the holder die, only `clustermutex force-unlock "
         "NAME` frees it: set an auto_unlock_after, unless that is what is wanted."),
        (UNDECIDED, "undecided, which no unlocker removes", "`clustermutex show NAME` says "
         "why: its holder's next sign of life may put it right, or an upgrade; if the holder is "
         "dead, `clustermutex force-unlock NAME`."),
    ):  # fmt: skip
        named = [lock for lock in found if no_unlock(lock.holder) == word]
        if named:
            yield Finding("locks", WARNING, f"{_names(named)} {text}.", advice)
    well = sum(lock.state == OK for lock in found)
    others = f", {len(found) - well} not, as told above" if well < len(found) else ""
    held = f"{counted(len(found), 'lock')} held: {well} well{others}."
    yield Finding("locks", FINE, held if found else "No lock is held.")


def _overdue(found: list[Listed], wall: float) -> Iterator[Finding]:
    if not found:
        return
    late = max(wall - (lock.holder.auto_unlock_at or wall) for lock in found)
    yield Finding(
        "locks",
        ERROR if late > LATE else WARNING,
        f"{_names(found)} past the auto-unlock and still there, for {duration(late)} at most.",
        "An unlocker removes what it has seen silent for its whole time, which it counts anew when "
        "it starts. If it does not: see that one runs, and what its log says (rights, restarts, "
        "too many removals at once).",
    )


def _names(found: Sequence[Listed]) -> str:
    named = ", ".join(f"'{plain(lock.holder.name)}'" for lock in found[:_NAMED])
    more = f" and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
    return f"{counted(len(found), 'lock')} ({named}{more}) {'is' if len(found) == 1 else 'are'}"
