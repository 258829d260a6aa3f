"""Three unlockers' notifiers in virtual time: the real code from what is wrong to the message.

Simulated are the locks, the store's documents and announcements, each unlocker's view of them, and
the recipients. A plan of faults comes from a seed; `rules` judges the history afterwards.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Any, cast

from lockclient.errors import StoreError, StoreUnavailable
from lockclient.model.clocks import Deadline
from lockclient.model.holder import ALERT, BROKEN, OVERDUE, UNDECIDED, Holder
from lockclient.model.removal import AUTO_UNLOCK, FORCE_UNLOCK, Removal
from lockclient.overview.rows import Row
from lockclient.stores.service_store import Document
from tests.simulation.hub import BEGIN, WALL, Hub, Thread
from tests.simulation.virtual_modules import new_process, virtual
from unlocker.deadlines import CARRIED_OVER, TOO_LONG
from unlocker.notifications import conditions, difference, notifier, sent_document
from unlocker.notifications import message as messages
from unlocker.notifications.conditions import (
    CLOCK,
    KINDS,
    OVER_S,
    RATE_LIMIT,
    UNCLAIMED,
    possible_ids,
)
from unlocker.notifications.message import Form, Message, Writer
from unlocker.notifications.notifier import Notifier
from unlocker.notifications.sender import Pace
from unlocker.notifications.sent_document import (
    BUSY,
    REFUSED,
    SENT,
    UNANSWERED,
    Change,
    SentDocument,
)

TTL_S, HEARTBEAT_S = 10.0, 3.0
ANSWER_S = 32.0
"""Seconds after which an attempt counts as unanswered."""
LONG_S = OVER_S + 100.0
"""Seconds of a fault that lasts longer than what is over before people are notified of its end."""
QUIET_S = 1300.0
"""Seconds without faults at the end: all that is owed arrives in them."""
POINTS = ("attempt sent", "attempt written", "before", "taken", "outcome sent", "outcome written")
"""Places in an attempt at which a process may die: between two of them nothing is seen outside."""
FAULTS = (
    *("aim",) * 4,
    *("kill", "kill", "kill all", "stop", "freeze", "blind", "blind all", "cut off"),
    *("store down", "read only", "noise", "noise", "own", "skewed", "skewed all"),
)
"""See `World._happen`; the more often one stands here, the more often it is drawn."""
_FOREVER = float("inf")


@dataclass(frozen=True)
class Fault:
    """Something that goes wrong in a part of the run.

    Attributes:
        what: a method of `World`, or the mode of a recipient.
        on: the recipient; empty: it concerns unlockers or the store.
    """

    what: str
    begin: float
    seconds: float
    on: str = ""
    much: float = 0.0

    @property
    def end(self) -> float:
        """Return when it is over."""
        return self.begin + self.seconds


@dataclass(slots=True)
class Attempt:
    """A message that an unlocker wrote down, or made without the document.

    Attributes:
        items: see `Change.items`.
        is_coordinated: it was written down.
        ended_at: when the outcome was written.
    """

    machine: str
    url: str
    at: float
    items: set[str]
    is_coordinated: bool = True
    ended_at: float = _FOREVER


@dataclass(frozen=True, slots=True)
class Said(Message):
    """A message, and what it was written from."""

    change: Change = field(default_factory=Change)
    form: Form = Form.FULL
    marks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Delivery:
    """A message that a recipient got.

    Attributes:
        at: seconds of the run.
        outcome: as the unlocker learns it; empty: it died before.
    """

    at: float
    machine: str
    url: str
    message: Said
    mode: str


class NotingWriter(Writer):
    """Writes messages that say what they were written from."""

    def message(self, change: Change, *args: Any, **how: Any) -> Message:
        """See `Writer`."""
        said = super().message(change, *args, **how)
        form = args[2] if len(args) > 2 else how.get("form", Form.FULL)
        marks = args[3] if len(args) > 3 else how.get("marks", ())
        fields = {name: getattr(said, name) for name in ("title", "body", "good", "named")}
        return Said(**fields, change=change, form=form, marks=tuple(marks))


class Url:
    """A recipient, as one process reaches it."""

    def __init__(self, machine: Machine, name: str) -> None:
        self.name, self._machine, self._world = name, machine, machine.world

    def deliver(self, message: Message) -> str:
        """Stand for `Recipient.deliver`."""
        world, hub, said = self._world, self._world.hub, cast("Said", message)
        name = self._machine.process.name
        self._machine.reaches("before")
        hub.wait(0.05 + world.pause("way", name))
        mode = world.mode(self.name)
        poison = world.poison and mode == "ok" and said.form is Form.FULL
        if poison and any(each[1:].startswith(world.poison) for each in said.change.begun):
            mode = "refuses"
        if mode in ("refuses", "busy"):
            return REFUSED if mode == "refuses" else BUSY
        if mode == "down":
            hub.wait(10.0)
            return REFUSED
        if not self._machine.attempts.get(self.name) and "still true" not in said.marks:
            alone = Attempt(name, self.name, hub.now, {*said.change.items()}, is_coordinated=False)
            world.attempts.append(alone)
        world.deliveries.append(Delivery(hub.now, name, self.name, said, mode))
        self._machine.reaches("taken")
        if mode == "hangs":
            hub.wait(200.0)
            return SENT
        if mode in ("never", "late"):
            hub.wait(ANSWER_S if mode == "never" else ANSWER_S + 20 * world.pause("late", name))
            return UNANSWERED
        hub.wait(world.slowness * world.pause("answer", name))
        return SENT


class Documents:
    """The store's documents, as one process reaches them."""

    poll = 0.0

    def __init__(self, machine: Machine) -> None:
        self._machine, self._world = machine, machine.world

    def read_document(self, name: str, deadline: Deadline) -> Document:
        """See `ServiceStore`."""
        return cast("Document", self._request(lambda: self._world.document(name), deadline))

    def write_document(
        self, name: str, value: bytes, seen: Document, deadline: Deadline
    ) -> Document | None:
        """See `ServiceStore`."""
        machine, world = self._machine, self._world
        url, written = name.removeprefix("sent/"), SentDocument()
        if value:
            written = SentDocument.parse(value)
        is_attempt = bool(written.attempt) and written.writer == machine.identity
        step = "attempt" if is_attempt else "outcome"
        if is_attempt and url not in machine.attempts:
            attempt = Attempt(machine.process.name, url, world.hub.now, {*written.attempt})
            world.attempts.append(attempt)
            machine.attempts[url] = attempt
        machine.reaches(f"{step} sent")
        try:
            found = self._request(lambda: world.write(name, value, seen), deadline, writes=True)
        except (StoreError, StoreUnavailable):
            if is_attempt:
                world.attempts.remove(machine.attempts.pop(url))
            raise
        machine.reaches(f"{step} written")
        if is_attempt and found is None:
            world.attempts.remove(machine.attempts.pop(url))
        if not is_attempt and found is not None and url in machine.attempts:
            machine.attempts.pop(url).ended_at = world.hub.now
        return cast("Document | None", found)

    def document_names(self, deadline: Deadline) -> list[str]:
        """See `ServiceStore`."""
        return cast("list[str]", self._request(lambda: [*self._world.documents], deadline))

    def _request(
        self, apply: Callable[[], object], deadline: Deadline, *, writes: bool = False
    ) -> object:
        world, hub, machine = self._world, self._world.hub, self._machine
        draws = [world.pause("request", machine.process.name) for _ in range(4)]
        if machine.is_cut_off() or world.now < world.store_down_until:
            hub.wait(1.0)
            raise StoreUnavailable("no answer")
        hub.wait(0.1 * draws[0])
        if writes and world.now < world.read_only_until:
            raise StoreError("no right")
        if draws[1] < world.noise:
            what = ("lost", "unanswered", "late", "doubled")[int(draws[2] * 4)]
            if what == "late":
                hub.at(hub.now + 40 * draws[3], apply)
            if what in ("unanswered", "doubled"):
                apply()
            if what != "doubled":
                hub.wait(3.0)
                raise StoreUnavailable("no answer")
        found = apply()
        hub.wait(0.1 * draws[3])
        return found


class Machine:
    """One unlocker: its view of the locks, and a real notifier.

    Attributes:
        attempts: those of this process without a written outcome, by recipient.
        seen: for each condition, the times from which until which it was wrong in this view.
    """

    def __init__(self, world: World, number: int) -> None:
        self.world, self.process = world, new_process(world.hub, f"u{number}")
        self.identity = f"unlocker@h:{number}"
        self.attempts: dict[str, Attempt] = {}
        self.seen: dict[str, list[float]] = {}
        self.is_trusted = world.now >= world.skewed_until
        self.lag = 0.3 + 4.0 * world.pause("lag", self.process.name) ** 3
        self.blind_from = self.blind_until = self.cut_from = self.cut_until = -_FOREVER
        self.heartbeat_at = 0.0
        self._read, self._at = 0, -_FOREVER
        self._rows: dict[str, Row] = {}
        self._unlockers: dict[str, str] = {}
        self._removals: list[Removal] = []
        self._alerted: dict[str, float | None] = {}
        self._loaded_at = _FOREVER
        with world.hub.of(self.process):
            self.documents = Documents(self)
            urls = [Url(self, name) for name in world.urls]
            self.notifier = Notifier(cast("Any", urls), NotingWriter("here"), world.pace)
            Thread(target=self._run, name="main").start()

    def _run(self) -> None:
        hub = self.world.hub
        hub.wait(1.0 + 3.0 * self.world.pause("start", self.process.name))
        self._loaded_at = self.world.now
        self.started_at = hub.wall() + self.world.pause("ahead", self.process.name)
        self.heartbeat_at = hub.monotonic()
        self.notifier.start(
            self.identity,
            cast("Any", self.documents),
            cast("Any", self),
            cast("Any", self),
            trouble=self._trouble,
            own=self._own,
            heartbeat_at=lambda: self.heartbeat_at,
            count=lambda *_: None,
        )
        while True:
            said = {"started_at": self.started_at, **self.notifier.announcement_fields()}
            hub.wait(0.05)
            if not self.is_cut_off():
                self.world.announce(self.identity, json.dumps(said))
                self.heartbeat_at = hub.monotonic()
            hub.wait(HEARTBEAT_S)

    # ------------------------------------------------------------ faults

    def reaches(self, point: str) -> None:
        """Die here if the plan says so."""
        if self.world.is_deadly(point):
            self.kill()
            self.world.hub.wait(None)

    def kill(self) -> None:
        """End it where it stands."""
        self.process.dead = True

    def stop(self) -> None:
        """End it as SIGTERM does."""

        def end() -> None:
            self.notifier.stop()
            self.world.announce(self.identity, None)
            self.kill()

        with self.world.hub.of(self.process):
            Thread(target=end, name="stop").start()

    def is_cut_off(self) -> bool:
        """Return whether nothing passes between it and the store."""
        return self.cut_from <= self.world.now < self.cut_until

    def _is_blind(self) -> bool:
        return self.is_cut_off() or self.blind_from <= self.world.now < self.blind_until

    def _trouble(self) -> str | None:
        now = self.world.now
        begin = self.cut_from if self.is_cut_off() else self.blind_from
        if self._is_blind() and now - begin > 8.0:
            return "Nothing is seen."
        return None if now >= self._loaded_at else "Not read."

    def _own(self) -> Mapping[str, str]:
        found = {} if self.is_trusted else {CLOCK.code: "The clock is wrong."}
        for code in (RATE_LIMIT.code, UNCLAIMED.code):
            if self.world.own.get(code, 0.0) > self.world.now:
                found[code] = "So it is."
        return found

    # ------------------------------------------------------------ the table and the deadlines

    def unlockers(self) -> dict[str, str]:
        """See `Table`."""
        self._catch_up()
        return dict(self._unlockers)

    def rows(self) -> dict[str, Row]:
        """See `Table`."""
        self._catch_up()
        return dict(self._rows)

    def removals(self) -> list[Removal]:
        """See `Table`."""
        self._catch_up()
        return self._removals[::-1]

    def _catch_up(self) -> None:
        if not self._is_blind():
            self._at = max(self._at, self.world.now - self.lag)
        log = self.world.log
        now = self.world.hub.monotonic()
        while self._read < len(log) and log[self._read][0] <= self._at:
            at, kind, name, value = log[self._read]
            self._read += 1
            if kind == "announced":
                _put(self._unlockers, name, value)
            elif kind == "removed":
                self._removals = [*self._removals, value][-1000:]
            else:
                found = at < self._loaded_at
                _put(self._rows, name, None if value is None else Row(value, now, found))
                self._alerted.pop(name, None)

    def wrong(self, now: float) -> dict[str, list[Holder]]:
        """See `Deadlines`."""
        self._catch_up()
        found: dict[str, list[Holder]] = {}
        wall = self.world.now + WALL - BEGIN
        for name, row in self._rows.items():
            for what in self._wrong(name, row, now, wall):
                found.setdefault(what, []).append(row.holder)
        self._note_seen(found)
        return found

    def _wrong(self, name: str, row: Row, now: float, wall: float) -> Iterator[str]:
        holder, silent = row.holder, now - row.seen_at
        if holder.reason == "undecided":
            yield UNDECIDED
        if holder.max_hold is not None:
            held = (holder.alive_at or 0.0) - (holder.too_long_at or 0.0) + silent
            if held > 0:
                yield TOO_LONG
        if holder.alert_at is None:
            yield BROKEN
            return
        by_clock = row.found and self.is_trusted and wall >= holder.alert_at
        if by_clock or silent >= (holder.expected_runtime or 0.0):
            self._alerted[name] = holder.alert_at
        if self._alerted.get(name) == holder.alert_at:
            yield ALERT
        if holder.auto_unlock_at is not None:
            if silent >= (holder.auto_unlock_after or 0.0):
                yield OVERDUE
            elif row.found and self.is_trusted and wall > holder.auto_unlock_at + 60:
                yield CARRIED_OVER

    def _note_seen(self, found: Mapping[str, list[Holder]]) -> None:
        """Note for how long this view has had what is wrong, by the simulation's own clock."""
        now, there = self.world.now, set[str]()
        for what, holders in found.items():
            kind = _KINDS[what]
            for holder in holders:
                part = possible_ids(holder)[kind.of is conditions.OF_HEARTBEAT]
                there.add(kind.code + part)
        for each in there:
            spans = self.seen.setdefault(each, [])
            self.world.wrong_at.setdefault(each, now)
            if spans and now - spans[-1] <= 15.0:
                spans[-1] = now
            else:
                spans += [now, now]


_KINDS = {
    ALERT: conditions.PAST_ALERT,
    OVERDUE: conditions.OVERDUE,
    TOO_LONG: conditions.TOO_LONG,
    BROKEN: conditions.BROKEN,
    UNDECIDED: conditions.UNDECIDED,
    CARRIED_OVER: conditions.KEPT,
}


def _put(kept: dict[str, Any], name: str, value: Any) -> None:
    if value is None:
        kept.pop(name, None)
    else:
        kept[name] = value


class World:
    """One run.

    Args:
        seed: of the plan, and of all that is drawn.

    Attributes:
        log: what happens to locks, records and announcements, in order.
        begun_at, over_at: since when something can be wrong with a holder, and until when, by the
            part of a condition's id behind its code.
    """

    def __init__(self, seed: int) -> None:
        self.seed, self.hub, self.dice = seed, Hub(seed), Random(seed)
        dice = self.dice
        self.urls = [f"r{n}" for n in range(dice.choice([1, 1, 1, 2, 2, 3, 5, 20]))]
        if len(self.urls) == 20 and dice.random() < 0.7:
            self.urls = self.urls[:2]
        self.is_mass = dice.random() < 0.3
        self.mass_flavour = dice.choice(["alert", "long"])
        self.active_s = dice.choice([900.0, 1500.0, 2400.0])
        self.pace = Pace() if dice.random() < 0.7 else Pace(critical_again=600.0, again=900.0)
        self.noise, self.slowness = 0.0, dice.choice([0.2, 1.0, 10.0])
        self.noise_ever = False
        self.poison = ""
        self.log: list[tuple[float, str, str, Any]] = []
        self.documents: dict[str, tuple[bytes, int]] = {}
        self._versions = 0
        self.announcements: dict[str, tuple[str, float]] = {}
        self.locks: dict[str, Holder] = {}
        self.begun_at: dict[str, float] = {}
        self.over_at: dict[str, float] = {}
        self.wrong_at: dict[str, float] = {}
        self.removed_at: dict[str, float] = {}
        self.own: dict[str, float] = {}
        self.skewed_until = -_FOREVER
        self.store_down_until = self.read_only_until = -_FOREVER
        self.deadly: list[str] = []
        self.deaths: list[float] = []
        self.announced: dict[str, list[list[float]]] = {}
        self.attempts: list[Attempt] = []
        self.deliveries: list[Delivery] = []
        self.faults: list[Fault] = []
        self.damaged: dict[str, float] = {}
        self.has_garbage = False
        self.machines: list[Machine] = []
        self.all_machines: list[Machine] = []
        self._numbers = iter(range(10_000))
        self._uuids = iter(range(1_000_000))

    @property
    def now(self) -> float:
        """Return the seconds of the run, on nobody's clock."""
        return self.hub.now

    def pause(self, *about: object) -> float:
        """Return a number from 0 to 1."""
        return self.hub.draw_for(self.hub.process)

    # ------------------------------------------------------------ the store

    def document(self, name: str) -> Document:
        """Return a document."""
        return Document(*self.documents.get(name, (b"", 0)))

    def write(self, name: str, value: bytes, seen: Document) -> Document | None:
        """Replace a document by compare-and-swap."""
        if self.document(name).version != seen.version:
            return None
        self._versions += 1
        self.documents[name] = (value, self._versions)
        if not value:
            del self.documents[name]
        return self.document(name)

    def announce(self, name: str, said: str | None) -> None:
        """Write an announcement, or delete it."""
        if said is None:
            self.announcements.pop(name, None)
        else:
            self.announcements[name] = said, self.now + TTL_S
        self.log.append((self.now, "announced", name, said))
        wrong = json.loads(said or "{}").get("conditions", {})
        for code in (BLIND_CODE, CLOCK.code, RATE_LIMIT.code, UNCLAIMED.code):
            each = conditions.unlocker_condition(KINDS[code], name, "").id
            spans = self.announced.setdefault(each, [])
            is_open = bool(spans) and spans[-1][1] == _FOREVER
            if code in wrong and not is_open:
                spans.append([self.now, _FOREVER])
            elif code not in wrong and is_open:
                spans[-1][1] = self.now

    def tick(self) -> None:
        """End the announcements of dead unlockers; once a second."""
        for name, (_, until) in list(self.announcements.items()):
            if until <= self.now:
                self.announce(name, None)
        self.hub.at(self.now + 1.0, self.tick)

    # ------------------------------------------------------------ locks

    def set_lock(self, name: str, holder: Holder | None) -> None:
        """Have a lock held so, or free."""
        before = self.locks.get(name)
        old = set(possible_ids(before)) if before else set()
        new = set(possible_ids(holder)) if holder else set()
        self.over_at.update(dict.fromkeys(old - new, self.now))
        self.begun_at.update(dict.fromkeys(new - old, self.now))
        _put(self.locks, name, holder)
        self.log.append((self.now, "lock", name, holder))

    def take(self, name: str, flavour: str) -> None:
        """Have a new holder take a lock."""
        expected, wall = 20 + 40 * self.dice.random(), self.hub.wall()
        if flavour == "long":
            expected = expected + 350 if self.is_mass else 15 * expected
        facts: dict[str, Any] = {"alert_at": wall + expected, "expected_runtime": expected}
        if flavour in ("overdue", "auto"):
            facts |= {"auto_unlock_at": wall + expected + 30, "auto_unlock_after": expected + 30}
        if flavour == "broken":
            facts["alert_at"] = None
        if flavour == "undecided":
            facts |= {"reason": "undecided", "alert_at": wall + 1e6, "expected_runtime": 1e6}
        if flavour == "too long":
            facts["max_hold"] = 60.0
        uuid = f"u{next(self._uuids)}"
        self.set_lock(name, Holder(name=name, uuid=uuid, fencing_token=1, locked_at=wall, **facts))
        if self.poison == "?" and flavour == "alert":
            self.poison = conditions.holder_hash(name, uuid)
        if flavour == "auto":
            self.hub.at(
                self.now + expected + 31 + 3 * self.dice.random(),
                lambda: self._end(name, uuid, AUTO_UNLOCK),
            )
        if flavour == "too long":
            self.hub.at(self.now + expected - 5, lambda: self.heartbeat(name, uuid, again=True))

    def heartbeat(self, name: str, uuid: str, *, again: bool = False) -> None:
        """Have a holder extend its stamps."""
        holder = self.locks.get(name)
        if holder is None or holder.uuid != uuid:
            return
        expected, wall = holder.expected_runtime or 30.0, self.hub.wall()
        after = holder.auto_unlock_after
        facts = {
            **{each: getattr(holder, each) for each in ("name", "uuid", "fencing_token")},
            **{each: getattr(holder, each) for each in ("locked_at", "reason", "max_hold")},
            "alert_at": wall + expected,
            "expected_runtime": expected,
            "auto_unlock_at": None if after is None else wall + after,
            "auto_unlock_after": after,
        }
        self.set_lock(name, Holder(**facts))
        if again:
            self.hub.at(self.now + expected - 5, lambda: self.heartbeat(name, uuid, again=True))

    def _end(self, name: str, uuid: str, how: str) -> None:
        holder = self.locks.get(name)
        if holder is None or holder.uuid != uuid:
            return
        if how:
            removal = Removal(holder, self.hub.wall(), "ann", how, "it hangs")
            self.log.append((self.now, "removed", name, removal))
            self.removed_at[conditions.holder_hash(name, uuid)] = self.now
        self.set_lock(name, None)

    def _live(self, name: str) -> None:
        """Have one lock live its life."""
        dice = self.dice
        flavours = ("alert", "long", "overdue", "auto", "broken", "undecided", "too long")
        flavour = dice.choices(flavours, (42, 8, 12, 16, 8, 5, 9))[0]
        if self.is_mass and dice.random() < 0.8:
            flavour = self.mass_flavour
        self.take(name, flavour)
        holder = self.locks[name]
        is_long = flavour == "long"
        uuid, later = str(holder.uuid), 30 + dice.choice([5, 40, 100, 300, 900]) * dice.random()
        end = dice.choices(
            ("heartbeat", "free", "taken", "force", "flap", "stays"), (3, 3, 1, 1, 2, 3)
        )[0]

        def go_on() -> None:
            if end in ("heartbeat", "flap"):
                self.heartbeat(name, uuid, again=end == "heartbeat")
                if end == "flap":
                    self.hub.at(self.now + 10 + 150 * dice.random(), go_on)
            elif end != "stays":
                self._end(name, uuid, FORCE_UNLOCK if end == "force" else "")
                if end == "taken" and name not in self.locks:
                    self.take(name, "alert")

        if is_long:
            later += holder.expected_runtime or 0.0
        if self.is_mass:
            later += 300.0 * dice.random()
        self.hub.at(self.now + later, go_on)

    def count(self, code: str, at: float) -> int:
        """Return of how many locks something of a kind was wrong then."""
        return sum(
            since <= at < self.over_at.get(each[1:], _FOREVER)
            for each, since in self.wrong_at.items()
            if each[0] == code
        )

    # ------------------------------------------------------------ faults

    def mode(self, url: str) -> str:
        """Return how a recipient behaves now."""
        there = [
            each.what
            for each in self.faults
            if each.on == url and each.begin <= self.now < each.end
        ]
        return there[-1] if there else "ok"

    def is_deadly(self, point: str) -> bool:
        """Return whether a process that is there dies."""
        if point not in self.deadly:
            return False
        self.deadly.remove(point)
        self.deaths.append(self.now)
        return True

    def start(self) -> None:
        """Start an unlocker."""
        machine = Machine(self, next(self._numbers))
        self.machines.append(machine)
        self.all_machines.append(machine)

    def _replace_dead(self) -> None:
        dead = [each for each in self.machines if each.process.dead]
        for each in dead:
            self.machines.remove(each)
            self.hub.at(self.now + self.dice.choice([0.0, 5.0, 40.0]), self.start)
        self.hub.at(self.now + 1.0, self._replace_dead)

    def _plan(self) -> None:
        dice = self.dice
        end = BEGIN + self.active_s
        number = dice.randint(40, 80) if self.is_mass else dice.randint(1, 14)
        wave = BEGIN + self.active_s * 0.4 * dice.random()
        if dice.random() < 0.2:
            self.poison = "?"
        for n in range(number):
            at = (
                wave + 20 * dice.random()
                if self.is_mass
                else BEGIN + 5 + self.active_s * 0.9 * dice.random()
            )
            self.hub.at(at, lambda name=f"l{n}": self._live(name))  # type: ignore[misc]
        for _ in range(dice.choice([0, 1, 3, 6, 12])):
            what, begin = dice.choice(FAULTS), BEGIN + 20 + self.active_s * 0.9 * dice.random()
            seconds = dice.choice([5.0, 30.0, 120.0, 400.0]) * (0.5 + dice.random())
            if what == "blind all":
                seconds += LONG_S
            fault = Fault(what, begin, min(seconds, end - begin), much=dice.random())
            self.faults.append(fault)
            self.hub.at(begin, lambda fault=fault: self._happen(fault))  # type: ignore[misc]
        modes = ("refuses", "busy", "down", "never", "late", "hangs")
        for url in self.urls:
            for _ in range(dice.choice([0, 0, 0, 1, 2])):
                begin = BEGIN + self.active_s * 0.9 * dice.random()
                seconds = dice.choice([20.0, 100.0, 300.0, 3600.0])
                self.faults.append(Fault(dice.choice(modes), begin, min(seconds, end - begin), url))
        if (
            self.is_mass
            and self.mass_flavour == "long"
            and Random(f"all {self.seed}").random() < 0.3
        ):
            # Restarted with wrong clocks, unlockers find the many locks late only after minutes.
            fault = Fault("skewed all", wave + 500.0, min(LONG_S + 80.0, end - wave - 500.0))
            if fault.seconds > 0.0:
                self.faults.append(fault)
                self.hub.at(fault.begin, lambda: self._happen(fault))
        if dice.random() < 0.08:
            url = dice.choice(self.urls)
            self.damaged[url] = BEGIN + self.active_s * dice.random()
            garbage = dice.choice([b"", b"x" * 9, b"[]", b'{"sent": 3}'])
            self.hub.at(self.damaged[url], lambda: self._damage(url, garbage))

    def _damage(self, url: str, garbage: bytes) -> None:
        self._versions += 1
        self.has_garbage = bool(garbage)
        self.documents[f"sent/{url}"] = garbage, self._versions
        if not garbage:
            del self.documents[f"sent/{url}"]

    def _happen(self, fault: Fault) -> None:
        alive = [each for each in self.machines if not each.process.dead]
        machine = alive[int(fault.much * len(alive))] if alive else None
        what, end = fault.what, fault.end
        if what == "aim":
            point = POINTS[int(fault.much * len(POINTS))]
            self.deadly.append(point)
            self.hub.at(end, lambda: self.deadly.remove(point) if point in self.deadly else None)
        elif what == "store down":
            self.store_down_until = end
        elif what == "read only":
            self.read_only_until = end
        elif what == "noise":
            self.noise, self.noise_ever = 0.4 * fault.much, True
            self.hub.at(end, lambda: setattr(self, "noise", 0.0))
        elif what == "own":
            self.own[RATE_LIMIT.code if fault.much < 0.5 else UNCLAIMED.code] = end
        elif what == "kill all":
            for each in alive:
                each.kill()
        elif what == "skewed all":
            self.skewed_until = end
            self.hub.at(end, self._trust_all)
            for each in alive:
                each.kill()
        elif what == "blind all":
            for each in alive:
                each.blind_from, each.blind_until = self.now, end
        elif machine is None:
            pass
        elif what == "kill":
            machine.kill()
        elif what == "stop":
            machine.stop()
        elif what == "freeze":
            machine.process.frozen_until = end
        elif what == "blind":
            machine.blind_from, machine.blind_until = self.now, end
        elif what == "cut off":
            machine.cut_from, machine.cut_until = self.now, end
        elif what == "skewed":
            if fault.seconds > 100:  # its successor has a wrong clock, too
                machine.kill()
            self.skewed_until = end
            machine.is_trusted = False
            self.hub.at(end, self._trust_all)

    def _trust_all(self) -> None:
        for each in self.all_machines:
            each.is_trusted = self.now >= self.skewed_until

    def run(self) -> None:
        """Run to the end."""
        self.hub.at(BEGIN, self.tick)
        self.hub.at(BEGIN + 1.0, self._replace_dead)
        for _ in range(3):
            self.hub.at(BEGIN, self.start)
        self._plan()
        self.hub.run(BEGIN + self.active_s)
        for each in self.all_machines:
            each.is_trusted = True
        self.hub.run(BEGIN + self.active_s + QUIET_S)


BLIND_CODE = conditions.BLIND.code


@contextmanager
def _limits(*, is_small: bool) -> Iterator[None]:
    """Have kinds with a tenth of the conditions counted as many, and steps half as often."""
    changed: list[tuple[Any, str, Any]] = [(notifier, "STEP_INTERVAL_S", 2.0)]
    if is_small:
        for module in (difference, sent_document, messages):
            for name, value in (("MANY", 20), ("FEW", 10), ("MAX_IDS", 60)):
                if hasattr(module, name):
                    changed.append((module, name, value))
    before = [(module, name, getattr(module, name)) for module, name, _ in changed]
    for module, name, value in changed:
        setattr(module, name, value)
    try:
        yield
    finally:
        for module, name, value in before:
            setattr(module, name, value)


def run(seed: int) -> World:
    """Run a seed; return the world with its history."""
    with ExitStack() as stack:
        stack.enter_context(virtual(lambda *_, **__: None))
        world = World(seed)
        stack.callback(world.hub.end)
        stack.enter_context(_limits(is_small=world.is_mass))
        world.run()
        return world
