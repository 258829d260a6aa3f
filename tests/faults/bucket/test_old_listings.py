"""A cache or proxy that answers with an old listing: the unlocker notices that it is blind."""

from __future__ import annotations

import pytest

from lockclient import StoreUnavailable
from lockclient.stores.request_types import Take
from lockclient.stores.service_store import ServiceStore
from tests.contract.asking import holder
from tests.support.bucket.server import Answer, Asked, BucketServer
from tests.support.locks import ask, soon


def look(store: ServiceStore) -> int:
    return sum(len(batch.changes) for batch in store.load(("locks",), soon()))


@pytest.mark.parametrize("old", [True, False], ids=["old", "empty"])
def test_an_unlocker_does_not_use_it(server: BucketServer, store: ServiceStore, old: bool) -> None:
    """Its own announcement is missing or old there; once it is current again, so is the listing."""
    ask(store, Take(holder()))
    store.announce("one", '{"ttl": 60}', 60, soon())
    assert look(store)
    kept = list[Answer]()

    def cached(asked: Asked) -> Answer | None:
        if asked.query.get("prefix") != "locks":  # a look; others list, too, when they like
            return None
        kept.append(server.by_rules(asked) if old else Answer(200, b"{}"))
        return kept[0]

    server.instead = cached
    if old:
        assert look(store)
    server.ahead += 5
    store.announce("one", '{"ttl": 60}', 60, soon())
    with pytest.raises(StoreUnavailable, match="announcement"):
        look(store)
    server.instead = lambda _: None
    assert look(store)
