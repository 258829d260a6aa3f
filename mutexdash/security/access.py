"""Access rules, as the flags set them, and the viewer of a request."""

from __future__ import annotations

from dataclasses import dataclass, field

from mutexdash.security.login import Login, Open
from mutexdash.security.networks import Networks


@dataclass(frozen=True)
class Access:
    """The access rules of the dashboard.

    Attributes:
        login: how to find out who looks.
        local_only: answer only to requests that name this machine.
        hosts: the names by which people reach the dashboard; empty: any, `local_only` aside.
        allow_force_unlock: whether those who may look may force-unlock.
        unlocks_a_minute: how many of each user.
        prefix: below which path the dashboard stands, "" or like `/locks`.
        proxies: whose X-Forwarded-For, -Proto and -Host are believed.
        hops: how many proxies add to those headers on the way, exactly.
    """

    login: Login = field(default_factory=Open)
    local_only: bool = True
    hosts: frozenset[str] = frozenset()
    allow_force_unlock: bool = False
    unlocks_a_minute: int = 10
    prefix: str = ""
    proxies: Networks = field(default_factory=Networks)
    hops: int = 0


@dataclass(frozen=True, slots=True)
class Viewer:
    """The viewer of a page.

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
