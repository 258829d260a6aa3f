"""The search for locks: fields, negation, pids and uuids."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockclient.model.holder import Holder
from lockclient.model.removal import Removal
from lockclient.overview.search import Search

LOCK = Holder(
    *("deploy/prod", "b6a1e1d2-70a3-4a53-9b5c-8f5d2d3c0001", "bill-3.prod.example.com", 4711),
    reason="second attempt after a timeout",
    owner="Team-Billing",
    labels={"env": "Canary"},
    context={"request": "r-17"},
    user="jobs",
    container="shop/web-1",
)


@pytest.mark.parametrize(
    "text",
    [
        *("", "  ", "DEPLOY prod", "bill-3", "4711", "b6a1e1d2-70a3", "b6a1"),
        *("host:bill-3", "HOST:Bill", "lock:deploy", "reason:timeout", "state:alert", "state:a"),
        *("-lock:bill", "-host:deploy", "-nothing", "-state:ok", "-4712"),
        *('reason:"second attempt"', '"attempt after"', 'reason:"second', "host:bill lock:prod"),
        *("-", '""', "host:", "state:"),
        *("team-billing", "owner:team", "label:env=canary", "label:request=r-17", "r-17", "jobs"),
        *("shop/web", "-owner:ops", "-label:env=prod"),
    ],
)
def test_search_finds_the_lock(text: str) -> None:
    assert Search.read(text).finds(LOCK, "alert")


@pytest.mark.parametrize(
    "text",
    [
        *("deploy nothing", "47", "471", "47110", "6a1e", "b6a", "b6a2"),
        *("host:deploy", "lock:bill", "reason:prod", "state:ok", "state:nothing"),
        *("-deploy", "-host:bill-3", "-state:alert", "-4711", "-b6a1e1d2", '"attempt second"'),
    ],
)
def test_search_does_not_find_the_lock(text: str) -> None:
    assert not Search.read(text).finds(LOCK, "alert")


def test_a_word_with_another_colon_is_a_word() -> None:
    holder = Holder("etcd:2379", "u", "h", reason="see https://example.org")
    assert Search.read("etcd:2379 https://example").finds(holder, "ok")


def test_a_shell_has_split_the_words_already() -> None:
    assert Search.of(["second attempt", "host:bill", "-nothing"]).finds(LOCK, "ok")
    assert not Search.of(["attempt second"]).finds(LOCK, "ok")
    assert Search.of([]).finds(LOCK, "ok")


def test_a_removal_is_found_by_its_kind_remover_and_reason() -> None:
    removal = Removal(LOCK, 5.0, "ann@desk", "force-unlock", "it hung")
    for text in ("ann@desk hung", "force-unlock", "host:bill-3 hung", "4711", "-auto-unlock"):
        assert Search.read(text).finds_removal(removal), text
    assert not Search.read("-hung").finds_removal(removal)


@given(st.text())
def test_any_text_is_a_valid_search(text: str) -> None:
    Search.read(text).finds(LOCK, "ok")
