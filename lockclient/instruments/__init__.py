"""Instruments: callables that get an event as a lock of this process is acquired, held or lost."""

from lockclient.instruments.events import Acquired, Event, GaveUp, Lost, Released, Requested
from lockclient.instruments.observer import Instrument, flush

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
