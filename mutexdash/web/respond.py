"""Answers with an ETag: 304 if the viewer has it; else rendered and compressed once a second."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from hashlib import blake2b
from typing import Final

from flask import Response, make_response, request

from mutexdash.security.request_checks import viewer
from mutexdash.web.context import dashboard

_MIN_GZIP_BYTES: Final = 1000
"""Bytes below which compressing gains nothing."""
_GZIP_WINDOW: Final = 31
"""zlib's number for the largest window and a gzip header."""
_COMPRESSED: Final = (
    "application/json",
    "application/yaml",
    "application/javascript",
    "image/svg+xml",
    "text/",
)
"""Prefixes of the types of answers that are compressed."""


class NotCached(Response):
    """An answer that is incomplete for now, so it has no ETag."""


def respond(shown: object, make: Callable[[], Response | str]) -> Response:
    """Answer 304 if the viewer has what is `shown`; else what `make` returns, with an ETag.

    The ETag is weak: answers with the same one differ in durations, which a page counts itself.
    """
    board = dashboard()
    content = repr((board.process, board.build, viewer(), shown)).encode(errors="replace")
    tag = blake2b(content, digest_size=12).hexdigest()
    if request.if_none_match.contains_weak(tag):
        response = Response(status=304)
        response.set_etag(tag, weak=True)
        return response
    second = int(board.live.now())
    key = tag, request.script_root, request.path, request.query_string, _takes_gzip()
    if (kept := board.memo.get(second, key)) is not None:
        return kept
    response = compress(make_response(make()))
    if not isinstance(response, NotCached):
        response.set_etag(tag, weak=True)
        board.memo.keep(second, key, response)
    return response


def compress(response: Response) -> Response:
    """Compress an answer if that saves bytes and the viewer accepts it."""
    if response.status_code != 200 or not (response.mimetype or "").startswith(_COMPRESSED):
        return response
    response.vary.add("Accept-Encoding")
    # An export is large and sent once.
    if not _takes_gzip() or response.content_encoding or request.blueprint == "exports":
        return response
    response.direct_passthrough = False
    body = response.get_data()
    if len(body) >= _MIN_GZIP_BYTES:
        # Z_FILTERED: uuids and times are nearly random, where short matches only cost.
        packer = zlib.compressobj(9, zlib.DEFLATED, _GZIP_WINDOW, 9, zlib.Z_FILTERED)
        response.set_data(packer.compress(body) + packer.flush())
        response.content_encoding = "gzip"
    return response


def _takes_gzip() -> bool:
    return request.accept_encodings["gzip"] > 0
