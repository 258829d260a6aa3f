"""Registry of stores: the store of each URL scheme, and its modules by name.

A store's modules are imported for its first URL, so a program loads no packages of other stores.
A further store of ours is a folder next to these and an entry here; a store of another package
registers its scheme by an entry point (`ENTRY_POINTS`).
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from lockclient.stores.etcd.location import EXAMPLE, EtcdLocation
from lockclient.stores.location import UrlLocation
from lockclient.text.url import check_no_user, split_url

if TYPE_CHECKING:
    from lockclient.stores.location import Location
    from lockclient.stores.service_store import ServiceStore

DEFAULT_LOCATION: Final = EtcdLocation()
"""An etcd on this machine."""
LIKE: Final = (
    f"like {EXAMPLE}, gs://bucket/prefix or "
    "valkey://host1,host2,host3/prefix (redis:// is the same)"
)
"""Examples of URLs, for help texts."""


@dataclass(frozen=True, slots=True)
class StoreEntry:
    """A kind of store; all kinds use the same names for their modules and classes.

    Attributes:
        name: of the kind, as of its folder, and in findings of the doctor.
        extra: the extra to install for it: `clustermutex[extra]`; empty: none.
        takes: the keyword of the store in addition to its location: `client` or `credentials`.
        knows_certificates: `setup_script` takes `no_password`, too.
    """

    name: str
    extra: str = ""
    takes: str = ""
    knows_certificates: bool = False

    def location(self) -> Any:
        """Import the `Location`, which has `of(url, environ)`; that raises ValueError."""
        return self._load("location", f"{self.name.title()}Location")

    def store(self) -> Any:
        """Import the `ServiceStore`, which takes a location."""
        return self._load("store", f"{self.name.title()}Store")

    def setup_script(self) -> Any:
        """Import the function behind `setup_script`, with the same arguments."""
        return self._load("roles", "setup_script")

    def _load(self, module: str, attribute: str) -> Any:
        with _importing:
            return getattr(import_module(f"lockclient.stores.{self.name}.{module}"), attribute)


_FORK_TIMEOUT_S: Final = 10.0
"""Time that a fork waits for another thread's import of a store."""
_importing = threading.RLock()
"""A fork waits for it: its child would wait for ever for a module that a thread, which the child
does not have, was importing."""
_held_by_fork = threading.local()


def _before_fork() -> None:
    _held_by_fork.is_held = False  # a signal handler may raise while the next line waits
    _held_by_fork.is_held = _importing.acquire(timeout=_FORK_TIMEOUT_S)


def _after_fork() -> None:
    if _held_by_fork.is_held:
        _importing.release()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork)

_ETCD = StoreEntry("etcd", takes="client", knows_certificates=True)
ENTRIES: Final = {
    **dict.fromkeys(("etcd", "etcds"), _ETCD),
    "gs": StoreEntry("gcs", extra="gcs", takes="credentials"),
    **dict.fromkeys(("valkey", "valkeys", "redis", "rediss"), StoreEntry("valkey", extra="valkey")),
}
"""The kind of store of each scheme."""
ENTRY_POINTS: Final = "clustermutex.stores"
"""The group of entry points of other packages' stores: a scheme, and a function that takes the URL
and returns the `ServiceStore`."""
_IN_MEMORY: Final = ("memory", "mem")
"""Reserved schemes: locks in one process's memory exclude no other process."""
_MISPLACED: Final = {"client": "A client of etcd's", "credentials": "Google's credentials"}


def entry_of(location: Location) -> StoreEntry:
    """Return the kind of a location's store."""
    scheme = split_url(location.url()).scheme
    return ENTRIES.get(scheme) or StoreEntry(scheme)


def read_location(url: str, environ: Mapping[str, str] = os.environ) -> Location:
    """Return the location that a URL and the environment name, which can be opened.

    Raises:
        ValueError: it is malformed, or a package that the store needs is not installed.
    """
    scheme = split_url(url).scheme
    entry = ENTRIES.get(scheme)
    if scheme in _IN_MEMORY:
        raise ValueError(
            "Locks in memory exclude nobody in another process, so that no URL leads there. Tests "
            "have them by ClusterMutex.setup(store=lockclient.testing.MemoryStore()), or by the "
            "fixture of lockclient.testing.plugin; see docs/guide.md#testing."
        )
    if entry is None and _factory(scheme) is not None:
        return UrlLocation(url)
    if entry is None:
        check_no_user(url, EtcdLocation.user_variables())
        others = ", ".join(f"{other}://" for other in ENTRIES if ENTRIES[other] is not _ETCD)
        raise ValueError(
            f"It must begin with etcd:// (or etcds:// for TLS), like {EXAMPLE}, or with one of "
            f"{others}."
        )
    location: Location = entry.location().of(url, environ)
    try:
        if entry.extra:  # now, where the error names the URL, and not in the middle of an `acquire`
            entry.store()
    except ModuleNotFoundError as error:
        raise ValueError(
            f"Locks at {scheme}://… need {error.name}, which is not installed: "
            f"pip install 'clustermutex[{entry.extra}]'."
        ) from error
    return location


def prepare(location: Location) -> None:
    """Import the store at a location, so that opening it is quick."""
    if isinstance(location, UrlLocation):
        _factory(entry_of(location).name)
    else:
        entry_of(location).store()


def open_at(location: Location, client: Any = None, credentials: Any = None) -> ServiceStore:
    """Return a store at a location; nothing is sent before its first request.

    Raises:
        ValueError: this kind of store takes no `client` or no `credentials`, or not those.
    """
    entry = entry_of(location)
    if isinstance(location, UrlLocation):
        return _opened_by_others(location, entry.name)
    how = {"client": client, "credentials": credentials}
    how = {name: given for name, given in how.items() if given is not None}
    if refused := how.keys() - {entry.takes}:
        raise ValueError(
            f"{_MISPLACED[min(refused)]} can't be used for locks at {location.url()}: "
            "leave it out, or say where the locks are (CLUSTERMUTEX_URL)."
        )
    opened: ServiceStore = entry.store()(location, **how)
    return opened


def _factory(scheme: str) -> Callable[[str], ServiceStore] | None:
    """Return another package's function that opens the stores of a scheme; None: no such package.

    Raises:
        ValueError: several packages have one, or it can't be imported.
    """
    from importlib.metadata import entry_points  # costs as much as half of all the rest

    found = {point.value: point for point in entry_points(group=ENTRY_POINTS, name=scheme)}
    if len(found) > 1:
        raise ValueError(
            f"Several installed packages open {scheme}://…: {', '.join(sorted(found))}. "
            "Uninstall all but one."
        )
    for value, point in found.items():
        try:
            factory: Callable[[str], ServiceStore] = point.load()
        except (ImportError, AttributeError) as error:
            raise ValueError(f"{scheme}://… is opened by {value}, which fails: {error}.") from error
        return factory
    return None


def _opened_by_others(location: UrlLocation, scheme: str) -> ServiceStore:
    factory = _factory(scheme)
    if factory is None:
        raise ValueError(f"No installed package opens {scheme}://… any more.")
    opened = factory(location.given)
    if not hasattr(opened, "ask") or not opened.can.shared:
        raise ValueError(
            f"{location.url()} leads to {opened!r}, which is no store that other processes reach."
        )
    return opened


def setup_script(location: Location, users: Mapping[str, Sequence[str]], **how: bool) -> str:
    """Return a script for sh that makes these users, by kind, with the least rights of each kind.

    Raises:
        ValueError: there are no such users; the text says which there are.
    """
    if isinstance(location, UrlLocation):
        raise ValueError(f"No script is known that makes users at {location.url()}.")
    script: str = entry_of(location).setup_script()(location, users, **how)
    return script
