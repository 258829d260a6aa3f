"""How text leaves the program: escaping, confusable names, durations, log lines."""
