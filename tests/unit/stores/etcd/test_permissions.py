"""The roles of `clustermutex setup-auth` cover what each program sends, and no more is granted.

The etcds of the tests do not check what is nested in a transaction; newer ones do. So what each
request wants is read off the request here.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from lockclient.model.clocks import Stamps
from lockclient.model.holder import Holder
from lockclient.model.removal import Removal
from lockclient.model.ticket import Ticket
from lockclient.stores.etcd.errors import required_permissions
from lockclient.stores.etcd.keys import Keys
from lockclient.stores.etcd.requests import Transactions
from lockclient.stores.etcd.roles import WRITES
from lockclient.stores.requests import (
    Claim,
    GetPosition,
    Push,
    Read,
    Reclaim,
    Remove,
    Request,
    Take,
    TakeOrQueue,
    Unlock,
    Withdraw,
)

ROOT = "/r"
STAMPS = Stamps(2.0, 3.0)
HOLDER = Holder("a/b", "me", identity="w").stamped(STAMPS)
REMOVED = replace(HOLDER, backtrace="x" * 1000)
SENT: dict[str, tuple[Request, ...]] = {
    "client": (
        Take(HOLDER),
        TakeOrQueue(HOLDER, Ticket("a/b", "me")),
        GetPosition("a/b", "me", 8),
        GetPosition("a/b", "me", 8, predecessor="it", left_at=9),
        Claim(HOLDER, 8),
        Reclaim(HOLDER, Holder("a/b", "dead", identity="w", fencing_token=7)),
        Push("a/b", "me", STAMPS, 7),
        Unlock("a/b", "me"),
        Withdraw("a/b", "me"),
        Withdraw("a/b", "me", tombstone=True),
        Read("a/b", "me", waiters=True),
    ),
    "unlocker": (
        Remove(Removal(REMOVED, 9.0, "it", "auto-unlock", "why"), (5, 5)),
        Read("a/b", "me", waiters=True),
    ),
    "dashboard": (Read("a/b", "me", waiters=True),),
    "operator": (
        Remove(Removal(REMOVED, 9.0, "ann", "force-unlock", "why"), None),
        Read("a/b", "me", waiters=True),
    ),
}


@pytest.mark.parametrize("kind", WRITES)
def test_each_request_is_covered_and_each_grant_is_used(kind: str) -> None:
    """Reading is granted everywhere below the root."""
    transactions = Transactions(Keys(ROOT))
    written = set()
    for request in SENT[kind]:
        for folder, right in required_permissions(
            transactions.build(request, lease=5), ROOT
        ).items():
            assert folder.startswith(f"{ROOT}/")
            if "write" in right:
                written.add(folder)
    granted = {f"{ROOT}/{folder}/" for folder in WRITES[kind]}
    signs = {f"{ROOT}/unlockers/"} if kind == "unlocker" else set()  # `announce`, no transaction
    assert written | signs == granted
