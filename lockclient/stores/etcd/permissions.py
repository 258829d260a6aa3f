"""Permissions that etcd wants of the user who sends a request.

etcd says "permission denied" and not to what. What it wants follows from the request: reading
for every comparison and get, writing for every put and delete, in both branches of a transaction.
"""

from __future__ import annotations

from collections.abc import Iterator

from google.protobuf.message import Message

from lockclient.stores.etcd.wire import messages_pb2 as wire


def required_permissions(request: Message, root: str) -> dict[str, str]:
    """Return what a request wants, as `etcdctl role grant-permission --prefix` has it.

    Like `{"/clustermutex/locks/": "readwrite", "/clustermutex/removed/": "read"}`; empty for a
    request that names no keys.
    """
    found: dict[str, set[str]] = {}
    for right, key in _uses(request):
        found.setdefault(_folder(key, root), set()).add(right)
    return {folder: "".join(sorted(rights)) for folder, rights in sorted(found.items())}


def _folder(key: bytes, root: str) -> str:
    """Return the part of the keyspace that a key is in: `<root>/<kind>/`, or all of it."""
    kind, slash, _ = key.decode(errors="replace").removeprefix(f"{root}/").partition("/")
    return f"{root}/{kind}{slash}"


def _uses(message: Message) -> Iterator[tuple[str, bytes]]:
    if isinstance(message, wire.Range | wire.Compare | wire.WatchCreate):
        yield "read", message.key
    elif isinstance(message, wire.Put | wire.Delete):
        yield "write", message.key
    elif isinstance(message, wire.Operation):
        kind = message.WhichOneof("kind")
        if kind is not None:
            yield from _uses(getattr(message, kind))
    elif isinstance(message, wire.Txn):
        for part in (message.compare, message.success, message.failure):
            for element in part:
                yield from _uses(element)
