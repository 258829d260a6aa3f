"""Addresses of clients and proxies, and their networks."""

from __future__ import annotations

import re
from dataclasses import dataclass
from ipaddress import (
    IPv4Address,
    IPv4Network,
    IPv6Address,
    IPv6Network,
    ip_address,
    ip_network,
)

_SCOPE = re.compile(r"[\w.-]{1,15}", re.ASCII)


def address_of(text: str) -> IPv4Address | IPv6Address | None:
    """Return a connection's address, or None; an IPv4 address mapped to IPv6 as IPv4.

    A link-local one may end in the name of an interface (`fe80::1%eth0`).
    """
    bare, scoped, interface = text.partition("%")
    try:
        found = ip_address(bare)
    except ValueError:
        return None
    if scoped and not (found.version == 6 and found.is_link_local and _SCOPE.fullmatch(interface)):
        return None
    return getattr(found, "ipv4_mapped", None) or found


def network_of(address: str) -> str:
    """Return the address's /24 of IPv4 or /64 of IPv6, which usually belongs to one site."""
    if (found := address_of(address)) is None:
        return ""
    return str(ip_network((found, 24 if found.version == 4 else 64), strict=False))


@dataclass(frozen=True)
class Networks:
    """Addresses and networks, IPv4 and IPv6."""

    all: tuple[IPv4Network | IPv6Network, ...] = ()

    @classmethod
    def read(cls, text: str) -> Networks:
        """Read a comma-separated list, or raise ValueError."""
        return cls(tuple(ip_network(part.strip()) for part in text.split(",")))

    def __contains__(self, address: object) -> bool:
        found = address_of(str(address))
        return found is not None and any(found in network for network in self.all)

    def loopback(self) -> bool:
        loopback = {4: ip_network("127.0.0.0/8"), 6: ip_network("::1/128")}
        return any(network.overlaps(loopback[network.version]) for network in self.all)
