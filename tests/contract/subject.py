"""Subjects: the stores that the contract suite tests, and their names."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, fields
from importlib import import_module
from uuid import uuid4

from lockclient.default_store import open_store
from lockclient.stores.mutex_store import Capabilities
from lockclient.stores.service_store import ServiceStore
from lockclient.stores.settings import Settings
from lockclient.testing.memory_store import MemoryStore


@dataclass(frozen=True)
class Subject:
    """A store, empty, and what its contract can't do for itself.

    Attributes:
        store: the store; one that is a `MutexStore` and no `ServiceStore` is held to that half.
        open: open the store of another client, which tells this one nothing.
        lose_tickets: lose the tickets of this process; None: the tests that need it are not made.
        write: write one subkey of a lock (its name, the subkey, the value), or delete it, behind
            the store's back, as another client may; None: the tests that need it are not made.
    """

    store: ServiceStore
    open: Callable[[], ServiceStore]
    lose_tickets: Callable[[], object] | None = None
    write: Callable[[str, str, bytes | None], object] | None = None

    def able(self, need: str) -> bool:
        """Tell whether it has what a test needs: an ability of the store, or a hand of its own."""
        if need == "services":
            return hasattr(self.store, "load")
        if need in {field.name for field in fields(Capabilities)}:
            return bool(getattr(self.store.can, need))
        return getattr(self, need) is not None


Subjects = Callable[[], AbstractContextManager[Subject]]
"""Makes one for each test."""


@contextmanager
def in_memory() -> Iterator[Subject]:
    """`MemoryStore`, with pages so small that a lock lies on several."""
    memory = MemoryStore(page_size=3)

    def write(name: str, part: str, value: bytes | None) -> None:
        memory.write(("locks", name, part, value))

    yield Subject(memory, memory.another, memory.lose_tickets, write)
    memory.close()


def named(store: str) -> Subjects:
    """Return what makes the subjects that `--store` names.

    Args:
        store: `module:function` of a context manager that yields a `Subject`; or a URL, in which
            `{}` is another name for each test, so that it finds an empty store.

    Raises:
        ValueError: it is neither.
    """
    if "://" in store:
        if "{}" not in store:
            raise ValueError(f"{store!r} must have {{}} where each test has another name.")
        return lambda: _at(store.replace("{}", f"t{uuid4().hex[:12]}"))
    module, _, function = store.partition(":")
    if not (module and function):
        raise ValueError(f"{store!r} must be a URL with {{}} in it, or module:function.")
    try:
        subjects: Subjects = getattr(import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"{store!r} can't be had: {error}.") from error
    return subjects


@contextmanager
def _at(url: str) -> Iterator[Subject]:
    settings = Settings.load(url)
    store = open_store(settings)
    yield Subject(store, lambda: open_store(settings))
    store.close()
