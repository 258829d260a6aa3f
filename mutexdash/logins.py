"""Who looks: the ways to find out, of which a dashboard has one.

Each way takes a request and returns the user's name, None where everybody is let in, or refuses.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Protocol

from flask import Request, abort
from limits import RateLimitItemPerMinute
from limits.storage import MemoryStorage
from limits.strategies import MovingWindowRateLimiter
from werkzeug.datastructures import WWWAuthenticate
from werkzeug.exceptions import TooManyRequests, Unauthorized

from mutexdash.passwords import Passwords

PEER = "mutexdash.peer"
"""Where in the WSGI environment the address stands that the connection came from."""

_LONGEST_USER = 100
_CHALLENGE = WWWAuthenticate("basic", {"realm": "ClusterMutex", "charset": "UTF-8"})
_WRONG_A_MINUTE = 20
_GUESSES_A_MINUTE = 300
"""With more wrong passwords than this nobody at an address gets in: a right guess would be known by
being let in."""


class Login(Protocol):
    """One way to find out who looks."""

    def user(self, request: Request, /) -> str | None:
        """Return the user's name.

        Raises:
            HTTPException: this one is not let in.
        """


class Open:
    """Everybody is let in and nobody has a name."""

    def user(self, _request: Request) -> str | None:
        """Return None."""
        return None


class Basic:
    """HTTP's basic authentication against a file of passwords."""

    def __init__(self, passwords: Passwords) -> None:
        self._passwords = passwords
        self._limiter = MovingWindowRateLimiter(MemoryStorage())
        self._limit = RateLimitItemPerMinute(_WRONG_A_MINUTE)
        self._most = RateLimitItemPerMinute(_GUESSES_A_MINUTE)

    def user(self, request: Request) -> str | None:
        """Return the name that was given with its password."""
        given = request.authorization
        user, password = (given.username, given.password) if given else (None, None)
        if given is None or given.type != "basic" or user is None or password is None:
            raise Unauthorized("Log in to see the locks.", www_authenticate=_CHALLENGE)
        where = request.remote_addr or ""
        guessing = not self._limiter.test(self._most, where)
        if not guessing and self._passwords.known(user, password):
            return user
        self._limiter.hit(self._most, where)
        # Before the check: bcrypt takes a good part of a second of a core, and whoever guesses
        # would keep all threads busy with it.
        if guessing or not self._limiter.test(self._limit, where):
            raise TooManyRequests(
                "Too many wrong passwords came from this address. Try again in a minute.",
                retry_after=60,
            )
        if not self._passwords.check(user, password):
            self._limiter.hit(self._limit, where)
            raise Unauthorized("The user or the password is wrong.", www_authenticate=_CHALLENGE)
        return user


class Header:
    """A header that a proxy sets after it has found out itself, believed from its address only."""

    def __init__(self, name: str, proxies: Networks) -> None:
        self._name = name
        self._proxies = proxies

    def user(self, request: Request) -> str | None:
        """Return the name that the proxy gives."""
        if request.environ.get(PEER) not in self._proxies:
            abort(
                403,
                "This dashboard is open only through its proxy, which knows who you are. "
                "(The proxy's address must be named by --trusted-proxy.)",
            )
        user = request.headers.get(self._name, "")
        with suppress(UnicodeDecodeError):  # WSGI reads bytes as Latin-1; most proxies send UTF-8
            user = user.encode("latin-1").decode()
        user = user.strip()
        # A list means that the proxy has added its header to one that came from the client.
        if not user or "," in user or not user.isprintable() or len(user) > _LONGEST_USER:
            abort(
                403,
                f"The proxy did not say who you are: the header {self._name} is missing or is "
                "not one name.",
            )
        return user


@dataclass(frozen=True)
class Networks:
    """Addresses and networks, IPv4 and IPv6."""

    all: tuple[IPv4Network | IPv6Network, ...] = ()

    @classmethod
    def read(cls, text: str) -> Networks:
        """Read a list with commas between.

        Raises:
            ValueError: one is neither an address nor a network.
        """
        return cls(tuple(ip_network(each.strip()) for each in text.split(",")))

    def __contains__(self, address: object) -> bool:
        try:
            found = ip_address(str(address).partition("%")[0])
        except ValueError:
            return False
        if isinstance(found, IPv6Address) and found.ipv4_mapped is not None:
            found = found.ipv4_mapped
        return any(found in network for network in self.all)

    def loopback(self) -> bool:
        """Tell whether programs on this machine are among them."""
        here = {4: ip_network("127.0.0.0/8"), 6: ip_network("::1/128")}
        return any(network.overlaps(here[network.version]) for network in self.all)
