"""How hostile text becomes HTML: escaping, links, backtraces, commands to copy."""
