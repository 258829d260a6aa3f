"""The access flags of `mutexdash`, and the checks of their combinations."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click

from lockclient.service.service_flags import hosts_of, with_options
from lockclient.text.escaping import HAS_AT, hidden
from lockclient.text.url import is_loopback
from mutexdash.security.access_rules import Access
from mutexdash.security.client_addresses import Networks
from mutexdash.security.htpasswd import BadFile, Passwords
from mutexdash.security.login import Basic, Header, Login

_PREFIX = re.compile(r"(/[A-Za-z0-9._~-]+)+", re.ASCII)
_HEADER = re.compile(r"[A-Za-z0-9-]{1,60}", re.ASCII)


access_options = with_options(
    click.option(
        "--auth",
        type=click.Choice(["none", "basic", "proxy"]),
        default="none",
        show_default=True,
        help="How viewers log in: not at all, by user and password, or by a header that a "
        "proxy sets.",
    ),
    click.option(
        "--no-auth",
        is_flag=True,
        help="Listen on other addresses than loopback without a login, for everyone who can "
        "reach them; needs --allowed-host.",
    ),
    click.option(
        "--htpasswd",
        metavar="FILE",
        help="For --auth basic: users and bcrypt hashes, as `htpasswd -B -C 12` writes them.",
    ),
    click.option(
        "--auth-header",
        metavar="NAME",
        default="X-Forwarded-User",
        show_default=True,
        help="For --auth proxy: the header that names the user.",
    ),
    click.option(
        "--trusted-proxy",
        metavar="ADDR,…",
        help="The addresses or networks of trusted proxies.",
    ),
    click.option(
        "--proxy-hops",
        type=click.IntRange(0, 10),
        default=0,
        show_default=True,
        help="How many proxies add to X-Forwarded-For, -Proto and -Host, exactly.",
    ),
    click.option(
        "--allowed-host",
        metavar="NAME,…",
        help="The host names by which people reach the dashboard; it answers to no other.",
    ),
    click.option(
        "--url-prefix",
        metavar="PATH",
        default="",
        help="Serve the dashboard below this path, like /locks.",
    ),
    click.option(
        "--allow-force-unlock",
        is_flag=True,
        help="Let everyone who can view the dashboard force-unlock, too.",
    ),
    click.option(
        "--force-unlock-limit",
        type=click.IntRange(1, 10_000),
        default=10,
        show_default=True,
        help="How many force-unlocks each user may make in a minute.",
    ),
)
"""Adds the flags of `read_access`."""


def read_access(
    *,
    host: str,
    auth: str,
    no_auth: bool,
    htpasswd: str | None,
    auth_header: str,
    trusted_proxy: str | None,
    proxy_hops: int,
    allowed_host: str | None,
    url_prefix: str,
    allow_force_unlock: bool,
    force_unlock_limit: int,
) -> Access:
    """Return the access rules of the flags, or raise click.UsageError; `host` is listened on."""
    proxies = _networks(trusted_proxy)
    hosts = hosts_of(allowed_host)
    if proxy_hops and not proxies.all:
        raise click.UsageError(
            "--proxy-hops says that proxies stand before the dashboard: name their addresses by "
            "--trusted-proxy, or everybody could say to be one."
        )
    _check_exposure(host, auth, no_auth=no_auth, named=bool(hosts))
    return Access(
        login=_login(auth, htpasswd, auth_header, proxies, hosts),
        local_only=auth == "none" and is_loopback(host),
        hosts=hosts,
        allow_force_unlock=allow_force_unlock,
        unlocks_a_minute=force_unlock_limit,
        prefix=_prefix(url_prefix),
        proxies=proxies,
        hops=proxy_hops,
    )


def _check_exposure(host: str, auth: str, *, no_auth: bool, named: bool) -> None:
    """Refuse to serve without protection by mistake; `named`: --allowed-host was given."""
    if auth != "none" and no_auth:
        raise click.UsageError(f"--no-auth and --auth {auth} contradict each other: give one.")
    is_local = is_loopback(host)
    if auth == "none" and not no_auth and not is_local:
        raise click.UsageError(
            f"Listening on {host} would show every lock, and the code that took it, to everyone "
            "who can reach it. Listen on 127.0.0.1, or ask for a login by --auth basic or "
            "--auth proxy, or give --no-auth if something else keeps strangers out."
        )
    if no_auth and not is_local and not named:
        # Without a login, only the host tells a request of our page from one of a page whose own
        # name resolves to this address.
        raise click.UsageError(
            "--no-auth needs the host names by which people reach the dashboard: --allowed-host "
            "NAME,… (localhost for a port-forward). Else any web page that is open in a browser "
            "of theirs could read it."
        )


def in_clear(access: Access, host: str) -> str | None:
    """Return a sentence if passwords reach the address `host` unencrypted, or None."""
    if not isinstance(access.login, Basic) or access.hops or is_loopback(host):
        return None
    return (
        f"Passwords come to {host} unencrypted, as far as this program knows: put TLS in front, "
        "and name the proxy that does it by --proxy-hops 1 --trusted-proxy ADDR."
    )


def read_link(_ctx: click.Context, param: click.Parameter, url: str) -> str:
    """click's callback: return the URL of a web page, without a slash at its end."""
    flag = param.opts[0]
    parts = _split(url)
    if url and (parts is None or parts.scheme not in ("http", "https") or not parts.hostname):
        raise click.UsageError(
            f"{flag} must be the address of a web page, like https://ops.example.org, "
            f"not {hidden(url)!r}."
        )
    if HAS_AT(url):
        raise click.UsageError(f"{flag} holds a user: every viewer could read it.")
    return url.rstrip("/")


def _split(url: str) -> Any:
    try:
        return urlsplit(url)
    except ValueError:
        return None


def _login(
    auth: str, htpasswd: str | None, header: str, proxies: Networks, hosts: frozenset[str]
) -> Login | None:
    if auth == "basic":
        if htpasswd is None:
            raise click.UsageError("--auth basic needs the file of users: --htpasswd FILE.")
        try:
            return Basic(Passwords(Path(htpasswd)))
        except BadFile as error:
            raise click.UsageError(str(error)) from error
    if htpasswd is not None:
        raise click.UsageError("--htpasswd is only for --auth basic: give that, too.")
    if auth == "none":
        return None
    if not proxies.all:
        raise click.UsageError(
            "--auth proxy believes a header: name the address that it comes from by "
            "--trusted-proxy ADDR."
        )
    if not _HEADER.fullmatch(header):
        raise click.UsageError(f"--auth-header must be a header's name, not {header!r}.")
    if proxies.loopback() and not hosts:
        # The request of a web page whose own name resolves to 127.0.0.1 comes from this machine's
        # address with any header: only the host tells it apart.
        raise click.UsageError(
            "With a proxy on this machine, name the hosts by which people reach the dashboard by "
            "--allowed-host: else any web page that is open here could pass for the proxy."
        )
    return Header(header, proxies)


def _networks(text: str | None) -> Networks:
    if not text:
        return Networks()
    try:
        return Networks.read(text)
    except ValueError as error:
        raise click.UsageError(
            f"--trusted-proxy must be addresses or networks with commas between: {error}."
        ) from error


def _prefix(text: str) -> str:
    prefix = text.rstrip("/")
    if prefix and not _PREFIX.fullmatch(prefix):
        raise click.UsageError(f"--url-prefix must be a path like /locks, not {text!r}.")
    return prefix
