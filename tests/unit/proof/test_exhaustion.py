"""All orders within small bounds; larger ones: `python -m tests.proof.exhaust`."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from tests.proof.exhaust import World, explore
from tests.support.processes import Figure


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.promise(number=1)
@pytest.mark.promise(number=6)
def test_two_clients_and_an_unlocker_without_faults(figure: Figure) -> None:
    """One of them may give up at any step."""
    states, all_of_them = explore(World(2, foreign=False), 0, float("inf"))
    assert all_of_them
    assert states > 1000
    figure(f"{states} states of two clients and an unlocker: all there are, none breaks a rule")


@pytest.mark.soak
@pytest.mark.parametrize(("clients", "faults"), [(2, 1), (3, 0)])
def test_more_of_them(clients: int, faults: int, figure: Figure) -> None:
    states, all_of_them = explore(World(clients, foreign=False), faults, float("inf"))
    assert all_of_them
    figure(f"{states} states of {clients} clients, {faults} faults: all there are")
