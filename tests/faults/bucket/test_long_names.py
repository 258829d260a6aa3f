"""The longest name with the longest uuid, percent-encoded: beyond the limit of object names."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lockclient.stores.gcs.keys import ObjectNames
from lockclient.stores.request_types import Take
from lockclient.stores.service_store import Change, ServiceStore
from tests.contract.asking import holder
from tests.support.bucket.rules import MAX_NAME, Conditions
from tests.support.bucket.server import BucketServer
from tests.support.locks import ask, has, held, read, remove, soon, take

LONG = "\u00fc" * 127
"""254 bytes, which are 762 in an object's name."""


@pytest.mark.parametrize("uuid", ["u" * 255, LONG], ids=["ascii", "umlauts"])
def test_such_a_lock_is_removed_on_record_and_shown(
    server: BucketServer, store: ServiceStore, uuid: str
) -> None:
    ask(store, Take(replace(holder(LONG), uuid=uuid)))
    removed = held(store, LONG)
    remove(store, removed)
    assert has(store, LONG) is None
    said = read(store, LONG, uuid).removal
    assert said is not None
    assert said.why == "it hangs"
    listed = [change for batch in store.load(("removed",), soon()) for change in batch.changes]
    assert [(change.name, change.part) for change in listed] == [(LONG, uuid)]
    assert store.forget(listed[0], soon())
    assert read(store, LONG, uuid).removal is None
    take(store, holder(LONG))


def test_only_too_long_names_are_hashed() -> None:
    names = ObjectNames("r" * 149 + "/")
    assert names.record("a", "u" * 255) == f"{names.removed}a/{'u' * 255}"
    for uuid in ("u" * 255, LONG):
        assert len(names.record(LONG, uuid)) <= MAX_NAME
    assert names.record(LONG, "u" * 255) != names.record(LONG, "u" * 254)
    longest = "u" * (MAX_NAME - len(f"{names.removed}{'%C3%BC' * 127}/"))
    assert names.record(LONG, longest).endswith(f"/{longest}")
    assert not names.record(LONG, f"{longest}u").endswith("u")


def test_no_uuid_equals_a_hashed_name(server: BucketServer, store: ServiceStore) -> None:
    names = ObjectNames("")
    where = names.record(LONG, "u" * 255)
    part = where.rpartition("/")[2]
    assert names.record(LONG, part) != where
    for metadata in ({}, {"of": part}, {"of": "u" * 254}):
        server.bucket.insert(where, b"{}", Conditions(), metadata={"record": "{}", **metadata})
        changes: list[Change] = []
        for batch in store.load(("removed",), soon()):
            changes += batch.changes
        assert not changes
