"""Shared by the stores: lifecycle, background threads, polling instead of a watch."""
