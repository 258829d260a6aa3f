"""A process's defaults, set by `setup`: the store, opened at first need, and facts of locks."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from lockclient.model.fields import MAX_OWNER_BYTES, require_callable, require_labels, require_text
from lockclient.stores import registry
from lockclient.stores.settings import Settings
from lockclient.text.escaping import hidden
from lockclient.threads.log_queue import get_logger

if TYPE_CHECKING:
    from lockclient.instruments.event_delivery import About, Instrument, Observer
    from lockclient.stores.service_protocol import ServiceStore


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


def described(
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
            about = about or before.said
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

    None: open the one of `set_default` or of the environment anew.
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
