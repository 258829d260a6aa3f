"""What every store promises to answer about itself, who waits and what is held; and its end."""

from lockclient.testing.contract.test_service_answers import *  # noqa: F403
