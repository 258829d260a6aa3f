"""What stands in the bucket for a lock: names, versions, what an object says; no I/O.

    <root>locks/<name>             the lock, or what is left in its place
    <root>locks-unlockers/<id>     an unlocker's sign of life, in the metadata's `said`
    <root>removed/<name>/<uuid>    the record of a removal, JSON; in short the metadata's `record`

An object is *a lock* if its custom metadata has `uuid`; it has `hostname` and the two stamps there,
too, and `about` without the backtrace, as short as what lists show of it. The body is `about` as
it was written, whole. So a listing has all that lists show, and a push writes the stamps alone.

With `gone` instead it is *a trace*: nobody has the lock, and that says who had or wanted it last.
As long as anything stands under the name, a create that arrives late can't (`steps.py`). With
neither it is somebody else's, and nothing is written over it.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from math import isfinite
from typing import Any, Final, NamedTuple
from urllib.parse import quote

from lockclient.errors import StoreError
from lockclient.model.fields import ABOUT, TEXT, TIME, json_facts, to_json
from lockclient.model.holder import STAMPS, Found, Holder
from lockclient.model.removal import Removal

LATE: Final = 86400.0
"""Seconds for which a request may arrive late. It is authorised as it arrives, by an access token
that lives for an hour, or twelve where somebody has allowed that: after a day none is accepted."""

A_DAY: Final = "a day"
"""As `late_until`: it counts from when the object was uploaded, as for all that is no number."""

_BITS: Final = 32
_ROOM: Final = 6 * 1024
"""Bytes that a lock says of itself in its metadata, of 8 KiB: the rest is for who removes it."""
_SHORT: Final = 100
"""Characters of each text where there are too many: lists show no more of it."""
_CUT: Final = ("thread", "reason", "identity", "process", "client")


class Version(NamedTuple):
    """Which state of which acquisition: no other one ever has both numbers.

    As a revision it is one number. Those of one acquisition grow with each write; of two
    acquisitions neither is the higher one for being the later.
    """

    generation: int
    metageneration: int = 1

    @property
    def revision(self) -> int:
        """The number that the seam of the stores knows."""
        return self.generation << _BITS | self.metageneration

    @property
    def token(self) -> int:
        """The revision at which this acquisition came to be."""
        return Version(self.generation).revision

    @classmethod
    def of(cls, revision: int) -> Version:
        """Return the version of a revision."""
        return cls(revision >> _BITS, revision & (1 << _BITS) - 1)

    @classmethod
    def told(cls, resource: Mapping[str, Any]) -> Version:
        """Return the version that the API tells.

        Raises:
            StoreError: it tells none.
        """
        try:
            return cls(int(resource["generation"]), int(resource["metageneration"]))
        except (KeyError, ValueError, TypeError) as error:
            raise StoreError(
                "What answered for the bucket named no generation and metageneration of an object: "
                "it is no Google Cloud Storage. See STORAGE_EMULATOR_HOST, and what stands between."
            ) from error


class Names:
    """The objects' names below a root."""

    def __init__(self, root: str) -> None:
        self.live = f"{root}locks"
        """What all names begin with of what changes: one listing has it all."""
        self.locks = f"{root}locks/"
        self.unlockers = f"{root}locks-unlockers/"
        self.removed = f"{root}removed/"

    def lock(self, name: str) -> str:
        """Return the name of the object of a lock."""
        return f"{self.locks}{quote(name, safe='')}"

    def sign_of_life(self, unlocker: str) -> str:
        """Return the name of the object of an unlocker's sign of life."""
        return f"{self.unlockers}{quote(unlocker, safe='')}"

    def record(self, name: str, uuid: str) -> str:
        """Return the name of the object of a removal's record."""
        return f"{self.removed}{quote(name, safe='')}/{quote(uuid, safe='')}"


FIELDS: Final = "generation,metageneration,metadata,size,timeCreated"
"""What is asked of an object's resource."""


@dataclass(frozen=True, slots=True)
class ObjectState:
    """What stands under a lock's name."""

    version: Version
    metadata: Mapping[str, str]
    size: int
    created: float

    @classmethod
    def told(cls, resource: Mapping[str, Any]) -> ObjectState:
        """Return it as the API tells it."""
        return cls(
            Version.told(resource),
            resource.get("metadata") or {},
            int(resource.get("size", 0)),
            datetime.fromisoformat(resource["timeCreated"].replace("Z", "+00:00")).timestamp(),
        )

    @property
    def uuid(self) -> str | None:
        """Who has the lock; None: nobody."""
        return self.metadata.get("uuid")

    @property
    def foreign(self) -> bool:
        """Whether it is neither a lock nor a trace."""
        return self.uuid is None and self.gone is None

    def is_of(self, holder: Holder) -> bool:
        """Tell whether it is this holder's lock: by the generation, if that is known.

        (What is written into `uuid` by hand need be no uuid, and is not read as one.)
        """
        if self.uuid is None or not holder.fencing_token:
            return self.uuid is not None and self.uuid == holder.uuid
        return self.version.generation == Version.of(holder.fencing_token).generation

    @property
    def decision(self) -> str | None:
        """That the lock is being removed, by whom and why, if somebody has decided so."""
        return self.metadata.get("removing")

    @property
    def gone(self) -> str | None:
        """Of a trace, whose it is."""
        return self.metadata.get("gone")

    @property
    def late_until(self) -> float:
        """Until when, by the bucket's clock, a create may arrive for which something must stand."""
        said = self.metadata.get("late_until")
        if said is not None:
            with suppress(ValueError):
                if isfinite(until := float(said)):
                    return until
            return self.created + LATE
        return 0.0 if self.gone is None else self.created + LATE

    def holder(self, name: str, body: bytes | None = None) -> Holder:
        """Return who holds the lock, with the whole `about` if the body is given."""
        return Holder.read(name, self.found(body))

    def found(self, body: bytes | None = None) -> dict[str, Found]:
        """Return the lock's subkeys with their revisions, as every store has them."""
        token, now = self.version.token, self.version.revision
        said: dict[str, Found] = {
            part: (text.encode(errors="replace"), now if part in STAMPS else token)
            for part, text in self.metadata.items()
        }
        if body:
            said[ABOUT] = (body, token)
        return said


def written(holder: Holder) -> tuple[dict[str, str], bytes]:
    """Return what a taker writes: the lock's metadata and body."""
    said = holder.subkeys()
    body = said[ABOUT].encode()
    short = replace(holder, backtrace=None)
    said = short.subkeys()
    if sum(len(key) + len(text.encode()) for key, text in said.items()) > _ROOM:
        texts: dict[str, Any] = {
            each: text[:_SHORT] for each in _CUT if (text := getattr(short, each)) is not None
        }
        said = replace(short, **texts).subkeys()
    return said, body


def trace(uuid: str, late_until: float | None = None) -> dict[str, str]:
    """Return the metadata of a trace; without a time it begins to count as it is written."""
    said = {"gone": uuid}
    if late_until is not None:
        said["late_until"] = f"{late_until:.0f}"
    return said


# ---------------------------------------------------------------- decisions

_DECISION: Final = {"removed_at": TIME, "removed_by": TEXT, "how": TEXT, "why": TEXT}
_LONGEST: Final = {"removed_by": 100, "how": 20, "why": 180}


def decision(removal: Removal, *, recorded: bool) -> str:
    """Return what is put on a lock as it is decided that it goes."""
    said: dict[str, Any] = {
        key: getattr(removal, key)[:longest] for key, longest in _LONGEST.items()
    }
    return to_json({"removed_at": removal.removed_at, **said, "recorded": recorded})


def decided(holder: Holder, text: str) -> Removal:
    """Return the removal that a decision tells of."""
    said = json_facts(text.encode(errors="replace"), _DECISION)
    own = {key: said[key] or "" for key in _LONGEST}
    return in_record(Removal(holder, said["removed_at"], **own))


def in_record(removal: Removal) -> Removal:
    """Return a removal as its record has it: without the name of the acquisition.

    It is no fencing token, and too large a number for who reads JSON.
    """
    holder = replace(removal.holder, fencing_token=0, stamp_revisions=(0, 0))
    return replace(removal, holder=holder)


def record_written(removal: Removal) -> tuple[dict[str, str], bytes]:
    """Return the metadata and the body of a record: for lists it is in the metadata, in short."""
    slim, _ = (
        removal.split_backtrace()
    )  # where it has a backtrace it says so, or has a very short one
    for longest in (_LONGEST_LISTED, _SHORT // 2):
        texts = {each: text[:longest] for each in _TEXTS if (text := getattr(slim.holder, each))}
        needs = tuple(each[:longest] for each in (slim.holder.needs or ())[:10]) or None
        short = replace(
            slim,
            holder=replace(slim.holder, needs=needs, **texts),
            removed_by=slim.removed_by[:longest],
            why=slim.why[:longest],
        )
        if len((said := short.value()).encode(errors="replace")) <= _ROOM:
            break
    else:
        said = ""
    return {"record": said}, removal.value().encode(errors="replace")


_LONGEST_LISTED: Final = 200
_TEXTS: Final = ("hostname", "actor", *_CUT)
