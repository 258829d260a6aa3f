"""Majorities: rounds of votes, quorums, undoing what too few granted."""
