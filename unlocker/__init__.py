"""The watchdog: alerts on locks that stay silent, and removes those that are abandoned."""
