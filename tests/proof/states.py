"""States that differ only in the height of their revisions are equal: revisions become ranks."""

from __future__ import annotations

import dataclasses
from typing import Any

_REVISIONS = {
    *("revision", "created", "ticket_revision", "predecessor_deleted_at", "fencing_token", "token"),
    "_written_at",
}
_LEFT_OUT = {"_own", "_runtime", "_record", "_confirmed_at", "deadline", "quiet_until", "_sent_at"}
_FLAGS = ("resent", "held", "over", "dead", "gone", "pushes")


class _Revision(int):
    """A number that only means an order."""


def _plain(value: Any, name: str = "") -> Any:
    """Return a value as tuples of what can be compared, its revisions marked."""
    if name == "stamp_revisions" and value is not None:
        return tuple(map(_Revision, value))
    if name in _REVISIONS and isinstance(value, int):
        return _Revision(value)
    if dataclasses.is_dataclass(value):
        names = [one.name for one in dataclasses.fields(value) if one.compare]
        inner = tuple(_plain(getattr(value, inner), inner) for inner in names)
        return (type(value).__name__, *inner)
    if isinstance(value, tuple):
        return tuple(map(_plain, value))
    return value if isinstance(value, str | bytes | int | float | bool | None) else repr(value)


def _revisions(value: Any) -> set[int]:
    if isinstance(value, _Revision):
        return {value}
    if isinstance(value, tuple):
        return set().union(*map(_revisions, value))
    return set()


def _ranked(value: Any, ranks: dict[int, int]) -> Any:
    if isinstance(value, _Revision):
        return ranks[value]
    if isinstance(value, tuple):
        return tuple(_ranked(one, ranks) for one in value)
    return value


def _client(world: Any, client: Any) -> Any:
    engine = client.engine
    names = sorted(vars(engine).keys() - _LEFT_OUT - {"delivery"})
    known = tuple(_plain(vars(engine)[name], name) for name in names)
    sent = (engine.delivery.in_flight, engine.delivery.is_unknown, engine.request is client.asking)
    news = None if client.waiting is None else _plain(world._news(client))
    flags = tuple(getattr(client, name) for name in _FLAGS)
    rest = (client.asking, client.waiting, client.withdraw)
    return (known, sent, news, _past(world, client), *flags, *map(_plain, rest))


def _past(world: Any, client: Any) -> Any:
    """Return the lock's uuid at the revision that deleted the ticket ahead."""
    deleted_at = getattr(client.asking, "predecessor_deleted_at", None)
    if deleted_at is None:
        return None
    then = world.etcd.at_revision(deleted_at)
    kv = next((kv for key, kv in then.items() if key.endswith(b"/uuid")), None)
    return None if kv is None else (kv.value, _Revision(kv.revision))


def normalised(world: Any) -> int:
    """Return what stands for a state."""
    kept = tuple(
        (key, kv.value, _Revision(kv.revision), _Revision(kv.created), bool(kv.lease))
        for key, kv in sorted(world.etcd.kept.items())
    )
    seen = None if world.seen is None else (world.seen[0], tuple(map(_Revision, world.seen[1])))
    late = tuple(sorted((_plain(one[:2]) for one in world.late), key=repr))
    clients = tuple(_client(world, client) for client in world.clients)
    counts = (world.removals, world.barges, world.faults, *sorted(world.removed))
    state = (kept, seen, late, clients, *counts)
    ranks = {number: rank for rank, number in enumerate(sorted(_revisions(state)))}
    return hash(_ranked(state, ranks))
