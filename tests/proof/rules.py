"""The rules: each searches a history for a violation of one promise.

A rule yields sentences, one for each break, and none where all is well. Times of etcd's writes are
the recorder's: never earlier than the write, and at most `Limits.lag` later.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from operator import attrgetter

from tests.proof.end_rules import (
    END_RULES,
    RELEASED_AT_EXIT,
    end_in_time,
    end_names_leftovers,
    end_returns_no_acquire,
)
from tests.proof.evidence import RECONNECTED_S, History
from tests.proof.history import Line
from tests.proof.reigns import Reign

Rule = Callable[[History], Iterator[str]]
CONTACT_S = 2.0
"""Seconds after an outage within which every waiter has a ticket."""
COUNTERS = "/counters/"
"""Where clients count in etcd, by transactions with a lock's guard."""


# ---------------------------------------------------------------- what etcd's events alone say


def one_holder(history: History) -> Iterator[str]:
    """At each revision a lock has one holder, a holder is replaced by its heir only, once used."""
    used: Counter[str] = Counter(reign.uuid for reign in history.reigns.all)
    for reign in history.reigns.all:
        if used[reign.uuid] > 1:
            yield f"{reign.uuid} had {reign.lock} again at {reign.began}: a uuid is used once"
        if reign.heir:
            heir = history.reigns.by_uuid[reign.heir]
            if not reign.about.get("identity") or (
                reign.about["identity"] != heir.about.get("identity")
            ):
                yield f"{heir.uuid} took {reign.lock} at {heir.began} while {reign.uuid} had it"


def removal_recorded_once(history: History) -> Iterator[str]:
    """Each record is written at the end of the reign that it tells of, and once."""
    seen: set[tuple[str, str]] = set()
    for key, line in history.reigns.written:
        if key[0] != "removed" or line.value is None:
            continue
        reign = history.reigns.by_uuid.get(key[2])
        if (key[1], key[2]) in seen:
            yield f"the removal of {key[2]} was recorded again at {line.revision}"
        seen.add((key[1], key[2]))
        if reign is None or reign.ended != line.revision:
            yield f"a removal of {key[2]} was recorded at {line.revision}, which did not remove it"


def no_early_removal(history: History) -> Iterator[str]:
    """The unlocker removes nothing before its time is over, counted from the last write."""
    limits = history.limits
    for reign in history.reigns.all:
        if reign.record is None or reign.record.get("how") != "auto-unlock":
            continue
        after = reign.auto_unlock
        silent = reign.ended_at - reign.last_push(reign.ended_at)
        if after is None or silent < after * (1 - limits.drift) - limits.lag - reign.lag:
            yield (
                f"{reign.lock} of {reign.uuid} was removed at {reign.ended} after {silent:.3f} s "
                f"of silence; it allows {after}"
            )


def _removals(history: History) -> list[float]:
    """Return when locks were auto-unlocked, in order."""
    return sorted(
        reign.ended_at
        for reign in history.reigns.all
        if reign.record is not None and reign.record.get("how") == "auto-unlock"
    )


def rate_limit(history: History) -> Iterator[str]:
    """No more auto-unlocks in a minute than the rate limit allows."""
    limits = history.limits
    if not limits.max_removals:
        return
    at = _removals(history)
    # One more for each unlocker but one; see `unlocker/rate_limit.py`.
    most = int(limits.max_removals + limits.unlockers - 1)
    for first, beyond in zip(at, at[most:], strict=False):
        if beyond - first < 60 * (1 - limits.drift) - limits.lag:
            yield f"{most + 1} locks were removed in {beyond - first:.1f} s up to {beyond:.3f}"


def queue_order(history: History) -> Iterator[str]:
    """Waiters get the lock in the order of their tickets, and nobody overtakes the queue."""
    heirs = {reign.heir for reign in history.reigns.all}
    for reign in history.reigns.all:
        inherits = reign.uuid in heirs
        foreign = not reign.about.get("client")
        if reign.oldest and reign.ticket != reign.oldest and not inherits and not foreign:
            yield (
                f"{reign.uuid} took {reign.lock} at {reign.began} with the ticket "
                f"{reign.ticket or 'of nobody'}, while that of {reign.oldest} stood before it"
            )


def queue_outlives_outage(history: History) -> Iterator[str]:
    """Within 2 s of contact every waiter has a ticket, in the old order, and it loses no ticket."""
    reigns = history.reigns
    for outage in history.by_what["outage"]:
        contact = outage.at + (outage.seconds or 0.0)
        served = {reign.uuid for reign in reigns.all if reign.began_at <= contact + CONTACT_S}
        before = [uuid for uuid in _queue(history, outage.lock, outage.at) if uuid not in served]
        after = _queue(history, outage.lock, contact + CONTACT_S)
        if after != before:
            yield f"the queue for {outage.lock} was {before}, and after the outage {after}"
        for key, line in reigns.written:
            if key[:2] == ("queue", outage.lock) and line.value is None and line.at >= contact:
                reign = reigns.by_uuid.get(key[2])
                if reign is None or reign.began != line.revision:
                    yield f"the ticket of {key[2]} was lost at {line.revision}, after an outage"


def _queue(history: History, lock: str, at: float) -> list[str]:
    """Return the waiters with a ticket at a moment, in order."""
    tickets: dict[str, None] = {}
    for key, line in history.reigns.written:
        if key[:2] != ("queue", lock) or line.at > at:
            continue
        if line.value is None:
            tickets.pop(key[2], None)
        else:
            tickets.setdefault(key[2])
    return list(tickets)


def bound_to_leases(history: History) -> Iterator[str]:
    """Tickets, marks and records have a lease, locks have none."""
    for key, line in history.reigns.written:
        if line.value is None:
            continue
        if bool(line.lease) == (key[0] == "locks"):
            yield f"{'/'.join(key)} was written at {line.revision} with the lease {line.lease}"


def stamps_rise(history: History) -> Iterator[str]:
    """No push puts an acquisition's stamps back. (The clocks of this history do not jump.)"""
    for reign in history.reigns.all:
        for (_, _, before), (revision, _, after) in zip(
            reign.stamps, reign.stamps[1:], strict=False
        ):
            if float(after) < float(before):
                yield f"{reign.uuid} put its stamps back from {before} to {after} at {revision}"


# ---------------------------------------------------------------- what clients say beside it


def _end_known_at(history: History) -> dict[str, float]:
    """Return when each holder began to release its lock, or learned that it was lost."""
    first: dict[str, float] = {}
    ending = {line.process: line.at for line in history.by_what["ending"]}
    for line in history.by_what["acquired"] if ending else ():
        if line.key == RELEASED_AT_EXIT:
            first[line.uuid] = ending.get(line.process, math.inf)
    for line in (*history.by_what["release"], *history.by_what["lost"]):
        first[line.uuid] = min(line.at, first.get(line.uuid, math.inf))
    return first


def unlocked_by_holder(history: History) -> Iterator[str]:
    """A lock goes without a record only by its own holder's hand."""
    begun = _end_known_at(history)
    for reign in history.reigns.all:
        had = history.acquired.get(reign.uuid)
        if not reign.ended or reign.record is not None or reign.heir or had is None:
            continue
        if begun.get(reign.uuid, math.inf) > reign.ended_at:
            yield (
                f"{reign.lock} of {reign.uuid} went at {reign.ended}, {reign.ended_at:.3f}, with "
                "no record, and its holder had not begun to release it"
            )


def loss_is_told(history: History) -> Iterator[str]:
    """A holder hears of its loss within the stated time, or as its own time runs out."""
    told = _end_known_at(history)
    for reign in history.reigns.all:
        had = history.acquired.get(reign.uuid)
        if had is None:
            continue
        gone_at = max(reign.ended_at, had.at)
        limit = history.limits.told_within + history.limits.lag + reign.lag
        by = math.inf
        if reign.ended and history.quiet(had.process, gone_at - RECONNECTED_S, gone_at + limit):
            by = gone_at + limit
        if reign.auto_unlock is not None:  # with a tick of its own, and clocks that part
            by = min(by, reign.last_push(math.inf) + reign.auto_unlock * 1.001 + limit)
        by = _thawed(history, had.process, by)
        if by > history.without_threads.get(had.process, math.inf):
            continue  # the next call shows the loss
        over = history.by_what["settled"][-1].at if history.by_what["settled"] else 0.0
        if told.get(reign.uuid, math.inf) > by < min(history.stopped.get(had.process, over), over):
            yield f"{had.process} was not told by {by:.3f} that {reign.lock} of {reign.uuid} went"


def _thawed(history: History, process: str, moment: float) -> float:
    """Return when a process can act that should do so at a moment, in which it may be frozen."""
    for line in sorted(history.by_what["frozen"], key=attrgetter("at")):  # they may overlap
        until = line.at + (line.seconds or 0.0) + 1.0
        if line.process == process and line.at <= moment <= until:
            moment = until
    return moment


def no_overlap(history: History) -> Iterator[str]:
    """No client works under a lock that another one has acquired since.

    But for who was force-unlocked, or whose lock was removed by hand, and has not heard of it yet:
    `loss_is_told` is about that.
    """
    had_at: dict[str, list[Line]] = defaultdict(list)
    for line in history.by_what["acquired"]:
        had_at[line.lock].append(line)
    for line in history.by_what["working"]:
        reign = history.reigns.by_uuid.get(line.uuid)
        if reign is None:
            yield f"{line.process} works under {line.lock} by {line.uuid}, which never had it"
            continue
        by_hand = reign.record is not None and reign.record.get("how") != "auto-unlock"
        if by_hand or reign.heir:
            continue
        for later in had_at[line.lock]:
            if later.at < line.at and later.revision > reign.began:
                yield (
                    f"{line.process} works under {line.lock} by {line.uuid} at {line.at:.3f}, and "
                    f"{later.process} has had it since {later.at:.3f}"
                )


def one_works(history: History) -> Iterator[str]:
    """No client works under a lock under which another has worked since the client acquired it.

    That is `no_overlap` by the clients' lines alone, for stores that have no events, and without
    force-unlocks. A line `working` has a time from before its client found the lock healthy, so the
    lock was held at that time. A line `acquired` proves less: a client that was stopped between the
    end of `acquire` and this line writes it when its lock may have ended.
    """
    latest: dict[str, dict[str, Line]] = defaultdict(dict)
    for line in history.by_what["working"]:
        mine, worked = history.acquired[line.uuid].at, latest[line.lock]
        for other in worked.values():
            if other.uuid != line.uuid and mine < other.at < line.at:
                yield (
                    f"{line.process} works under {line.lock} by {line.uuid} at {line.at:.3f}, and "
                    f"{other.process} has worked under it at {other.at:.3f}"
                )
        worked[line.uuid] = line


def no_lost_update(history: History) -> Iterator[str]:
    """A counter under a lock's guard, or one that refuses older tokens, rises by one each time."""
    guarded = (
        Line(line.at, "etcd", "counted", int(line.value), line.key, key="guarded")
        for line in history.by_what["written"]
        if line.key.startswith(COUNTERS) and line.value is not None
    )
    values: dict[tuple[str, str], int] = {}
    for line in (*guarded, *history.by_what["counted"]):
        before = values.get((line.key, line.lock), 0)
        values[line.key, line.lock] = line.call
        if line.key != "plain" and line.call != before + 1:
            yield f"{line.process} counted {line.lock} ({line.key}) from {before} to {line.call}"


def pushes_count(history: History) -> Iterator[str]:
    """A push that was confirmed is never followed by a removal that ignored it."""
    begun = {(line.process, line.call): line for line in history.by_what["push"]}
    for line in history.by_what["pushed"]:
        reign = history.reigns.by_uuid.get(line.uuid)
        sent = begun.get((line.process, line.call))
        if reign is None or sent is None or reign.record is None or reign.auto_unlock is None:
            continue
        if reign.record.get("how") != "auto-unlock" or reign.ended_at < sent.at:
            continue
        allowed = reign.auto_unlock * (1 - history.limits.drift)
        if reign.ended_at < sent.at + allowed - history.limits.lag - reign.lag:
            yield (
                f"{line.uuid} pushed {reign.lock} at {sent.at:.3f}, which was confirmed, and was "
                f"removed at {reign.ended_at:.3f}"
            )


def works_in_time(history: History) -> Iterator[str]:
    """A holder takes its lock for lost when its time has run out since its last push, or sooner.

    It counts from before it sent that, so that its time is over sooner than if it were counted
    from the write.
    """
    for line in history.by_what["working"]:
        reign = history.reigns.by_uuid.get(line.uuid)
        if reign is None or reign.auto_unlock is None:
            continue
        silent = line.at - reign.last_push(line.at)
        lag = history.limits.lag + reign.lag
        if silent > reign.auto_unlock * (1 + history.limits.drift) + lag:
            yield f"{line.process} works under {line.lock} after {silent:.3f} s without a push"


def kept_alive(history: History) -> Iterator[str]:
    """A lock with `keepalive` is not removed while its process is well."""
    for reign in history.reigns.all:
        had = history.acquired.get(reign.uuid)
        if had is None or had.seconds is None or reign.record is None or reign.auto_unlock is None:
            continue
        begin = reign.ended_at - reign.auto_unlock
        auto = reign.record.get("how") == "auto-unlock"
        if auto and history.quiet(had.process, begin, reign.ended_at, after=0.0):
            yield f"{reign.lock} of {reign.uuid} was kept alive, and removed at {reign.ended}"


def waiters_are_served(history: History) -> Iterator[str]:
    """Every call that was begun by a process that lived has come to an end."""
    ended = {
        (line.process, line.call)
        for what in ("acquired", "missed")
        for line in history.by_what[what]
    }
    delayed = _delayed(history)
    for line in history.by_what["acquire"] if history.by_what["settled"] else ():
        if line.process in history.stopped or line.lock in delayed:
            continue
        if (line.process, line.call) not in ended:
            yield f"{line.process} has waited for {line.lock} since {line.at:.3f}, to the end"


def _due(history: History, reign: Reign) -> float:
    """Return when an abandoned lock has to be gone: 4 s after its time, and after all trouble."""
    after = reign.auto_unlock or math.inf
    troubles = (*history.by_what["trouble"], *history.by_what["frozen"])
    quiet_at = max((line.at + (line.seconds or 0.0) for line in troubles), default=-math.inf)
    return max(reign.last_push(math.inf), quiet_at + RECONNECTED_S) + after * 1.001 + 4.0


def _delayed(history: History) -> set[str]:
    """Return the locks that are left in the end because of the rate limit of removals."""
    end = history.by_what["settled"][-1].at if history.by_what["settled"] else 0.0
    removed = [at for at in _removals(history) if at > end - 60]
    if not 0 < history.limits.max_removals <= len(removed):
        return set()
    return {key[1] for key in history.reigns.left if key[0] == "locks"}


def nothing_left(history: History) -> Iterator[str]:
    """In the end no ticket is left, and no lock but those that nobody may remove."""
    if not history.by_what["settled"]:
        return
    end, delayed = history.by_what["settled"][-1].at, _delayed(history)
    for key, line in history.reigns.left.items():
        if key[1] in delayed:
            continue
        if key[0] == "queue":
            yield f"the ticket {'/'.join(key)} of {line.revision} is left"
        elif key[0] == "locks" and key[2] == "uuid":
            reign = history.reigns.by_uuid[line.value or ""]
            if reign.auto_unlock is not None and end > _due(history, reign):
                yield f"the lock {key[1]} of {line.value} is left, taken at {line.revision}"


def orphans_go(history: History) -> Iterator[str]:
    """A lock that its process was not told to have is given back by it: no answer was guessed.

    A lost answer is resolved by who asked. So a lock that is removed by its time, and that no call
    has returned, was forgotten by a process; one that ended meanwhile is excused, and one whose
    etcd had no space for the mark that makes a late take harmless.
    """
    if history.stopped or history.by_what["frozen"] or history.by_what["full"]:
        return  # which process's it was is not in the store
    for reign in history.reigns.all:
        known = reign.uuid in history.acquired or not reign.about.get("client")
        if not known and reign.record is not None:
            yield f"{reign.uuid} had {reign.lock} from {reign.began} on, and nobody was told so"


def linearizable(history: History) -> Iterator[str]:
    """The order is that of a mutex with fencing; `tests/proof/check.py` says why that is all."""
    reigns = history.reigns
    calls = {(line.process, line.call): line for line in history.by_what["acquire"]}
    releases = {(line.process, line.call): line for line in history.by_what["release"]}
    done: list[tuple[float, float, int, str]] = []
    for line in history.by_what["acquired"]:
        reign = reigns.by_uuid.get(line.uuid)
        if reign is None or reign.lock != line.lock or reign.began != line.revision:
            yield f"{line.uuid} was told the token {line.revision} of {line.lock}, which is not its"
            continue
        call = calls.get((line.process, line.call))
        if call is not None:
            done.append((call.at, line.at, reign.began, f"the acquire of {line.uuid}"))
    for line in history.by_what["released"]:
        reign, call = reigns.by_uuid.get(line.uuid), releases.get((line.process, line.call))
        if reign is None or call is None:
            continue
        if not reign.ended or reign.ended_at > line.at + history.limits.lag + reign.lag:
            yield f"{line.uuid} was told that it released {line.lock}, which it had still"
            continue
        done.append((call.at, line.at, reign.ended, f"the release of {line.uuid}"))
    yield from _against_real_time(done)


def _against_real_time(done: list[tuple[float, float, int, str]]) -> Iterator[str]:
    """Find what was over before something began that stands before it in etcd."""
    by_end = sorted(done, key=lambda one: one[1])
    newest, latest, index = 0, "", 0
    for begin, _, revision, what in sorted(done):
        while index < len(by_end) and by_end[index][1] < begin:
            if by_end[index][2] > newest:
                newest, latest = by_end[index][2], by_end[index][3]
            index += 1
        if revision < newest:
            yield f"{what} is at {revision}, and {latest}, over before it began, at {newest}"


def tokens_rise(history: History) -> Iterator[str]:
    """In the order in which a lock was had, its tokens rise strictly."""
    last: dict[str, Reign] = {}
    for reign in history.reigns.all:
        before = last.get(reign.lock)
        had = history.acquired.get(reign.uuid)
        token = reign.began if had is None else had.revision
        if before is not None and token <= before.began:
            yield f"the token {token} of {reign.uuid} is not above {before.began} before it"
        last[reign.lock] = reign


RULES: tuple[Rule, ...] = (
    one_holder,
    tokens_rise,
    removal_recorded_once,
    no_early_removal,
    pushes_count,
    rate_limit,
    queue_order,
    queue_outlives_outage,
    bound_to_leases,
    stamps_rise,
    no_lost_update,
    unlocked_by_holder,
    loss_is_told,
    no_overlap,
    works_in_time,
    kept_alive,
    waiters_are_served,
    nothing_left,
    orphans_go,
    linearizable,
    *END_RULES,
)

WITHOUT_EVENTS: tuple[Rule, ...] = (
    one_works,
    no_lost_update,
    waiters_are_served,
    end_names_leftovers,
    end_returns_no_acquire,
    end_in_time,
)
"""Those that need none of etcd's events."""
