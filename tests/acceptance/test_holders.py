"""A process that dies with its lock, seen from outside."""

from __future__ import annotations

import threading
import time

from lockclient import ClusterMutex, Settings
from lockclient.stores.service_protocol import ServiceStore
from tests.support.locks import HolderProcess, held, removal_of
from tests.support.processes import Figure, wait_until
from tests.support.unlocker_process import REMOVED, unlocker, when_ready
from tests.support.unlocker_process import figure as metric


def test_kill_9_of_a_holder(settings: Settings, store: ServiceStore, figure: Figure) -> None:
    """The alert's metric, then the removal, then the next waiter: each at its time."""
    times: dict[str, float] = {}
    with when_ready(unlocker(settings)) as service:
        doomed = HolderProcess(settings, "doomed", expected_runtime=2, auto_unlock_after=4)
        holder = held(store, "doomed")
        waiter = ClusterMutex("doomed", store=store)

        def wait() -> None:
            waiter.acquire(timeout=120)
            times["next holder"] = time.time()

        thread = threading.Thread(target=wait)
        thread.start()
        doomed.kill()

        sample = 'clustermutex_lock_alert_timestamp_seconds{name="doomed"}'
        wait_until(lambda: metric(service, sample), what="the alert's metric")
        times["alert"] = time.time()
        assert held(store, "doomed") == holder, "alerted on, and still held"
        thread.join()
        removal = removal_of(store, holder)
        assert removal.how == "auto-unlock"
        assert 'File "<string>", line' in (removal.holder.backtrace or "")
        times["removal"] = removal.removed_at or 0
        wait_until(lambda: metric(service, sample) is None, what="the end of the alert")
        wait_until(lambda: metric(service, REMOVED) == 1, what="the count")
        log = service.log_text()
        assert log.count("'doomed' is past its alert, held by ") == 1
        assert log.count("Removed lock 'doomed': no heartbeat for ") == 1
        waiter.release()
    assert holder.alert_at is not None
    assert holder.auto_unlock_at is not None
    assert holder.alert_at <= times["alert"] < holder.auto_unlock_at
    assert holder.auto_unlock_at <= times["removal"] <= times["next holder"]
    figure(
        f"after kill -9: alert {times['alert'] - holder.alert_at:.2f} s after alert_at, "
        f"removal {times['removal'] - holder.auto_unlock_at:.2f} s after auto_unlock_at, "
        f"next holder {times['next holder'] - times['removal']:.3f} s after that"
    )
