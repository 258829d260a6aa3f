"""One object shared by threads or tasks: every acquisition is its own."""

from __future__ import annotations

import threading

from lockclient import ClusterMutex, LockTimeout
from lockclient.stores.service_protocol import ServiceStore
from tests.support.locks import has, queue_up
from tests.support.processes import wait_until


def test_who_times_out_takes_nothing_from_others(store: ServiceStore) -> None:
    """One thread gets the lock while another, on the same object, gives up waiting for it."""
    holder, shared = ClusterMutex("x", store=store), ClusterMutex("x", store=store, timeout=1)
    holder.acquire()
    ends: list[type[BaseException]] = []

    def give_up() -> None:
        try:
            with shared:
                pass
        except BaseException as error:  # noqa: BLE001 - looked at below
            ends.append(type(error))

    patient = queue_up(shared, 60)
    hasty = threading.Thread(target=give_up)
    hasty.start()
    wait_until(lambda: len(holder.waiters()) == 2, what="the other one in line")
    holder.release()
    patient.join(30)
    hasty.join(30)
    assert ends == [LockTimeout]
    assert has(store, "x") == shared.uuid
    shared.alive(force=True)
    shared.release()
