"""Access rules, as the flags set them, who looks, and the CSRF tokens of forms."""

from __future__ import annotations

import hmac
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import sha256

from mutexdash.security.login import Login, Networks, Open

_TOKEN_PERIOD_S = 6 * 3600
"""Seconds for which a form's token stays the same, so that a page does, too."""
_MAX_TOKEN_AGE_PERIODS = 4
"""For how many periods it is taken: a page may stay open over a day."""


@dataclass(frozen=True)
class Access:
    """Who may see and do what, and from where.

    Attributes:
        login: how to find out who looks.
        local_only: answer only to requests that name this machine.
        hosts: the names by which people reach the dashboard; empty: any, `local_only` aside.
        allow_force_unlock: whether those who may look may force-unlock.
        unlocks_a_minute: how many of each user.
        secret: what tokens are made with; dashboards behind one address share it.
        prefix: below which path the dashboard stands, "" or like `/locks`.
        proxies: whose X-Forwarded-For, -Proto and -Host are believed.
        hops: how many proxies add to those headers on the way, exactly.
    """

    login: Login = field(default_factory=Open)
    local_only: bool = True
    hosts: frozenset[str] = frozenset()
    allow_force_unlock: bool = False
    unlocks_a_minute: int = 10
    secret: bytes = field(default_factory=lambda: secrets.token_bytes(32), repr=False)
    prefix: str = ""
    proxies: Networks = field(default_factory=Networks)
    hops: int = 0


@dataclass(frozen=True, slots=True)
class Viewer:
    """Who looks.

    Attributes:
        user: None where there is no login.
        may_unlock: whether they may force-unlock.
        why_not: says why they may not.
        in_clear: whether their password came to us readable for everyone on the way.
    """

    user: str | None = None
    may_unlock: bool = False
    why_not: str = ""
    in_clear: bool = False


class Tokens:
    """Tokens that only a page of ours can have told a browser, each for one user.

    Nothing is stored: a token is the period and the user's name, sealed with the secret. It stays
    the same for a period, so that the page it stands on changes only with what it shows.
    """

    def __init__(self, secret: bytes, clock: Callable[[], float] = time.time) -> None:
        self._secret = secret
        self._clock = clock

    def period(self) -> int:
        """Return the number of the current period."""
        return int(self._clock() // _TOKEN_PERIOD_S)

    def issue(self, user: str | None) -> str:
        """Return the user's token of now."""
        return self._sealed(user, self.period())

    def good(self, token: str, user: str | None) -> bool:
        """Tell whether it is a token of this user's that has not grown too old."""
        now, given = self.period(), token.encode(errors="replace")
        return any(
            hmac.compare_digest(given, self._sealed(user, now - age).encode())
            for age in range(_MAX_TOKEN_AGE_PERIODS)
        )

    def _sealed(self, user: str | None, period: int) -> str:
        return hmac.new(self._secret, repr((user, period)).encode(), sha256).hexdigest()
