"""The holder of a lock: the facts that a lock contains about itself.

Reading never raises: a value that can't be read is named in `Holder.problems`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Any, Final

from lockclient.model.clocks import Stamps, format_stamp
from lockclient.model.fields import (
    ABOUT,
    COUNT,
    FLAG,
    KEY,
    KNOWN,
    MAX_COUNT,
    NEVER,
    SECONDS,
    TEXT,
    TEXTS,
    TIME,
    UNKNOWN,
    Fact,
    fact,
    interned_text,
    read_about,
    read_stamp,
    read_text,
    to_json,
)
from lockclient.text.durations import period
from lockclient.text.escaping import plain
from lockclient.text.timestamps import utc

MAX_VALUE_BYTES: Final = 64 * 1024
"""Bytes of one value; a longer one makes the lock broken and is not kept in memory."""
MAX_UUID_BYTES: Final = 255
"""Bytes of a `uuid`; lists never truncate it."""
MOST_FENCING: Final = MAX_COUNT + 1
"""Every fencing token is smaller, so that all readers of JSON represent it exactly."""

OK: Final = "ok"
ALERT: Final = "alert"
OVERDUE: Final = "overdue"
UNDECIDED: Final = "undecided"
BROKEN: Final = "broken"
STATES: Final = (OK, ALERT, OVERDUE, UNDECIDED, BROKEN)

KNOWN_FORMAT: Final = 1
"""The newest `Holder.format` that this version may judge and remove."""

_TOLERANCE_S: Final = 0.0025
"""Error of the distance of two stamps, each rounded to a millisecond, in seconds."""

NO_PROBLEMS: Final[Mapping[str, str]] = {}


@dataclass(frozen=True, slots=True)
class Holder:
    """One acquisition of a lock, as the store has it; the fields are the facts.

    A field that is missing in the store is None.

    Attributes:
        problems: maps a subkey to a sentence about its bad value.
        stamp_revisions: the revisions at which `alert_at` and `auto_unlock_at` were written; 0 if
            missing.
        about_seen: whether this acquisition had an `about`.
        first_distance: without `about`, the first distance of this acquisition's stamps, seconds.
    """

    name: str = fact(TEXT, KNOWN, "", "The lock's name.", "")
    uuid: str | None = fact(
        TEXT, KEY, "Uuid", "The holder's id, new for every acquisition; null: broken.",
        absent="none, so that nobody holds it",
    )  # fmt: skip
    hostname: str | None = fact(
        TEXT, KEY, "Host", "The host that the holder runs on.", absent=UNKNOWN
    )
    pid: int | None = fact(COUNT, ABOUT, "Process", "The holder's process id.")
    thread: str | None = fact(TEXT, ABOUT, "Thread", "The holder's thread.")
    actor: str | None = fact(
        TEXT, ABOUT, "", "The thread or task that took it, by a name that no other has."
    )
    reason: str | None = fact(TEXT, ABOUT, "Reason", "What the lock is used for.")
    identity: str | None = fact(
        TEXT, ABOUT, "Identity", "Of a worker that takes its own lock over after a crash."
    )
    owner: str | None = fact(
        TEXT, ABOUT, "Owner", "Whose lock it is, as the program says: a team, a service."
    )
    labels: Mapping[str, str] | None = fact(
        TEXTS, ABOUT, "Labels", "What else the program says of all of its locks, or of this one."
    )
    context: Mapping[str, str] | None = fact(
        TEXTS, ABOUT, "Context", "What the lock was taken for this time: a trace, a request."
    )
    user: str | None = fact(TEXT, ABOUT, "User", "The user of the system that the holder runs as.")
    container: str | None = fact(
        TEXT,
        ABOUT,
        "Container or pod",
        "Where the holder runs: `namespace/pod`, or a container's id.",
    )
    process: str | None = fact(
        TEXT, ABOUT, "", "Tells on the same machine whether that process still runs.", in_json=False
    )
    client: str | None = fact(TEXT, ABOUT, "Client", "The library that took it.")
    locked_at: float | None = fact(TIME, ABOUT, "Taken", "When it was taken.", absent=UNKNOWN)
    alert_at: float | None = fact(
        TIME, KEY, "Alert", "From when on people are alerted; null: broken.", absent=UNKNOWN
    )
    auto_unlock_at: float | None = fact(
        TIME, KEY, "Auto-unlock", "From when on the unlocker may remove it; null: never.",
        absent=NEVER,
    )  # fmt: skip
    expected_runtime: float | None = fact(
        SECONDS, ABOUT, "Expected runtime", "From a heartbeat to `alert_at`."
    )
    auto_unlock_after: float | None = fact(
        SECONDS, ABOUT, "Auto-unlock after",
        "From a heartbeat to `auto_unlock_at`; null: never, or unsaid.", absent=NEVER,
    )  # fmt: skip
    max_hold: float | None = fact(
        SECONDS, ABOUT, "Held at most",
        "How long it is held at most, whoever pushes it; null: as long as it is pushed.",
    )  # fmt: skip
    keepalive: bool | None = fact(
        FLAG, ABOUT, "Kept alive",
        "Whether it is pushed from the background, so that a hung worker looks healthy.",
    )  # fmt: skip
    format: int | None = fact(
        COUNT, ABOUT, "Format", "Services leave a lock of a newer format alone; null: 1."
    )
    fencing_token: int = fact(
        COUNT, KNOWN, "Fencing token",
        "etcd's revision at which the holder got it; 0: unknown, or the locks are elsewhere.", 0,
    )  # fmt: skip
    backtrace: str | None = fact(
        TEXT, ABOUT, "", "The stack of the call that took it.", listed=False
    )
    stamp_revisions: tuple[int, int] = (0, 0)
    problems: Mapping[str, str] = field(default_factory=lambda: NO_PROBLEMS)
    about_seen: bool = field(default=False, compare=False)
    first_distance: float | None = field(default=None, compare=False)

    @property
    def alive_at(self) -> float | None:
        """The last heartbeat, by the holder's clock; None: unknown, or one stamp was moved."""
        stamp, after = self.auto_unlock_at, self.auto_unlock_after
        if None not in (stamp, self.alert_at) and not self._stamped_together:
            return None
        if stamp is None or after is None:
            stamp, after = self.alert_at, self.expected_runtime
        return None if stamp is None or after is None else round(stamp - after, 3)

    @property
    def too_long_at(self) -> float | None:
        """The end of its `max_hold`, Unix seconds by the holder's clock; None: no `max_hold`."""
        if self.locked_at is None or self.max_hold is None:
            return None
        return self.locked_at + self.max_hold

    @property
    def allowed_silence(self) -> float | None:
        """The seconds for which a lock that is not undecided may be silent; None: no limit."""
        return self.first_distance if self.by_distance else self.auto_unlock_after

    @property
    def by_distance(self) -> bool:
        return self.first_distance is not None and self.auto_unlock_at is not None

    @property
    def distance(self) -> float | None:
        """The constant seconds between the stamps of a lock without `about`; None: unknown."""
        alert_at, unlock_at = self.alert_at, self.auto_unlock_at
        if self.about_seen or alert_at is None or unlock_at is None or not self._stamped_together:
            return None
        return unlock_at - alert_at

    @property
    def _stamped_together(self) -> bool:
        """True if one transaction wrote both stamps. (Stores other than etcd always do that.)"""
        return self.stamp_revisions[0] == self.stamp_revisions[1]

    @classmethod
    def read(cls, name: str, found: Mapping[str, Found], *, backtrace: bool = True) -> Holder:
        """Return the holder of lock `name`, read from its subkeys as by `updated`; never raises."""
        return _written_to({**_DEFAULTS, "name": name}, found, backtrace=backtrace)

    def updated(self, changes: Mapping[str, Found], *, backtrace: bool = True) -> Holder:
        """Return the holder after these subkeys were written, or deleted (None).

        Unknown subkeys and facts, of newer clients, are ignored, and so are stamps and an `about`
        older than `uuid`, of an earlier holder. An `about` newer than `uuid` is of another client.
        """
        fields = dict(zip(_FIELDS, _values_of(self), strict=True))
        return _written_to(fields, changes, backtrace=backtrace)

    def stamped(self, stamps: Stamps) -> Holder:
        return replace(self, alert_at=stamps.alert_at, auto_unlock_at=stamps.auto_unlock_at)

    def subkeys(self) -> dict[str, str]:
        """Return the subkeys to write, each with its value; those that are None are left out."""
        found: dict[str, str] = {}
        for part in _KEYS:
            value = getattr(self, part)
            if value is not None:
                found[part] = format_stamp(value) if part in STAMPS else value
        about: dict[str, Any] = {}
        for name in _ABOUT:
            value = getattr(self, name)
            if value is not None or name == "auto_unlock_after":  # null means never
                about[name] = value
        found[ABOUT] = to_json(about)
        return found

    def faults(self) -> tuple[str, ...]:
        """Return a sentence for each fault of the lock's data; empty if there is none."""
        nobodys = self.uuid is None and "uuid" not in self.problems
        missing = [
            f"{key}: is missing"
            for key in (("uuid",) if nobodys else REQUIRED)
            if getattr(self, key) is None and key not in self.problems
        ]
        return (*missing, *(f"{key}: {text}" for key, text in self.problems.items()))

    def broken(self) -> bool:
        """Return whether the lock's data is faulty, so that only a person may remove the lock."""
        return bool(self.problems) or None in (self.uuid, self.hostname, self.alert_at)

    @property
    def has_newer_format(self) -> bool:
        return (self.format or 0) > KNOWN_FORMAT

    def undecided(self) -> str:
        """Return why it is unknown when the lock may be removed; empty: known, or broken."""
        if self.broken():
            return ""
        if self.has_newer_format:
            return f"its format {self.format} is newer than the one known here, {KNOWN_FORMAT}"
        if self.auto_unlock_at is None:
            if self.auto_unlock_after is None:
                return ""
            return (
                "it says how long it may be silent (auto_unlock_after), but not when it is to be "
                "auto-unlocked (auto_unlock_at)"
            )
        return "" if self.auto_unlock_after is not None else self._undecided_distance()

    def _undecided_distance(self) -> str:
        """Return why the stamps do not give the holder's allowed silence; empty if they do."""
        if self.about_seen:
            return (
                "it is to be auto-unlocked (auto_unlock_at), but does not say how long it may be "
                "silent until then (auto_unlock_after)"
            )
        now, first = self.distance, self.first_distance
        if now is None or first is None:
            return "its stamps were not written in one transaction, so that one was moved alone"
        if now <= 0:
            return "it is to be auto-unlocked (auto_unlock_at) no later than alerted on (alert_at)"
        if abs(now - first) <= _TOLERANCE_S:
            return ""
        how = "later" if now > first else "earlier"
        return (
            f"its auto-unlock comes {period(abs(now - first))} {how} after its alert than at "
            "first, so that one of the two was moved alone"
        )

    def state(self, wall: float) -> str:
        """Return one of `STATES` at the wall-clock time `wall`."""
        if self.broken():
            return BROKEN
        if self.undecided():
            return UNDECIDED
        if self.auto_unlock_at is not None and wall > self.auto_unlock_at:
            return OVERDUE
        if self.alert_at is not None and wall > self.alert_at:
            return ALERT
        return OK

    def facts(self) -> dict[str, Any]:
        """Return all facts for JSON (numbers, texts, null), the backtrace included."""
        facts = {fact.name: getattr(self, fact.name) for fact in FACTS if fact.in_json}
        return facts | {"fencing_token": self.shown_token()}

    def shown_token(self) -> int:
        """Return the fencing token; 0: the store has none (the number names the acquisition)."""
        return self.fencing_token if self.fencing_token < MOST_FENCING else 0

    def describe(self) -> str:
        """Return one line about the holder: host, process, owner, reason, time."""
        where = f"{plain(self.hostname or 'an unknown host')}, pid {self.pid or 'unknown'}"
        owner = f", of {plain(self.owner)}" if self.owner else ""
        reason = f", for {plain(repr(self.reason))}" if self.reason else ""
        return f"{where}{owner}{reason}, since {utc(self.locked_at)}"


Found = tuple[bytes | None, int]
"""A subkey's value in the store (None: deleted) and its mod revision."""

ALIVE_AT: Final = Fact(
    "alive_at", TIME, KNOWN, "Last heartbeat", "The last heartbeat, by the holder's clock.",
    absent=UNKNOWN,
)  # fmt: skip
_OWN: Final = tuple(
    replace(attribute.metadata["fact"], name=attribute.name)
    for attribute in dataclasses.fields(Holder)
    if attribute.metadata
)
FACTS: Final = tuple(
    fact for own in _OWN for fact in ((ALIVE_AT, own) if own.name == "alert_at" else (own,))
)
"""All facts about a lock, in the order of JSON."""

_FIELDS: Final = tuple(attribute.name for attribute in dataclasses.fields(Holder))
_values_of: Final = attrgetter(*_FIELDS)
_KEYS: Final = tuple(fact.name for fact in FACTS if fact.place == KEY)
SUBKEYS: Final = (*_KEYS, ABOUT)
REQUIRED: Final = ("uuid", "hostname", "alert_at")
"""Without these the holder, its host or the alert is unknown: the lock is broken."""
STAMPS: Final = ("alert_at", "auto_unlock_at")
"""The subkeys that a heartbeat writes."""
_BOUND: Final = (*STAMPS, ABOUT)
_ABOUT: Final = {fact.name: fact.kind for fact in FACTS if fact.place == ABOUT}
_FIELDS_OF: Final[Mapping[str, dict[str, Any]]] = {
    **{part: {part: None} for part in SUBKEYS},
    ABOUT: dict.fromkeys(_ABOUT),
}
"""The fields that each subkey sets, with their values without it."""
_UNBOUND: Final = {name: None for part in _BOUND for name in _FIELDS_OF[part]}
_DEFAULTS: Final[dict[str, Any]] = dict(zip(_FIELDS, _values_of(Holder()), strict=True))


def _written_to(fields: dict[str, Any], changes: Mapping[str, Found], *, backtrace: bool) -> Holder:
    problems = dict(fields["problems"])
    token, stamped = fields["fencing_token"], fields["stamp_revisions"]
    if "uuid" in changes:
        uuid, taken_at = changes["uuid"]
        token, stamped = 0 if uuid is None else taken_at, (0, 0)
        fields.update(_UNBOUND, about_seen=False, first_distance=None)
        for part in _BOUND:
            problems.pop(part, None)
    for part, (value, revision) in changes.items():
        if part not in _FIELDS_OF or (part in _BOUND and not 0 < token <= revision):
            continue
        problems.pop(part, None)
        # Subkeys that were written together share one int in memory.
        revision = token if revision == token else revision
        if part in STAMPS:
            mine = 0 if value is None else revision
            stamped = (mine, stamped[1]) if part == STAMPS[0] else (stamped[0], mine)
        if value is None:
            fields.update(_FIELDS_OF[part])
            continue
        problem = _read_into(fields, part, value)
        if part == "uuid" and problem:
            # The lock is held, but its uuid can't be read: invent one for this acquisition.
            fields[part] = f"unreadable-{revision}"
        if part == ABOUT:
            fields.update(about_seen=True, first_distance=None)
        if part == ABOUT and token < revision:
            fields.update(_FIELDS_OF[ABOUT])
            problem = "was written after uuid, so by somebody else"
        if problem:
            problems[part] = problem
    if not backtrace:
        fields["backtrace"] = None
    fields["fencing_token"], fields["stamp_revisions"] = token, stamped
    fields["problems"] = problems or NO_PROBLEMS
    holder = Holder(*fields.values())  # takes a third of the time of `replace`
    if holder.first_distance is None and (first := holder.distance) is not None:
        return replace(holder, first_distance=first)
    return holder


def _read_into(fields: dict[str, Any], part: str, value: bytes) -> str | None:
    """Set the fields from a subkey's value; return the fault of the value, or None."""
    fields.update(_FIELDS_OF[part])
    longest = MAX_UUID_BYTES if part == "uuid" else MAX_VALUE_BYTES
    if len(value) > longest:
        return f"has {len(value)} bytes, more than {longest}"
    if part == ABOUT:
        facts, problem = read_about(value, _ABOUT)
        fields.update(facts)
    elif part in STAMPS:
        fields[part], problem = read_stamp(value)
    else:
        fields[part], problem = read_text(value)
        if part == "uuid" and not value:
            fields[part], problem = None, "is empty"
        elif part == "hostname":
            fields[part] = interned_text(fields[part])
    return problem
