"""Credentials of a bucket: a service account's file, expired and refused tokens."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from google.auth import exceptions as auth
from google.auth.credentials import Credentials
from google.oauth2 import service_account

from lockclient import ClusterMutex, Settings, StoreError, StoreUnavailable, open_store
from lockclient.errors import StoreClosed
from lockclient.model.clocks import Stamps
from lockclient.stores.request_types import Push, Take, Unlock
from lockclient.stores.service_store import ServiceStore
from tests.contract.asking import NAME, holder
from tests.support.bucket.server import Answer, BucketServer
from tests.support.certificates import Authority
from tests.support.locks import ask, has, take, unlock
from tests.support.processes import wait_until
from tests.support.web_server import serving


class Tokens:
    """A server that gives tokens, a new one each time, or refuses.

    Attributes:
        given: the tokens so far.
        status: what it answers, 200 gives one.
        url: where it is.
        running: to be closed for it to be away.
    """

    def __init__(self) -> None:
        self.given: list[str] = []
        self.status = 200
        self.running = ExitStack()
        self.url = f"http://{self.running.enter_context(serving(self._answer))}/token".replace(
            "127.0.0.1", "localhost"
        )

    def _answer(self, _: bytes) -> tuple[int, dict[str, object]]:
        if self.status != 200:
            said = {"error": "invalid_grant", "error_description": "Account deleted"}
            return self.status, {**said}
        self.given.append(f"token-{len(self.given)}")
        said = {"access_token": self.given[-1], "token_type": "Bearer"}
        return 200, {**said, "expires_in": 3600}


@pytest.fixture
def tokens() -> Iterator[Tokens]:
    made = Tokens()
    with made.running:
        yield made


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[BucketServer]:
    """A bucket at an endpoint of the user's own, which gets the credentials."""
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    with BucketServer() as running:
        yield running


@pytest.fixture
def _account(account: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A service account's file in the usual variable."""
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(account))


@pytest.fixture
def account(tokens: Tokens, tmp_path: Path) -> Path:
    """A service account's file."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    pem = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    said = {
        "type": "service_account",
        "project_id": "project",
        "private_key_id": "1",
        "private_key": pem.decode(),
        "client_email": "locks@project.iam.gserviceaccount.com",
        "token_uri": tokens.url,
    }
    file = tmp_path / "account.json"
    file.write_text(json.dumps(said))
    return file


def url_of(server: BucketServer) -> str:
    return f"gs://{server.bucket.name}?endpoint={server.url}"


def opened(server: BucketServer, credentials: Any = None) -> closing[ServiceStore]:
    return closing(open_store(Settings.load(url_of(server)), credentials=credentials))


@pytest.fixture
def store(server: BucketServer) -> Iterator[ServiceStore]:
    with opened(server) as made:
        yield made


@pytest.mark.usefixtures("_account")
class TestServiceAccount:
    @pytest.mark.parametrize("emulator", ["", "http://127.0.0.1:9"])
    def test_the_token_is_sent_with_each_request(
        self, server: BucketServer, tokens: Tokens, monkeypatch: pytest.MonkeyPatch, emulator: str
    ) -> None:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", emulator)
        for variable in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
            monkeypatch.setenv(variable, "http://127.0.0.1:9")
        monkeypatch.setenv("NO_PROXY", "localhost")  # where the tokens are
        server.token = "token-0"
        with opened(server) as store, ClusterMutex("x", store=store) as mutex:
            mutex.alive(force=True)
        assert [asked.method for asked in server.asked] == ["POST", "PATCH", "DELETE"]
        assert tokens.given == ["token-0"]

    def test_netrc_does_not_replace_the_token(
        self, server: BucketServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        authority, netrc = Authority(tmp_path), tmp_path / "netrc"
        netrc.write_text("default login bob password secret\n")
        netrc.chmod(0o600)
        monkeypatch.setenv("NETRC", str(netrc))
        monkeypatch.setenv("REQUESTS_CA_BUNDLE", authority.cacert)
        server.talk_tls(authority.issue("localhost"))
        server.token = "token-0"
        with opened(server) as store, ClusterMutex("x", store=store):
            pass
        assert {asked.headers["Authorization"] for asked in server.asked} == {"Bearer token-0"}

    def test_a_refused_token_is_renewed(
        self, server: BucketServer, store: ServiceStore, tokens: Tokens
    ) -> None:
        server.token = "token-0"
        mutex = ClusterMutex("x", store=store)
        mutex.acquire()
        server.token = "token-1"
        mutex.alive(force=True)
        mutex.release()
        assert tokens.given == ["token-0", "token-1"]
        assert server.bucket.names() == []

    def test_a_refused_token_request_is_explained(
        self, server: BucketServer, store: ServiceStore, tokens: Tokens
    ) -> None:
        tokens.status = 400
        with pytest.raises(StoreError, match=r"for want of credentials: .*Account deleted") as told:
            ClusterMutex("x", store=store).acquire()
        assert not told.value.unknown
        assert not server.asked


def test_missing_credentials_name_the_remedy(
    server: BucketServer, store: ServiceStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS", raising=False)
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path))
    with pytest.raises(StoreError, match=r"want of credentials.*gcloud auth application-default"):
        ClusterMutex("x", store=store).acquire()
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "none.json"))
    with opened(server) as other, pytest.raises(StoreError, match=r"none\.json was not found"):
        ClusterMutex("x", store=other).acquire()


@pytest.mark.parametrize("said", ["", "[]", "{", "null"])
def test_a_bad_credentials_file_is_named(
    server: BucketServer,
    store: ServiceStore,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    said: str,
) -> None:
    file = tmp_path / "account.json"
    if said:
        file.write_text(said)
    else:
        file.mkdir()
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(file))
    with pytest.raises(StoreError, match=r"want of credentials.*GOOGLE_APPLICATION_CREDENTIALS"):
        ClusterMutex("x", store=store).acquire()


class TestHandedOver:
    """By the program, instead of Google's ways to find out."""

    def test_a_file_or_an_object_is_used(
        self, server: BucketServer, tokens: Tokens, account: Path
    ) -> None:
        as_object = service_account.Credentials.from_service_account_file(str(account))  # type: ignore[no-untyped-call]
        for number, given in enumerate((str(account), account, as_object)):
            server.token = f"token-{number}"
            ClusterMutex.setup(url_of(server), credentials=given)
            with ClusterMutex("x"):
                pass
        assert len(tokens.given) == 3
        assert server.bucket.names() == []

    @pytest.mark.parametrize(
        ("url", "given", "told"),
        [
            ("gs://bucket", "/no/such/file", "no file of credentials at '/no/such/file'"),
            ("gs://bucket", 7, "must be an object of google-auth .* not int"),
            ("etcd://h:1", "/etc/hostname", "Google's credentials can't be used .* etcd://h:1"),
        ],
    )
    def test_invalid_credentials_are_refused_at_once(
        self, url: str, given: object, told: str
    ) -> None:
        with pytest.raises(ValueError, match=told):
            ClusterMutex.setup(url, credentials=given)


def test_a_404_of_a_proxy_is_no_answer(server: BucketServer) -> None:
    credentials = Refreshed()
    credentials.let_on.set()
    page = Answer(404, b"default backend - 404", {"Content-Type": "text/plain"})
    with opened(server, credentials) as store:
        mine, token = take(store)
        server.instead = lambda _: page
        for request in (Push(NAME, mine, Stamps(2.0, 3.0), token), Unlock(NAME, mine)):
            with pytest.raises(StoreUnavailable, match="is no JSON"):
                ask(store, request, 0.5)
        server.instead = lambda _: None
        assert has(store) == mine
        unlock(store, mine)


class Refreshed(Credentials):
    """Credentials of a program whose refresh waits for the test, and then does as the test says."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.let_on = threading.Event()
        self.lasts_s = 3600.0
        self.refreshes = 0
        self.error: Callable[[], BaseException] | None = None

    def refresh(self, request: Any) -> None:
        del request
        self.refreshes += 1
        assert self.let_on.wait(60)
        if self.error is not None:
            raise self.error()
        self.token = "token"
        now = datetime.now(timezone.utc).replace(tzinfo=None)
        self.expiry = now + timedelta(seconds=self.lasts_s)


class TestRefreshes:
    """Refreshes as the bucket's server sees them; it demands the token."""

    @pytest.fixture
    def credentials(self) -> Refreshed:
        return Refreshed()

    @pytest.fixture
    def store(self, credentials: Refreshed) -> Iterator[ServiceStore]:
        with BucketServer() as private:
            private.token = "token"
            with opened(private, credentials) as store:
                yield store
                credentials.let_on.set()

    def test_concurrent_requests_share_one_token(
        self, store: ServiceStore, credentials: Refreshed
    ) -> None:
        with ThreadPoolExecutor(20) as threads:
            asked = [threads.submit(has, store) for _ in range(20)]
            wait_until(lambda: credentials.refreshes)
            credentials.let_on.set()
            assert [each.result() for each in asked] == [None] * 20
        assert credentials.refreshes == 1

    def test_a_clock_ahead_does_not_refresh_for_ever(
        self, store: ServiceStore, credentials: Refreshed
    ) -> None:
        credentials.lasts_s = -7200.0
        credentials.let_on.set()
        assert [has(store) for _ in range(5)] == [None] * 5
        assert credentials.refreshes == 1

    @pytest.mark.parametrize(
        ("error", "told"),
        [
            (lambda: auth.RefreshError("gone", {"error": "x"}), "gone"),  # type: ignore[no-untyped-call]
            (lambda: OSError("no file"), "can't be read .no file"),
            (SystemExit, "can't be read"),
        ],
    )
    def test_a_failed_refresh_is_reported_and_cached_briefly(
        self,
        store: ServiceStore,
        credentials: Refreshed,
        error: Callable[[], BaseException],
        told: str,
    ) -> None:
        credentials.error = error
        credentials.let_on.set()
        for _ in range(3):
            with pytest.raises(StoreError, match=told):
                has(store)
        assert credentials.refreshes == 1

    def test_closing_ends_a_request_that_waits_for_a_token(
        self, store: ServiceStore, credentials: Refreshed
    ) -> None:
        with ThreadPoolExecutor(1) as threads:
            asked = threads.submit(ask, store, Take(holder()), 600)
            wait_until(lambda: credentials.refreshes)
            store.close()
            with pytest.raises((StoreClosed, StoreUnavailable)):
                asked.result(timeout=60)
