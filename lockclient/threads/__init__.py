"""Scheduler thread and worker pools, below every store."""
