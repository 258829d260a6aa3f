"""The members of the simulated etcd: their faults and their errors."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import grpc

if TYPE_CHECKING:
    from tests.simulation.streams import Stream

DELAY_S = 0.002
"""Seconds that a message takes at most, when all is well."""


class Failed(grpc.RpcError):
    """gRPC's error."""

    def __init__(self, code: grpc.StatusCode, details: str | None = None) -> None:
        super().__init__(details)
        self._code, self._details = code, details

    def code(self) -> grpc.StatusCode:
        """See gRPC."""
        return self._code

    def details(self) -> str | None:
        """See gRPC."""
        return self._details


def nobody_there() -> Failed:
    """Return gRPC's word for a connection that can't be made."""
    return Failed(grpc.StatusCode.UNAVAILABLE, "failed to connect to all addresses")


def no_leader() -> Failed:
    """Return etcd's word on a stream that wants a leader."""
    return Failed(grpc.StatusCode.UNAVAILABLE, "etcdserver: no leader")


@dataclass(eq=False)
class Member:
    """One member: when it answers again, and who watches by it."""

    name: str
    frozen_until: float = -math.inf
    down_until: float = -math.inf
    without_leader_until: float = -math.inf
    behind_until: float = -math.inf
    streams: list[Stream] = field(default_factory=list)
