"""The programs `unlocker` and `mutexdash` in tests, and their output."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from lockclient import Settings
from tests.support.pages import request
from tests.support.processes import Service, start_service, wait_until

UNLOCKER = [sys.executable, "-m", "unlocker"]
"""As a module, so that the tests also run where the console script is not installed."""
UP = "clustermutex_unlocker_store_up"
REMOVED = 'clustermutex_auto_unlocks_total{result="removed"}'


def unlocker(settings: Settings, *options: str, env: dict[str, str] | None = None) -> Service:
    words = ["--url", settings.url(), "--listen", "127.0.0.1:0", *options]
    return start_service([*UNLOCKER, *words], env)


_HURRIED = """
from unlocker.notifications import conditions, difference, sender
for kind in conditions.KINDS.values():
    object.__setattr__(kind, "for_s", min(kind.for_s, 1.0))
difference.OVER_S = 3.0
sender.RETRY_S = 1.0
from unlocker.cli import main
main()
"""


def hurried_unlocker(
    settings: Settings, *options: str, env: dict[str, str] | None = None
) -> Service:
    """Start an unlocker that notifies of what has lasted a second, and been over for three."""
    words = ["--url", settings.url(), "--listen", "127.0.0.1:0", "--notify-pace", "1s,1s", *options]
    return start_service([UNLOCKER[0], "-c", _HURRIED, *words], env)


def mutexdash(settings: Settings, *options: str, env: dict[str, str] | None = None) -> Service:
    """Start a dashboard on a free port."""
    words = ["mutexdash", "--url", settings.url(), "--listen", "127.0.0.1:0", *options]
    return start_service(words, env)


@contextmanager
def when_ready(starting: Service) -> Iterator[Service]:
    """A service that says that it can do its work, until the end of the block."""
    with starting as service:
        wait_until(lambda: ready(service), what="readiness")
        yield service


def fetch(service: Service, path: str) -> tuple[int, str]:
    """GET a page; return its status and text."""
    answer = request(service.url, path)
    return answer.status, answer.text


def ready(service: Service) -> bool:
    """Tell whether it says that it can do its work."""
    return fetch(service, "/readyz")[0] == 200


def unready(service: Service) -> str:
    """Wait until it says that it can't do its work; return why."""

    def why() -> str | None:
        status, text = fetch(service, "/readyz")
        return text if status == 503 else None

    return wait_until(why, what="unreadiness")


def figures(service: Service) -> dict[str, float]:
    samples = re.findall(r"^([^#].*) (\S+)$", fetch(service, "/metrics")[1], re.MULTILINE)
    return {name: float(value) for name, value in samples}


def figure(service: Service, sample: str) -> float | None:
    """Return a sample of its metrics, named as it stands there; None if it is not there."""
    return figures(service).get(sample)
