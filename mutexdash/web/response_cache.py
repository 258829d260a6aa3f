"""Response cache: what many viewers ask for in the same second is made and compressed once."""

from __future__ import annotations

import threading
import zlib
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, cast

from flask import Flask, Response, current_app, g, request

_MAX_BYTES: Final = 16 * 1024 * 1024
_MAX_ANSWER_BYTES: Final = 4 * 1024 * 1024
"""Bytes of all answers that are kept, and of one."""
_TTL_S: Final = 2.0
"""Seconds after which an answer is of no use any more, being that of a second that is over."""
_MIN_GZIP_BYTES: Final = 1000
"""Bytes below which compressing gains nothing."""
_GZIP_WINDOW: Final = 31
"""zlib's number for the largest window and a gzip header."""
_COMPRESSED: Final = frozenset(
    {
        *(
            "application/json",
            "application/yaml",
            "text/html",
            "text/css",
            "text/csv",
            "text/plain",
        ),
        *("text/javascript", "application/javascript", "image/svg+xml"),
    }
)
_Key = tuple[object, ...]


@dataclass(frozen=True, slots=True)
class _Kept:
    body: bytes
    headers: list[tuple[str, str]]
    size: int
    at: float


class Answers:
    """The newest answers, each good for the second in which it was made.

    So a picture that changes with every write is drawn once a second for each list that is looked
    at, and not once for each viewer; and no clock on it is late by more than that second. Then they
    are dropped, with the next request of anybody's, a probe's for instance.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._kept: OrderedDict[_Key, _Kept] = OrderedDict()
        self._bytes = 0

    def get(self, key: _Key) -> _Kept | None:
        """Return the answer, if it was made already."""
        with self._lock:
            return self._kept.get(key)

    def keep(self, key: _Key, response: Response) -> None:
        """Keep an answer that was made for `key`, if it is not too large."""
        body, headers = response.get_data(), list(response.headers)
        size = len(body) + len(repr((key, headers)))
        if size > _MAX_ANSWER_BYTES:
            return
        with self._lock:
            self._drop(key)
            self._kept[key] = _Kept(body, headers, size, self._clock())
            self._bytes += size
            while self._bytes > _MAX_BYTES:
                self._drop(next(iter(self._kept)))

    def forget(self) -> None:
        """Drop what is of no use any more."""
        with self._lock:
            until = self._clock() - _TTL_S
            while self._kept and next(iter(self._kept.values())).at < until:
                self._drop(next(iter(self._kept)))

    def size(self) -> int:
        """Return how many bytes are kept."""
        return self._bytes

    def _drop(self, key: _Key) -> None:
        if (kept := self._kept.pop(key, None)) is not None:
            self._bytes -= kept.size


def install(app: Flask, clock: Callable[[], float]) -> None:
    """Compress and keep the application's answers; `after_request`s from before come after it."""
    app.extensions["mutexdash-answers"] = Answers(clock)
    app.after_request(_finish)


def shared(tag: str, wall: float) -> Response | None:
    """Return what was answered in this second to the same question by the same kind of viewer.

    `tag` is the ETag, which tells viewers apart.
    """
    asked = (request.path, request.query_string, request.script_root)
    key = g.answer_key = (asked, tag, int(wall), _takes_gzip())
    kept = answers().get(key)
    if kept is None:
        return None
    g.answer_key = None  # kept already
    return Response(kept.body, headers=kept.headers)


def _takes_gzip() -> bool:
    return request.accept_encodings["gzip"] > 0


def answers() -> Answers:
    """Return the answers that the current application keeps."""
    return cast(Answers, current_app.extensions["mutexdash-answers"])


def _finish(response: Response) -> Response:
    answers().forget()
    if response.status_code != 200:
        return response
    if response.mimetype in _COMPRESSED and "Content-Encoding" not in response.headers:
        _compress(response)
    key = g.get("answer_key")
    # An answer without an ETag is to be asked for again.
    if key is not None and request.method == "GET" and "ETag" in response.headers:
        answers().keep(key, response)
    return response


def _compress(response: Response) -> None:
    response.vary.add("Accept-Encoding")
    if not _takes_gzip() or request.blueprint == "exports":  # large, and made once
        return
    response.direct_passthrough = False
    body = response.get_data()
    if len(body) >= _MIN_GZIP_BYTES:
        # Filtered: uuids and times are next to random, and finding short matches in them loses.
        packer = zlib.compressobj(9, zlib.DEFLATED, _GZIP_WINDOW, 9, zlib.Z_FILTERED)
        response.set_data(packer.compress(body) + packer.flush())
        response.headers["Content-Encoding"] = "gzip"
