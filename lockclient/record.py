"""What a lock says about itself: its holder, the tickets of its waiters, its removal.

Everything read from the store is hostile until parsed here: a value that can't be read is kept
as far as it can be shown and named in `Holder.problems`; reading never raises.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timezone
from sys import intern
from typing import Any, Final

from lockclient.errors import InvalidLockName
from lockclient.timing import LATEST, Stamps, format_stamp, parse_stamp

TEXTS: Final = ("uuid", "hostname", "thread", "identity", "reason", "backtrace", "client")
STAMPS: Final = ("locked_at", "alive_at", "alert_at", "auto_unlock_at")
SUBKEYS: Final = (*TEXTS, "pid", "process", *STAMPS)
REQUIRED: Final = ("uuid", "hostname", "alert_at")
"""Without these nobody knows who holds the lock, where, or when to ring: the lock is broken."""

MAX_VALUE: Final = 64 * 1024
"""Bytes of one value; a longer one is broken, and not kept in memory."""
MAX_NAME: Final = 255
_LONGEST_BACKTRACE, _LONGEST_TEXT = 16 * 1024, 4 * 1024
"""Characters that the record of a removal keeps."""
_CONTROL: Final = re.compile("[\x00-\x1f\x7f-\x9f]")

_KNOWN: Final = frozenset(SUBKEYS)
_SHARED: Final = frozenset({"hostname", "thread", "identity", "process", "reason", "client"})
"""Texts that many locks have in common: one copy of each is kept for all of them."""

OK: Final = "ok"
ALERT: Final = "alert"
OVERDUE: Final = "overdue"
BROKEN: Final = "broken"
STATES: Final = (OK, ALERT, OVERDUE, BROKEN)
AUTO_UNLOCK: Final = "auto-unlock"
FORCE_UNLOCK: Final = "force-unlock"

_NO_PROBLEMS: Final[Mapping[str, str]] = {}


@dataclass(frozen=True, slots=True)
class Holder:
    """One acquisition of a lock, as it stands in the store.

    Times are UTC Unix seconds. A field that is missing in the store is None. `fencing_token` is
    the revision at which the holder got the lock; `problems` maps a subkey to what is wrong with
    its value.
    """

    name: str
    uuid: str | None = None
    hostname: str | None = None
    pid: int | None = None
    thread: str | None = None
    identity: str | None = None
    process: str | None = None
    reason: str | None = None
    locked_at: float | None = None
    alive_at: float | None = None
    alert_at: float | None = None
    auto_unlock_at: float | None = None
    backtrace: str | None = field(default=None, repr=False)
    client: str | None = None
    fencing_token: int = 0
    problems: Mapping[str, str] = field(default_factory=lambda: _NO_PROBLEMS)

    @classmethod
    def read(cls, name: str, values: Mapping[str, bytes], fencing_token: int) -> Holder:
        """Build the holder of lock `name` from its subkeys; never raises."""
        return cls(name, fencing_token=fencing_token).updated(values)

    def updated(
        self,
        values: Mapping[str, bytes | None],
        fencing_token: int | None = None,
        *,
        backtrace: bool = True,
    ) -> Holder:
        """Return the holder after these subkeys were written, or deleted where None.

        Unknown subkeys are ignored, so that a newer client may write more than we know. Without
        `fencing_token` that stays what it is; without `backtrace` that is checked but not kept.
        """
        fields: dict[str, Any] = {}
        problems = {key: text for key, text in self.problems.items() if key not in values}
        for key, value in values.items():
            if key in _KNOWN:
                fields[key], problem = (None, None) if value is None else _parse(key, value)
                if problem:
                    problems[key] = problem
        fields["problems"] = problems or _NO_PROBLEMS
        if not backtrace:
            fields["backtrace"] = None
        if fencing_token is not None:
            fields["fencing_token"] = fencing_token
        return replace(self, **fields)

    def stamped(self, stamps: Stamps, *, taken: bool = False) -> Holder:
        """Return the holder after a push of its stamps, or with `taken` as it takes the lock."""
        return replace(
            self,
            locked_at=stamps.alive_at if taken else self.locked_at,
            alive_at=stamps.alive_at,
            alert_at=stamps.alert_at,
            auto_unlock_at=stamps.auto_unlock_at,
        )

    def subkeys(self) -> dict[str, str]:
        """Return what is written to the store: subkey to value, without those that are None."""
        found: dict[str, str] = {}
        for key in SUBKEYS:
            value = getattr(self, key)
            if value is not None:
                found[key] = format_stamp(value) if key in STAMPS else str(value)
        return found

    def faults(self) -> tuple[str, ...]:
        """Say in a sentence each what is wrong with the lock's data; empty when it is sound."""
        missing = [
            f"{key}: is missing"
            for key in REQUIRED
            if getattr(self, key) is None and key not in self.problems
        ]
        return (*missing, *(f"{key}: {text}" for key, text in self.problems.items()))

    def broken(self) -> bool:
        """Tell whether the lock's data is unsound, so that nobody may act on it alone."""
        return bool(self.problems) or None in (self.uuid, self.hostname, self.alert_at)

    def state(self, wall: float) -> str:
        """Return one of `STATES` at the wall-clock time `wall`."""
        if self.broken():
            return BROKEN
        if self.auto_unlock_at is not None and wall > self.auto_unlock_at:
            return OVERDUE
        if self.alert_at is not None and wall > self.alert_at:
            return ALERT
        return OK

    def facts(self) -> dict[str, Any]:
        """Return all facts for JSON (numbers, texts, null), the backtrace included."""
        return {key: getattr(self, key) for key in _FACTS}

    def bounded(self) -> Holder:
        """Return the holder with its texts cut so that a record of it fits into one request.

        A lock's values may be so long that, written as JSON, the record would be more than the
        store takes, and the lock could never be removed.
        """
        texts = {
            key: text[:_LONGEST_TEXT]
            for key in ("hostname", "thread", "identity", "reason", "client")
            if (text := getattr(self, key)) is not None
        }
        # Its innermost frames are the last ones.
        backtrace = self.backtrace and self.backtrace[-_LONGEST_BACKTRACE:]
        return replace(self, backtrace=backtrace, **texts)

    def describe(self) -> str:
        """Say in one line who holds the lock: host, process, since when, what for."""
        where = f"{self.hostname or 'an unknown host'}, pid {self.pid or 'unknown'}"
        reason = f", for {self.reason!r}" if self.reason else ""
        return f"{where}{reason}, since {_utc(self.locked_at)}"


_FACTS: Final = (
    *("name", "uuid", "hostname", "pid", "thread", "reason", "identity", "client"),
    *("locked_at", "alive_at", "alert_at", "auto_unlock_at", "fencing_token", "backtrace"),
)


@dataclass(frozen=True, slots=True)
class Ticket:
    """A waiter in line for a lock. `revision` is the store's order: the line goes by it."""

    name: str
    uuid: str
    hostname: str | None = None
    pid: int | None = None
    thread: str | None = None
    reason: str | None = None
    since: float | None = None
    revision: int = 0

    @classmethod
    def read(cls, name: str, uuid: str, value: bytes, revision: int) -> Ticket:
        """Build a ticket from its key and value; what can't be read is None."""
        fields = _json_fields(value, _TICKET_FIELDS)
        return cls(name, uuid, **fields, revision=revision)

    def value(self) -> str:
        """Return the ticket's value in the store, JSON."""
        return json.dumps({key: getattr(self, key) for key in _TICKET_FIELDS})

    def facts(self) -> dict[str, Any]:
        """Return all facts for JSON."""
        return {key: value for key, value in asdict(self).items() if key != "name"}


_TICKET_FIELDS: Final[Mapping[str, type]] = {
    "hostname": str,
    "pid": int,
    "thread": str,
    "reason": str,
    "since": float,
}


@dataclass(frozen=True, slots=True)
class Removal:
    """The record that an auto-unlock or force-unlock leaves: the removed holder, who and why.

    `how` is `AUTO_UNLOCK` or `FORCE_UNLOCK`; `removed_at` is in Unix seconds.
    """

    holder: Holder
    removed_at: float | None
    removed_by: str
    how: str
    why: str

    def value(self) -> str:
        """Return the record's value in the store, JSON."""
        return json.dumps(self.facts())

    def facts(self) -> dict[str, Any]:
        """Return all facts for JSON: the holder's and the removal's on one level."""
        return self.holder.facts() | {
            "removed_at": self.removed_at,
            "removed_by": self.removed_by,
            "how": self.how,
            "why": self.why,
        }

    @classmethod
    def read(cls, name: str, uuid: str, value: bytes) -> Removal:
        """Build a removal from its key and value; what can't be read is None or empty."""
        own = _json_fields(value, {"removed_at": float, "removed_by": str, "how": str, "why": str})
        facts = _json_fields(value, _HOLDER_JSON)
        holder = Holder(name, uuid, **facts | {"fencing_token": facts["fencing_token"] or 0})
        texts = {key: own[key] or "" for key in ("removed_by", "how", "why")}
        return cls(holder, own["removed_at"], **texts)

    def describe(self) -> str:
        """Say in one line how the lock went."""
        why = f": {self.why}" if self.why else ""
        how = self.how or "removal"
        return f"{how} by {self.removed_by or 'unknown'} at {_utc(self.removed_at)}{why}"


_HOLDER_JSON: Final[Mapping[str, type]] = {
    **dict.fromkeys(("hostname", "thread", "reason", "identity", "client", "backtrace"), str),
    **dict.fromkeys(STAMPS, float),
    **dict.fromkeys(("pid", "fencing_token"), int),
}


def check_name(name: object) -> str:
    """Return `name` if it can be a lock's name.

    Raises:
        InvalidLockName: it is no text, empty, over 255 bytes in UTF-8, not encodable, or has
            control characters.
    """
    if not isinstance(name, str):
        raise InvalidLockName(f"A lock's name must be a text, not {type(name).__name__}.")
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        raise InvalidLockName(
            f"The lock name {name!r} has a lone surrogate and can't be written as UTF-8.",
            name=name,
        ) from None
    if not 1 <= size <= MAX_NAME:
        raise InvalidLockName(
            f"A lock's name must have 1 to {MAX_NAME} bytes in UTF-8; this one has {size}.",
            name=name,
        )
    if _CONTROL.search(name):
        raise InvalidLockName(f"The lock name {name!r} has control characters.", name=name)
    return name


def _parse(key: str, value: bytes) -> tuple[Any, str | None]:
    if len(value) > MAX_VALUE:
        return None, f"has {len(value)} bytes, more than {MAX_VALUE}"
    try:
        text = value.decode()
    except UnicodeDecodeError:
        readable = value.decode(errors="replace")
        return readable if key in TEXTS else None, "is not UTF-8"
    try:
        if key in STAMPS:
            return parse_stamp(text), None
    except ValueError as error:
        return None, str(error)
    if key == "pid":
        known = text.isascii() and text.isdecimal() and len(text) < 20
        return (int(text), None) if known else (None, f"{text[:40]!r} is no process id")
    if key == "uuid" and not text:
        return None, "is empty"
    return (intern(text) if key in _SHARED else text), None


def _json_fields(value: bytes, kinds: Mapping[str, type]) -> dict[str, Any]:
    """Pick the named fields of a JSON object, each None where it is missing or of another kind."""
    try:
        found = json.loads(value)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        found = {}
    fields: dict[str, Any] = {}
    for key, kind in kinds.items():
        item = found.get(key)
        kinds_taken = (kind, int) if kind is float else kind
        if isinstance(item, bool) or not isinstance(item, kinds_taken):
            item = None
        if isinstance(item, (int, float)) and not 0 <= item <= LATEST:  # false for NaN, too
            item = None
        if isinstance(item, str):  # JSON can spell lone surrogates, which nobody can print
            item = item.encode(errors="replace").decode()
        fields[key] = item
    return fields


def _utc(wall: float | None) -> str:
    if wall is None:
        return "an unknown time"
    return datetime.fromtimestamp(wall, timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")
