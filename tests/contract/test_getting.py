"""What every store promises to who wants a lock: take, queue, claim, look."""

from lockclient.testing.contract.test_getting import *  # noqa: F403
