"""The tests' own bucket, held to those documented rules without which stores work on it as well.

Of versions, preconditions, merging and prefixes the contract and the faults of buckets tell.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import quote

import pytest
import requests

from tests.support.bucket import rules
from tests.support.bucket.rules import MAX_METADATA
from tests.support.bucket.server import DROP, HANG, LATE, LOSE, SLOW, TWICE, BucketServer

PATIENCE = 60
OBJECTS = "/storage/v1/b/BUCKET/o"
FAILS = requests.ConnectionError


class Client:
    """Asks as any client does."""

    def __init__(self, server: BucketServer) -> None:
        self._server = server
        self._session = requests.Session()

    def ask(self, method: str, path: str, query: dict[str, Any], **how: Any) -> requests.Response:
        url = f"{self._server.url}{path.replace('BUCKET', self._server.bucket.name)}"
        return self._session.request(method, url, params=query, timeout=PATIENCE, **how)

    def put(
        self, name: str, body: bytes = b"", metadata: dict[str, str] | None = None, **query: Any
    ) -> requests.Response:
        """Upload by two parts, custom metadata and body."""
        about = json.dumps({"metadata": metadata or {}}).encode()
        parts = ((b"application/json", about), (b"text/plain", body))
        data = b"".join(b"--xyz\r\nContent-Type: %b\r\n\r\n%b\r\n" % part for part in parts)
        headers = {"Content-Type": "multipart/related; boundary=xyz"}
        query = {"uploadType": "multipart", "name": name, **query}
        return self.ask("POST", f"/upload{OBJECTS}", query, data=data + b"--xyz--", headers=headers)

    def get(self, name: str, **query: Any) -> requests.Response:
        return self.ask("GET", f"{OBJECTS}/{quote(name, safe='')}", query)

    def patch(self, name: str, metadata: dict[str, Any] | None, **query: Any) -> requests.Response:
        body = {"metadata": metadata}
        return self.ask("PATCH", f"{OBJECTS}/{quote(name, safe='')}", query, json=body)

    def delete(self, name: str, **query: Any) -> requests.Response:
        return self.ask("DELETE", f"{OBJECTS}/{quote(name, safe='')}", query)

    def page(self, **query: Any) -> Any:
        return self.ask("GET", OBJECTS, query).json()

    def names(self, **query: Any) -> list[str]:
        return [found["name"] for found in self.page(**query).get("items", [])]


@pytest.fixture
def server() -> Iterator[BucketServer]:
    with BucketServer() as running:
        yield running


@pytest.fixture
def client(server: BucketServer) -> Iterator[Client]:
    made = Client(server)
    yield made
    made._session.close()


def versions(answer: requests.Response) -> tuple[int, int]:
    """Return generation and metageneration, as an answer tells them."""
    said = answer.json()
    return int(said["generation"]), int(said["metageneration"])


def test_generations_do_not_grow(client: Client) -> None:
    """Nobody promises that."""
    made = [versions(client.put("a"))[0] for _ in range(20)]
    assert len(set(made)) == 20
    assert made != sorted(made)


def test_what_is_not_known_is_refused(client: Client) -> None:
    """So that nothing passes by accident."""
    assert client.get("a", ifGenerationMatch=1).status_code == 501
    assert client.ask("GET", OBJECTS, {"delimiter": "/"}).status_code == 501
    assert client.ask("GET", "/storage/v1/what", {}).status_code == 501
    gone = client.ask("GET", "/storage/v1/b/other/o/a", {})
    assert (gone.status_code, "bucket does not exist" in gone.text) == (404, True)


def test_metadata_has_8_kib_at_most(client: Client) -> None:
    assert client.put("a", metadata={"x": "ü" * (MAX_METADATA // 2)}).status_code == 400
    fits = {"x": "x" * (MAX_METADATA - 1)}
    assert client.put("a", metadata=fits).status_code == 200
    assert client.patch("a", {"y": ""}).status_code == 400
    assert client.get("a").json()["metadata"] == fits


def test_only_what_was_asked_for_is_told(client: Client) -> None:
    said = client.put("a", metadata={"x": "1"}, fields="generation,metadata/x").json()
    assert set(said) == {"generation", "metadata"}
    found = client.page(fields="items(name,metadata),nextPageToken")
    assert found == {"items": [{"name": "a", "metadata": {"x": "1"}}]}


def test_listing_by_prefix_in_pages(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "MOST_A_PAGE", 2)
    for name in ("a", "b/1", "b/2", "b/c/1", "b0", "ü"):
        client.put(name)
    page = client.page(prefix="b/")
    assert [found["name"] for found in page["items"]] == ["b/1", "b/2"]
    assert client.names(prefix="b/", pageToken=page["nextPageToken"]) == ["b/c/1"]
    assert client.names(pageToken="b/c/1") == ["b0", "ü"]


def test_a_listing_shows_what_was_just_written(client: Client) -> None:
    client.put("a")
    client.patch("a", {"x": "1"})
    assert client.page()["items"][0]["metadata"] == {"x": "1"}
    client.delete("a")
    assert client.names() == []


def test_one_write_a_second_and_object(server: BucketServer, client: Client) -> None:
    server.bucket.rate_limited = True
    assert client.put("a").status_code == 200
    for answer in (client.put("a"), client.patch("a", {}), client.delete("a")):
        assert answer.status_code == 429
    assert client.put("b").status_code == 200
    assert client.get("a").status_code == 200
    time.sleep(1.0)
    assert client.delete("a").status_code == 204


def test_rights_and_credentials(server: BucketServer, client: Client) -> None:
    server.denied = {"storage.objects.create"}
    refused = client.put("a")
    assert refused.status_code == 403
    assert "storage.objects.create" in refused.json()["error"]["message"]
    server.token = "right"
    assert client.get("a").status_code == 401


def test_each_answer_has_the_server_s_time(server: BucketServer, client: Client) -> None:
    server.ahead = 3600.0
    made = client.put("a")
    told = parsedate_to_datetime(made.headers["Date"]).timestamp()
    assert 3500 < told - time.time() < 3700
    assert made.json()["timeCreated"] == made.json()["updated"]


@pytest.mark.parametrize(("kind", "there"), [(LOSE, 200), (DROP, 404)])
def test_an_answer_that_is_lost_was_done_and_one_that_is_dropped_was_not(
    server: BucketServer, client: Client, kind: str, there: int
) -> None:
    server.fault("POST", kind)
    with pytest.raises(FAILS):
        client.put("a")
    assert client.get("a").status_code == there


def test_one_that_is_late_is_done_when_it_arrives(server: BucketServer, client: Client) -> None:
    """By the rules of then."""
    server.fault("POST", LATE, times=2)
    for _ in range(2):
        with pytest.raises(FAILS):
            client.put("a", ifGenerationMatch=0)
    assert client.get("a").status_code == 404
    assert server.deliver() == [200, 412]
    assert server.deliver() == []


def test_one_that_is_repeated_is_done_again(server: BucketServer, client: Client) -> None:
    server.fault("POST", TWICE, part="?a")
    first, _ = versions(client.put("a"))
    assert server.deliver() == [200]
    assert versions(client.get("a"))[0] != first


def test_busy_and_broken_ones_say_so(server: BucketServer, client: Client) -> None:
    server.fault("GET", 503, times=2)
    server.fault("GET", 429)
    assert [client.get("a").status_code for _ in range(4)] == [503, 503, 429, 404]
    assert server.counted("GET") == 4


@pytest.mark.parametrize("kind", [SLOW, HANG])
def test_slow_ones_take_their_time(server: BucketServer, client: Client, kind: str) -> None:
    server.fault("POST", kind, seconds=0.5)
    began = time.monotonic()
    assert client.put("a").status_code == 200
    assert time.monotonic() - began >= 0.5
