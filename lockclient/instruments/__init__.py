"""Instruments: callables that get an event as a lock of this process is acquired, held or lost."""

from lockclient.instruments.event_delivery import Instrument, flush
from lockclient.instruments.events import Acquired, Event, GaveUp, Lost, Released, Requested

__all__ = [
    "Acquired",
    "Event",
    "GaveUp",
    "Instrument",
    "Lost",
    "Released",
    "Requested",
    "flush",
]
