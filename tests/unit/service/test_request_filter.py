"""The request filter of both services: the hosts and sites that it admits."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import pytest
from werkzeug.test import create_environ, run_wsgi_app

from lockclient.service.request_filter import Door, read_hosts

ACROSS = {"Sec-Fetch-Site": "cross-site"}
FOLLOWED = {**ACROSS, "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
KNOWN = "locks.example.org"


def door(*hosts: str) -> Door:
    def app(environ: dict[str, Any], start_response: Any) -> list[bytes]:
        start_response("200 OK", [])
        return [b"inside"]

    return Door(app, hosts, ("/healthz", "/readyz"))


def answer(
    at: Door, path: str, host: str | None, said: Mapping[str, str], method: str = "GET"
) -> tuple[int, bytes]:
    """Ask without werkzeug's client, which in some releases itself refuses hosts that are none."""
    environ = {**create_environ(headers=said, method=method), "PATH_INFO": path, "HTTP_HOST": host}
    body, status, _ = run_wsgi_app(at, environ)
    return int(status.split()[0]), b"".join(body)


@pytest.mark.parametrize(
    ("status", "host", "said", "method"),
    [
        # No web page from elsewhere can be at an address or at a name without a dot.
        *((200, host, {}, "GET") for host in ("localhost:9722", "127.0.0.1:9722", "[fd00::7]")),
        *((200, host, {}, "GET") for host in ("10.1.2.3:9722", "[::1]:9722", "Unlocker_2")),
        *((200, host, {}, "GET") for host in (KNOWN, "LOCKS.example.org:80", "unlocker1:9722")),
        (200, None, {}, "GET"),  # no browser
        *((421, host, {}, "GET") for host in ("evil.example", f"{KNOWN}.evil.example", "a.b")),
        *((421, host, {}, "GET") for host in ("127.0.0.1.evil.example:9722", "localhost.")),
        *((421, host, {}, "GET") for host in ("", "[::", "localhost, evil.example", "x y")),
        (421, "1.2.3", {}, "GET"),
        # Of another site's pages only a link leads in.
        *((200, KNOWN, {"Sec-Fetch-Site": site}, "GET") for site in ("none", "same-origin")),
        *((403, KNOWN, {"Sec-Fetch-Site": site}, "GET") for site in ("same-site", "new in 2030")),
        (403, KNOWN, ACROSS, "GET"),
        (403, KNOWN, {**ACROSS, "Sec-Fetch-Mode": "no-cors", "Sec-Fetch-Dest": "image"}, "GET"),
        (403, KNOWN, {**FOLLOWED, "Sec-Fetch-Dest": "iframe"}, "GET"),
        (403, KNOWN, {**FOLLOWED, "Sec-Purpose": "prefetch"}, "GET"),
        (403, KNOWN, FOLLOWED, "POST"),
        (200, KNOWN, FOLLOWED, "GET"),
    ],
)
def test_requests_are_admitted_by_host_and_site(
    caplog: pytest.LogCaptureFixture,
    status: int,
    host: str | None,
    said: dict[str, str],
    method: str,
) -> None:
    at = door(KNOWN)
    for path in ("/", "/metrics", "//metrics"):
        found, text = answer(at, path, host, said, method)
        assert found == status
        assert (b"--allowed-host" in text) is (status == 421)
    assert answer(at, "/healthz", host, said, method)[0] == 200, "probes are open to all"
    assert len(caplog.records) == (status == 421), "logged once"


def test_refused_requests_do_not_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    at = door()
    for number in range(50):
        answer(at, "/", f"x{number}.example\x1b2J", {})
    assert len([record for record in caplog.records if record.levelno == logging.WARNING]) == 10
    assert "\x1b" not in caplog.text


def test_hosts_are_read_without_ports() -> None:
    assert read_hosts(" A.example, b ,,::1") == {"a.example", "b", "::1"}
    assert read_hosts(None) == set()
    for wrong in ("http://x", "x:80", "*", "a b"):
        with pytest.raises(ValueError, match="--allowed-host"):
            read_hosts(wrong)
