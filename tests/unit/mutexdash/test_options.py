"""The flags of `mutexdash`: what does not go together is one clear line and status 2."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from mutexdash.cli import main
from mutexdash.security.access import Access
from mutexdash.security.login import Basic, Header, Open
from mutexdash.security.options import access_options, in_clear, read_access, read_link

USERS = f"ann:$2y$10${'.' * 53}\n"


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
        ("--secret-file /nowhere", "can't be read"),
        ("--prometheus-url javascript:alert(1)", "--prometheus-url"),
        ("--runbook-url docs/runbook.md", "--runbook-url"),
        ("--auth ldap", "'ldap'"),
    ],
)
def test_flags_that_make_no_sense_are_told_in_a_line(flags: str, said: str) -> None:
    done = CliRunner().invoke(main, flags.split())
    assert done.exit_code == 2
    (line,) = [line for line in done.output.splitlines() if line.startswith("Error: ")]
    assert said in line


def read(words: str, environ: dict[str, str] | None = None, host: str = "127.0.0.1") -> Access:
    found: list[Access] = []

    @click.command(context_settings={"auto_envvar_prefix": "MUTEXDASH"})
    @access_options
    def command(**flags: Any) -> None:
        found.append(read_access(host=host, **flags))

    done = CliRunner().invoke(command, words.split(), env=environ, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return found[0]


def test_by_default_loopback_may_look_and_nobody_may_write() -> None:
    access = read("")
    assert isinstance(access.login, Open)
    assert (access.local_only, access.allow_force_unlock) == (True, False)
    assert access.secret != read("").secret


def test_every_flag_is_a_variable(tmp_path: Path) -> None:
    (tmp_path / "users").write_text(USERS)
    (tmp_path / "secret").write_text("0123456789abcdef\n")
    said = {
        "AUTH": "basic",
        "HTPASSWD": f"{tmp_path}/users",
        "SECRET_FILE": f"{tmp_path}/secret",
        "TRUSTED_PROXY": "10.0.0.0/8",
        "PROXY_HOPS": "2",
        "URL_PREFIX": "/a/b/",
        "ALLOWED_HOST": "Locks.example.org, other",
        "ALLOW_FORCE_UNLOCK": "1",
        "FORCE_UNLOCK_LIMIT": "3",
    }
    environ = {f"MUTEXDASH_{name}": value for name, value in said.items()}
    access = read("", environ, host="0.0.0.0")
    assert isinstance(access.login, Basic)
    assert (access.local_only, access.hops, access.prefix) == (False, 2, "/a/b")
    assert access.hosts == {"locks.example.org", "other"}
    assert (access.allow_force_unlock, access.unlocks_a_minute) == (True, 3)
    assert access.secret == b"0123456789abcdef"
    assert "10.1.2.3" in access.proxies


def test_a_proxy_elsewhere_needs_no_host_names() -> None:
    access = read("--auth proxy --trusted-proxy 10.0.0.1", host="0.0.0.0")
    assert isinstance(access.login, Header)
    assert not access.local_only


def test_without_a_login_only_names_that_it_was_given_are_answered_to() -> None:
    access = read("--no-auth --allowed-host localhost", host="0.0.0.0")
    assert not access.local_only
    assert access.hosts == {"localhost"}
    assert read("--no-auth").local_only, "on loopback it stays with names of this machine"


def test_passwords_in_the_clear_are_told(tmp_path: Path) -> None:
    (tmp_path / "users").write_text(USERS)
    basic = f"--auth basic --htpasswd {tmp_path / 'users'}"
    why = in_clear(read(basic, host="0.0.0.0"), "0.0.0.0")
    assert why is not None
    assert "TLS" in why
    assert in_clear(read(basic), "127.0.0.1") is None
    behind = read(f"{basic} --proxy-hops 1 --trusted-proxy 10.0.0.1", host="0.0.0.0")
    assert in_clear(behind, "0.0.0.0") is None
    assert in_clear(read("--no-auth --allowed-host x", host="0.0.0.0"), "0.0.0.0") is None


def test_what_is_linked_to_is_a_web_page() -> None:
    option = click.Option(["--prometheus-url"])
    for given, read_as in (("", ""), ("https://p.example/x/", "https://p.example/x")):
        assert read_link(click.Context(main), option, given) == read_as
