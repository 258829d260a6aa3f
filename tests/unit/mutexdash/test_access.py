"""Access: the gate in front of all writes, logins, proxies, prefix, hosts, headers; the flags."""

from __future__ import annotations

import base64
import gc
import json
import re
import threading
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import bcrypt
import pytest
from click.testing import CliRunner
from werkzeug.test import create_environ, run_wsgi_app

from lockclient.errors import StoreUnavailable
from mutexdash.cli import main
from tests.support.board import Board, hashed
from tests.support.processes import wait_until

ORIGIN = {"Origin": "http://localhost"}
UNLOCK = "/locks/a/force-unlock"
API_UNLOCK = "/api/locks/a/force-unlock"
FIELDS = {"name": "a", "uuid": "u1", "reason": "it hangs"}
WRITES = "--allow-force-unlock"
EVERYWHERE = "--listen 0.0.0.0:8722"


def board_of(flags: str = "") -> Board:
    board = Board(flags)
    board.store.take("a", uuid="u1")
    return board


@pytest.fixture
def board() -> Iterator[Board]:
    with board_of(WRITES) as started:
        yield started


def login(user: str, password: str) -> dict[str, str]:
    said = base64.b64encode(f"{user}:{password}".encode(errors="replace")).decode()
    return {"Authorization": f"Basic {said}"}


def held(board: Board) -> bool:
    return board.store.holder("a") is not None


# ---------------------------------------------------------------- the gate in front of all writes


@pytest.mark.parametrize(
    "uuid", ["u\0id", "u\nid", "u\r\nid", "u\rid", " ü\u202e\U0001f512", '"><']
)
def test_a_browser_sends_any_uuid_unchanged(board: Board, uuid: str) -> None:
    board.store.take("a", uuid=uuid)
    page = board.html(f"{UNLOCK}?{urlencode({'uuid': uuid})}")
    fields = dict(re.findall(r'type="hidden" name="(\w+)" value="([^"]*)"', page))
    assert all(value.isascii() and value.isprintable() for value in fields.values())
    data = {**fields, "name": "a", "reason": "x"}
    for wrong in ("zz", "ff", ""):
        answer = board.post(UNLOCK, data={**data, "uuid_hex": wrong}, headers=ORIGIN)
        assert answer.status_code == 400
    assert board.post(UNLOCK, data=data, headers=ORIGIN).status_code == 303
    assert not held(board)


def test_a_form_of_our_own_page_passes_and_of_another_does_not(board: Board) -> None:
    for headers in (
        {},
        {"Sec-Fetch-Site": "same-origin"},
        {**ORIGIN, "Sec-Fetch-Site": "cross-site"},
        {"Referer": "http://localhost/"},
        *({"Origin": origin} for origin in ("null", "https://localhost", "http://localhost:8080")),
        *({"Origin": f"http://{host}"} for host in ("localhost.evil.example", "evil", "[::")),
    ):
        assert board.post(UNLOCK, data=FIELDS, headers=headers).status_code == 403
    assert held(board)
    answer = board.post(UNLOCK, data=FIELDS, headers=ORIGIN)
    assert (answer.status_code, answer.headers["Location"]) == (303, "/lock/a?unlocked=u1")
    assert not held(board)


def test_a_form_is_a_form_and_a_program_s_request_is_json(board: Board) -> None:
    asked: tuple[tuple[str, dict[str, Any]], ...] = (
        (UNLOCK, {"data": FIELDS, "content_type": "multipart/form-data"}),
        (UNLOCK, {"data": b"{}", "content_type": "text/plain"}),
        (UNLOCK, {"json": FIELDS}),
        (UNLOCK, {"data": b""}),
        (API_UNLOCK, {"data": FIELDS}),
        (API_UNLOCK, {"data": b"{}", "content_type": "text/plain"}),
    )
    for path, body in asked:
        assert board.post(path, headers=ORIGIN, **body).status_code == 415
    assert held(board)
    assert board.post(API_UNLOCK, json=FIELDS).status_code == 200
    assert not held(board)


def test_a_browsers_json_needs_our_origin(board: Board) -> None:
    for site in ("same-site", "cross-site"):
        headers = {**ORIGIN, "Sec-Fetch-Site": site}
        assert board.post(API_UNLOCK, json=FIELDS, headers=headers).status_code == 403
    for headers in ({"Sec-Fetch-Site": "same-origin"}, {"Origin": "http://evil.example"}):
        assert board.post(API_UNLOCK, json=FIELDS, headers=headers).status_code == 403
    assert held(board)
    assert board.post(API_UNLOCK, json=FIELDS, headers=ORIGIN).status_code == 200


def test_nothing_is_written_without_the_flag() -> None:
    with board_of() as reads:
        for answer in (
            reads.post(UNLOCK, headers=ORIGIN, data=FIELDS),
            reads.post(API_UNLOCK, headers=ORIGIN, json=FIELDS),
        ):
            assert answer.status_code == 403
            assert "--allow-force-unlock" in answer.get_data(as_text=True)
        assert held(reads)
        assert "Force-unlock" not in reads.html("/lock/a")
        assert "<form class" not in reads.html(f"{UNLOCK}?uuid=u1")
        reads.shows(f"{UNLOCK}?uuid=u1", "--allow-force-unlock")


def test_every_way_to_write_is_behind_the_gate(board: Board) -> None:
    """A view that takes a POST, not in `force_unlock_routes`, would be a second gate to forget."""
    for rule in board.app.url_map.iter_rules():
        writes = (rule.methods or set()) - {"GET", "HEAD", "OPTIONS"}
        assert not writes or rule.endpoint.startswith("writes."), rule


def test_force_unlocks_are_rate_limited() -> None:
    with board_of(f"{WRITES} --force-unlock-limit 2") as board:

        def unlock(**changes: str) -> Any:
            if not held(board):
                board.store.take("a", uuid="u1")
            return board.post(API_UNLOCK, json=FIELDS | changes)

        mistakes = [unlock(uuid="x").status_code, unlock(name="A").status_code] * 3
        assert mistakes == [409, 400] * 3
        for _ in range(2):
            assert [unlock().status_code for _ in range(3)] == [200, 200, 429]
            assert int(unlock().headers["Retry-After"]) == 60
            assert held(board)
            board.later += 61


def test_simultaneous_force_unlocks_stay_within_the_limit() -> None:
    with board_of(f"{WRITES} --force-unlock-limit 2") as board:
        names = [f"lock{number}" for number in range(6)]
        for name in names:
            board.store.take(name, uuid="u1")
        under_way, go_on, codes = [0], threading.Event(), list[int]()

        def wait(_: object) -> None:
            under_way[0] += 1
            go_on.wait(60)

        def unlock(name: str) -> None:
            answer = board.post(f"/api/locks/{name}/force-unlock", json=FIELDS | {"name": name})
            codes.append(answer.status_code)

        board.store.before_removing = wait
        threads = [threading.Thread(target=unlock, args=(name,)) for name in names]
        for thread in threads:
            thread.start()
        try:
            wait_until(lambda: under_way[0] + len(codes) == 6, what="all to be asked or refused")
        finally:
            go_on.set()
            for thread in threads:
                thread.join(60)
        assert sorted(codes) == [200] * 2 + [429] * 4


def test_force_unlocks_with_an_unknown_outcome_count() -> None:
    with board_of(f"{WRITES} --force-unlock-limit 2") as board:
        board.store.answers = StoreUnavailable("No answer.", unknown=True)
        codes = [board.post(API_UNLOCK, json=FIELDS).status_code for _ in range(3)]
        assert codes == [503, 503, 429]


def test_made_up_names_do_not_fill_the_memory() -> None:
    flags = f"{EVERYWHERE} --auth proxy --trusted-proxy 10.0.0.5 {WRITES}"
    with board_of(flags) as board:

        def ask(user: str) -> None:
            board.store.take("a", uuid="u1")
            headers = {"X-Forwarded-User": user}
            answer = board.post(API_UNLOCK, by="10.0.0.5", json=FIELDS, headers=headers)
            assert answer.status_code == 200

        ask("ann")
        tracemalloc.start()
        for number in range(300):
            ask(f"{number}" * 25)
        full = bytes_of_limits()
        board.later += 61
        ask("ann")
        left = bytes_of_limits()
        tracemalloc.stop()
        assert left < full / 2, "300 events and their keys"


def bytes_of_limits() -> int:
    """Return the memory that the limits hold: other threads of this process allocate, too."""
    gc.collect()
    of_limits = tracemalloc.Filter(True, "*/service/rate_limits.py")
    found = tracemalloc.take_snapshot().filter_traces([of_limits])
    return sum(each.size for each in found.statistics("filename"))


# ---------------------------------------------------------------- --auth basic


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "htpasswd"
    path.write_text(f"# users\nann:{hashed('söcret:1')}\n\nbob:{hashed('x')}\n", encoding="utf-8")
    return path


@pytest.fixture
def guarded(file: Path) -> Iterator[Board]:
    with board_of(f"{EVERYWHERE} --auth basic --htpasswd {file} {WRITES}") as started:
        yield started


PATHS = ("/", "/lock/a", "/removed", "/removed.csv", "/api/locks", "/api/openapi.yaml", "/nothing")


def test_basic_shows_nothing_without_a_password_but_to_probes(guarded: Board) -> None:
    for path in PATHS:
        for headers in (
            *({}, login("ann", "wrong"), login("eve", "x")),
            *({"Authorization": "Basic ???"}, {"Authorization": "Basic \xff"}),
        ):
            answer = guarded.get(path, **headers)
            assert answer.status_code == 401
            assert answer.headers["WWW-Authenticate"].startswith("Basic realm=")
            assert "worker-1" not in answer.get_data(as_text=True)
    for path in ("/healthz", "/readyz", "/metrics", "/static/style.css"):
        assert guarded.get(path).status_code == 200


def test_basic_lets_in_a_user_with_the_password_and_records_the_name(
    guarded: Board, caplog: pytest.LogCaptureFixture
) -> None:
    ann, bob = login("ann", "söcret:1"), login("bob", "x")
    first = guarded.get("/", **ann)
    assert ">ann<" in first.get_data(as_text=True)
    # Kept answers and ETags tell viewers apart: a page holds its viewer's name.
    second = guarded.get("/", If_None_Match=first.headers["ETag"], **bob)
    assert second.status_code == 200
    assert ">bob<" in second.get_data(as_text=True)
    assert ">ann<" not in second.get_data(as_text=True)
    asked = {**FIELDS, "reason": "  it hangs,\n says bob "}
    assert guarded.post(UNLOCK, data=asked, headers={**ORIGIN, **ann}).status_code == 303
    (removal,) = guarded.get("/api/removed", **ann).json["removed"]
    assert (removal["removed_by"], removal["how"]) == ("ann", "force-unlock")
    assert removal["why"] == "it hangs, says bob"
    assert "ann force-unlocked 'a': 'it hangs, says bob'." in caplog.text
    assert "söcret" not in caplog.text


def ask(board: Board, user: str, password: str, address: str = "10.0.0.1") -> int:
    answer = board.get("/api/locks", by=address, **login(user, password))
    return int(answer.status_code)


def guess(board: Board, count: int, user: str = "ann") -> list[int]:
    return [ask(board, user.format(n), f"x{n}") for n in range(count)]


def test_password_guessing_is_limited_and_locks_out_no_other_user(guarded: Board) -> None:
    assert ask(guarded, "bob", "x") == 200
    assert guess(guarded, 22, "bob") == [401] * 20 + [429] * 2
    assert ask(guarded, "bob", "x") == 200
    assert guess(guarded, 22) == [401] * 20 + [429] * 2
    assert ask(guarded, "ann", "söcret:1") == 429, "else a right guess would be known"
    assert ask(guarded, "bob", "x") == 200
    assert ask(guarded, "ann", "söcret:1", "10.0.1.1") == 200


def test_a_login_does_not_reveal_which_guess_is_right(guarded: Board) -> None:
    assert {ask(guarded, "ann", "söcret:1") for _ in range(310)} == {200}, "right ones do not count"
    guess(guarded, 310)
    assert ask(guarded, "ann", "söcret:1") == 429


def test_more_addresses_of_a_network_are_no_more_guesses(guarded: Board) -> None:
    for network in ("10.7.7.{}", "2001:db8::{}"):
        codes = [ask(guarded, "ann", f"x{n}", network.format(n)) for n in range(1, 30)]
        assert codes == [401] * 20 + [429] * 9


def test_more_users_are_no_more_guesses_without_end(guarded: Board) -> None:
    assert guess(guarded, 110, "user{}") == [401] * 100 + [429] * 10
    assert ask(guarded, "bob", "x") == 429
    assert ask(guarded, "bob", "x", "10.0.1.1") == 200


def test_more_networks_are_no_more_guesses_without_end(guarded: Board) -> None:
    assert ask(guarded, "ann", "söcret:1", "192.168.1.1") == 200
    codes = [ask(guarded, "ann", f"x{n}", f"10.0.{n}.1") for n in range(80)]
    assert codes == [401] * 60 + [429] * 20
    assert ask(guarded, "ann", "söcret:1", "10.9.9.9") == 429, "not known there"
    assert ask(guarded, "ann", "söcret:1", "192.168.1.1") == 200
    assert ask(guarded, "ann", "wrong", "192.168.1.1") == 401, "and not 429: it was looked at"


def test_wrong_passwords_occupy_one_core_and_lock_out_no_user(
    guarded: Board, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert ask(guarded, "ann", "söcret:1", "192.168.1.1") == 200
    there, go_on, check = [0], threading.Event(), bcrypt.checkpw

    def slow(password: bytes, stored: bytes) -> bool:
        there[0] += 1
        if password == b"guess":
            go_on.wait(600)
        there[0] -= 1
        return check(password, stored)

    monkeypatch.setattr(bcrypt, "checkpw", slow)
    codes: list[int] = []
    threads = [
        threading.Thread(target=lambda n=n: codes.append(ask(guarded, "eve", "guess", n)))
        for n in ("10.0.1.1", "10.0.2.1", "10.0.3.1", "10.0.4.1", "10.0.5.1")
    ]
    for thread in threads:
        thread.start()
    try:
        wait_until(lambda: len(codes) == 3, what="those beyond the line to be sent away")
        assert (codes, there[0]) == ([503] * 3, 1)
        assert ask(guarded, "ann", "söcret:1", "192.168.1.1") == 200
        assert ask(guarded, "bob", "x", "192.168.1.2") == 200
    finally:
        go_on.set()
        for thread in threads:
            thread.join(60)
    assert sorted(codes) == [401] * 2 + [503] * 3


def test_simultaneous_guesses_stay_within_the_limit(
    guarded: Board, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert guess(guarded, 19) == [401] * 19
    there, go_on, codes, check = [0], threading.Event(), list[int](), bcrypt.checkpw

    def slow(password: bytes, stored: bytes) -> bool:
        there[0] += 1
        go_on.wait(60)
        return check(password, stored)

    monkeypatch.setattr(bcrypt, "checkpw", slow)
    first, second = (
        threading.Thread(target=lambda: codes.append(ask(guarded, "ann", "x"))) for _ in range(2)
    )
    first.start()
    try:
        wait_until(lambda: there[0] == 1, what="the first guess to be compared")
        second.start()
        second.join(1)  # the old code had it wait in the queue
    finally:
        go_on.set()
        first.join(60)
        second.join(60)
    assert sorted(codes) == [401, 429]


@pytest.mark.parametrize("cost", ["04", "05"])
def test_bcrypt_takes_as_long_for_an_unknown_user(
    guarded: Board, file: Path, cost: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = bcrypt.hashpw(b"x", bcrypt.gensalt(int(cost))).decode()
    file.write_text(f"ann:{stored}\n")
    asked: list[bytes] = []
    check = bcrypt.checkpw

    def noted(password: bytes, stored: bytes) -> bool:
        asked.append(stored[4:6])
        return check(password, stored)

    monkeypatch.setattr(bcrypt, "checkpw", noted)
    assert [ask(guarded, *said) for said in (("nobody", "x"), ("ann", "y"))] == [401, 401]
    assert asked == [cost.encode()] * 2
    assert [ask(guarded, "ann", "x") for _ in range(3)] == [200] * 3
    assert len(asked) == 3


@pytest.mark.parametrize("password", ["", "x" * 73, "x\0y", "\ud800"])
def test_passwords_that_bcrypt_would_truncate_are_refused(guarded: Board, password: str) -> None:
    for user in ("bob", "nobody"):
        assert ask(guarded, user, password) == 401


def test_a_changed_password_counts_at_once(guarded: Board, file: Path) -> None:
    assert ask(guarded, "ann", "söcret:1") == 200
    file.write_text(f"ann:{hashed('y')}\n")
    assert [ask(guarded, "ann", password) for password in ("söcret:1", "y")] == [401, 200]


@pytest.mark.parametrize(
    "spoilt", [b"", b"# nobody\n", b"ann:in the clear, by mistake\n", b"\xff\xfe", None, Path]
)
def test_a_password_file_without_users_admits_nobody(
    guarded: Board, file: Path, spoilt: bytes | type | None, caplog: pytest.LogCaptureFixture
) -> None:
    good = file.read_bytes()
    assert ask(guarded, "bob", "x") == 200
    file.unlink()
    if isinstance(spoilt, bytes):
        file.write_bytes(spoilt)
    elif spoilt is Path:
        file.mkdir()
    for user in ("bob", "nobody") * 3:
        assert ask(guarded, user, "x") == 401
    assert [str(file) in text for text in caplog.messages] == [True] * 2, "told once"
    if file.is_dir():
        file.rmdir()
    file.write_bytes(b"# again\n" + good)
    assert ask(guarded, "bob", "x") == 200
    assert caplog.messages[-1] == f"The password file {file} can be used again."


def test_a_bad_line_of_the_password_file_is_named_and_skipped(
    guarded: Board, file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    line = f"ann:{hashed('x')}\n".encode()
    file.write_bytes(line + b"bob:secret\n\xffeve:1\n" + f"dan:{hashed('y')}\n".encode() * 2)
    assert ask(guarded, "ann", "x") == 200
    assert ask(guarded, "bob", "secret") == 401
    assert ask(guarded, "dan", "y") == 401, "twice, so nobody can tell which one is meant"
    told = caplog.messages
    assert all(any(key in text for text in told) for key in ("Line 2", "Line 3", "'dan'"))
    assert len(told) == 3
    assert not any("secret" in text for text in told)
    file.write_bytes(b"nonsense\n" * 500 + line)
    assert ask(guarded, "ann", "x") == 200
    assert len(caplog.messages) < 20


@pytest.mark.parametrize(
    ("address", "scheme", "warned"),
    [("10.0.0.1", "http", True), ("10.0.0.1", "https", False), ("127.0.0.1", "http", False)],
)
def test_a_password_sent_in_clear_text_is_logged(
    guarded: Board, address: str, scheme: str, warned: bool
) -> None:
    asked: dict[str, Any] = {"environ_base": {"REMOTE_ADDR": address}}
    ann, base = login("ann", "söcret:1"), f"{scheme}://localhost"
    page = guarded.client.get("/", headers=ann, base_url=base, **asked)
    assert page.status_code == 200
    assert ("Your password was sent unencrypted" in page.get_data(as_text=True)) == warned


def test_a_page_of_another_site_is_refused_before_any_work(guarded: Board) -> None:
    """It can't read the answer, but what there is by the time that it takes."""
    asked = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors", **login("ann", "wrong")}
    for path in ("/?q=a", "/api/locks?q=a", "/removed.csv", "/lock/a"):
        assert guarded.get(path, **asked).status_code == 403, "not 401: nobody looked"
    assert guarded.get("/readyz", **asked).status_code == 200
    link = {**asked, "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
    assert guarded.get("/?q=a", **link | login("bob", "x")).status_code == 200


# ---------------------------------------------------------------- --auth proxy, hops, prefix, hosts

TRUSTED = "--trusted-proxy 10.0.0.5,10.1.0.0/16,::1 --allowed-host localhost"
HEADER = f"--auth proxy --auth-header X-User {TRUSTED} {EVERYWHERE}"
HOPS = f"--no-auth {EVERYWHERE} {TRUSTED} {WRITES} --proxy-hops"


@pytest.mark.parametrize(
    ("address", "user", "code"),
    [
        *(("10.0.0.5", "ann", 200), ("10.0.0.5", "Jürgen", 200), ("10.0.0.5", "", 403)),
        *(("10.1.2.3", "ann@example.org", 200), ("::ffff:10.0.0.5", "ann", 200)),
        *((address, "ann", 403) for address in ("10.0.0.6", "127.0.0.1", "")),
        *(("10.0.0.5", "ann, eve", 403), ("10.0.0.5", "x" * 101, 403)),
        *(("10.0.0.5", "\u202eann", 403), ("10.0.0.5", "ann\xa0", 403)),
        ("10.0.0.5", "\u3000ann", 403),
    ],
)
def test_a_header_is_believed_from_named_addresses_only(address: str, user: str, code: int) -> None:
    with board_of(HEADER) as board:
        sent = {"X_User": user.encode().decode("latin-1")} if user else {}
        assert board.get("/api/locks", by=address, **sent).status_code == code


def test_user_names_that_are_not_utf_8_stay_different() -> None:
    with board_of(f"{HEADER} --proxy-hops 1") as board:
        for user in ("Jos\xe9", "Jos\xe8"):
            assert f">{user}<" in board.html("/", by="10.0.0.5", X_User=user)
        asked = {"X_User": "eve", "X_Forwarded_For": "10.0.0.5"}
        assert board.get("/", by="10.9.9.9", **asked).status_code == 403
        # And the proxy stays the proxy, whomever it speaks for.
        assert board.get("/", by="10.0.0.5", **asked).status_code == 200


REAL = "198.51.100.7"


@pytest.mark.parametrize(
    ("hops", "forwarded", "by"),
    [
        *((0, "1.1.1.1, 3.3.3.3", "10.0.0.5"), (1, "1.1.1.1, 3.3.3.3", "3.3.3.3")),
        (2, "1.1.1.1, 2.2.2.2, 3.3.3.3", "2.2.2.2"),
        # As proxies do that append to what came from the client, quotes and all.
        *((1, f"{claimed}, {REAL}", REAL) for claimed in (
            '"', '"x', "\\", '203.0.113.5%"', '"10.0.0.5, ', "203.0.113.5", "x" * 5000, ",,,", " ",
            '"a, b"', "127.0.0.1", "fe80::1%eth0", ";", "for=1.2.3.4",
        )),
    ],
)  # fmt: skip
def test_the_client_address_is_the_one_added_by_trusted_proxies(
    hops: int, forwarded: str, by: str
) -> None:
    with board_of(f"{HOPS} {hops}") as board:
        headers = {"X-Forwarded-For": forwarded}
        answer = board.post(API_UNLOCK, by="10.0.0.5", json=FIELDS, headers=headers)
        assert answer.json["removed"]["removed_by"] == f"somebody at {by}"


def test_a_proxy_that_omits_a_header_is_logged() -> None:
    with board_of(f"--proxy-hops 1 {TRUSTED}") as board:
        for header, value in (
            *(("For", value) for value in ("x", '203.0.113.5%"', "203.0.113.5%eth0", "1.2.3.4:80")),
            *(("For", value) for value in ("2001:db8::1%eth0", "fe80::1%", 'fe80::1%"')),
            *(("Host", value) for value in ('"', "a b", "locks.example.org, evil\\", "a:b:c")),
            *(("For", '"1.2.3.4"'), ("Proto", "javascript"), ("Proto", '"https"')),
        ):
            asked = {f"X_Forwarded_{header}": value}
            answer = board.get("/", by="10.0.0.5", **asked)
            assert answer.status_code == 400, value
            assert f"X-Forwarded-{header}" in answer.get_data(as_text=True)
            assert board.get("/", by="127.0.0.1", **asked).status_code == 200  # no proxy of ours
        for address in ("203.0.113.5", "2001:db8::1", "fe80::1%eth0", " ::1 "):
            assert board.get("/", by="10.0.0.5", X_Forwarded_For=address).status_code == 200


def test_behind_a_proxy_the_origin_is_that_of_the_browser() -> None:
    with board_of(f"{HOPS} 1 --allowed-host localhost,locks.example.org --url-prefix /m") as board:
        forwarded = {"X-Forwarded-Host": "locks.example.org", "X-Forwarded-Proto": "https"}
        headers = {"Origin": "https://locks.example.org", **forwarded}
        path = f"/m{UNLOCK}"
        assert f'action="{path}"' in board.html(f"{path}?uuid=u1")
        for address, code in (("10.9.9.9", 403), ("10.0.0.5", 303)):
            answer = board.post(path, by=address, data=FIELDS, headers=headers)
            assert answer.status_code == code
        assert answer.headers["Location"] == "/m/lock/a?unlocked=u1"


def test_below_a_prefix_and_nowhere_else() -> None:
    with board_of("--url-prefix /m") as board:
        for code, path in (
            *((200, path) for path in ("/m/", "/m/lock/a", "/m/healthz")),
            *((200, path) for path in ("/healthz", "/readyz", "/metrics")),
            *((404, path) for path in ("/", "/lock/a", "/mm/")),
            (308, "/m"),
        ):
            answer = board.get(path)
            assert answer.status_code == code, path
            assert 'href="/lock' not in answer.get_data(as_text=True)


@pytest.mark.parametrize("auth", ["--no-auth", "--auth proxy --auth-header X-User"])
def test_a_rebound_page_does_not_pass_for_the_proxy(auth: str) -> None:
    """It runs in a browser on the proxy's machine and may say anything, but for the host."""
    flags = "--trusted-proxy 127.0.0.1 --proxy-hops 1 --allowed-host locks.example.org"
    with board_of(f"{auth} {flags}") as board:
        for code, host in (
            *((200, host) for host in ("locks.example.org", "localhost:8722", "127.0.0.1:8722")),
            *((421, host) for host in ("evil.example:8722", "mutexdash.evil.example")),
            (200, "mutexdash:8722"),
        ):
            told = {"X-Forwarded-Host": "locks.example.org", "X-User": "ann"}
            assert board.get("/api/locks", Host=host, **told).status_code == code, host
            told["X-Forwarded-Host"] = "evil.example"
            assert board.get("/api/locks", Host=host, **told).status_code == 421, host


LOCAL = ("localhost:8722", "127.0.0.1", "127.3.2.1:80", "[::1]:8722")
FOREIGN = (
    *("evil.example", "127.0.0.1.evil.example", "10.0.0.7", "[::", "", "evil@localhost"),
    "localhost/x",
)
NAMED = ("locks.example.org:8722",)


@pytest.mark.parametrize(
    ("flags", "own", "foreign"),
    [
        ("", LOCAL, (*FOREIGN, *NAMED)),
        (f"--no-auth {EVERYWHERE} --allowed-host Locks.example.org,b", NAMED, (*FOREIGN, *LOCAL)),
        ("--no-auth --allowed-host locks.example.org", (*LOCAL, *NAMED), FOREIGN),
        (f"{EVERYWHERE} --auth basic --htpasswd FILE", (*LOCAL, *NAMED, "10.0.0.7"), ()),
    ],
)
def test_a_dashboard_answers_to_its_own_names_only(
    flags: str, own: tuple[str, ...], foreign: tuple[str, ...], file: Path
) -> None:
    """A web page whose name was made to resolve to 127.0.0.1 must not read the locks."""
    with board_of(flags.replace("FILE", str(file))) as board:
        for host in (*own, *foreign):
            # Without werkzeug's client, which in some releases itself refuses hosts that are none.
            made = create_environ("/api/locks", headers=login("bob", "x"))
            environ = {**made, "REMOTE_ADDR": "127.0.0.1", "HTTP_HOST": host}
            answer, status, _ = run_wsgi_app(board.app, environ)
            assert status[:3] in (("200",) if host in own else ("400", "421")), host
            assert host in own or "locks" not in json.loads(b"".join(answer))
        assert board.get("/healthz", Host="10.0.0.7").status_code == 200


# ---------------------------------------------------------------- headers and compression


@pytest.mark.parametrize(
    "path", ["/", "/lock/a", "/removed", "/nothing", "/api/locks", "/metrics", "/static/live.js"]
)
def test_every_answer_has_the_headers(board: Board, path: str) -> None:
    headers = board.get(path).headers
    csp = headers["Content-Security-Policy"]
    assert csp.startswith("default-src 'none'; script-src 'self';")
    assert "frame-ancestors 'none'" in csp
    assert "unsafe" not in csp
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["X-Frame-Options"] == "DENY"
    assert headers["Referrer-Policy"] == "same-origin", "no-referrer makes `Origin: null` of ours"
    assert headers["Cache-Control"] == ("no-cache" if "static" in path else "no-store")


def test_pages_are_compressed_for_browsers_that_accept_it(board: Board) -> None:
    for path in ("/", "/static/style.css", f"{UNLOCK}?uuid=u1", "/"):  # the last as it was kept
        answer = board.get(path, Accept_Encoding="gzip")
        assert answer.headers["Content-Encoding"] == "gzip"
        assert answer.headers["Vary"] == "Accept-Encoding"
    assert "Content-Encoding" not in board.get("/").headers


# ---------------------------------------------------------------- flags


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ("--listen 0.0.0.0:0", "--no-auth"),
        ("--listen 0.0.0.0:0 --no-auth", "--allowed-host"),
        ("--listen [::]:0 --no-auth --allowed-host ,", "--allowed-host"),
        ("--listen 0.0.0.0:0 --no-auth --allowed-host *", "--allowed-host"),
        ("--auth basic", "--htpasswd FILE"),
        ("--auth basic --htpasswd /nowhere", "can't be read"),
        ("--auth basic --no-auth --htpasswd /nowhere", "contradict"),
        ("--htpasswd /nowhere", "--auth basic"),
        ("--auth proxy", "--trusted-proxy"),
        ("--auth proxy --trusted-proxy 127.0.0.1", "--allowed-host"),
        ("--auth proxy --trusted-proxy 10.0.0.300", "10.0.0.300"),
        ("--auth proxy --trusted-proxy 10.0.0.1 --auth-header a:b", "'a:b'"),
        ("--proxy-hops 1", "--trusted-proxy"),
        ("--proxy-hops -1", "--proxy-hops"),
        ("--url-prefix locks", "--url-prefix"),
        ("--url-prefix /a//b", "--url-prefix"),
        ("--allowed-host http://x", "--allowed-host"),
        ("--force-unlock-limit 0", "--force-unlock-limit"),
        ("--prometheus-url javascript:alert(1)", "--prometheus-url"),
        ("--runbook-url docs/runbook.md", "--runbook-url"),
        ("--auth ldap", "'ldap'"),
        *((f"--title {title}", "at most 40 characters, all of which can be seen") for title in
          ("x" * 41, "a\u202eb")),
        *((f"--trace-url {url}", "--trace-url") for url in (
            "traces.example.org/{trace_id}", "https://traces.example.org/", "https://{trace_id}/x",
            "javascript:{trace_id}", "https://ann:secret@traces.example.org/{trace_id}",
        )),
    ],
)  # fmt: skip
def test_contradictory_flags_give_a_one_line_error(flags: str, said: str) -> None:
    done = CliRunner().invoke(main, flags.split())
    assert done.exit_code == 2
    (line,) = [line for line in done.output.splitlines() if line.startswith("Error: ")]
    assert said in line


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"", "has no user"),
        (b"ann:$apr1$abc$def\n", "Line 1 .* bcrypt"),
        (b"# x\nann:{SHA}fEqNCco3Yq9h5ZUglD3CZJT4lBs=\n", "Line 2"),
        (b"ann:$2y$31$" + b"." * 53 + b"\n", "cost 4 to 15"),
        (b"ann:$2y$10$" + b"/" * 53 + b"\n", "Line 1"),
        ((b"ann:$2y$10$" + b"." * 53 + b"\n") * 2, "'ann' twice"),
        (b":$2y$10$" + b"." * 53 + b"\n", "Line 1"),
        (b"\xff\xfe", "not UTF-8"),
    ],
)
def test_a_bad_password_file_gives_a_one_line_error(tmp_path: Path, text: bytes, said: str) -> None:
    path = tmp_path / "users"
    path.write_bytes(text)
    done = CliRunner().invoke(main, ["--auth", "basic", "--htpasswd", str(path)])
    assert done.exit_code == 2
    assert re.search(said, done.output)


def test_flags_are_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in (
        *("URL_PREFIX=/a/b/", "TITLE=prod"),
        *("ALLOW_FORCE_UNLOCK=1", "FORCE_UNLOCK_LIMIT=1"),
    ):
        monkeypatch.setenv(*f"MUTEXDASH_{variable}".split("="))
    with board_of() as board:
        assert "· prod</title>" in board.html("/a/b/")
        codes = [board.post(f"/a/b{API_UNLOCK}", json=FIELDS).status_code for _ in range(2)]
        assert codes == [200, 429]
