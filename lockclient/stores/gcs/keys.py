"""Object names and metadata of locks, tombstones and records in the bucket; no I/O.

    <root>locks/<name>             the lock, or the tombstone in its place
    <root>locks-unlockers/<id>     an unlocker's announcement, in the metadata's `said`
    <root>removed/<name>/<uuid>    the record of a removal, JSON; in short the metadata's `record`
    <root>removed/<name>/sha256:…  the same, where that would be too long; the uuid is in `of`
    <root>notifications/<name>     a document that unlockers share, in the body

An object is *a lock* if its custom metadata has `uuid`; `hostname` and the two stamps are there,
too, and `about` without the backtrace, with texts as short as lists show them. The body is the
whole `about`. So a listing has all that lists show, and a push writes the stamps alone.

With `gone` instead it is *a tombstone*: the lock is free, and `gone` is the uuid that had or
wanted it last. While any object exists under the name, a late create is refused (`requests.py`).
`late_until` is when the tombstone expires (`tombstone_expires_at`). An object with neither is
somebody else's, and is not overwritten.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from hashlib import sha256
from math import isfinite
from typing import Any, Final, NamedTuple
from urllib.parse import unquote

from lockclient.errors import StoreError
from lockclient.model.fields import ABOUT, TEXT, TIME, json_facts, to_json
from lockclient.model.holder import MAX_UUID_BYTES, STAMPS, Found, Holder
from lockclient.model.removal import Removal
from lockclient.stores.common.segments import SegmentNames

LATE_REQUEST_S: Final = 86400.0
"""Seconds for which a request may arrive late. The bucket checks its access token as it arrives: a
token lives for an hour, or twelve if an administrator allows that."""

_MAX_NAME_BYTES: Final = 1024
"""Bytes of an object's name. Ours are ASCII: a restricted prefix and percent-encoded parts."""
_DIGEST: Final = "sha256:"
_METAGENERATION_BITS: Final = 32
_MAX_METADATA_BYTES: Final = 6 * 1024
"""Bytes of a lock's or record's own metadata, of 8 KiB: the rest is for a remover's decision."""
_SHORTENED_CHARS: Final = 100
"""Characters of each text of a lock whose metadata would be too long."""
_SHORTENED_FIELDS: Final = ("thread", "reason", "identity", "process", "client")
_RECORD_FIELDS: Final = ("hostname", "actor", *_SHORTENED_FIELDS)
_RECORD_CHARS: Final = (200, 50)
"""Characters of each text of a record in lists; the second, if the first are too many bytes."""


class Version(NamedTuple):
    """The version of an object: no other version, of any acquisition, has both numbers.

    Revisions of one acquisition grow with each write. Those of two can't be compared.
    """

    generation: int
    metageneration: int = 1

    @property
    def revision(self) -> int:
        """The version as the one number that requests of any store compare."""
        return self.generation << _METAGENERATION_BITS | self.metageneration

    @property
    def token(self) -> int:
        """The revision of this acquisition's upload."""
        return Version(self.generation).revision

    @classmethod
    def from_revision(cls, revision: int) -> Version:
        return cls(revision >> _METAGENERATION_BITS, revision & (1 << _METAGENERATION_BITS) - 1)


class ObjectNames(SegmentNames):
    """The objects' names below a root."""

    def __init__(self, root: str) -> None:
        super().__init__(f"{root}locks/", f"{root}locks-unlockers/", f"{root}removed/")
        self.documents = f"{root}notifications/"
        self.live = f"{root}locks"
        """The common beginning of locks and announcements: one listing has both."""

    def record(self, name: str, uuid: str) -> str:
        """Return the name of a removal's record.

        If that is too long, the last part is the uuid's digest. No uuid can be taken for one: a
        colon in a uuid is encoded.
        """
        path = super().record(name, uuid)
        if len(path) <= _MAX_NAME_BYTES:
            return path
        return super().record(name, "") + _DIGEST + sha256(uuid.encode()).hexdigest()

    def record_content(self, removal: Removal) -> tuple[dict[str, str], bytes]:
        """Return the metadata and the body of a record; lists read the metadata."""
        slim, _ = removal.split_backtrace()
        metadata = {"record": ""}
        for chars in _RECORD_CHARS:
            holder = replace(slim.holder, **_shortened(slim.holder, _RECORD_FIELDS, chars))
            by, why = slim.removed_by[:chars], slim.why[:chars]
            text = replace(slim, holder=holder, removed_by=by, why=why).value()
            if len(text.encode(errors="replace")) <= _MAX_METADATA_BYTES:
                metadata["record"] = text
                break
        uuid = removal.holder.uuid or ""
        if _DIGEST in self.record(removal.holder.name, uuid):
            metadata["of"] = uuid
        return metadata, removal.value().encode(errors="replace")

    def removed_uuid(self, path: str, name: str, metadata: Mapping[str, str]) -> str | None:
        """Return the uuid of a record by its name; None: it is no record."""
        part = path.rpartition("/")[2]
        uuid = metadata.get("of", "") if part.startswith(_DIGEST) else unquote(part)
        if not 0 < len(uuid.encode(errors="replace")) <= MAX_UUID_BYTES:
            return None
        return uuid if not part.startswith(_DIGEST) or self.record(name, uuid) == path else None


FIELDS: Final = "generation,metageneration,metadata,size,timeCreated"
"""The fields of an object's resource that requests ask for."""


@dataclass(frozen=True, slots=True)
class ObjectState:
    """An object under a lock's name: a lock, a tombstone, or a foreign object."""

    version: Version
    metadata: Mapping[str, str]
    size: int
    created_at: float

    @classmethod
    def from_resource(cls, resource: Mapping[str, Any]) -> ObjectState:
        """Read the API's JSON.

        Raises:
            StoreError: it lacks fields that each object of Google's has.
        """
        try:
            created_at = datetime.fromisoformat(resource["timeCreated"].replace("Z", "+00:00"))
            return cls(
                Version(int(resource["generation"]), int(resource["metageneration"])),
                resource.get("metadata") or {},
                int(resource.get("size", 0)),
                created_at.timestamp(),
            )
        except (KeyError, ValueError, TypeError, AttributeError) as error:
            raise StoreError(
                "An answer for the bucket has no generation, metageneration or timeCreated of an "
                "object, so it is not Google Cloud Storage's. Check STORAGE_EMULATOR_HOST, and "
                "proxies in between."
            ) from error

    @property
    def uuid(self) -> str | None:
        return self.metadata.get("uuid")

    @property
    def is_foreign(self) -> bool:
        """True for an object that is neither a lock nor a tombstone."""
        return self.uuid is None and self.tombstone_uuid is None

    def is_of(self, holder: Holder) -> bool:
        """Return whether it is this holder's lock: by the generation if that is known.

        (A `uuid` that was written by hand may be unreadable.)
        """
        if self.uuid is None or not holder.fencing_token:
            return self.uuid is not None and self.uuid == holder.uuid
        return self.version.generation == Version.from_revision(holder.fencing_token).generation

    @property
    def decision(self) -> str | None:
        """The decision to remove the lock, JSON; None: no decision."""
        return self.metadata.get("removing")

    @property
    def tombstone_uuid(self) -> str | None:
        return self.metadata.get("gone")

    @property
    def tombstone_expires_at(self) -> float:
        """Time of the bucket's clock until which a late create must find an object; 0: no time.

        A `late_until` that is no number, or that a tombstone lacks, is a day after the upload.
        """
        if "late_until" not in self.metadata and self.tombstone_uuid is None:
            return 0.0
        with suppress(ValueError):
            if isfinite(expires_at := float(self.metadata.get("late_until", ""))):
                return expires_at
        return self.created_at + LATE_REQUEST_S

    def holder(self, name: str, body: bytes | None = None) -> Holder:
        """Return the holder, with the whole `about` if the body is given."""
        return Holder.read(name, self.subkeys(body))

    def subkeys(self, body: bytes | None = None) -> dict[str, Found]:
        """Return the lock's subkeys, each with its revision."""
        token, now = self.version.token, self.version.revision
        found: dict[str, Found] = {
            part: (text.encode(errors="replace"), now if part in STAMPS else token)
            for part, text in self.metadata.items()
        }
        if body:
            found[ABOUT] = (body, token)
        return found


def lock_content(holder: Holder) -> tuple[dict[str, str], bytes]:
    """Return the metadata and the body of a new lock."""
    body = holder.subkeys()[ABOUT].encode()
    short = replace(holder, backtrace=None)
    metadata = short.subkeys()
    if sum(len(key) + len(text.encode()) for key, text in metadata.items()) > _MAX_METADATA_BYTES:
        texts = _shortened(short, _SHORTENED_FIELDS, _SHORTENED_CHARS)
        metadata = replace(short, **texts).subkeys()
    return metadata, body


def tombstone(uuid: str, expires_at: float | None = None) -> dict[str, str]:
    """Return the metadata of a tombstone; without a time it expires a day after it is written."""
    expiry = {} if expires_at is None else {"late_until": f"{expires_at:.0f}"}
    return {"gone": uuid, **expiry}


# ---------------------------------------------------------------- decisions

_DECISION_FACTS: Final = {"removed_at": TIME, "removed_by": TEXT, "how": TEXT, "why": TEXT}
_MAX_DECISION_CHARS: Final = {"removed_by": 100, "how": 20, "why": 180}


def decision(removal: Removal, *, recorded: bool) -> str:
    """Return the metadata's `removing` of a lock that is to be removed."""
    texts: dict[str, Any] = {
        key: getattr(removal, key)[:chars] for key, chars in _MAX_DECISION_CHARS.items()
    }
    return to_json({"removed_at": removal.removed_at, **texts, "recorded": recorded})


def decided_removal(holder: Holder, text: str) -> Removal:
    """Return the removal of a decision."""
    facts = json_facts(text.encode(errors="replace"), _DECISION_FACTS)
    texts = {key: facts[key] or "" for key in _MAX_DECISION_CHARS}
    return Removal(holder, facts["removed_at"], **texts).without_token()


def _shortened(holder: Holder, fields: Sequence[str], chars: int) -> dict[str, Any]:
    """Return the texts of those of these fields that a holder has, truncated."""
    return {field: text[:chars] for field in fields if (text := getattr(holder, field)) is not None}
