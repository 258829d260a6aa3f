"""Text that leaves the program: escaping, durations, log lines."""
