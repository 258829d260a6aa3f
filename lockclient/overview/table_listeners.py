"""Who is notified of what changes in a table: transitions of locks, and removals."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from lockclient.model.removal import Removal
from lockclient.overview.rows import Transition
from lockclient.stores.service_protocol import Change
from lockclient.threads.log_queue import get_logger

log = get_logger(__name__)

ChangeListener = Callable[[list[Transition]], None]
RemovalListener = Callable[[list[Removal], bool], None]


class TableListeners:
    """The listeners of one table; see there."""

    def __init__(
        self, on_change: ChangeListener | None, on_removal: RemovalListener | None
    ) -> None:
        self._on_change = on_change
        self.on_removal = on_removal
        self._pending: list[Removal] = []

    def note(self, change: Change, removal: Removal, revision: int) -> None:
        """Have `notify` tell a removal that is new to a table at this revision."""
        if self.on_removal and revision < change.created == change.revision:
            self._pending.append(removal)

    def notify(self, changed: list[Transition], *, first: bool = False) -> None:
        removals, self._pending = self._pending, []
        calls: list[Callable[[], None]] = []
        if removals and self.on_removal is not None:
            calls.append(partial(self.on_removal, removals, first))
        if changed and self._on_change is not None:
            calls.append(partial(self._on_change, changed))
        for call in calls:
            try:
                call()
            except Exception:  # a listener's mistake must not stop the picture
                log.exception("A listener of the table of all locks failed.")
