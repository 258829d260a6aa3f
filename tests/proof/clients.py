"""A client of the exhaustion: one acquisition by the real engine, without time."""

from __future__ import annotations

from copy import copy

from lockclient.acquisition.state_machine import Acquisition, Wait
from lockclient.model.clocks import Now, Runtime
from lockclient.stores.request_types import Request, Withdraw
from tests.support.records import taker

NAME = "x"
RUNTIME = Runtime(300.0, 900.0)


class Client:
    """One acquisition, and how far it is."""

    def __init__(self, uuid: str, lease: int) -> None:
        self.uuid, self.lease = uuid, lease
        self.engine = Acquisition(taker(NAME, RUNTIME, uuid=uuid), RUNTIME, queue=True)
        self.asking: Request | None = None
        self.waiting: Wait | None = None
        self.withdraw: Withdraw | None = None
        self.resent = self.held = self.over = self.dead = self.gone = False
        self.pushes = 0

    def copied(self) -> Client:
        """Return one of its own in the same state."""
        twin = copy(self)
        twin.engine = copy(self.engine)
        twin.engine.delivery = copy(twin.engine.delivery)
        return twin

    def now(self) -> Now:
        """Return a moment that is later with each push, so that stamps tell them apart."""
        return Now(1000.0, 1000.0 + 10.0 * self.pushes)
