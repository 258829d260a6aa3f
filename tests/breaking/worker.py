"""A process that takes and uses locks and writes its history: `python -m tests.breaking.worker`.

It does what the clients of the simulation do, on a real store, and under each lock it counts: in
the register, with its token and without, and in etcd by a transaction with the lock's guard.
"""

from __future__ import annotations

import asyncio
import atexit
import json
import logging
import os
import signal
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import grpc

from lockclient import Settings, open_store
from lockclient.stores.etcd.wire import messages_pb2 as wire
from lockclient.stores.etcd.wire.rpc_methods import OPTIONS, RANGE, TXN, make_call
from lockclient.threads import ending
from tests.breaking.register import count
from tests.proof.history import FileSink, Line
from tests.simulation.clients import Client
from tests.simulation.plan import Work
from tests.simulation.process_end import EndLog

LOCKS = "abcdef"
PAUSE_S = 0.02
"""Seconds from reading a counter to writing it."""


class RealTime:
    """The real world in place of the simulation's hub: clocks, chance, the process's name."""

    def __init__(self, name: str, seed: int) -> None:
        self.process = SimpleNamespace(name=name)
        self._seed = seed

    @property
    def now(self) -> float:
        """The monotonic time of this machine."""
        return time.monotonic()

    def draw(self, *about: object) -> float:
        """Return a number from 0 to 1 that depends on what it is about, and on the seed."""
        return Random(f"{self._seed}/{self.process.name}/{about}").random()

    def wait(self, seconds: float) -> None:
        """Wait."""
        time.sleep(seconds)


class RealClient(Client):
    """One that counts under its locks, until its time is over."""

    pace = 0.1

    def __init__(self, said: Any, *how: Any) -> None:
        super().__init__(*how)
        self._said = said
        self._channel: Any = None
        if said.etcd:
            self._channel = grpc.insecure_channel(f"ipv4:{','.join(said.etcd)}", options=OPTIONS)

    def _goes_on(self, _rounds: int) -> bool:
        return bool(time.monotonic() < self._said.until)

    def _use(self, held: Any) -> None:
        who, lock, register = self._process.name, self._work.lock, self._said.register
        token = self._token(held)
        count(register, who, lock, token, PAUSE_S)
        if self._channel is not None:
            with suppress(grpc.RpcError):  # it counts no more: the outcome is unknown
                self._count_guarded(held)

    async def _use_on_loop(self, held: Any) -> None:
        await asyncio.to_thread(self._use, held)

    def _count_guarded(self, held: Any) -> None:
        """Read a counter in etcd, and write it one higher in a transaction with the guard."""
        if held.uuid == getattr(self, "_unsure", ""):
            return
        key, guard = f"/counters/{self._work.lock}".encode(), held.guard
        found = make_call(self._channel, RANGE)(wire.Range(key=key), timeout=3).kvs
        value = int(found[0].value) if found else 0
        txn = wire.Txn()
        txn.compare.add(target=wire.Compare.VALUE, key=guard.key, value=guard.value)
        txn.success.add().put.CopyFrom(wire.Put(key=key, value=str(value + 1).encode()))
        self._unsure = held.uuid
        make_call(self._channel, TXN)(txn, timeout=3)
        self._unsure = ""


def main(text: str) -> None:
    """Do what is said."""
    said = SimpleNamespace(**json.loads(text))
    hub, write = RealTime(said.name, said.seed), FileSink(Path(said.file))
    _end_on_sigterm(hub, write)
    store = open_store(Settings.load(said.url))
    choose = Random(f"{said.seed}/{said.name}")
    clients = [
        RealClient(
            said,
            *(_work(said, choose), number, store, write, hub),
        )
        for number in range(said.clients)
    ]
    # Daemon threads, for which Python does not wait at its end.
    if said.kind == "asyncio":
        threads = [threading.Thread(target=asyncio.run, args=(_all(clients, store),), daemon=True)]
    else:
        threads = [threading.Thread(target=one.run_in_thread, daemon=True) for one in clients]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    write_end = os.open(said.file + ".done", os.O_CREAT)
    os.close(write_end)
    sys.stdin.read()  # it lives on: what is to be cleaned up is its own to do


def _end_on_sigterm(hub: RealTime, write: FileSink) -> None:
    """Have SIGTERM end the program normally, and the history tell of that end."""

    def say(what: str) -> None:
        write(Line(hub.now, hub.process.name, what))

    def end(*_: object) -> None:
        say("ending")
        sys.exit()

    atexit.register(say, "marked")  # before the first acquisition: it is called after `begin`
    logging.getLogger(ending.__name__).addHandler(EndLog(hub, write))
    logging.getLogger().addHandler(logging.StreamHandler())
    signal.signal(signal.SIGTERM, end)


async def _all(clients: list[RealClient], store: Any) -> None:
    await asyncio.gather(*(client.run_on_loop() for client in clients))
    while store.background.unfinished():
        await asyncio.sleep(0.1)


def _work(said: Any, choose: Random) -> Work:
    return Work(said.name, said.kind, 0.0, choose.choice(LOCKS), 0, 1.0, said.auto_unlock)


if __name__ == "__main__":
    main(sys.argv[1])
