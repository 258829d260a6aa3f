"""Notifications to people without Prometheus."""
