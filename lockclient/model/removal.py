"""The removal record: the lock's last holder, who removed the lock, and why."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any, Final

from lockclient.model.fields import KNOWN, TEXT, TIME, Fact, json_facts, to_json
from lockclient.model.holder import ALIVE_AT, FACTS, Holder
from lockclient.text.escaping import plain
from lockclient.text.timestamps import utc

AUTO_UNLOCK: Final = "auto-unlock"
FORCE_UNLOCK: Final = "force-unlock"
MAX_RECORD: Final = 256 * 1024
"""Bytes of the largest record that is read. (A character may have six bytes in JSON.)"""
_SHORT_BACKTRACE_CHARS: Final = 500
"""A backtrace up to this length stays in the record; a longer one gets a key of its own."""


@dataclass(frozen=True, slots=True)
class Removal:
    """The record of an auto-unlock or force-unlock.

    Attributes:
        holder: the holder that lost the lock.
        removed_at: Unix seconds by the remover's clock; None: unknown.
        removed_by: the unlocker or person.
        how: `AUTO_UNLOCK` or `FORCE_UNLOCK`.
        why: the reason.
        code: hash of the holder's backtrace if that has a key of its own, shared by all records
            with the same backtrace; else empty.
    """

    holder: Holder
    removed_at: float | None
    removed_by: str
    how: str
    why: str
    code: str = ""

    def written(self) -> dict[str, Any]:
        return self.facts() | ({"code": self.code} if self.code else {})

    def value(self) -> str:
        return to_json(self.written())

    def split_backtrace(self) -> tuple[Removal, str]:
        """Return the record without its long backtrace, and the backtrace; empty: it is short."""
        backtrace = self.holder.backtrace or ""
        if len(backtrace) <= _SHORT_BACKTRACE_CHARS:
            return self, ""
        code = _name_of(backtrace.encode())
        return replace(self, holder=replace(self.holder, backtrace=None), code=code), backtrace

    def without_token(self) -> Removal:
        """Return the record without a fencing token, for a store that has none."""
        holder = replace(self.holder, fencing_token=0, stamp_revisions=(0, 0))
        return replace(self, holder=holder)

    def with_backtrace(self, backtrace: bytes | None) -> Removal:
        """Return the record with the backtrace of its own key, if its hash is `code`."""
        if backtrace is None or _name_of(backtrace) != self.code:
            return self
        text = backtrace.decode(errors="replace")
        return replace(self, holder=replace(self.holder, backtrace=text), code="")

    def facts(self) -> dict[str, Any]:
        """Return all facts for JSON: the holder's and the removal's on one level."""
        own = {fact.name: getattr(self, fact.name) for fact in REMOVAL_FACTS}
        return self.holder.facts() | own

    @classmethod
    def read(cls, name: str, uuid: str, value: bytes) -> Removal:
        own = json_facts(value, _REMOVAL)
        facts = json_facts(value, _RECORDED)
        holder = Holder(name, uuid, **facts | {"fencing_token": facts["fencing_token"] or 0})
        if not _is_code(own["code"] or ""):
            own["code"] = None
        return cls(holder, own.pop("removed_at"), **{key: own[key] or "" for key in own})

    @classmethod
    def listed(cls, name: str, uuid: str, value: bytes) -> Removal:
        """Return a removal for lists: texts truncated, an empty text for a backtrace."""
        from lockclient.model.cut_texts import listed, shortened  # for services alone

        found = cls.read(name, uuid, value if len(value) <= MAX_RECORD else b"")
        has_code = found.code or found.holder.backtrace
        holder = replace(listed(found.holder), backtrace="" if has_code else None)
        by, how, why = map(shortened, (found.removed_by, found.how, found.why))
        return replace(found, holder=holder, removed_by=by, how=how, why=why)

    def describe(self) -> str:
        """Return one line about the removal: how, by whom, when, why."""
        why = f": {self.why}" if self.why else ""
        by = f"{self.how or 'removal'} by {self.removed_by or 'unknown'}"
        return plain(f"{by} at {utc(self.removed_at)}{why}")


def _name_of(code: bytes) -> str:
    from hashlib import sha256  # imported late: it loads OpenSSL

    return sha256(code).hexdigest()


def removed_at(value: bytes) -> float | None:
    at: float | None = json_facts(value, {"removed_at": TIME})["removed_at"]
    return at


REMOVAL_FACTS: Final = (
    Fact("removed_at", TIME, KNOWN, "When", "When it was removed."),
    Fact("removed_by", TEXT, KNOWN, "By", "Who did it.", optional=False),
    Fact("how", TEXT, KNOWN, "", "auto-unlock or force-unlock.", optional=False),
    Fact("why", TEXT, KNOWN, "Why", "The reason.", optional=False),
)
"""The facts of a removal record that are not the holder's."""
_REMOVAL: Final = {fact.name: fact.kind for fact in REMOVAL_FACTS} | {"code": TEXT}
_is_code: Final = re.compile("[0-9a-f]{64}").fullmatch
_RECORDED: Final = {
    fact.name: fact.kind
    for fact in FACTS
    if fact.in_json and fact.name not in ("name", "uuid", ALIVE_AT.name)
}
