"""What viewers may take of the dashboard: kept answers, exports, long texts in lists."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import closing
from typing import Any
from urllib.parse import urlsplit

import pytest
from flask import Response

from lockclient.model.clocks import monotonic
from lockclient.service.http_server import Bounds, HttpServer
from mutexdash.web import exports, response_cache
from mutexdash.web.response_cache import Answers
from tests.support.dashboard_fakes import Board
from tests.support.processes import wait_until


@pytest.fixture
def board() -> Iterator[Board]:
    with Board() as started:
        for number in range(20):
            started.store.removed("a", f"u{number}", how="auto-unlock", reason="x" * 5000)
        yield started
    wait_until(lambda: not on_their_way(), what="all files of exports to be closed")


def on_their_way() -> int:
    """Count the files of exports that are open."""
    return sum(not file.closed for file in list(exports._sending))


def unread(board: Board) -> Any:
    board.settle()
    return board.client.get("/removed.json")


# ---------------------------------------------------------------- exports


def test_so_many_exports_are_on_their_way_and_no_more(board: Board) -> None:
    answers = [unread(board) for _ in range(5)]
    assert [answer.status_code for answer in answers] == [200] * 4 + [503]
    assert answers[4].headers["Retry-After"] == "10"
    assert on_their_way() == 4
    answers[0].close()
    assert on_their_way() == 3, "a file is gone when its answer has ended"
    again = unread(board)
    assert again.status_code == 200
    for answer in (*answers, again):
        answer.close()


def test_an_export_is_not_larger_than_there_is_room(
    board: Board, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exports, "_MAX_BYTES", 150_000)
    first = unread(board)
    assert first.status_code == 200
    assert len(first.get_data()) > 100_000
    second = unread(board)
    assert second.status_code == 503, "for what is being sent to others there is room later"
    assert "try again" in second.get_data(as_text=True)
    first.close()
    monkeypatch.setattr(exports, "_MAX_BYTES", 50_000)
    third = unread(board)
    assert third.status_code == 400
    assert "narrow it down by ?q=" in third.get_data(as_text=True)


def test_who_does_not_read_an_export_is_ended_and_its_file_is_gone(board: Board) -> None:
    for number in range(600):
        board.store.removed("b", f"u{number}", how="auto-unlock", reason="y" * 60_000)
    board.settle()
    bounds = Bounds(reading=1.0, slowest=10**9)
    server = HttpServer(board.app, ("127.0.0.1", 0), bounds=bounds)
    server.start()
    port = urlsplit(server.url).port
    with closing(socket.create_connection(("127.0.0.1", port or 0), 60)) as connection:
        connection.sendall(b"GET /removed.json HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert connection.recv(12) == b"HTTP/1.1 200"
        wait_until(lambda: not on_their_way(), what="the file to be closed, though nobody reads")
    server.close()


# ---------------------------------------------------------------- kept answers


def test_answers_are_kept_up_to_so_many_bytes() -> None:
    kept = Answers()
    for number in range(100):
        kept.keep((number, "x" * 20_000), Response(b"x" * 1_000_000))
        assert kept.size() <= 16 * 1024 * 1024
    assert kept.get((99, "x" * 20_000)) is not None
    assert kept.get((0, "x" * 20_000)) is None
    kept.keep(("large",), Response(b"x" * 5_000_000))
    assert kept.get(("large",)) is None


def test_answers_end_with_their_time(board: Board, monkeypatch: pytest.MonkeyPatch) -> None:
    """With whatever request comes next."""
    board.store.take("a", uuid="u1")
    for number in range(40):
        assert board.get(f"/?q={'a' * number}").status_code == 200
    with board.app.app_context():
        answers = response_cache.answers()
    assert answers.size() > 0
    later = monotonic() + 5
    monkeypatch.setattr("mutexdash.web.response_cache.monotonic", lambda: later)
    board.get("/healthz")
    assert answers.size() == 0


# ---------------------------------------------------------------- lists


def test_long_texts_are_cut_in_lists_and_whole_for_one(board: Board) -> None:
    needs = ["n" * 1100] * 25
    board.store.take("a", uuid="u1", reason="r" * 30_000, identity="i" * 1000, needs=needs)
    board.store.removed("b", "u2", how="auto-unlock", why="w" * 50_000)
    (lock,) = board.get("/api/locks").json["locks"]
    assert lock["reason"] == "r" * 199 + "…"
    assert lock["identity"] == "i" * 199 + "…"
    assert (len(lock["needs"]), len(lock["needs"][0])) == (9, 61)
    assert board.get("/api/locks/a").json["reason"] == "r" * 30_000
    assert len(board.get("/api/removed?q=b").data) < 10_000
    board.store.release("a")
    board.store.removed("a", "u1", how="force-unlock", why="w" * 50_000)
    board.store.take("c", uuid="c" * 60_000)
    for path in ("/", "/removed"):
        assert len(board.get(path).data) < 60_000
