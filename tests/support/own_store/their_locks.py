"""A store of another package, by an entry point: `theirs://name`, in the memory of one process."""

from __future__ import annotations

from dataclasses import replace

from lockclient.testing.memory_store import Memory, MemoryStore

_memories: dict[str, Memory] = {}


class TheirStore(MemoryStore):
    can = replace(MemoryStore.can, display_name="Theirs", shared=True)


def open_store(url: str) -> TheirStore:
    return TheirStore(memory=_memories.setdefault(url, Memory()))
