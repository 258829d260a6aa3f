"""The whole life of a lock, short: `matrix_check.py HOST:PORT [--with-etcd3]`.

Run by `.ci/matrix` in environments with all kinds of neighbours, each warning an error, and with
`-O` too: so nothing here is an `assert`. Says nothing unless something is wrong.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import warnings
from collections.abc import Callable

import lockclient
from lockclient import ClusterMutex, LockLost, LockNotHeld, Removal, Settings
from lockclient.model.clocks import Deadline
from lockclient.stores.request_types import Remove

with_etcd3 = "--with-etcd3" in sys.argv
if with_etcd3:
    import etcd3

ENDPOINT = sys.argv[1]
SETTINGS = Settings(endpoints=(ENDPOINT,), root=f"/matrix-{os.getpid()}")


def expect(condition: object, what: str) -> None:
    """End the program unless this is so."""
    if not condition:
        sys.exit(f"not so: {what}")


def expect_error(error: type[Exception], call: Callable[[], object]) -> None:
    """End the program unless the call raises this."""
    try:
        call()
    except error:
        return
    sys.exit(f"not so: {call} raises {error.__name__}")


def wait_until(condition: Callable[[], object], what: str) -> None:
    """Wait for something, not longer than 20 s."""
    until = time.monotonic() + 20
    while not condition():
        expect(time.monotonic() < until, what)
        time.sleep(0.01)


def contend(store: lockclient.stores.mutex_store.MutexStore) -> None:
    """Take, wait in line, be alive, release, have it after the other."""
    first, second = ClusterMutex("x", store=store), ClusterMutex("x", store=store, timeout=30)
    expect(first.acquire(), "a free lock is had")
    expect(not second.acquire(blocking=False), "a held lock is not had")
    thread = threading.Thread(target=second.acquire)
    thread.start()
    wait_until(first.waiters, "the second one stands in line")
    pushed = first.record.alive_at
    first.alive(force=True)
    expect((first.record.alive_at or 0) > (pushed or 0), "the stamps are pushed")
    token = first.fencing_token
    first.release()
    thread.join(20)
    expect(second.locked() and second.fencing_token > token, "the second one has it next")
    second.release()
    expect_error(LockNotHeld, second.release)
    expect(first.holder() is None, "it is free in the end")


def lose(store: lockclient.stores.mutex_store.MutexStore) -> None:
    """Be told of a loss, by the watch and by `alive()`."""
    lost: list[LockLost] = []
    mutex = ClusterMutex("x", store=store, on_lost=lost.append)
    mutex.acquire()
    holder = mutex.holder()
    if holder is None:
        sys.exit("not so: the holder stands in the store")
    removal = Removal(holder, time.time(), "the matrix", "force-unlock", "to see it noticed")
    store.ask(Remove(removal, None), Deadline.after(10))
    wait_until(lambda: lost, "the loss is told")
    expect(not mutex.healthy, "a lost lock is not healthy")
    expect_error(LockLost, mutex.alive)
    expect_error(LockLost, mutex.release)


def fork(store: lockclient.stores.mutex_store.MutexStore) -> None:
    """A child holds nothing and takes locks of its own."""
    with ClusterMutex("x", store=store) as held:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12: there are threads
            child = os.fork()
        if child == 0:
            with ClusterMutex("y", store=store, timeout=30) as own:
                own.alive(force=True)
            os._exit(1 if held.healthy else 0)
        wait_until(lambda: has_ended(child), "the child ends")
        held.alive(force=True)


def has_ended(child: int) -> bool:
    """Tell whether it has; it must have ended well."""
    pid, status = os.waitpid(child, os.WNOHANG)
    expect(status == 0, f"the child ends well, not with {status}")
    return pid == child


def beside_etcd3() -> None:
    """The other client and its lock, in the same process and on the same server."""
    host, _, port = ENDPOINT.rpartition(":")
    client = etcd3.client(host=host, port=int(port))
    with client.lock("theirs", ttl=30):
        client.put("beside", "us")
        expect(client.get("beside")[0] == b"us", "etcd3 works")
    client.close()


opened = lockclient.open_store(SETTINGS)
contend(opened)
if with_etcd3:
    beside_etcd3()
lose(opened)
fork(opened)
