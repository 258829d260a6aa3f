"""What services and the command need of the bucket beyond what a mutex asks."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from typing import Final

from lockclient.errors import ClusterMutexError, StoreError
from lockclient.model.clocks import Deadline, monotonic
from lockclient.stores.common.background import Background
from lockclient.stores.common.polled import PolledStore
from lockclient.stores.common.polling import Polling
from lockclient.stores.gcs.guarded_objects import GuardedObjects
from lockclient.stores.gcs.keys import FIELDS, Names, ObjectState, Version
from lockclient.stores.gcs.listing import Listing
from lockclient.stores.gcs.removal import RemovalSteps
from lockclient.stores.gcs.wire.http_client import HttpClient
from lockclient.stores.requests import Read, RequestState
from lockclient.stores.service_protocol import Change
from lockclient.threads.scheduler import WorkerPool

log = logging.getLogger(__name__)

_PATIENCE: Final = 10.0
"""Seconds for what is done beside."""


class GcsServiceStore(PolledStore):
    """The half of `GcsStore` that services use; the other half calls `_serve` as it connects."""

    background: Background

    def _serve(self, calls: HttpClient) -> None:
        self._bucket = calls
        self._objects = Names(calls.place.root)
        self._listing = Listing(calls, self._objects, self._complete)
        self._polling = Polling(self._listing, self._name)
        self._beside = WorkerPool("beside", 2)
        self._announced = False

    # ------------------------------------------------------------ signs of life

    def announce(self, unlocker: str, value: str, ttl: float, deadline: Deadline) -> int:  # noqa: ARG002 - the value says it, too
        """See `ServiceStore.announce`.

        An object has no lease: by its age, both times by the bucket's clock, it is seen to be over.
        What former unlockers have left is deleted by the next one that begins.
        """
        name = self._objects.sign_of_life(unlocker)
        call = self._bucket.insert(name, {"said": value}, b"", {"fields": FIELDS})
        said = self._bucket.ask(call, deadline, RequestState(Read(""))).said()
        self._listing.wrote(name, ObjectState.told(said).created)
        if not self._announced:
            self._announced = True
            self._beside.submit(self._forget_the_dead)
        return self._polling.revision_at(monotonic())

    def _forget_the_dead(self) -> None:
        with suppress(ClusterMutexError):  # the next one that begins does it
            deadline = Deadline.after(_PATIENCE)
            for name, version in self._listing.dead(deadline):
                self._asking(deadline).delete(name, version)

    def withdraw_announcement(self, unlocker: str, deadline: Deadline) -> None:
        name = self._objects.sign_of_life(unlocker)
        self._listing.wrote(name, None)  # first: a look under way may miss it from here on
        call = self._bucket.object("DELETE", name, (204, 200, 404))
        self._bucket.ask(call, deadline, RequestState(Read("")))

    def announce_restored(self, value: str, deadline: Deadline) -> None:  # noqa: ARG002
        """See `ServiceStore.announce_restored`: there is nothing to tell."""
        raise StoreError(
            "In a bucket that need not be told: an object that is put back has a new generation, "
            "so that unlockers count its lock anew by themselves."
        )

    # ------------------------------------------------------------ what is over

    def forget(self, change: Change, deadline: Deadline) -> bool:
        if change.kind == "removed":
            name = self._objects.record(change.name, change.part)
        else:
            name = self._objects.lock(change.name)
        return self._asking(deadline).delete(name, Version.of(change.version))

    def _complete(self, name: str, there: ObjectState) -> None:
        """Do what is left of a removal whose remover has died: see `removing`.

        By unlockers alone, so that a dashboard that may only read does nothing else.
        """
        if self._announced:
            self._beside.submit(lambda: self._do_rest(name, there))

    def _do_rest(self, name: str, there: ObjectState) -> None:
        with suppress(ClusterMutexError):  # who takes the lock next does it
            RemovalSteps(self._objects).complete(
                self._asking(Deadline.after(_PATIENCE)), name, there
            )
            self._polling.look_soon()

    # ------------------------------------------------------------ reading

    def names(self, prefix: str, limit: int, deadline: Deadline) -> list[str]:

        def read() -> Iterator[str]:
            return islice(self._listing.held(prefix, deadline), limit)

        return sorted(self.background.run_shielded(lambda: list(read())))

    def _asking(self, deadline: Deadline) -> GuardedObjects:
        return GuardedObjects(self._bucket, RequestState(Read("")), deadline)
