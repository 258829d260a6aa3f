"""The JSON API of Google Cloud Storage, for one bucket of `rules.py`; with faults on demand.

    with BucketServer() as server:
        server.fault("POST", LOSE)            # the next upload is done, and nobody hears of it

A test's tool. What it does not know it refuses with 501, so that nothing passes by accident.
"""

from __future__ import annotations

import json
import re
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from email.message import Message
from email.parser import BytesParser
from email.policy import HTTP
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from tests.support.bucket.rules import Bucket, Conditions, Refusal, not_found
from tests.support.certificates import Pair

LOSE = "lose"
"""Do it, and close the connection without a word."""
DROP = "drop"
"""Close the connection without doing it."""
HANG = "hang"
"""Do it, answer only after `seconds`."""
SLOW = "slow"
"""Wait for `seconds`, then do it and answer."""
LATE = "late"
"""Don't do it, close the connection; `deliver()` does it, however much later."""
TWICE = "twice"
"""Do it and answer; `deliver()` does it again."""
REPEAT = "repeat"
"""Do it, do it again, and answer the second time: a front end that heard nothing of the first."""


PARAMETERS = frozenset(
    "alt fields generation name pageToken permissions prefix uploadType".split()  # noqa: SIM905
)
"""What a query may say."""


@dataclass
class Fault:
    """A fault of the next `times` requests of that method whose path has `part` in it."""

    method: str
    kind: str | int
    part: str = ""
    times: float = 1
    seconds: float = 0.0


@dataclass(frozen=True)
class Asked:
    method: str
    path: str
    query: dict[str, str]
    headers: Message
    body: bytes


@dataclass(frozen=True)
class Answer:
    status: int
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    drip: float = 0.0
    """Seconds after each byte of the body."""
    drip_all: bool = False
    """After each of the head, too."""

    @classmethod
    def of(cls, said: Mapping[str, Any], query: Mapping[str, str]) -> Answer:
        """Return JSON, of which only the `fields` that were asked for."""
        if "fields" in query:
            said = pick(said, query["fields"])
        headers = {"Content-Type": "application/json; charset=UTF-8"}
        return cls(200, json.dumps(said).encode(), headers)


def pick(said: Any, fields: str) -> Any:
    """Return what a partial response has: `a,b(c,d),e/f`."""
    if isinstance(said, list):
        return [pick(part, fields) for part in said]
    wanted = re.findall(r"([\w*]+)(?:\(([^()]*)\)|/([\w/]+))?", fields)
    return {
        name: pick(said[name], inner or below) if inner or below else said[name]
        for name, inner, below in wanted
        if name in said
    }


class BucketServer:
    """A running server with one bucket; a context manager that ends it.

    Attributes:
        bucket: what stands in it.
        asked: every request that came, in order.
        delay: seconds before each answer.
        denied: the permissions that its users lack.
        settings: how the bucket is set up, as the API says it.
        token: the access token that it wants, if it wants one.
        deleted: the status of a deletion: 204, or 200 as some emulators say.
        dripped: how many bytes were sent by drips.
        trouble: asked, by requests that no `fault` is for, what is done to them.
        instead: what answers a request in place of the bucket; None: the bucket does.
    """

    def __init__(self, name: str = "locks", *, rate_limited: bool = False) -> None:
        self.bucket = Bucket(name, rate_limited=rate_limited, clock=lambda: self.now())
        self.asked: list[Asked] = []
        self.delay = 0.0
        self.ahead = 0.0
        self.denied: set[str] = set()
        self.settings: dict[str, Any] = {}
        self.token = ""
        self.deleted = 204
        self.dripped = 0
        self._tls = False
        self.trouble: Callable[[Asked], Fault | None] = lambda _: None
        self.instead: Callable[[Asked], Answer | None] = lambda _: None
        self._faults: list[Fault] = []
        self._kept: list[Asked] = []
        self._lock = threading.Lock()
        ours = self

        class Handler(_Handler):
            server_of_tests = ours

        self._http = _Http(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        scheme, host = ("https", "localhost") if self._tls else ("http", "127.0.0.1")
        return f"{scheme}://{host}:{self._http.server_address[1]}"

    def talk_tls(self, pair: Pair) -> None:
        """Serve with this certificate, for `localhost`, from now on."""
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(pair.cert, pair.key)
        self._http.socket = context.wrap_socket(self._http.socket, server_side=True)
        self._tls = True

    def now(self) -> float:
        return time.time() + self.ahead

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._thread.join(60)

    def __enter__(self) -> BucketServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ------------------------------------------------------------ for tests

    def fault(
        self, method: str, kind: str | int, part: str = "", times: float = 1, seconds: float = 0.0
    ) -> Fault:
        """Do this to the next requests of that method, whose path or name has `part` in it."""
        made = Fault(method, kind, part, times, seconds)
        with self._lock:
            self._faults.append(made)
        return made

    def heal(self) -> None:
        with self._lock:
            self._faults.clear()

    def deliver(self) -> list[int]:
        """Do now what arrives late; return the statuses that nobody hears of."""
        with self._lock:
            kept, self._kept = self._kept, []
        return [self.do(asked).status for asked in kept]

    def counted(self, method: str = "", part: str = "") -> int:
        return sum(_fits(asked, method, part) for asked in list(self.asked))

    # ------------------------------------------------------------ requests

    def arrives(self, asked: Asked) -> Answer | None:
        """Do a request, or what a fault wants; None: close the connection."""
        with self._lock:
            self.asked.append(asked)
            fault = next((known for known in self._faults if _hits(known, asked)), None)
            if fault is not None:
                fault.times -= 1
                if fault.times <= 0:
                    self._faults.remove(fault)
        fault = fault or self.trouble(asked)  # unlocked: a test may ask the bucket meanwhile
        if fault is not None and fault.kind in (LATE, TWICE):
            with self._lock:
                self._kept.append(asked)
        if self.delay:
            time.sleep(self.delay)
        if fault is None:
            return self.do(asked)
        if isinstance(fault.kind, int):
            return _error(Refusal(fault.kind, "backendError", "Please try again."))
        if fault.kind in (DROP, LATE):
            return None
        if fault.kind == SLOW:
            time.sleep(fault.seconds)
        answer = self.do(asked)
        if fault.kind == REPEAT:
            answer = self.do(asked)
        if fault.kind == HANG:
            time.sleep(fault.seconds)
        return None if fault.kind == LOSE else answer

    def do(self, asked: Asked) -> Answer:
        """Do a request, by the bucket's rules unless something else answers it."""
        return self.instead(asked) or self.by_rules(asked)

    def by_rules(self, asked: Asked) -> Answer:
        try:
            if self.token and asked.headers.get("Authorization") != f"Bearer {self.token}":
                raise Refusal(401, "authError", "Invalid Credentials")
            return self._route(asked)
        except Refusal as refusal:
            return _error(refusal)

    def _route(self, asked: Asked) -> Answer:
        root = rf"/b/{re.escape(self.bucket.name)}"
        routes: tuple[tuple[str, str, Callable[..., Answer]], ...] = (
            ("POST", rf"/upload/storage/v1{root}/o", self._upload),
            ("GET", rf"/storage/v1{root}", self._describe),
            ("GET", rf"/storage/v1{root}/iam/testPermissions", self._permit),
            ("GET", rf"/storage/v1{root}/o", self._list),
            ("GET", rf"(?:/download)?/storage/v1{root}/o/([^/]+)", self._get),
            ("PATCH", rf"/storage/v1{root}/o/([^/]+)", self._patch),
            ("DELETE", rf"/storage/v1{root}/o/([^/]+)", self._delete),
        )
        known = PARAMETERS if asked.method == "GET" else PARAMETERS.union(Conditions.PARAMETERS)
        if unknown := asked.query.keys() - known:
            raise Refusal(501, "notImplemented", f"{unknown} is not known here.")
        for method, pattern, do in routes:
            if asked.method == method and (found := re.fullmatch(pattern, asked.path)):
                return do(asked, *map(unquote, found.groups()))
        if "/b/" in asked.path and not re.search(rf"{root}(/|$)", asked.path):
            raise not_found("The specified bucket does not exist.")
        raise Refusal(501, "notImplemented", f"{asked.method} {asked.path} is not known here.")

    def _need(self, *permissions: str) -> None:
        for name in self.denied.intersection(permissions):
            raise Refusal(
                403,
                "forbidden",
                f"someone@example.com does not have {name} access to the Google Cloud Storage "
                f"object. Permission '{name}' denied on resource (or it may not exist).",
            )

    # ------------------------------------------------------------ the bucket itself

    def _describe(self, asked: Asked) -> Answer:
        self._need("storage.buckets.get")
        said = {"kind": "storage#bucket", "name": self.bucket.name, **self.settings}
        return Answer.of(said, asked.query)

    def _permit(self, asked: Asked) -> Answer:
        """Say which permissions one has; a question that needs none."""
        wanted = asked.query["permissions"].split()
        had = [name for name in wanted if name not in self.denied]
        said = {"kind": "storage#testIamPermissionsResponse"}
        return Answer.of({**said, **({"permissions": had} if had else {})}, asked.query)

    # ------------------------------------------------------------ uploads

    def _upload(self, asked: Asked) -> Answer:
        self._need("storage.objects.create")
        if asked.query.get("uploadType") != "multipart":
            raise Refusal(400, "invalid", "This uploadType is not known here.")
        about, body = _parts(asked)
        name = asked.query["name"]
        if asked.query.get("ifGenerationMatch") != "0" and name in self.bucket.names():
            self._need("storage.objects.delete")  # of what it is written over
        said = self.bucket.insert(
            name,
            body,
            Conditions.of(asked.query),
            metadata=about.get("metadata"),
            content_type=about["contentType"],
        )
        return Answer.of(said, asked.query)

    # ------------------------------------------------------------ objects

    def _get(self, asked: Asked, name: str) -> Answer:
        self._need("storage.objects.get")
        try:
            said, body = self.bucket.get(name, asked.query.get("generation"))
        except Refusal as refusal:
            if refusal.status == 404:  # only a user who may list gets to know that
                self._need("storage.objects.list")
            raise
        if asked.query.get("alt") != "media":
            return Answer.of(said, asked.query)
        headers = {
            "Content-Type": said["contentType"],
            "x-goog-generation": said["generation"],
            "x-goog-metageneration": said["metageneration"],
        }
        return Answer(200, body, headers)

    def _patch(self, asked: Asked, name: str) -> Answer:
        self._need("storage.objects.update")
        changes, conditions = json.loads(asked.body), Conditions.of(asked.query)
        return Answer.of(self.bucket.patch(name, changes, conditions), asked.query)

    def _delete(self, asked: Asked, name: str) -> Answer:
        self._need("storage.objects.delete")
        self.bucket.delete(name, Conditions.of(asked.query))
        return Answer(self.deleted)

    def _list(self, asked: Asked) -> Answer:
        self._need("storage.objects.list")
        items, token = self.bucket.page(
            asked.query.get("prefix", ""), asked.query.get("pageToken", "")
        )
        told = {"items": items, "nextPageToken": token}
        said = {key: value for key, value in told.items() if value}
        return Answer.of({"kind": "storage#objects", **said}, asked.query)


def _parts(asked: Asked) -> tuple[dict[str, Any], bytes]:
    """Return the two parts of a multipart upload: what is said of the object, and its body."""
    head = f"Content-Type: {asked.headers['Content-Type']}\r\n\r\n".encode()
    parts: Any = BytesParser(policy=HTTP).parsebytes(head + asked.body).get_payload()
    if not isinstance(parts, list) or len(parts) != 2:
        raise Refusal(400, "invalid", "A multipart upload has two parts.")
    said, body = (part.get_payload(decode=True) for part in parts)
    about = json.loads(said)
    about.setdefault("contentType", parts[1].get_content_type())
    return about, body


def _error(refusal: Refusal) -> Answer:
    one = {"message": refusal.message, "domain": "global", "reason": refusal.reason}
    said = {"error": {"code": refusal.status, "message": refusal.message, "errors": [one]}}
    headers = {"Content-Type": "application/json; charset=UTF-8"}
    return Answer(refusal.status, json.dumps(said).encode(), headers)


def _query(text: str) -> dict[str, str]:
    """Return the parameters of a query; the values of a repeated one have spaces in between."""
    found: dict[str, str] = {}
    for key, value in parse_qsl(text, keep_blank_values=True):
        found[key] = f"{found[key]} {value}" if key in found else value
    return found


def _fits(asked: Asked, method: str, part: str) -> bool:
    where = f"{unquote(asked.path)}?{asked.query.get('name', '')}"
    return method in ("", asked.method) and part in where


def _hits(fault: Fault, asked: Asked) -> bool:
    return _fits(asked, fault.method, fault.part)


class _Http(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256  # connections of a crowd, which all come at once


class _Handler(BaseHTTPRequestHandler):
    """Reads requests and writes answers; connections stay open."""

    server_of_tests: BucketServer
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def _serve(self) -> None:
        parts = urlsplit(self.path)
        asked = Asked(
            self.command,
            parts.path,
            _query(parts.query),
            self.headers,
            self.rfile.read(int(self.headers.get("Content-Length", 0))),
        )
        answer = self.server_of_tests.arrives(asked)
        if answer is None:
            self.close_connection = True
            return
        self.send_response(answer.status)  # with a `Date`
        for key, value in answer.headers.items():
            self.send_header(key, value)
        if answer.status != 204:
            self.send_header("Content-Length", str(len(answer.body)))
        whole, out = BytesIO(), self.wfile
        if answer.drip_all:
            self.wfile = whole
        self.end_headers()
        self.wfile = out
        if not answer.drip:
            self.wfile.write(answer.body)
            return
        for byte in whole.getvalue() + answer.body:
            self.wfile.write(bytes((byte,)))
            self.server_of_tests.dripped += 1
            time.sleep(answer.drip)

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _serve  # noqa: N815

    def date_time_string(self, timestamp: float | None = None) -> str:
        return super().date_time_string(timestamp or self.server_of_tests.now())

    def handle(self) -> None:
        """Serve a connection; one that the other side has broken is no news."""
        try:
            super().handle()
        except (ConnectionError, TimeoutError):
            self.close_connection = True

    def log_message(self, *_: object) -> None:
        """Say nothing."""
