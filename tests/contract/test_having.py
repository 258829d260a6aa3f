"""What every store promises to who has a lock, removes one, or watches one."""

from lockclient.testing.contract.test_having import *  # noqa: F403
