"""All errors, as one tree under `ClusterMutexError`.

Each error also derives from the builtin that people already catch, and can be pickled with its
fields.
"""

from __future__ import annotations

from typing import Any

from lockclient.text.durations import period
from lockclient.text.escaping import plain


class ClusterMutexError(Exception):
    """The root of all errors of ClusterMutex.

    Args:
        message: what happened to which lock, and what to do.
        name: the lock's name, if one is concerned.
        uuid: the acquisition that failed or was lost, if any.
        holder: the lock's holder, if known: a `lockclient.Holder`.
    """

    def __init__(
        self,
        message: str,
        *,
        name: str | None = None,
        uuid: str | None = None,
        holder: Any = None,
    ) -> None:
        # Hosts, reasons and a server's words are escaped here, before any log or terminal.
        super().__init__(plain(message))
        self.name = name
        self.uuid = uuid
        self.holder = holder

    def __reduce__(self) -> tuple[Any, ...]:
        # `BaseException` would rebuild it from `args` alone; the `__dict__` keeps every field.
        return (_rebuild, (type(self), self.args, self.__dict__))


def _rebuild(
    kind: type[ClusterMutexError], args: tuple[Any, ...], fields: dict[str, Any]
) -> ClusterMutexError:
    error = kind.__new__(kind)
    error.args = args
    error.__dict__.update(fields)
    return error


class LockTimeout(ClusterMutexError, TimeoutError):
    """The lock could not be acquired within the time given."""

    @classmethod
    def after(
        cls, seconds: float, name: str, holder: Any = None, waiting: int | None = 0
    ) -> LockTimeout:
        """Return the error of a wait of so many seconds; `waiting` None: the store can't tell."""
        tried = f"could not be acquired within {period(seconds)}" if seconds else "is not free"
        text = f"The lock {name!r} {tried}."
        if holder is not None:
            line = "" if waiting is None else f"; waiters: {waiting}"
            text += f" It is held by {holder.describe()}{line}."
        elif waiting:
            text += f" Nobody holds it, but {waiting} wait{'s' * (waiting == 1)} for it."
        return cls(text, name=name, holder=holder)


class LockNotHeld(ClusterMutexError, RuntimeError):
    """`release()` or `alive()` of a lock that this object does not hold."""


class LockLost(ClusterMutexError):
    """The lock was held and is not any more: it was removed, or its time ran out.

    `removal`: the removal record (a `lockclient.Removal`), if one was found.
    """

    def __init__(
        self,
        message: str,
        *,
        name: str | None = None,
        uuid: str | None = None,
        holder: Any = None,
        removal: Any = None,
    ) -> None:
        super().__init__(message, name=name, uuid=uuid, holder=holder)
        self.removal = removal


class StoreUnavailable(ClusterMutexError, ConnectionError):
    """The store did not answer in time.

    `unknown`: the request may have happened all the same. `busy`: the store answered that it takes
    no more at the moment. `refused`: all its servers refused the connection, or could not be found,
    so that no request is in flight.
    """

    def __init__(
        self, message: str, *, unknown: bool = True, busy: bool = False, refused: bool = False
    ) -> None:
        super().__init__(message)
        self.unknown = unknown
        self.busy = busy
        self.refused = refused


class StoreError(ClusterMutexError):
    """The store answered that it can't or won't: no right, no space, a bad request.

    `unknown`: an earlier, unanswered sending may have happened. `passing`: the reason may pass by
    itself, so the background retries soon.
    """

    def __init__(self, message: str, *, unknown: bool = False, passing: bool = False) -> None:
        super().__init__(message)
        self.unknown = unknown
        self.passing = passing


class StoreFull(StoreError):
    """The store has no space left, and wrote nothing."""


class StoreClosed(StoreError):
    """The connection to the store was closed, by this program itself."""


class InvalidLockName(ClusterMutexError, ValueError):
    """A lock's name is empty, too long, or has control characters."""
