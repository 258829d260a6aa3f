"""What a program is told that waits for a lock, over every store and by both drivers."""

from lockclient.testing.contract.test_waiting import *  # noqa: F403
