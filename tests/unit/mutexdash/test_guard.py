"""Who may: the login, the gate in front of all writes, proxies, prefix and headers."""

from __future__ import annotations

import base64
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import bcrypt
import pytest

from mutexdash.security.access import Access, Tokens
from mutexdash.security.htpasswd import Passwords
from mutexdash.security.login import Basic, Header, Networks
from tests.support.dashboard_fakes import Board, hashed
from tests.support.processes import wait_until

ORIGIN = {"Origin": "http://localhost"}
UNLOCK = "/locks/a/force-unlock"
API_UNLOCK = "/api/locks/a/force-unlock"
FIELDS = {"name": "a", "uuid": "u1", "reason": "it hangs"}


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("users") / "htpasswd"
    path.write_text(f"# who may\nann:{hashed('söcret:1')}\n\nbob:{hashed('x')}\n", encoding="utf-8")
    return path


@contextmanager
def board_of(**access: Any) -> Iterator[Board]:
    with Board(access=Access(**access)) as board:
        board.store.take("a", uuid="u1")
        board.settle()
        yield board


@pytest.fixture
def board() -> Iterator[Board]:
    with board_of(allow_force_unlock=True) as started:
        yield started


def login(user: str, password: str) -> dict[str, str]:
    said = base64.b64encode(f"{user}:{password}".encode()).decode()
    return {"Authorization": f"Basic {said}"}


def token_of(board: Board, path: str = "/locks/a/force-unlock", **headers: str) -> str:
    (token,) = re.findall(r'name="csrf" value="(\w+)"', board.html(f"{path}?uuid=u1", **headers))
    return str(token)


def held(board: Board) -> bool:
    board.settle()
    return ("locks", "a", "uuid") in board.store.kept


def post(board: Board, path: str = UNLOCK, **asked: Any) -> Any:
    return board.client.post(path, buffered=True, **asked)


# ---------------------------------------------------------------- the gate in front of all writes


@pytest.mark.parametrize(
    "uuid", ["u\0id", "u\nid", "u\r\nid", "u\rid", " ü\u202e\U0001f512", '"><']
)
def test_a_browser_sends_any_holder_s_uuid_as_it_is(uuid: str) -> None:
    """It changes some texts in a hidden field: a NUL, and every kind of line's end."""
    with Board(access=Access(allow_force_unlock=True)) as board:
        board.store.take("a", uuid=uuid)
        board.settle()
        page = board.html(f"{UNLOCK}?{urlencode({'uuid': uuid})}")
        fields = dict(re.findall(r'type="hidden" name="(\w+)" value="([^"]*)"', page))
        assert all(value.isascii() and value.isprintable() for value in fields.values())
        for wrong, code in (("zz", 400), ("ff", 400), ("", 400)):
            data = {**fields, "uuid_hex": wrong, "name": "a", "reason": "x"}
            assert post(board, data=data, headers=ORIGIN).status_code == code
        data = {**fields, "name": "a", "reason": "x"}
        assert post(board, data=data, headers=ORIGIN).status_code == 303
        assert not held(board)


def test_a_form_of_our_own_page_passes(board: Board) -> None:
    answer = post(board, data={**FIELDS, "csrf": token_of(board)}, headers=ORIGIN)
    assert answer.status_code == 303, answer.get_data(as_text=True)
    assert answer.headers["Location"] == "/lock/a?unlocked=u1"
    assert not held(board)


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Origin": "null"},
        {"Origin": "https://localhost"},
        {"Origin": "http://localhost:8080"},
        {"Origin": "http://localhost.evil.example"},
        {"Origin": "http://evil.example"},
        {"Origin": "http://[::"},
        {"Referer": "http://localhost/"},
    ],
)
def test_a_form_from_elsewhere_does_not(board: Board, headers: dict[str, str]) -> None:
    answer = post(board, data={**FIELDS, "csrf": token_of(board)}, headers=headers)
    assert answer.status_code == 403
    assert held(board)


@pytest.mark.parametrize("token", ["", "x", "é" * 64, "0" * 64])
def test_a_form_without_a_token_of_ours_does_not(board: Board, token: str) -> None:
    assert post(board, data={**FIELDS, "csrf": token}, headers=ORIGIN).status_code == 403
    assert held(board)


@pytest.mark.parametrize(
    "asked",
    [
        {"data": FIELDS, "content_type": "multipart/form-data"},
        {"data": b"{}", "content_type": "text/plain"},
        {"json": FIELDS},
        {"data": b""},
    ],
)
def test_a_form_is_a_form(board: Board, asked: dict[str, Any]) -> None:
    assert post(board, headers=ORIGIN, **asked).status_code == 415
    assert held(board)


def test_a_program_needs_json_and_no_token(board: Board) -> None:
    """What a browser sends for another site without asking is never JSON."""
    assert post(board, API_UNLOCK, data=FIELDS).status_code == 415
    assert post(board, API_UNLOCK, data=b"{}", content_type="text/plain").status_code == 415
    assert post(board, API_UNLOCK, json=FIELDS).status_code == 200
    assert not held(board)


@pytest.mark.parametrize(
    "headers", [ORIGIN, {"Sec-Fetch-Site": "cross-site"}, {"Origin": "http://evil.example"}]
)
def test_a_browsers_json_needs_the_token(board: Board, headers: dict[str, str]) -> None:
    assert post(board, API_UNLOCK, json=FIELDS, headers=headers).status_code == 403
    assert held(board)
    told = {**ORIGIN, "X-CSRF-Token": token_of(board)}
    assert post(board, API_UNLOCK, json=FIELDS, headers=told).status_code == 200


def test_nothing_is_written_without_the_flag() -> None:
    with board_of() as board:
        token = Tokens(Access().secret).issue(None)
        for answer in (
            post(board, UNLOCK, headers=ORIGIN, data={**FIELDS, "csrf": token}),
            post(board, API_UNLOCK, headers=ORIGIN, json=FIELDS),
        ):
            assert answer.status_code == 403
            assert "--allow-force-unlock" in answer.get_data(as_text=True)
        assert held(board)
        assert "csrf" not in board.html("/locks/a/force-unlock?uuid=u1")


def test_every_way_to_write_is_behind_the_gate(board: Board) -> None:
    """A view that takes a POST, not in `web.force_unlock`, would be a second gate to forget."""
    for rule in board.app.url_map.iter_rules():
        writes = (rule.methods or set()) - {"GET", "HEAD", "OPTIONS"}
        assert not writes or rule.endpoint.startswith("writes."), rule
    for method in ("put", "delete", "patch"):
        answer = getattr(board.client, method)(API_UNLOCK, headers=ORIGIN, buffered=True)
        assert answer.status_code == 405


def test_a_token_is_its_users_and_grows_old() -> None:
    now = [1_000_000.0]
    tokens = Tokens(b"s" * 32, lambda: now[0])
    token = tokens.issue("ann")
    assert tokens.good(token, "ann")
    assert not tokens.good(token, "bob")
    assert not tokens.good(token, None)
    assert not Tokens(b"t" * 32, lambda: now[0]).good(token, "ann")
    now[0] += 12 * 3600
    assert tokens.good(token, "ann")
    assert tokens.issue("ann") != token
    now[0] += 13 * 3600
    assert not tokens.good(token, "ann")


def test_so_many_force_unlocks_a_minute_and_no_more() -> None:
    with board_of(allow_force_unlock=True, unlocks_a_minute=2) as board:
        codes = [post(board, API_UNLOCK, json=FIELDS | {"uuid": "x"}) for _ in range(3)]
        assert [answer.status_code for answer in codes] == [409, 409, 429]
        assert int(codes[2].headers["Retry-After"]) == 60
        assert held(board)


# ---------------------------------------------------------------- --auth basic


@pytest.fixture
def guarded(file: Path) -> Iterator[Board]:
    access: dict[str, Any] = {"login": Basic(Passwords(file)), "local_only": False}
    with board_of(**access, allow_force_unlock=True) as started:
        yield started


PATHS = ("/", "/lock/a", "/removed", "/removed.csv", "/api/locks", "/api/openapi.yaml", "/nothing")


@pytest.mark.parametrize("path", PATHS)
def test_basic_shows_nothing_without_a_password(guarded: Board, path: str) -> None:
    for headers in (
        {},
        login("ann", "wrong"),
        login("eve", "x"),
        {"Authorization": "Basic ???"},
        {"Authorization": "Basic \xff"},
    ):
        answer = guarded.get(path, **headers)
        assert answer.status_code == 401
        assert answer.headers["WWW-Authenticate"].startswith("Basic realm=")
        assert "worker-1" not in answer.get_data(as_text=True)


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/metrics", "/static/style.css"])
def test_probes_need_no_password(guarded: Board, path: str) -> None:
    assert guarded.get(path).status_code == 200


def test_basic_lets_in_who_has_the_password_and_records_the_name(guarded: Board) -> None:
    ann = login("ann", "söcret:1")
    assert ">ann<" in guarded.html("/", **ann)
    token = token_of(guarded, **ann)
    other = {**ORIGIN, **login("bob", "x")}
    assert post(guarded, data={**FIELDS, "csrf": token}, headers=other).status_code == 403
    answer = post(guarded, data={**FIELDS, "csrf": token}, headers={**ORIGIN, **ann})
    assert answer.status_code == 303
    (removal,) = guarded.get("/api/removed", **ann).json["removed"]
    assert (removal["removed_by"], removal["how"]) == ("ann", "force-unlock")


def test_one_users_page_is_not_anothers(guarded: Board) -> None:
    """Kept answers and ETags tell viewers apart: a page holds its viewer's name."""
    ann, bob = login("ann", "söcret:1"), login("bob", "x")
    first = guarded.get("/", **ann)
    second = guarded.get("/", If_None_Match=first.headers["ETag"], **bob)
    assert second.status_code == 200
    assert ">bob<" in second.get_data(as_text=True)
    assert ">ann<" not in second.get_data(as_text=True)


def test_guessing_is_stopped_and_those_who_are_in_stay_in(guarded: Board) -> None:
    assert ask(guarded, "ann", "söcret:1") == 200
    assert [ask(guarded, "ann", f"x{n}") for n in range(22)] == [401] * 20 + [429] * 2
    assert ask(guarded, "ann", "söcret:1") == 200


def test_who_is_in_does_not_tell_which_guess_is_right(guarded: Board) -> None:
    """A password that was right once is known at once, however many were wrong."""
    assert ask(guarded, "ann", "söcret:1") == 200
    for number in range(310):
        ask(guarded, "ann", f"x{number}")
    assert ask(guarded, "ann", "söcret:1") == 429


def ask(board: Board, user: str, password: str, address: str = "10.0.0.1") -> int:
    asked: dict[str, Any] = {"environ_base": {"REMOTE_ADDR": address}, "buffered": True}
    return board.client.get("/api/locks", headers=login(user, password), **asked).status_code


def test_wrong_guesses_lock_nobody_else_out(guarded: Board) -> None:
    """Neither another user at the same address nor the same user elsewhere."""
    assert [ask(guarded, "ann", f"x{n}") for n in range(22)] == [401] * 20 + [429] * 2
    assert ask(guarded, "ann", "söcret:1") == 429, "else a right guess would be known"
    assert ask(guarded, "bob", "x") == 200
    assert ask(guarded, "ann", "söcret:1", "10.0.1.1") == 200


def test_more_addresses_of_a_network_are_no_more_guesses(guarded: Board) -> None:
    for network in ("10.7.7.{}", "2001:db8::{}"):
        codes = [ask(guarded, "ann", f"x{n}", network.format(n)) for n in range(1, 30)]
        assert codes == [401] * 20 + [429] * 9


def test_more_users_are_no_more_guesses_without_end(guarded: Board) -> None:
    codes = [ask(guarded, f"user{n}", "x") for n in range(110)]
    assert codes == [401] * 100 + [429] * 10
    assert ask(guarded, "bob", "x") == 429
    assert ask(guarded, "bob", "x", "10.0.1.1") == 200


def test_more_networks_are_no_more_guesses_without_end(guarded: Board) -> None:
    """And who has logged in somewhere is let in there again, with a new password, too."""
    assert ask(guarded, "ann", "söcret:1", "192.168.1.1") == 200
    codes = [ask(guarded, "ann", f"x{n}", f"10.0.{n}.1") for n in range(80)]
    assert codes == [401] * 60 + [429] * 20
    assert ask(guarded, "ann", "söcret:1", "10.9.9.9") == 429, "not known there"
    assert ask(guarded, "ann", "söcret:1", "192.168.1.1") == 200
    assert ask(guarded, "ann", "wrong", "192.168.1.1") == 401, "and not 429: it was looked at"


def test_strangers_keep_one_core_busy_and_nobody_out(
    guarded: Board, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While their passwords are checked, who is in goes on, and a colleague gets in."""
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


@pytest.mark.parametrize(
    ("address", "scheme", "warned"),
    [("10.0.0.1", "http", True), ("10.0.0.1", "https", False), ("127.0.0.1", "http", False)],
)
def test_a_password_that_came_in_the_clear_is_told(
    guarded: Board, address: str, scheme: str, warned: bool
) -> None:
    asked: dict[str, Any] = {"environ_base": {"REMOTE_ADDR": address}}
    ann, base = login("ann", "söcret:1"), f"{scheme}://localhost"
    page = guarded.client.get("/", headers=ann, base_url=base, **asked)
    assert page.status_code == 200
    assert ("Your password was sent unencrypted" in page.get_data(as_text=True)) == warned


# ---------------------------------------------------------------- --auth proxy, hops, prefix, hosts

PROXY = Networks.read("10.0.0.5, 10.1.0.0/16, ::1")


@pytest.mark.parametrize(
    ("address", "user", "code"),
    [
        ("10.0.0.5", "ann", 200),
        ("10.0.0.5", "Jürgen", 200),
        ("10.1.2.3", "ann@example.org", 200),
        ("::ffff:10.0.0.5", "ann", 200),
        ("10.0.0.6", "ann", 403),
        ("127.0.0.1", "ann", 403),
        ("", "ann", 403),
        ("10.0.0.5", "", 403),
        ("10.0.0.5", "ann, eve", 403),
        ("10.0.0.5", "x" * 101, 403),
        ("10.0.0.5", "\u202eann", 403),
        ("10.0.0.5", "ann\xa0", 403),
        ("10.0.0.5", "\u3000ann", 403),
    ],
)
def test_a_header_is_believed_from_named_addresses_only(address: str, user: str, code: int) -> None:
    with board_of(login=Header("X-User", PROXY), local_only=False, proxies=PROXY) as board:
        who = {"X_User": user.encode().decode("latin-1")} if user else {}
        assert board.get("/api/locks", by=address, **who).status_code == code


def test_names_that_are_not_utf_8_stay_apart() -> None:
    with board_of(login=Header("X-User", PROXY), local_only=False, proxies=PROXY) as board:
        for user in ("Jos\xe9", "Jos\xe8"):
            assert f">{user}<" in board.html("/", by="10.0.0.5", X_User=user)


def test_a_forwarded_address_makes_nobody_the_proxy() -> None:
    access: dict[str, Any] = {"proxies": PROXY, "hops": 1, "local_only": False}
    with board_of(login=Header("X-User", PROXY), **access) as board:
        asked = {"X_User": "eve", "X_Forwarded_For": "10.0.0.5"}
        assert board.get("/", by="10.9.9.9", **asked).status_code == 403
        # And the proxy stays the proxy, whoever it speaks for.
        assert board.get("/", by="10.0.0.5", **asked).status_code == 200


@pytest.mark.parametrize(("hops", "by"), [(0, "10.0.0.5"), (1, "3.3.3.3"), (2, "2.2.2.2")])
def test_as_many_hops_as_there_are_and_no_more(hops: int, by: str) -> None:
    access: dict[str, Any] = {"proxies": PROXY, "hops": hops, "local_only": False}
    with board_of(allow_force_unlock=True, **access) as board:
        asked: dict[str, Any] = {"headers": {"X-Forwarded-For": "1.1.1.1, 2.2.2.2, 3.3.3.3"}}
        asker = {"REMOTE_ADDR": "10.0.0.5"}
        answer = post(board, API_UNLOCK, json=FIELDS, environ_base=asker, **asked)
        assert answer.json["removed"]["removed_by"] == f"somebody at {by}"


REAL = "198.51.100.7"


@pytest.mark.parametrize(
    "claimed",
    [
        *('"', '"x', "\\", '203.0.113.5%"', '"10.0.0.5, ', "203.0.113.5", "x" * 5000, ",,,", " "),
        *('"a, b"', "127.0.0.1", "fe80::1%eth0", ";", "for=1.2.3.4"),
    ],
)
def test_nobody_chooses_who_he_is_by_what_stands_before_the_proxy_s_own(claimed: str) -> None:
    """As proxies do that append to what came from the client, quotes and all: the same in every
    release of Werkzeug, as none of it comes to that."""
    access: dict[str, Any] = {"proxies": PROXY, "hops": 1, "local_only": False}
    with board_of(allow_force_unlock=True, **access) as board:
        asked: dict[str, Any] = {"headers": {"X-Forwarded-For": f"{claimed}, {REAL}"}}
        asker = {"REMOTE_ADDR": "10.0.0.5"}
        answer = post(board, API_UNLOCK, json=FIELDS, environ_base=asker, **asked)
        assert answer.json["removed"]["removed_by"] == f"somebody at {REAL}"


@pytest.mark.parametrize(
    ("header", "value"),
    [
        *(("For", value) for value in ("x", '203.0.113.5%"', "203.0.113.5%eth0", "1.2.3.4:80")),
        *(("For", value) for value in ("2001:db8::1%eth0", "fe80::1%", 'fe80::1%"', '"1.2.3.4"')),
        *(("Host", value) for value in ('"', "a b", "locks.example.org, evil\\", "a:b:c")),
        *(("Proto", value) for value in ("javascript", '"https"')),
    ],
)
def test_a_proxy_that_adds_no_address_host_or_protocol_is_told(header: str, value: str) -> None:
    access: dict[str, Any] = {"proxies": PROXY, "hops": 1, "local_only": False}
    with board_of(**access) as board:
        asked = {f"X_Forwarded_{header}": value}
        answer = board.get("/", by="10.0.0.5", **asked)
        assert answer.status_code == 400
        assert f"X-Forwarded-{header}" in answer.get_data(as_text=True)
        assert board.get("/", by="127.0.0.1", **asked).status_code == 200  # no proxy of ours


@pytest.mark.parametrize("address", ["203.0.113.5", "2001:db8::1", "fe80::1%eth0", " ::1 "])
def test_a_proxy_s_address_may_be_any_that_is_one(address: str) -> None:
    access: dict[str, Any] = {"proxies": PROXY, "hops": 1, "local_only": False}
    with board_of(**access) as board:
        assert board.get("/", by="10.0.0.5", X_Forwarded_For=address).status_code == 200


def test_behind_a_proxy_the_origin_is_the_one_in_the_browser() -> None:
    access: dict[str, Any] = {"proxies": PROXY, "hops": 1, "local_only": False, "prefix": "/m"}
    with board_of(allow_force_unlock=True, **access) as board:
        forwarded = {"X-Forwarded-Host": "locks.example.org", "X-Forwarded-Proto": "https"}
        headers = {"Origin": "https://locks.example.org", **forwarded}
        path = "/m/locks/a/force-unlock"
        assert f'action="{path}"' in board.html(f"{path}?uuid=u1")
        data = {**FIELDS, "csrf": token_of(board, path)}
        for address, code in (("10.9.9.9", 403), ("10.0.0.5", 303)):
            asked: dict[str, Any] = {"headers": headers, "environ_base": {"REMOTE_ADDR": address}}
            answer = post(board, path, data=data, **asked)
            assert answer.status_code == code
        assert answer.headers["Location"] == "/m/lock/a?unlocked=u1"


@pytest.mark.parametrize(
    ("path", "code"),
    [
        *(("/m", 308), ("/m/", 200), ("/m/lock/a", 200), ("/m/healthz", 200), ("/healthz", 200)),
        *(("/readyz", 200), ("/metrics", 200), ("/", 404), ("/lock/a", 404), ("/mm/", 404)),
    ],
)
def test_below_a_prefix_and_nowhere_else(path: str, code: int) -> None:
    with board_of(prefix="/m") as board:
        answer = board.get(path)
        assert answer.status_code == code
        assert 'href="/lock' not in answer.get_data(as_text=True)


def test_a_dashboard_answers_to_the_names_it_was_given() -> None:
    with board_of(hosts=frozenset({"locks.example.org"}), local_only=False) as board:
        assert board.get("/", Host="locks.example.org:8722").status_code == 200
        for host in ("evil.example", "localhost", "10.0.0.7"):
            assert board.get("/", Host=host).status_code == 421
        assert board.get("/healthz", Host="10.0.0.7").status_code == 200


@pytest.mark.parametrize(
    ("host", "code"),
    [
        *(("locks.example.org", 200), ("localhost:8722", 200), ("127.0.0.1:8722", 200)),
        *(("mutexdash:8722", 200), ("evil.example:8722", 421), ("mutexdash.evil.example", 421)),
    ],
)
@pytest.mark.parametrize("login", ["none", "header"])
def test_a_rebound_page_does_not_pass_for_the_proxy(host: str, code: int, login: str) -> None:
    """It runs in a browser on the proxy's machine and may say anything, but for the host."""
    here = Networks.read("127.0.0.1")
    access: dict[str, Any] = {"proxies": here, "hops": 1, "local_only": login == "none"}
    if login == "header":
        access["login"] = Header("X-User", here)
    with board_of(**access, hosts=frozenset({"locks.example.org"})) as board:
        told = {"X-Forwarded-Host": "locks.example.org", "X-User": "ann"}
        assert board.get("/api/locks", Host=host, **told).status_code == code
        told["X-Forwarded-Host"] = "evil.example"
        assert board.get("/api/locks", Host=host, **told).status_code == 421


def test_a_page_of_another_site_is_refused_before_any_work(guarded: Board) -> None:
    """It can't read the answer, but what there is by the time that it takes."""
    asked = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors", **login("ann", "wrong")}
    for path in ("/?q=a", "/api/locks?q=a", "/removed.csv", "/lock/a"):
        assert guarded.get(path, **asked).status_code == 403, "not 401: nobody looked"
    assert guarded.get("/readyz", **asked).status_code == 200
    link = {**asked, "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
    assert guarded.get("/?q=a", **link | login("bob", "x")).status_code == 200


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


def test_a_page_with_a_token_is_not_compressed(board: Board) -> None:
    """Its length would tell about the token whoever can have it reflect a guess (BREACH)."""
    gzip: Callable[[str], Any] = lambda path: board.get(path, Accept_Encoding="gzip")  # noqa: E731
    assert gzip("/").headers["Content-Encoding"] == "gzip"
    assert gzip("/static/style.css").headers["Content-Encoding"] == "gzip"
    form = gzip("/locks/a/force-unlock?uuid=u1")
    assert "csrf" in form.get_data(as_text=True)
    assert "Content-Encoding" not in form.headers
    assert form.headers["Vary"] == "Accept-Encoding"
    again = gzip("/")
    assert again.headers["Content-Encoding"] == "gzip", "kept for another viewer as it was sent"
    assert "Content-Encoding" not in board.get("/").headers
