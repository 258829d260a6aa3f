"""Who asks a bucket: a service account by its file, whose token runs out or can't be had."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from lockclient import ClusterMutex, StoreError, StoreUnavailable
from lockclient.model.clocks import Deadline
from lockclient.stores.gcs.location import GcsLocation
from lockclient.stores.gcs.store import GcsStore
from lockclient.stores.outcomes import Taken
from lockclient.stores.requests import Take
from tests.contract.asking import holder
from tests.support.bucket.server import BucketServer


class Tokens:
    """A server that gives tokens, a new one each time, or refuses.

    Attributes:
        given: the tokens so far.
        status: what it answers, 200 gives one.
    """

    def __init__(self) -> None:
        self.given: list[str] = []
        self.status = 200
        ours = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["Content-Length"]))
                said = json.dumps(ours.answer()).encode()
                self.send_response(ours.status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(said)))
                self.end_headers()
                self.wfile.write(said)

            def log_message(self, *_: object) -> None:
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}/token"

    def answer(self) -> dict[str, object]:
        if self.status != 200:
            return {"error": "invalid_grant", "error_description": "Account deleted"}
        self.given.append(f"token-{len(self.given)}")
        return {"access_token": self.given[-1], "expires_in": 3600, "token_type": "Bearer"}

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._thread.join(60)


@pytest.fixture
def tokens() -> Iterator[Tokens]:
    running = Tokens()
    yield running
    running.close()


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[BucketServer]:
    """A bucket that is taken for Google's own."""
    with BucketServer() as running:
        monkeypatch.delenv("STORAGE_EMULATOR_HOST", raising=False)
        monkeypatch.setattr("lockclient.stores.gcs.wire.http_client._GOOGLE_URL", running.url)
        monkeypatch.setenv("NO_GCE_CHECK", "true")
        yield running


@pytest.fixture
def _account(tokens: Tokens, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A service account's file in the usual variable."""
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
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(file))


@pytest.fixture
def store(server: BucketServer) -> Iterator[GcsStore]:
    opened = GcsStore(GcsLocation(server.bucket.name))
    yield opened
    opened.close()


@pytest.mark.usefixtures("_account")
class TestServiceAccount:
    def test_its_token_goes_with_each_request(
        self, server: BucketServer, store: GcsStore, tokens: Tokens
    ) -> None:
        server.token = "token-0"
        with ClusterMutex("x", store=store) as mutex:
            mutex.alive(force=True)
        assert [each.method for each in server.asked] == ["POST", "PATCH", "DELETE"]
        assert tokens.given == ["token-0"]

    def test_one_that_is_no_longer_accepted_is_renewed(
        self, server: BucketServer, store: GcsStore, tokens: Tokens
    ) -> None:
        """What was answered by 401 was not done, so it is asked again, and is no doubt."""
        server.token = "token-0"
        mutex = ClusterMutex("x", store=store)
        mutex.acquire()
        server.token = "token-1"
        mutex.alive(force=True)
        mutex.release()
        assert tokens.given == ["token-0", "token-1"]
        assert server.bucket.names() == []

    def test_who_gets_none_is_told_so(
        self, server: BucketServer, store: GcsStore, tokens: Tokens
    ) -> None:
        tokens.status = 400
        with pytest.raises(StoreError, match=r"for want of credentials: .*Account deleted") as told:
            ClusterMutex("x", store=store).acquire()
        assert not told.value.unknown
        assert not server.asked

    @pytest.mark.parametrize("how", ["ill", "away"])
    def test_who_gives_them_may_be_away_for_a_while(
        self, server: BucketServer, store: GcsStore, tokens: Tokens, how: str
    ) -> None:
        """As the bucket may: nothing was sent, and it is tried on."""
        if how == "ill":
            tokens.status = 503
        else:
            tokens.close()
        with pytest.raises(StoreUnavailable) as told:
            store.ask(Take(holder()), Deadline.after(1.0))
        assert not told.value.unknown
        assert not server.asked
        tokens.status = 200
        if how == "ill":
            assert isinstance(store.ask(Take(holder()), Deadline.after(60)), Taken)


def test_who_is_nobody_is_told_what_to_do(
    server: BucketServer, store: GcsStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS", raising=False)
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path))
    with pytest.raises(StoreError, match=r"want of credentials.*gcloud auth application-default"):
        ClusterMutex("x", store=store).acquire()
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "none.json"))
    with pytest.raises(StoreError, match=r"none\.json was not found"):
        ClusterMutex("x", store=store).acquire()


@pytest.mark.parametrize("said", ["", "[]", "{", "null"])
def test_a_file_that_is_none_says_so(
    server: BucketServer,
    store: GcsStore,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    said: str,
) -> None:
    """Or a folder: that is no outage of the network."""
    file = tmp_path / "account.json"
    if said:
        file.write_text(said)
    else:
        file.mkdir()
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(file))
    with pytest.raises(StoreError, match=r"want of credentials.*GOOGLE_APPLICATION_CREDENTIALS"):
        ClusterMutex("x", store=store).acquire()
