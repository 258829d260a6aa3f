"""The rules of notifications, as sentences about a history; each returns its violations."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

from tests.simulation.hub import BEGIN
from tests.simulation.notifying.world import QUIET_S, Attempt, Delivery, World
from unlocker.notifications.conditions import BLIND, KINDS, OF_UNLOCKER
from unlocker.notifications.message import UNKNOWN_LINE, Form

LATENESS_S = 10.0 + 2 * 30.0 + 20.0
"""Seconds from `for` to the message: the first pause, two intervals, and the lag of views."""
RECOVERY_S = 200.0
"""Seconds after a fault in which an attempt may still count as running, or a retry wait."""
URL_RECOVERY_S = 330.0
"""The same after a fault of a recipient, which is tried at growing distances."""
FORGIVE_S = 40.0
END_S = 180.0 + 60.0
"""Seconds that something is over before people are notified of it, and the age of the evidence."""
EARLIEST_END_S = 150.0
STALE_S = 60.0
MANY, FEW = 20, 10
_FOREVER = float("inf")


class History:
    """A run, as the rules ask for it."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.end = BEGIN + world.active_s + QUIET_S
        self.deliveries: dict[str, list[Delivery]] = {url: [] for url in world.urls}
        for each in world.deliveries:
            self.deliveries[each.url].append(each)
        self._troubles = {
            (url, but_blind): self._merged(url, but_blind=but_blind)
            for url in world.urls
            for but_blind in (False, True)
        }

    def _merged(self, url: str, *, but_blind: bool) -> list[tuple[float, float]]:
        """Return the times in which a recipient need not be notified."""
        found = [(BEGIN, BEGIN + 40.0)]
        for fault in self.world.faults:
            if but_blind and fault.what in ("blind", "blind all"):
                pass
            elif fault.on == url:
                found.append((fault.begin, fault.end + URL_RECOVERY_S))
            elif fault.what.startswith("skewed"):
                found.append((fault.begin, fault.begin + RECOVERY_S))
            elif not fault.on and fault.what != "own":
                found.append((fault.begin, fault.end + RECOVERY_S))
        found += [(at, at + RECOVERY_S) for at in self.world.deaths]
        if url in self.world.damaged:
            found.append((self.world.damaged[url] - 60, self.world.damaged[url] + RECOVERY_S))
        merged: list[tuple[float, float]] = []
        for begin, end in sorted(found):
            if merged and begin <= merged[-1][1]:
                merged[-1] = merged[-1][0], max(end, merged[-1][1])
            else:
                merged.append((begin, end))
        return merged

    def calm(self, url: str, begin: float, end: float, *, but_blind: bool = False) -> float:
        """Return the seconds without faults between two moments; `but_blind`: blindness is none."""
        troubles = self._troubles[url, but_blind]
        faulty = sum(max(0.0, min(b, end) - max(a, begin)) for a, b in troubles)
        return max(0.0, end - begin) - faulty

    def news(self, url: str) -> Iterator[tuple[Delivery, str]]:
        """Yield what a recipient was notified of as new, one by one."""
        for each in self.deliveries[url]:
            if "still true" not in each.message.marks:
                change = each.message.change
                for one in change.begun:
                    if one[0] not in change.many:
                        yield each, one

    def ends(self, url: str) -> Iterator[tuple[Delivery, str]]:
        """Yield the ends that a recipient was notified of."""
        for each in self.deliveries[url]:
            for one in each.message.change.ended:
                yield each, one

    def removals(self, url: str) -> Iterator[tuple[Delivery, str]]:
        """Yield the removals that a recipient was notified of."""
        for each in self.deliveries[url]:
            for one in each.message.change.removals:
                yield each, one

    def counted(self, url: str) -> dict[str, list[tuple[float, int]]]:
        """Return the numbers that a recipient was notified of, by kind."""
        found: dict[str, list[tuple[float, int]]] = defaultdict(list)
        for each in self.deliveries[url]:
            if "still true" not in each.message.marks:
                for code, number in each.message.change.many.items():
                    found[code].append((each.at, number))
        return found

    def is_excused(self, attempt: Attempt) -> bool:
        """Return whether its writer had no chance to write the outcome down in time."""
        until = min(attempt.ended_at, attempt.at + 100.0)
        if attempt.ended_at - attempt.at < 3.5 and not self.world.noise_ever:
            return False
        return any(
            fault.begin - 12.0 <= until and attempt.at <= fault.end + 12.0
            for fault in self.world.faults
            if not fault.on or (fault.on == attempt.url and fault.what in ("hangs", "late"))
        ) or any(attempt.at - 5 <= at <= until + 5 for at in self.world.deaths)

    def allowed(self, url: str) -> Counter[str]:
        """Return how often a recipient may be notified of something, besides once."""
        found: Counter[str] = Counter()
        answered = {(each.machine, each.at): each for each in self.deliveries[url]}
        reduced, unanswered = set[str](), set[str]()
        for each in answered.values():
            items = [*each.message.change.begun, *each.message.change.ended]
            items += [f"-{one}" for one in each.message.change.removals]
            if each.mode in ("never", "late"):
                unanswered.update(items)
            if each.message.form is not Form.FULL:
                reduced.update(items)
        for attempt in self.world.attempts:
            if attempt.url == url and (not attempt.is_coordinated or self.is_excused(attempt)):
                found.update(attempt.items)
        found.update(reduced)
        found.update(dict.fromkeys(unanswered, 2))
        return found

    def is_after_damage(self, url: str, at: float) -> bool:
        """Return whether the document was damaged before."""
        return self.world.damaged.get(url, _FOREVER) <= at


def each_condition_arrives(history: History) -> Iterator[str]:
    """Each condition that one unlocker sees for long enough reaches each recipient."""
    spans: list[tuple[str, float, float]] = []
    for machine in history.world.all_machines:
        for each, times in machine.seen.items():
            spans += [(each, *pair) for pair in zip(times[::2], times[1::2], strict=True)]
    for each, periods in history.world.announced.items():
        spans += [(each, begin, min(end, history.end)) for begin, end in periods]
    for url in history.world.urls:
        news = [(delivery.at, one) for delivery, one in history.news(url)]
        gone = {one: delivery.at for delivery, one in history.removals(url)}
        many = history.counted(url)
        for each, begin, end in spans:
            kind = KINDS[each[0]]
            need = LATENESS_S + (0.0 if kind.of is OF_UNLOCKER else kind.for_s)
            if each[0] in many or history.calm(url, begin, end) < need:
                continue
            heard = [at for at, one in news if _part(one) == _part(each)]
            heard += [gone[each[1:9]]] if each[1:9] in gone else []
            if kind.of is OF_UNLOCKER:
                heard = [at for at in heard if at <= end + 5]
            # A sender whose attempts failed steps back for that long behind one that sees less.
            if not heard or history.calm(url, begin, min(heard)) > need + FORGIVE_S:
                yield f"{url} never got {each} ({kind.is_now}) of {begin:.0f} to {end:.0f}: {heard}"


def blindness_is_known(history: History) -> Iterator[str]:
    """While unlockers are blind, each recipient knows that of one, even if all are."""
    spans = [
        (each, begin, min(end, history.end))
        for each, periods in history.world.announced.items()
        for begin, end in periods
        if each[0] == BLIND.code
    ]
    for url in history.world.urls:
        news = [(delivery.at, one) for delivery, one in history.news(url)]
        for each, begin, end in spans:
            if history.calm(url, begin, end, but_blind=True) < LATENESS_S:
                continue
            heard = [
                at
                for at, one in news
                for other, since, until in spans
                if one == other and since <= at <= end + 5 and until >= begin
            ]
            if not heard or (
                history.calm(url, begin, min(heard), but_blind=True) > LATENESS_S + FORGIVE_S
            ):
                yield f"{url} knew of no blindness from {begin:.0f} to {end:.0f}: {each} {heard}"


def no_repeat_without_reason(history: History) -> Iterator[str]:
    """Nothing is sent twice but after a death, a lost outcome, or no answer."""
    for url in history.world.urls:
        allowed = history.allowed(url)
        news = Counter(one for _, one in history.news(url))
        ends = Counter(one for _, one in history.ends(url))
        removals = Counter(f"-{one}" for _, one in history.removals(url))
        if url in history.world.damaged:
            continue
        for what, counts in (("news", news), ("end", ends), ("removal", removals)):
            for each, number in counts.items():
                times = len(history.world.announced.get(each, [0]))
                if number > times + allowed[each]:
                    most = times + allowed[each]
                    yield f"{url} got the {what} {each} {number} times, {most} allowed"


def a_repeat_is_marked(history: History) -> Iterator[str]:
    """A message with something that the recipient got already says that it may be a repeat."""
    for url in history.world.urls:
        seen = dict[str, str]()
        for delivery in history.deliveries[url]:
            marks, change = delivery.message.marks, delivery.message.change
            for one in change.begun if "still true" not in marks else ():
                if one[0] in change.many:
                    continue
                is_again = seen.get(one) == "begun" and one not in history.world.announced
                is_excused = history.is_after_damage(url, delivery.at)
                is_excused |= _is_noted_alone(history, url, one)
                if is_again and not marks and not is_excused:
                    yield f"{url} got {one} again at {delivery.at:.0f} without a mark"
                seen[one] = "begun"
            seen.update(dict.fromkeys(change.ended, "ended"))


def _is_noted_alone(history: History, url: str, one: str) -> bool:
    """Return whether something was sent without the document: nobody else knows of it."""
    return any(
        "not coordinated" in delivery.message.marks and one in delivery.message.change.begun
        for delivery in history.deliveries[url]
    )


def nothing_is_early(history: History) -> Iterator[str]:
    """No condition is sent before it has lasted, and none that is over for long."""
    world = history.world
    for url in world.urls:
        for delivery, one in history.news(url):
            kind = KINDS[one[0]]
            if kind.of is OF_UNLOCKER:
                continue
            since = world.wrong_at.get(one, world.begun_at[one[1:]])
            if delivery.at < since + kind.for_s - 2.0:
                yield f"{url} got {one} at {delivery.at:.0f}, {delivery.at - since:.0f} s after"
            over = world.over_at.get(one[1:], _FOREVER)
            if delivery.at > over + STALE_S and not _is_held_up(history, delivery):
                yield f"{url} got {one} at {delivery.at:.0f}, which was over at {over:.0f}"


def _is_held_up(history: History, delivery: Delivery) -> bool:
    """Return whether its unlocker was stopped, or saw nothing, just before."""
    return any(
        fault.what in ("freeze", "blind", "blind all", "cut off", "store down", "noise")
        and fault.begin <= delivery.at <= fault.end + 45.0
        for fault in history.world.faults
    )


def no_end_without_evidence(history: History) -> Iterator[str]:
    """No condition is reported as over before it is."""
    world = history.world
    for url in world.urls:
        for delivery, one in history.ends(url):
            if KINDS[one[0]].of is OF_UNLOCKER:
                spans = world.announced.get(one, [])
                if any(b < delivery.at and e > delivery.at - EARLIEST_END_S for b, e in spans):
                    yield f"{url} got the end of {one} at {delivery.at:.0f}: {spans}"
            elif world.over_at.get(one[1:], _FOREVER) > delivery.at - EARLIEST_END_S:
                yield f"{url} got the end of {one} at {delivery.at:.0f}, which is not over"


def each_end_arrives(history: History) -> Iterator[str]:
    """The end of each condition that was sent and ended is sent."""
    world = history.world
    for url in world.urls:
        begun, ended = dict[str, Delivery](), dict[str, float]()
        for delivery, one in history.news(url):
            begun[_part(one)] = delivery
        for delivery, one in history.ends(url):
            ended[_part(one)] = delivery.at
        gone = {one for _, one in history.removals(url)}
        for part, delivery in begun.items():
            if (
                part[1:9] in gone
                or part[1:9] in world.removed_at
                or part[0] in history.counted(url)
            ):
                continue
            over = _over_at(history, part)
            if (
                over is None
                or history.calm(url, max(over, delivery.at), history.end) < END_S + LATENESS_S
            ):
                continue
            is_lost = url in world.damaged or (
                "not coordinated" in delivery.message.marks
                and any(
                    m.process.name == delivery.machine and m.process.dead
                    for m in world.all_machines
                )
            )
            if ended.get(part, -1.0) < delivery.at and not is_lost:
                yield f"{url} got {part} at {delivery.at:.0f}, over at {over:.0f}, and no end"


def _part(one: str) -> str:
    """Return a condition without its heartbeat: one that is late again at once has no end."""
    return one[:9]


def _over_at(history: History, part: str) -> float | None:
    """Return when the last condition of a holder, or an unlocker's, was over; None: it is not."""
    world = history.world
    if KINDS[part[0]].of is OF_UNLOCKER:
        ends = [end for _, end in world.announced.get(part, [])]
        return None if not ends or max(ends) == _FOREVER else max(ends)
    seen = [one for machine in world.all_machines for one in machine.seen if _part(one) == part]
    overs = [world.over_at.get(one[1:], _FOREVER) for one in seen]
    return None if not overs or max(overs) == _FOREVER else max(overs)


def a_removal_takes_the_place_of_ends(history: History) -> Iterator[str]:
    """After a removal was sent, no end of its holder's conditions is."""
    for url in history.world.urls:
        gone = set[str]()
        for delivery in history.deliveries[url]:
            for one in delivery.message.change.ended:
                if one[1:9] in gone:
                    yield f"{url} got the end of {one} at {delivery.at:.0f} after its removal"
            gone.update(delivery.message.change.removals)


def a_lost_document_is_admitted(history: History) -> Iterator[str]:
    """After a document was damaged, the first message says that what was sent is unknown."""
    for url, damaged_at in history.world.damaged.items():
        for delivery in history.deliveries[url]:
            change = delivery.message.change
            is_new = (
                delivery.at > damaged_at + 50.0 and "not coordinated" not in delivery.message.marks
            )
            if is_new and history.world.has_garbage and "still true" not in delivery.message.marks:
                if UNKNOWN_LINE not in delivery.message.body:
                    yield f"{url} got {change} at {delivery.at:.0f} as if all were known"
                break


def no_ping_pong(history: History) -> Iterator[str]:
    """A condition of a lock that was over is never news again."""
    for url in history.world.urls:
        ended = dict[str, float]()
        for delivery in history.deliveries[url]:
            change = delivery.message.change
            for one in change.begun:
                is_lock = KINDS[one[0]].of is not OF_UNLOCKER
                if one in ended and is_lock and one[0] not in change.many:
                    yield f"{url} got {one} again at {delivery.at:.0f} after its end"
            ended.update(dict.fromkeys(change.ended, delivery.at))


def each_removal_arrives(history: History) -> Iterator[str]:
    """Each removal reaches each recipient."""
    for url in history.world.urls:
        there = {one for _, one in history.removals(url)}
        for holder, at in history.world.removed_at.items():
            is_old = at < BEGIN + 20 or history.is_after_damage(url, at - 90)
            is_old |= (
                url in history.world.damaged or history.calm(url, at, history.end) < LATENESS_S
            )
            if holder not in there and not is_old:
                yield f"{url} never got the removal {holder} of {at:.0f}"


def numbers_are_true(history: History) -> Iterator[str]:
    """A number of a kind with many conditions is one that was true lately."""
    world = history.world
    for url in world.urls:
        for delivery in history.deliveries[url]:
            at = delivery.at
            if "still true" in delivery.message.marks or _is_held_up(history, delivery):
                continue
            for code, number in delivery.message.change.many.items():
                counts = [world.count(code, when) for when in (at - 90, at - 60, at - 30, at)]
                if number > max(counts) + 3 or (number < FEW and number < min(counts) - 3):
                    yield f"{url} got {code} {number} at {at:.0f} of {counts}"
        for code, numbers in history.counted(url).items():
            last, count = numbers[-1][1], world.count(code, history.end)
            if last >= FEW and url not in world.damaged and not FEW - 1 <= count < 2 * last + 2:
                yield f"{url} believes in {last} of {code}, there are {count}"


def a_number_is_news(history: History) -> Iterator[str]:
    """A number is sent at the start, when it has doubled, when it has halved, and at the end."""
    for url in history.world.urls:
        last, at = dict[str, int](), 0.0
        for delivery in history.deliveries[url]:
            marks, change = delivery.message.marks, delivery.message.change
            for code, number in {} if "still true" in marks else change.many.items():
                before = last.get(code, FEW - 1)
                is_news = number >= 2 * before or 2 * number <= before or number < FEW <= before
                is_excused = bool(marks) or url in history.world.damaged
                is_excused |= history.calm(url, at, delivery.at) <= 0
                if before >= FEW and not is_news and not is_excused:
                    yield f"{url} got {code} {number} at {delivery.at:.0f} after {before}"
                last[code] = number
                at = delivery.at


def pauses_are_kept(history: History) -> Iterator[str]:
    """One unlocker sends a recipient at most one message every 30 s."""
    for url, deliveries in history.deliveries.items():
        by_machine: dict[str, list[Delivery]] = defaultdict(list)
        for each in deliveries:
            if not each.message.marks:
                by_machine[each.machine].append(each)
        for group in by_machine.values():
            for one, other in pairwise(group):
                if other.at - one.at < 28.0 and one.mode != "refuses":
                    yield f"{url} got messages at {one.at:.1f} and {other.at:.1f}"


RULES: Sequence[Callable[[History], Iterator[str]]] = (
    each_condition_arrives,
    blindness_is_known,
    no_repeat_without_reason,
    a_repeat_is_marked,
    nothing_is_early,
    no_end_without_evidence,
    each_end_arrives,
    a_removal_takes_the_place_of_ends,
    a_lost_document_is_admitted,
    no_ping_pong,
    each_removal_arrives,
    numbers_are_true,
    a_number_is_news,
    pauses_are_kept,
)


def violations(world: World) -> list[str]:
    """Return what broke a rule."""
    history = History(world)
    found = [f"error: {each}" for each in world.hub.errors]
    for rule in RULES:
        found += [f"{rule.__name__}: {each}" for each in rule(history)]
    return found
