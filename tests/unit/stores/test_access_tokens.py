"""Access tokens: nobody waits for a refresh longer than it wants, nor with a token that is good."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from google.auth import exceptions as auth
from google.auth.credentials import AnonymousCredentials, Credentials

from lockclient.model.clocks import Deadline
from lockclient.stores.gcs.wire import access_tokens
from lockclient.stores.gcs.wire.access_tokens import AccessTokens
from tests.support.processes import wait_until


class Refreshed(Credentials):
    """Credentials whose refresh waits to be let on, and then does as it is told."""

    def __init__(self, lasts_s: float = 3600.0) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.let_on = threading.Event()
        self.let_on.set()
        self.lasts_s = lasts_s
        self.refreshes = 0
        self.error: Callable[[], BaseException] | None = None

    def refresh(self, request: Any) -> None:
        self.refreshes += 1
        assert self.let_on.wait(60)
        if self.error is not None:
            raise self.error()
        self.token = f"token-{self.refreshes}"
        now = datetime.now(timezone.utc).replace(tzinfo=None)
        self.expiry = now + timedelta(seconds=self.lasts_s)


@pytest.fixture
def credentials() -> Refreshed:
    return Refreshed()


@pytest.fixture
def tokens(credentials: Refreshed) -> Iterator[AccessTokens]:
    made = AccessTokens(credentials)
    yield made
    credentials.let_on.set()
    made.close()


def current(tokens: AccessTokens, seconds: float = 60.0) -> str:
    return tokens.current(Deadline.after(seconds)).headers["authorization"]


def test_one_is_had_once_for_all(tokens: AccessTokens, credentials: Refreshed) -> None:
    had: list[str] = []
    credentials.let_on.clear()
    threads = [threading.Thread(target=lambda: had.append(current(tokens))) for _ in range(20)]
    for thread in threads:
        thread.start()
    wait_until(lambda: credentials.refreshes == 1)
    credentials.let_on.set()
    for thread in threads:
        thread.join(60)
    assert had == ["Bearer token-1"] * 20
    assert credentials.refreshes == 1


def test_nobody_waits_beyond_the_own_deadline(tokens: AccessTokens, credentials: Refreshed) -> None:
    """And does not make another refresh by giving up."""
    credentials.let_on.clear()
    for _ in range(3):
        with pytest.raises(auth.TransportError, match="no access token in time"):
            current(tokens, 0.05)
    assert credentials.refreshes == 1
    credentials.let_on.set()
    assert current(tokens) == "Bearer token-1"


def test_one_that_is_good_is_refreshed_beside_those_that_use_it(
    tokens: AccessTokens, credentials: Refreshed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They have it at once, while the refresh hangs, and when it fails."""
    monkeypatch.setattr(access_tokens, "FAILURE_RETENTION_S", 0.0)
    current(tokens)
    _make_due(tokens)
    credentials.let_on.clear()
    credentials.error = lambda: auth.RefreshError("no")  # type: ignore[no-untyped-call]
    assert [current(tokens, 0.0) for _ in range(3)] == ["Bearer token-1"] * 3
    wait_until(lambda: credentials.refreshes == 2)
    credentials.let_on.set()
    wait_until(lambda: current(tokens, 0.0) and credentials.refreshes >= 4)
    credentials.error = None
    wait_until(lambda: current(tokens, 0.0) != "Bearer token-1")


def _make_due(tokens: AccessTokens) -> None:
    assert tokens._token is not None
    tokens._token = tokens._token._replace(refresh_at=0.0)


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (lambda: auth.RefreshError("gone", {"error": "x"}), "gone"),  # type: ignore[no-untyped-call]
        (lambda: OSError("no file"), "can't be read .no file"),
        (SystemExit, "can't be read"),
    ],
)
def test_a_failure_is_told_and_remembered_for_a_while(
    tokens: AccessTokens,
    credentials: Refreshed,
    monkeypatch: pytest.MonkeyPatch,
    error: Callable[[], BaseException],
    told: str,
) -> None:
    """Of any kind; then it is tried again."""
    monkeypatch.setattr(access_tokens, "FAILURE_RETENTION_S", 3600.0)
    credentials.error = error
    for _ in range(3):
        with pytest.raises(auth.RefreshError, match=told) as caught:
            current(tokens)
        assert not caught.value.retryable
    assert credentials.refreshes == 1
    credentials.error = None
    monkeypatch.setattr(access_tokens, "FAILURE_RETENTION_S", 0.0)
    assert current(tokens) == "Bearer token-2"


def test_a_clock_that_is_ahead_does_not_refresh_without_end(
    tokens: AccessTokens, credentials: Refreshed
) -> None:
    """By it each token has expired; the bucket knows better."""
    credentials.lasts_s = -7200.0
    assert [current(tokens) for _ in range(5)] == ["Bearer token-1"] * 5


def test_one_that_was_rejected_is_replaced_once(
    tokens: AccessTokens, credentials: Refreshed
) -> None:
    """By who hears of it first; the others, who had sent the same one, use the new one."""
    token = tokens.current(Deadline.after(60))
    tokens.reject(token)
    assert current(tokens) == "Bearer token-2"
    tokens.reject(token)
    assert current(tokens) == "Bearer token-2"
    assert credentials.refreshes == 2


def test_who_waits_goes_on_when_it_is_closed(tokens: AccessTokens, credentials: Refreshed) -> None:
    credentials.let_on.clear()
    ended = threading.Event()

    def wait() -> None:
        with pytest.raises(auth.TransportError):
            current(tokens, 600)
        ended.set()

    threading.Thread(target=wait, daemon=True).start()
    wait_until(lambda: credentials.refreshes == 1)
    tokens.close()
    assert ended.wait(60)


def test_who_wants_to_be_nobody_is() -> None:
    tokens = AccessTokens(AnonymousCredentials())  # type: ignore[no-untyped-call]
    assert tokens.current(Deadline.after(60)).headers == {}
    tokens.close()
