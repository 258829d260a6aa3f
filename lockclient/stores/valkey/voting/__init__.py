"""Majorities: takes, pushes and removals, by rounds of votes; quorums; the retry queue."""
