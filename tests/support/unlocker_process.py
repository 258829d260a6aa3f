"""The `unlocker` program as tests run it, and what it says."""

from __future__ import annotations

import re
import sys
import urllib.error
import urllib.request

from lockclient import Settings
from tests.support.processes import Service, start_service

UNLOCKER = [sys.executable, "-m", "unlocker"]
"""As a module, so that the tests also run where the console script is not installed."""
UP = "clustermutex_unlocker_store_up"
REMOVED = 'clustermutex_auto_unlocks_total{result="removed"}'


def unlocker(settings: Settings, *options: str, env: dict[str, str] | None = None) -> Service:
    words = ["--url", settings.url(), "--listen", "127.0.0.1:0", *options]
    return start_service([*UNLOCKER, *words], env)


def fetch(service: Service, path: str) -> tuple[int, str]:
    """GET a page; return its status and text."""
    try:
        with urllib.request.urlopen(f"{service.url}{path}", timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def ready(service: Service) -> bool:
    """Tell whether it says that it can do its work."""
    return fetch(service, "/readyz")[0] == 200


def figures(service: Service) -> dict[str, float]:
    samples = re.findall(r"^([^#].*) (\S+)$", fetch(service, "/metrics")[1], re.MULTILINE)
    return {name: float(value) for name, value in samples}


def figure(service: Service, sample: str) -> float | None:
    """Return a sample of its metrics, named as it stands there; None if it is not there."""
    return figures(service).get(sample)
