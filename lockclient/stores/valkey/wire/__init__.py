"""Talking to the servers: connections, pool, broadcast, pub/sub, RESP."""
