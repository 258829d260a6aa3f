"""Where locks are kept: the protocols, the registry, and a folder for each store."""
