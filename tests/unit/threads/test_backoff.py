"""Pauses between tries."""

from __future__ import annotations

from lockclient.threads.backoff import Backoff


def test_pauses_grow_and_are_never_in_step() -> None:
    """The first is short; then each is between the least and three times the last, to the most."""
    pauses = (Backoff(0.2, 1.0, 30.0), Backoff(0.2, 1.0, 30.0))
    runs = [[pause.next() for _ in range(40)] for pause in pauses]
    for first, *others in runs:
        assert 0 <= first <= 0.2
        assert all(1.0 <= seconds <= 30.0 for seconds in others)
        assert all(then <= 3 * now for now, then in zip([1.0, *others], others, strict=False))
    assert runs[0] != runs[1]
    assert max(map(max, runs)) > 10
