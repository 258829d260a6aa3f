"""The door of both services: the hosts and the sites that get in."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from werkzeug.test import Client, create_environ, run_wsgi_app

from lockclient.service.request_filter import (
    Door,
    foreign_host,
    is_from_another_site,
    network_of,
    read_hosts,
)

FOLLOWED = {"HTTP_SEC_FETCH_MODE": "navigate", "HTTP_SEC_FETCH_DEST": "document"}
ACROSS = {"REQUEST_METHOD": "GET", "HTTP_SEC_FETCH_SITE": "cross-site"}


def door(*hosts: str) -> Client:
    def app(environ: dict[str, Any], start_response: Any) -> list[bytes]:
        start_response("200 OK", [])
        return [b"inside"]

    return Client(Door(app, hosts, ("/healthz", "/readyz")))


def asked_for(path: str, host: str) -> dict[str, Any]:
    environ = create_environ(headers={"Host": host})
    return {**environ, "PATH_INFO": path, "HTTP_HOST": host}


@pytest.mark.parametrize(
    "host",
    [
        *("localhost:9722", "127.0.0.1:9722", "10.1.2.3:9722", "[::1]:9722", "[fd00::7]"),
        *("unlocker1:9722", "Unlocker_2", "locks.example.org", "LOCKS.example.org:80"),
    ],
)
def test_addresses_names_without_a_dot_and_known_names_get_in(host: str) -> None:
    """No web page from elsewhere can be at one of them."""
    assert door("locks.example.org").get("/metrics", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize(
    "host",
    [
        *("evil.example", "locks.example.org.evil.example", "127.0.0.1.evil.example:9722"),
        *("localhost.", "a.b", "", "[::", "localhost, evil.example", "x y", "1.2.3"),
    ],
)
def test_others_do_not(host: str, caplog: pytest.LogCaptureFixture) -> None:
    def answer_to(path: str) -> tuple[str, bytes]:
        # Without werkzeug's client, which in some releases itself refuses hosts that are none.
        answer, status, _ = run_wsgi_app(client.application, asked_for(path, host))
        return status, b"".join(answer)

    client = door("locks.example.org")
    for path in ("/", "/metrics", "//metrics"):
        status, said = answer_to(path)
        assert status.startswith("421 ")
        assert b"--allowed-host" in said
    assert answer_to("/healthz")[0].startswith("200 ")
    assert len(caplog.records) == 1, "told once, for whoever wonders why nothing is scraped"


def test_the_log_is_not_filled_by_strangers(caplog: pytest.LogCaptureFixture) -> None:
    client = door()
    for number in range(50):
        client.get("/", headers={"Host": f"x{number}.example\x1b2J"})
    assert len([record for record in caplog.records if record.levelno == logging.WARNING]) == 10
    assert "\x1b" not in caplog.text


def test_what_is_no_browser_need_not_name_a_host() -> None:
    assert foreign_host(None, ()) is None


@pytest.mark.parametrize(
    ("said", "stranger"),
    [
        ({}, False),
        ({"HTTP_SEC_FETCH_SITE": "none"}, False),
        ({"HTTP_SEC_FETCH_SITE": "same-origin"}, False),
        (ACROSS, True),
        ({"HTTP_SEC_FETCH_SITE": "same-site"}, True),
        ({"HTTP_SEC_FETCH_SITE": "new in 2030"}, True),
        ({**ACROSS, "HTTP_SEC_FETCH_MODE": "no-cors", "HTTP_SEC_FETCH_DEST": "image"}, True),
        ({**ACROSS, "HTTP_SEC_FETCH_MODE": "navigate", "HTTP_SEC_FETCH_DEST": "iframe"}, True),
        ({**ACROSS, **FOLLOWED}, False),
        ({**ACROSS, **FOLLOWED, "REQUEST_METHOD": "POST"}, True),
        ({**ACROSS, **FOLLOWED, "HTTP_SEC_PURPOSE": "prefetch"}, True),
    ],
)
def test_of_another_sites_pages_only_a_link_leads_in(said: dict[str, str], stranger: bool) -> None:
    assert is_from_another_site(said) == stranger


def test_a_page_of_another_site_can_ask_for_nothing_but_probes() -> None:
    asked = {"Host": "localhost", "Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"}
    assert door().get("/metrics", headers=asked).status_code == 403
    assert door().get("/readyz", headers=asked).status_code == 200


@pytest.mark.parametrize(
    ("address", "network"),
    [
        ("10.1.2.3", "10.1.2.0/24"),
        ("::ffff:10.1.2.3", "10.1.2.0/24"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("whatever a proxy says", ""),
        ("", ""),
    ],
)
def test_a_network_is_what_one_stranger_has(address: str, network: str) -> None:
    assert network_of(address) == network


def test_hosts_are_read_without_ports() -> None:
    assert read_hosts(" A.example, b ,,::1") == {"a.example", "b", "::1"}
    assert read_hosts(None) == set()
    for wrong in ("http://x", "x:80", "*", "a b"):
        with pytest.raises(ValueError, match="--allowed-host"):
            read_hosts(wrong)
