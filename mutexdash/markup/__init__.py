"""Hostile text as HTML: escaping, links, backtraces, commands to copy."""
