"""Commands for operators: look at locks, act on them, check the cluster."""
