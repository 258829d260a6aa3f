"""Who may look and who may act: login, guard, proxies, flags."""
