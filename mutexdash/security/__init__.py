"""Access control: login, guard, proxies, flags."""
