"""Access rules, as the flags set them, and the viewer of a request."""

from __future__ import annotations

from dataclasses import dataclass, field

from mutexdash.security.client_addresses import Networks
from mutexdash.security.login import Login


@dataclass(frozen=True)
class Access:
    """The access rules of the dashboard.

    Attributes:
        login: None: everybody is let in and has no name.
        local_only: answers only requests whose host is this machine.
        hosts: the names by which people reach the dashboard; empty: any, `local_only` aside.
        allow_force_unlock: whether all viewers may force-unlock.
        unlocks_a_minute: the limit for each user.
        prefix: the path below which the dashboard is served, "" or like `/locks`.
        proxies: their X-Forwarded-For, -Proto and -Host count.
        hops: how many proxies add to those headers, exactly.
    """

    login: Login | None = None
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
        user: None: there is no login.
        in_clear: their password came unencrypted from another machine.
    """

    user: str | None = None
    may_unlock: bool = False
    in_clear: bool = False
