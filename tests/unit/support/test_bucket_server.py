"""The tests' own bucket, held to the documented rules case by case: stores are tried on it."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import quote

import pytest
import requests

from tests.support.bucket.rules import MAX_METADATA
from tests.support.bucket.server import DROP, HANG, LATE, LOSE, SLOW, TWICE, BucketServer

PATIENCE = 60


@pytest.fixture
def server() -> Iterator[BucketServer]:
    """A server with an empty bucket."""
    with BucketServer() as running:
        yield running


class Client:
    """Asks as any client does."""

    def __init__(self, server: BucketServer) -> None:
        self._server = server
        self._session = requests.Session()
        self.api = f"{server.url}/storage/v1/b/{server.bucket.name}/o"
        self.uploads = f"{server.url}/upload/storage/v1/b/{server.bucket.name}/o"

    def close(self) -> None:
        """Close its connections."""
        self._session.close()

    def ask(self, method: str, url: str, query: dict[str, Any], **how: Any) -> requests.Response:
        """Make a request."""
        return self._session.request(method, url, params=query, timeout=PATIENCE, **how)

    def put(self, name: str, body: bytes = b"", **query: Any) -> requests.Response:
        """Upload by media."""
        return self.ask(
            "POST", self.uploads, {"uploadType": "media", "name": name, **query}, data=body
        )

    def put_with(
        self, name: str, metadata: dict[str, str], body: bytes = b"", **query: Any
    ) -> requests.Response:
        """Upload by two parts, custom metadata and body."""
        about = json.dumps({"name": name, "metadata": metadata}).encode()
        parts = ((b"application/json", about), (b"text/plain", body))
        data = b"".join(b"--xyz\r\nContent-Type: %b\r\n\r\n%b\r\n" % each for each in parts)
        headers = {"Content-Type": "multipart/related; boundary=xyz"}
        query = {"uploadType": "multipart", **query}
        return self.ask("POST", self.uploads, query, data=data + b"--xyz--", headers=headers)

    def get(self, name: str, **query: Any) -> requests.Response:
        """Read."""
        return self.ask("GET", f"{self.api}/{quoted(name)}", query)

    def patch(self, name: str, metadata: dict[str, Any] | None, **query: Any) -> requests.Response:
        """Change custom metadata."""
        return self.ask("PATCH", f"{self.api}/{quoted(name)}", query, json={"metadata": metadata})

    def delete(self, name: str, **query: Any) -> requests.Response:
        """Delete."""
        return self.ask("DELETE", f"{self.api}/{quoted(name)}", query)

    def list(self, **query: Any) -> Any:
        """Return a page."""
        return self.ask("GET", self.api, query).json()


def quoted(name: str) -> str:
    """Return a name as one segment of a path."""
    return quote(name, safe="")


@pytest.fixture
def client(server: BucketServer) -> Iterator[Client]:
    """A client of it."""
    made = Client(server)
    yield made
    made.close()


def versions(answer: requests.Response) -> tuple[int, int]:
    """Return generation and metageneration, as an answer tells them."""
    said = answer.json()
    return int(said["generation"]), int(said["metageneration"])


class TestVersions:
    def test_each_upload_is_a_generation_each_patch_a_metageneration(self, client: Client) -> None:
        """And a new object begins at metageneration 1 again, which is the published hole."""
        first, at = versions(client.put("a"))
        assert at == 1
        assert versions(client.patch("a", {"x": "1"})) == (first, 2)
        assert versions(client.patch("a", {})) == (first, 3)
        assert versions(client.get("a")) == (first, 3)
        second, at = versions(client.put("a"))
        assert (second != first, at) == (True, 1)
        assert client.delete("a").status_code == 204
        third, at = versions(client.put("a"))
        assert (third not in (first, second), at) == (True, 1)

    def test_generations_do_not_grow(self, client: Client) -> None:
        """Nobody promises that."""
        made = [versions(client.put("a"))[0] for _ in range(20)]
        assert len(set(made)) == 20
        assert made != sorted(made)

    def test_another_generation_is_not_there(self, client: Client) -> None:
        """Without versioning only the live one can be named."""
        first, _ = versions(client.put("a", b"x"))
        assert client.get("a", generation=first, alt="media").content == b"x"
        client.put("a", b"y")
        for status in (
            client.get("a", generation=first).status_code,
            client.patch("a", {}, generation=first).status_code,
            client.delete("a", generation=first).status_code,
        ):
            assert status == 404


class TestPreconditions:
    """`there` is what stands: its generation and metageneration are those of the test."""

    @pytest.mark.parametrize(
        ("condition", "of", "write", "read"),
        [
            ("ifGenerationMatch", "generation", 200, 200),
            ("ifGenerationMatch", "other", 412, 412),
            ("ifGenerationMatch", "zero", 412, 412),
            ("ifGenerationNotMatch", "generation", 412, 304),
            ("ifGenerationNotMatch", "other", 200, 200),
            ("ifGenerationNotMatch", "zero", 200, 200),
            ("ifMetagenerationMatch", "metageneration", 200, 200),
            ("ifMetagenerationMatch", "other", 412, 412),
            ("ifMetagenerationNotMatch", "metageneration", 412, 304),
            ("ifMetagenerationNotMatch", "other", 200, 200),
        ],
    )
    @pytest.mark.parametrize("method", ["insert", "get", "media", "patch", "delete"])
    def test_of_what_is_there(
        self, client: Client, method: str, condition: str, of: str, write: int, read: int
    ) -> None:
        client.put("a", b"before")
        generation, metageneration = versions(client.patch("a", {"x": "1"}))
        value = {
            "generation": generation,
            "metageneration": metageneration,
            "other": 77,
            "zero": 0,
        }[of]
        ways: dict[str, Callable[[dict[str, Any]], requests.Response]] = {
            "insert": lambda query: client.put("a", b"after", **query),
            "get": lambda query: client.get("a", **query),
            "media": lambda query: client.get("a", alt="media", **query),
            "patch": lambda query: client.patch("a", {"x": "2"}, **query),
            "delete": lambda query: client.delete("a", **query),
        }
        done = ways[method]({condition: value})
        expected = read if method in ("get", "media") else write
        assert done.status_code == (204 if (method, expected) == ("delete", 200) else expected)
        if expected != 200:
            assert versions(client.get("a")) == (generation, metageneration)
            assert client.get("a", alt="media").content == b"before"
        if expected == 412:
            assert done.json()["error"]["errors"][0]["reason"] == "conditionNotMet"

    @pytest.mark.parametrize(
        ("condition", "value", "insert"),
        [
            ("ifGenerationMatch", 0, 200),
            ("ifGenerationMatch", 5, 412),
            ("ifGenerationNotMatch", 0, 412),
            ("ifGenerationNotMatch", 5, 412),
            ("ifMetagenerationMatch", 1, 412),
        ],
    )
    def test_of_what_is_not_there(
        self, client: Client, condition: str, value: int, insert: int
    ) -> None:
        """Only an upload can hold; all else is not found, whatever it asks."""
        query: dict[str, Any] = {condition: value}
        assert client.get("a", **query).status_code == 404
        assert client.patch("a", {}, **query).status_code == 404
        assert client.delete("a", **query).status_code == 404
        assert client.put("a", **query).status_code == insert

    def test_both_must_hold(self, client: Client) -> None:
        generation, _ = versions(client.put("a"))
        both = {"ifGenerationMatch": generation, "ifMetagenerationMatch": 2}
        assert client.patch("a", {}, **both).status_code == 412
        assert client.patch("a", {}).status_code == 200
        assert client.delete("a", **both).status_code == 204

    def test_what_is_no_number_is_refused(self, client: Client) -> None:
        assert client.put("a", ifGenerationMatch="x").status_code == 400

    def test_of_many_that_create_one_does(self, client: Client) -> None:
        got: list[int] = []

        def create() -> None:
            got.append(client.put("a", ifGenerationMatch=0).status_code)

        threads = [threading.Thread(target=create) for _ in range(8)]
        for each in threads:
            each.start()
        for each in threads:
            each.join(PATIENCE)
        assert sorted(got) == [200, *[412] * 7]


class TestMetadata:
    def test_a_patch_merges(self, client: Client) -> None:
        client.put_with("a", {"x": "1", "y": "ü"}, b"body \xf0\x9f\x94\x92")
        assert client.patch("a", {"x": "2", "z": "3"}).json()["metadata"] == {
            "x": "2",
            "y": "ü",
            "z": "3",
        }
        assert client.patch("a", {"y": None}).json()["metadata"] == {"x": "2", "z": "3"}
        assert client.get("a", alt="media").content == b"body \xf0\x9f\x94\x92"
        assert "metadata" not in client.patch("a", None).json()

    def test_it_has_8_kib_at_most(self, client: Client) -> None:
        assert client.put_with("a", {"x": "ü" * (MAX_METADATA // 2)}).status_code == 400
        fits = {"x": "x" * (MAX_METADATA - 1)}
        assert client.put_with("a", fits).status_code == 200
        assert client.patch("a", {"y": ""}).status_code == 400
        assert client.get("a").json()["metadata"] == fits

    def test_only_what_was_asked_for_is_told(self, client: Client) -> None:
        said = client.put_with("a", {"x": "1"}, fields="generation,metadata/x").json()
        assert set(said) == {"generation", "metadata"}
        found = client.list(fields="items(name,metadata),nextPageToken")
        assert found == {"items": [{"name": "a", "metadata": {"x": "1"}}]}


class TestListing:
    def test_in_pages_by_prefix_and_delimiter(self, client: Client) -> None:
        names = ["a", "b/1", "b/2", "b/c/1", "b/c/2", "b/d", "b0", "ü"]
        for name in names:
            client.put(name)
        assert [found["name"] for found in client.list()["items"]] == names
        found: list[str] = []
        token: dict[str, str] = {}
        while True:
            page = client.list(prefix="b/", delimiter="/", maxResults=2, **token)
            found += [shown["name"] for shown in page.get("items", [])] + page.get("prefixes", [])
            if "nextPageToken" not in page:
                break
            token = {"pageToken": page["nextPageToken"]}
        assert found == ["b/1", "b/2", "b/d", "b/c/"]

    def test_from_and_to(self, client: Client) -> None:
        for name in "abcd":
            client.put(name)
        page = client.list(startOffset="b", endOffset="d")
        assert [found["name"] for found in page["items"]] == ["b", "c"]

    def test_it_shows_what_was_just_written(self, client: Client) -> None:
        client.put("a")
        client.patch("a", {"x": "1"})
        assert client.list()["items"][0]["metadata"] == {"x": "1"}
        client.delete("a")
        assert "items" not in client.list()


class TestLimits:
    def test_one_write_a_second_and_object(self) -> None:
        with BucketServer(rate_limited=True) as server:
            client = Client(server)
            assert client.put("a").status_code == 200
            for answer in (client.put("a"), client.patch("a", {}), client.delete("a")):
                assert answer.status_code == 429
            assert client.put("b").status_code == 200
            assert client.get("a").status_code == 200
            time.sleep(1.0)
            assert client.delete("a").status_code == 204
            client.close()

    def test_rights_and_credentials(self, server: BucketServer, client: Client) -> None:
        server.denied = {"storage.objects.create"}
        refused = client.put("a")
        assert refused.status_code == 403
        assert "storage.objects.create" in refused.json()["error"]["message"]
        server.token = "right"
        assert client.get("a").status_code == 401

    def test_another_bucket_is_not_there(self, server: BucketServer, client: Client) -> None:
        gone = client.ask("GET", f"{server.url}/storage/v1/b/other/o/a", {})
        assert gone.status_code == 404
        assert "bucket does not exist" in gone.json()["error"]["message"]
        assert client.ask("GET", f"{server.url}/storage/v1/what", {}).status_code == 501

    def test_each_answer_has_the_server_s_time(self, server: BucketServer, client: Client) -> None:
        server.ahead = 3600.0
        made = client.put("a")
        told = parsedate_to_datetime(made.headers["Date"]).timestamp()
        assert 3500 < told - time.time() < 3700
        assert made.json()["timeCreated"] == made.json()["updated"]


class TestFaults:
    def test_an_answer_that_is_lost_was_done(self, server: BucketServer, client: Client) -> None:
        server.fault("POST", LOSE)
        with pytest.raises(requests.ConnectionError):
            client.put("a")
        assert client.get("a").status_code == 200

    def test_one_that_is_dropped_was_not(self, server: BucketServer, client: Client) -> None:
        server.fault("POST", DROP)
        with pytest.raises(requests.ConnectionError):
            client.put("a")
        assert client.get("a").status_code == 404

    def test_one_that_is_late_is_done_when_it_arrives(
        self, server: BucketServer, client: Client
    ) -> None:
        """By the rules of then."""
        server.fault("POST", LATE, times=2)
        for _ in range(2):
            with pytest.raises(requests.ConnectionError):
                client.put("a", ifGenerationMatch=0)
        assert client.get("a").status_code == 404
        assert server.deliver() == [200, 412]
        assert server.deliver() == []

    def test_one_that_is_repeated_is_done_again(self, server: BucketServer, client: Client) -> None:
        server.fault("POST", TWICE, part="?a")
        first, _ = versions(client.put("a"))
        assert server.deliver() == [200]
        assert versions(client.get("a"))[0] != first

    def test_busy_and_broken_ones_say_so(self, server: BucketServer, client: Client) -> None:
        server.fault("GET", 503, times=2)
        server.fault("GET", 429)
        assert [client.get("a").status_code for _ in range(4)] == [503, 503, 429, 404]
        assert server.counted("GET") == 4

    @pytest.mark.parametrize("kind", [SLOW, HANG])
    def test_slow_ones_take_their_time(
        self, server: BucketServer, client: Client, kind: str
    ) -> None:
        server.fault("POST", kind, seconds=0.5)
        began = time.monotonic()
        assert client.put("a").status_code == 200
        assert time.monotonic() - began >= 0.5
