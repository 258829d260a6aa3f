"""What a table makes of each store: the same picture, notified of by whatever way there is."""

from lockclient.testing.contract.test_table import *  # noqa: F403
