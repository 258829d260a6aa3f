"""Talking to the servers: connections, workers, broadcast, pub/sub."""
