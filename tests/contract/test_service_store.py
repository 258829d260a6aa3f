"""What every store promises to who reads and follows all, announces itself, and clears away."""

from lockclient.testing.contract.test_service_store import *  # noqa: F403
