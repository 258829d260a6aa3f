"""What services and the command need of the servers beyond what a mutex asks."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from lockclient.errors import StoreError
from lockclient.model.clocks import Deadline, monotonic
from lockclient.stores.common.polled_service_store import PolledServiceStore
from lockclient.stores.common.polling import Polling
from lockclient.stores.diagnosis_protocol import Member
from lockclient.stores.requests import Read, RequestState
from lockclient.stores.service_protocol import Change
from lockclient.stores.valkey import lua_scripts
from lockclient.stores.valkey.keys import milliseconds
from lockclient.stores.valkey.listing import Listing
from lockclient.stores.valkey.voting.rounds import Rounds
from lockclient.stores.valkey.wire.connection import Command
from lockclient.stores.valkey.wire.pubsub import PubSub


class ValkeyServiceStore(PolledServiceStore):
    """The half of `ValkeyStore` that services use; the other half calls `_serve` as it connects."""

    def _serve(self, at: Rounds, hints: PubSub) -> None:
        self._at = at
        self._listing = Listing(at)
        self._polling = Polling(self._listing, self._name, hints.listen_to_all)
        self._said = 0

    # ------------------------------------------------------------ signs of life

    def announce(self, unlocker: str, value: str, ttl: float, deadline: Deadline) -> int:
        """See `ServiceStore.announce`: when a majority has it; in each server it expires by itself.

        Of two that differ the one with the higher number is the later one, by this machine's clock,
        or one more than before: nobody compares those of two unlockers.
        """
        self._said = max(self._said + 1, time.time_ns() // 10**6)
        keys = self._at.keys
        call = Command(
            lua_scripts.SAY,
            (keys.server, keys.sign_of_life(unlocker)),
            (str(self._said), value, milliseconds(ttl)),
        )
        self._agreed(call, deadline)
        return self._polling.revision_at(monotonic())

    def withdraw_announcement(self, unlocker: str, deadline: Deadline) -> None:
        key = self._at.keys.sign_of_life(unlocker)
        self._agreed(Command(lua_scripts.FORGET, (key,), (), votes=False), deadline)

    def announce_restored(self, value: str, deadline: Deadline) -> None:  # noqa: ARG002
        """See `ServiceStore.announce_restored`: there is nothing to tell."""
        raise StoreError(
            "Servers of Valkey can't be told that they were restored: let nobody hold a lock while "
            "they are, and begin with a new prefix if somebody may have."
        )

    # ------------------------------------------------------------ what is over

    def forget(self, change: Change, deadline: Deadline) -> bool:
        """See `ServiceStore.forget`: a record's uuid is used up, so that nobody writes it again.

        Servers that are away are told as they come back; until then it may be seen again.
        """
        key = self._at.keys.record(change.name, change.part)
        call = Command(lua_scripts.FORGET, (key,), (), votes=False)
        done = self._agreed(call, deadline)
        self._at.debts.owe(set(self._at.all) - done, call)
        return True

    def _agreed(self, call: Command, deadline: Deadline) -> set[int]:
        """Have this done by a majority; return who did it."""
        majority = self._at.quorum.majority
        return set(
            self._at.until_enough(
                lambda _: call, RequestState(Read("")), deadline, lambda said: len(said) >= majority
            )
        )

    # ------------------------------------------------------------ reading

    def names(self, prefix: str, limit: int, deadline: Deadline) -> list[str]:
        return sorted(self._listing.held(prefix, deadline))[:limit]

    def clock_offsets(self, timeout: float) -> list[float]:  # noqa: ARG002 - looks have asked
        """See `ServiceStore.clock_offsets`: by each server's last answer."""
        return [monotonic() + ahead - time.time() for ahead in self._listing.ahead().values()]

    def votes(self) -> Mapping[str, str]:
        return self._at.servers.votes()

    def warnings_for_display(self) -> Sequence[str]:
        return (*self._at.servers.remarks(), *self._listing.remarks())

    def members(self, timeout: float) -> list[Member]:  # noqa: ARG002 - looks have asked
        """See `ServiceStore.members`: each server, by its last answer."""
        ahead, since = self._listing.ahead(), monotonic() - time.time()
        return [
            Member(endpoint, trouble=why, ahead=ahead[i] + since if i in ahead else None)
            for i, (endpoint, why) in enumerate(self.votes().items())
        ]
