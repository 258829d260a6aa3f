"""One acquisition of a lock: its state machine, what drives it, the held lock."""
