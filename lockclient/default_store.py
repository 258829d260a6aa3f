"""`ClusterMutex.setup`: a process's store, opened at first need, and facts of all its locks."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from lockclient.model.fields import MAX_OWNER_BYTES, require_callable, require_labels, require_text
from lockclient.stores import registry
from lockclient.stores.settings import Settings, made_of
from lockclient.text.escaping import hidden
from lockclient.threads.log_queue import get_logger

if TYPE_CHECKING:
    from lockclient.instruments.event_delivery import About, Instrument, Observer
    from lockclient.stores.mutex_store import MutexStore
    from lockclient.stores.service_store import ServiceStore


class Defaults:
    """Facts of all locks of this process from now on; `observer` calls the instruments, if any."""

    __slots__ = ("labels", "observer", "owner")

    def __init__(self) -> None:
        self.owner: str | None = None
        self.labels: Mapping[str, str] = {}
        self.observer: Observer | None = None


log = get_logger(__name__)
defaults = Defaults()
_default_lock = threading.RLock()
_default_settings: Settings | None = None
_default_store: ServiceStore | None = None
_opened: tuple[str, str] | None = None
"""`CLUSTERMUTEX_URL` as the environment's store was opened, and that store's place."""


def setup(
    url: str | None = None,
    *,
    endpoints: list[str] | tuple[str, ...] | None = None,
    client: Any = None,
    credentials: Any = None,
    store: MutexStore | None = None,
    instruments: Sequence[Instrument] | None = None,
    about: About | None = None,
    owner: str | None = None,
    labels: Mapping[str, str] | None = None,
    **settings: Any,
) -> None:
    """Set once per process where the locks live, for mutexes without a store of their own.

    Args:
        url: like `etcd://host1:2379,host2:2379/clustermutex`, `gs://bucket/prefix` or
            `valkey://host1,host2,host3/prefix`.
        endpoints: like `["host1:2379", "host2:2379"]`, `https://` in front for TLS.
        client: an `etcd3` client, whose connection, TLS and token are used. `etcd3` never
            renews the token; with `user` and `password` it is renewed.
        credentials: for `gs://`: an object of google-auth, or the path of a file of a service
            account or user; if left out, those that Google's own programs find.
        store: an open store in place of all that: what `open_store` returns, one of your own,
            or `lockclient.testing.MemoryStore()`.
        instruments: called with the events of this program's locks from now on, see
            `lockclient.instruments`; `[]` ends it.
        about: called without arguments in the caller's context before each acquisition. The
            mapping of texts by names that it returns (a trace, a request) is written into the
            lock as its context. It must not wait. Its errors are logged only.
        owner, labels: of all locks of this process that have none of their own.
        settings: fields of `lockclient.Settings`: root, cacert, cert, key, user, password, …;
            all of them are for etcd.

    The environment (`CLUSTERMUTEX_URL`, `ETCDCTL_*`) gives the rest. A call without a place
    for the locks leaves that as it is.

    Raises:
        ValueError: a value is malformed, or a setting is unknown; then nothing is changed.
    """
    describe = _described(instruments, about, owner, labels)
    is_placed = bool(settings) or (url, endpoints, client, credentials) != (None,) * 4
    if store is not None:
        if is_placed:
            raise ValueError("Give the store, or where it is, not both.")
        swap_default(require_store(store))
    elif client is not None and (url is not None or endpoints is not None):
        raise ValueError("Give the client, or where the members are, not both.")
    elif is_placed or (instruments, about, owner, labels) == (None,) * 4:
        made = made_of(url, endpoints, settings, with_client=client is not None)
        set_default(made, client, credentials)
    describe()


def require_store(store: MutexStore) -> MutexStore:
    """Return the store; raise ValueError if the object is no store."""
    if not hasattr(store, "ask"):
        raise ValueError(f"store must be what open_store() returns, not {store!r}.")
    return store


def _described(
    instruments: Sequence[Instrument] | None,
    about: About | None,
    owner: str | None,
    labels: Mapping[str, str] | None,
) -> Callable[[], None]:
    """Check these arguments of `setup` (ValueError), and return a call that sets them.

    None leaves a default as it is.
    """
    owner = defaults.owner if owner is None else require_text("owner", owner, 1, MAX_OWNER_BYTES)
    labels = defaults.labels if labels is None else require_labels("labels", labels)
    if about is not None:
        require_callable("about", about)
    for instrument in instruments or ():
        require_callable("instruments", instrument)
    observer = before = defaults.observer
    if instruments is not None or about is not None:
        from lockclient.instruments.event_delivery import Observer  # few programs need it

        if before is not None:
            instruments = before.instruments if instruments is None else instruments
            about = about or before.about
        observer = Observer(instruments or (), about) if instruments or about else None

    def describe() -> None:
        defaults.owner, defaults.labels, defaults.observer = owner, labels, observer

    return describe


def set_default(settings: Settings, client: Any = None, credentials: Any = None) -> None:
    """Set the process's store; the arguments and errors are those of `open_store`."""
    global _default_settings, _default_store, _opened
    given = client is not None or credentials is not None
    store = open_store(settings, client, credentials) if given else None  # a bad one raises now
    with _default_lock:
        _default_settings, _default_store, _opened = settings, store, None


def swap_default(store: Any) -> ServiceStore | None:
    """Set the process's store, for mutexes alone a `MutexStore`, and return the one before.

    None: open a new one, of `set_default` or of the environment.
    """
    global _default_store, _opened
    with _default_lock:
        before, _default_store, _opened = _default_store, store, None
    return before


def default_store() -> ServiceStore:
    """Return the process's store, opened if need be; ValueError: the environment is malformed."""
    global _default_store, _opened
    store = _default_store
    if store is None:
        with _default_lock:
            if _default_store is None:
                settings = _default_settings or Settings.load()
                if _default_settings is None:
                    _opened = os.environ.get("CLUSTERMUTEX_URL", ""), settings.url()
                opened = open_store(settings)
                # A signal handler in this thread may have opened one meanwhile.
                _default_store = _default_store or opened
            store = _default_store
    return store


def _start_afresh() -> None:
    """After fork, in the child: another thread may have held the lock."""
    global _default_lock
    _default_lock = threading.RLock()


os.register_at_fork(after_in_child=_start_afresh)


def open_store(settings: Settings, client: Any = None, credentials: Any = None) -> ServiceStore:
    """Return a store for these settings; nothing is sent before it is first asked.

    Args:
        settings: where the store is.
        client: an `etcd3` client, whose connection and token are used instead of our own. From the
            settings come the root and, where they are given, user and password.
        credentials: of a bucket: an object of google-auth, or the path of a file with such.

    Raises:
        ValueError: it is no `etcd3` client, these are no credentials, or the settings are not of
            the store that they are for.
    """
    return registry.open_at(settings.location, client, credentials)


def prepare() -> None:
    """Import the store's modules when a mutex is made, so that no first `acquire` pays for it.

    Log that `CLUSTERMUTEX_URL` has changed since the default store was opened, if so.
    """
    global _opened
    if _default_store is None:
        with suppress(ValueError):  # the first `acquire` raises it, unless `setup` comes before
            settings = _default_settings or Settings.load()
            registry.prepare(settings.location)
    elif _opened is not None and (url := os.environ.get("CLUSTERMUTEX_URL", "")) != _opened[0]:
        place, _opened = _opened[1], None
        log.warning(
            "CLUSTERMUTEX_URL has changed to %r since its first use: locks stay at %s. Set it "
            "before, or call ClusterMutex.setup().",
            hidden(url),
            place,
        )
