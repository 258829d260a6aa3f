"""How text leaves the program: escaping, durations, log lines."""
