"""Login: by password, or by a proxy's header. Without either, everybody is let in."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Protocol

from flask import Request, abort
from werkzeug.datastructures import WWWAuthenticate
from werkzeug.exceptions import ServiceUnavailable, TooManyRequests, Unauthorized

from lockclient.service.rate_limits import RateLimits
from mutexdash.security.client_addresses import Networks, network_of
from mutexdash.security.htpasswd import Passwords

PEER = "mutexdash.peer"
"""The key of the connection's own address in the WSGI environment."""
ASKED_HOST = "mutexdash.asked-host"
"""The key of the connection's own `Host`, without a proxy's header."""

_MAX_USER_CHARS = 100
_CHALLENGE = WWWAuthenticate("basic", {"realm": "ClusterMutex", "charset": "UTF-8"})
_MAX_WRONG_BY_BOTH = 20
"""Wrong passwords for one user from one network (/24, /64)."""
_MAX_WRONG_BY_NETWORK = 100
"""Wrong passwords from one network, for any users."""
_MAX_WRONG_BY_USER = 60
"""Wrong passwords for one user from all networks where that user has not logged in."""
_MAX_GUESSES = 300
"""Wrong passwords for a logged-in user from the user's network. These are compared without bcrypt;
beyond the limit the correct password is refused, too, or its answer would reveal it."""
_MAX_KNOWN_NETWORKS = 1000
"""Networks of correct logins that are remembered."""
_MAX_WAITING = 2
"""Requests in a queue for bcrypt, with the one that it checks; each keeps one of few threads."""


class Login(Protocol):
    """One way to log in."""

    def user(self, request: Request, /) -> str:
        """Return the user's name, or raise the HTTPException that refuses the request."""


class Basic:
    """HTTP's basic authentication against a file of passwords.

    A correct password is remembered for its user and network, so a logged-in user skips bcrypt,
    which takes a good part of a second of a core. All others queue for it, in two queues: one for
    networks with a correct login. So strangers, from however many networks, keep one core and two
    threads busy and cannot keep a colleague from logging in.
    """

    def __init__(self, passwords: Passwords) -> None:
        self._passwords = passwords
        self._wrong = RateLimits()
        self._known_networks: OrderedDict[str, None] = OrderedDict()
        self._queues = {True: AdmissionQueue(), False: AdmissionQueue()}

    def user(self, request: Request) -> str:
        """Return the name that was given with its password."""
        try:
            given = request.authorization
        except ValueError:  # Werkzeug decodes base64 and expects ASCII
            given = None
        user, password = (given.username, given.password) if given else (None, None)
        if given is None or given.type != "basic" or user is None or password is None:
            raise Unauthorized("Log in to see the locks.", www_authenticate=_CHALLENGE)
        network = network_of(request.remote_addr or "")
        if not self._is_known(user, password, network):
            self._check(user, password, network)
        return user

    def _is_known(self, user: str, password: str, network: str) -> bool:
        if not self._passwords.has_logged_in(user, network):
            return False
        guess = self._wrong.hit({("guesses", user, network): _MAX_GUESSES})
        if guess is None:
            raise _too_many()
        if not self._passwords.is_remembered(user, password, network):
            return False
        self._wrong.take_back(guess)
        return True

    def _check(self, user: str, password: str, network: str) -> None:
        # Guesses from elsewhere do not lock a user out of a network with a correct login.
        at_home, name = self._passwords.has_logged_in(user, network), user[:_MAX_USER_CHARS]
        limits = {
            ("of both", name, network): _MAX_WRONG_BY_BOTH,
            ("of a network", network): _MAX_WRONG_BY_NETWORK,
        }
        if not at_home:
            limits["for a user", name] = _MAX_WRONG_BY_USER
        # Before the check, so that guesses beyond the limits cost nothing.
        guess = self._wrong.hit(limits)
        if guess is None:
            raise _too_many()
        is_wrong = False
        try:
            with self._queues[network in self._known_networks].turn():
                is_wrong = not self._passwords.check(user, password, network)
        finally:
            if not is_wrong:
                self._wrong.take_back(guess)
        if is_wrong:
            raise Unauthorized("The user or the password is wrong.", www_authenticate=_CHALLENGE)
        self._known_networks[network] = None
        while len(self._known_networks) > _MAX_KNOWN_NETWORKS:
            self._known_networks.popitem(last=False)


class AdmissionQueue:
    """Admits one request at a time; a request that finds the queue full is refused."""

    def __init__(self) -> None:
        self._places = threading.Semaphore(_MAX_WAITING)
        self._turn = threading.Lock()

    @contextmanager
    def turn(self) -> Iterator[None]:
        if not self._places.acquire(blocking=False):
            raise ServiceUnavailable("Too many logins at once. Try again shortly.", retry_after=2)
        try:
            with self._turn:
                yield
        finally:
            self._places.release()


def _too_many() -> TooManyRequests:
    return TooManyRequests(
        "Too many wrong passwords for this user, or from this network. Try again in a minute.",
        retry_after=60,
    )


class Header:
    """A header that names the user; it counts only in requests from the proxies' addresses."""

    def __init__(self, name: str, proxies: Networks) -> None:
        self._name = name
        self._proxies = proxies

    def user(self, request: Request) -> str:
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
        user = user.strip(" \t")  # not Unicode's spaces: with one it is another name
        # In a list, the proxy has added its header to one that came from the client.
        if not user or "," in user or not user.isprintable() or len(user) > _MAX_USER_CHARS:
            abort(
                403,
                f"The proxy did not say who you are: the header {self._name} is missing or is "
                "not one name.",
            )
        return user
