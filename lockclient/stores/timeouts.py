"""Timeouts: how long a mutex waits for its store, and how long a ticket lives without renewal."""

STORE_TIMEOUT_S = 10.0
"""Seconds that a call without a timeout of its own waits for a store that does not answer."""
ONE_ANSWER_S = 3.0
"""Seconds for one answer, however short a timeout is."""
TICKET_TTL_S = 10
"""Seconds after the last `MutexStore.extend_tickets` at which tickets expire."""
TICKET_RENEWAL_S = TICKET_TTL_S / 4
"""Seconds between two renewals of a ticket."""
