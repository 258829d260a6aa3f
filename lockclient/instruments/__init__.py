"""Instruments: what a program is told of its own locks, as they are waited for, held and lost."""

from lockclient.instruments.events import (
    Acquired,
    Asked,
    Event,
    EventsDropped,
    GaveUp,
    LockEvent,
    Lost,
    Pushed,
    PushFailed,
    Released,
    Requested,
    StoreSlow,
    StoreUnreachable,
    Waiting,
)
from lockclient.instruments.observer import Instrument, flush

__all__ = [
    "Acquired",
    "Asked",
    "Event",
    "EventsDropped",
    "GaveUp",
    "Instrument",
    "LockEvent",
    "Lost",
    "PushFailed",
    "Pushed",
    "Released",
    "Requested",
    "StoreSlow",
    "StoreUnreachable",
    "Waiting",
    "flush",
]
