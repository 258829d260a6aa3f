"""The protocol's model holds, and each transaction that is broken is found (`make exhaust`)."""

from __future__ import annotations

import pytest

from tests.proof.model import BROKEN, visit
from tests.support.processes import Figure, needed


@pytest.fixture(autouse=True)
def _programs() -> None:
    needed("spin")
    needed("gcc")


def test_three_clients(figure: Figure) -> None:
    states, failed = visit(3, 1)
    assert failed == ""
    figure(f"{states} states of three clients and one fault: all there are")


@pytest.mark.parametrize("broken", range(1, len(BROKEN) + 1), ids=BROKEN)
def test_what_is_left_out_is_found(broken: int) -> None:
    assert visit(3, 1, broken)[1].startswith("assertion violated")
