"""More locks past their alert than a scrape lists: the urgent ones are seen, the others counted."""

from __future__ import annotations

import time
from uuid import uuid4

from lockclient import Settings
from lockclient.model.clocks import Deadline, Runtime
from lockclient.model.holder import Holder
from lockclient.stores.etcd.store import EtcdStore
from lockclient.stores.outcomes import Taken
from lockclient.stores.requests import Take
from tests.support.processes import wait_until
from tests.support.unlocker_process import figures, ready, unlocker
from unlocker.metrics.series_limit import MAX_LISTED

UNLOCK = "clustermutex_lock_auto_unlock_timestamp_seconds"


def abandon(store: EtcdStore, name: str, auto_unlock_after: float | None) -> None:
    """Take a lock that goes past its alert after a second, and forget it."""
    runtime, now = Runtime(1, auto_unlock_after), time.time()
    holder = Holder(
        *(name, uuid4().hex, "web-1"),
        locked_at=now,
        expected_runtime=1,
        auto_unlock_after=auto_unlock_after,
    )
    outcome = store.ask(Take(holder.stamped(runtime.stamps(now))), Deadline.after(30))
    assert isinstance(outcome, Taken)


def test_what_is_overdue_is_listed_though_a_hundred_have_been_silent_for_longer(
    settings: Settings, store: EtcdStore
) -> None:
    """The brake lets a fifth go in a minute: what it keeps back is overdue."""
    with unlocker(settings, "--max-removals", "1") as service:
        wait_until(lambda: ready(service), what="readiness", timeout=90)
        for number in range(MAX_LISTED):
            abandon(store, f"zombie-{number}", None)
        alert, overdue = (
            f'clustermutex_locks{{state="{state}"}}' for state in ("alert", "overdue")
        )
        wait_until(lambda: figures(service)[alert] == MAX_LISTED, what="alerts", timeout=90)
        abandon(store, "important", None)
        unlisted = 'clustermutex_locks_unlisted{state="alert"}'
        wait_until(lambda: figures(service)[unlisted] == 1, what="the 101st", timeout=90)

        for number in range(40):
            abandon(store, f"dead-{number}", 2)
        braked = "clustermutex_unlocker_brake_engaged"

        def seen() -> bool:
            """Between two moments of one scrape something may happen: then the next one fits."""
            found = figures(service)
            listed = [name for name in found if name.startswith(f'{UNLOCK}{{name="dead-')]
            return bool(
                found[braked]
                and 0 < found[overdue] <= len(listed)
                and found[unlisted] == found[alert] + found[overdue] - MAX_LISTED
            )

        wait_until(seen, what="all that are overdue to be listed", timeout=90)
