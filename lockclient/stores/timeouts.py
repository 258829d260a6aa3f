"""Timeouts: how long a mutex waits for its store."""

STORE_TIMEOUT_S = 10.0
"""Seconds that a call without a timeout of its own waits for a store that does not answer."""
ONE_ANSWER_S = 3.0
"""Seconds for one answer, however short a timeout is."""
