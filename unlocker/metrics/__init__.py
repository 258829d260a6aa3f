"""Prometheus metrics of the unlocker."""
