"""Everything that can go wrong, as one tree under `ClusterMutexError`.

Each error also derives from the builtin that people already catch, carries what it is about as
fields, and survives pickling, so that it can cross a process boundary.
"""

from __future__ import annotations

from typing import Any

from lockclient.text.durations import period
from lockclient.text.escaping import plain


class ClusterMutexError(Exception):
    """The root of all errors of ClusterMutex.

    Args:
        message: what happened, to which lock, and what to do, in sentences.
        name: the lock's name, where one is concerned.
        uuid: the acquisition that failed or was lost, where there was one.
        holder: who has the lock, where known: a `lockclient.Holder`.
    """

    def __init__(
        self,
        message: str,
        *,
        name: str | None = None,
        uuid: str | None = None,
        holder: Any = None,
    ) -> None:
        # Where hosts, reasons and a server's words come in: whoever logs or prints it is safe.
        super().__init__(plain(message))
        self.name = name
        self.uuid = uuid
        self.holder = holder

    def __reduce__(self) -> tuple[Any, ...]:
        # BaseException would rebuild from `args` alone and lose the keyword fields' values on
        # classes that compute them; handing over the whole `__dict__` keeps every field.
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
        cls,
        seconds: float,
        name: str,
        holder: Any = None,
        waiting: int | None = 0,
    ) -> LockTimeout:
        """Return the error: how long was waited for which lock, who has it, how many wait.

        `waiting` None: nobody knows.
        """
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
    """The lock was held and is not any more: somebody removed it, or its time ran out.

    `removal` is the record of the removal (a `lockclient.Removal`) where one was found.
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

    `unknown` tells whether what was asked of it may have happened all the same, `busy` whether it
    is there, and said that it takes no more at the moment, `refused` whether all its servers
    refused to be connected to, or could not be found, so that no answer can be under way.
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

    `unknown` tells whether an earlier sending, which nobody answered, may have happened, `passing`
    whether the reason may pass by itself, so that background work is retried soon.
    """

    def __init__(self, message: str, *, unknown: bool = False, passing: bool = False) -> None:
        super().__init__(message)
        self.unknown = unknown
        self.passing = passing


class StoreFull(StoreError):
    """The store has no space for what it was to write, and wrote nothing."""


class StoreClosed(StoreError):
    """The connection to the store was closed, by this program itself."""


class InvalidLockName(ClusterMutexError, ValueError):
    """A lock's name is empty, too long, or has control characters."""
