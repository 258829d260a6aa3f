"""Majorities: rounds of votes, quorums, and the retry queue."""
