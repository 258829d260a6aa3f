"""The tests' own bucket, held to those documented rules without which stores work on it as well.

Of versions, preconditions, merging and prefixes the contract and the faults of buckets tell.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any
from urllib.parse import quote

import pytest
import requests

from tests.support.bucket.rules import MAX_METADATA
from tests.support.bucket.server import DROP, HANG, LATE, LOSE, SLOW, TWICE, BucketServer

PATIENCE = 60
OBJECTS = "/storage/v1/b/BUCKET/o"


class Client:
    """Asks as any client does."""

    def __init__(self, server: BucketServer, session: requests.Session) -> None:
        self._server = server
        self._session = session

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

    def page(self, **query: Any) -> Any:
        return self.ask("GET", OBJECTS, query).json()


@pytest.fixture
def server() -> Iterator[BucketServer]:
    with BucketServer() as running:
        yield running


@pytest.fixture
def client(server: BucketServer) -> Iterator[Client]:
    with requests.Session() as session:
        yield Client(server, session)


def test_generations_do_not_grow(client: Client) -> None:
    """Nobody promises that."""
    made = [int(client.put("a").json()["generation"]) for _ in range(20)]
    assert len(set(made)) == 20
    assert made != sorted(made)


def test_unknown_requests_are_refused(client: Client) -> None:
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


def test_only_requested_fields_are_returned(client: Client) -> None:
    said = client.put("a", metadata={"x": "1"}, fields="generation,metadata/x").json()
    assert set(said) == {"generation", "metadata"}
    found = client.page(fields="items(name,metadata),nextPageToken")
    assert found == {"items": [{"name": "a", "metadata": {"x": "1"}}]}


def test_one_write_a_second_and_object(server: BucketServer, client: Client) -> None:
    server.bucket.rate_limited = True
    assert client.put("a").status_code == 200
    for answer in (client.put("a"), client.patch("a", {})):
        assert answer.status_code == 429
    assert client.put("b").status_code == 200
    assert client.get("a").status_code == 200
    time.sleep(1.0)
    assert client.put("a").status_code == 200


@pytest.mark.parametrize(
    ("kind", "answered", "delivered"),
    [
        (LOSE, False, []),
        (DROP, False, []),
        (LATE, False, [200]),
        (TWICE, True, [412]),
        (SLOW, True, []),
        (HANG, True, []),
    ],
)
def test_each_fault_has_its_effect(
    server: BucketServer, client: Client, kind: str, answered: bool, delivered: list[int]
) -> None:
    server.fault("POST", kind, seconds=0.5)
    began = time.monotonic()
    with nullcontext() if answered else pytest.raises(requests.ConnectionError):
        assert client.put("a", ifGenerationMatch=0).status_code == 200
    assert kind not in (SLOW, HANG) or time.monotonic() - began >= 0.5
    assert client.get("a").status_code == (404 if kind in (DROP, LATE) else 200)
    assert server.deliver() == delivered
    assert server.deliver() == []


def test_busy_and_broken_answers(server: BucketServer, client: Client) -> None:
    server.fault("GET", 503, times=2)
    server.fault("GET", 429)
    assert [client.get("a").status_code for _ in range(4)] == [503, 503, 429, 404]
    assert server.counted("GET") == 4
