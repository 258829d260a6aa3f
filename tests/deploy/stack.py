"""A whole alerting stack: an unlocker, mutexdash, Prometheus, Alertmanager and a receiver.

The files under `deploy/` are used as they stand, with addresses replaced and times shortened, so
that a test does not take minutes: scrapes and evaluations each second, `for` 2 s, `keep_firing_for`
8 s, ranges of a minute 3 s, messages at once. Thresholds in expressions stay as they are.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.parse
import urllib.request
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from lockclient.cli.setup.ports import free_port
from lockclient.stores.settings import Settings
from tests.support.processes import Service, needed, start_service, wait_until
from tests.support.webhook import Webhook

DEPLOY = Path(__file__).parents[2] / "deploy"


def read(name: str) -> Any:
    return YAML(typ="safe").load(DEPLOY / name)


def get(url: str) -> str:
    """GET a page that must be there."""
    with urllib.request.urlopen(url, timeout=60) as answer:
        return str(answer.read().decode())


def ready(url: str) -> bool:
    with suppress(OSError):
        return bool(get(url)) or True
    return False


class Receiver(Webhook):
    """The receiver of Alertmanager's messages, which keeps the course of each alert."""

    @property
    def url(self) -> str:
        return f"http://{self.host}/"

    def about(self, alertname: str, **labels: str) -> list[dict[str, Any]]:
        """Return what came about an alert, each change of its status once."""
        wanted = {"alertname": alertname, **labels}
        found: list[dict[str, Any]] = []
        for alert in (told for message in list(self.messages) for told in message["alerts"]):
            same = wanted.items() <= alert["labels"].items()
            if same and (not found or alert["status"] != found[-1]["status"]):
                found.append(alert)
        return found

    def told(self, status: str, alertname: str, **labels: str) -> dict[str, Any]:
        """Wait until the last message about an alert says `status`; return that alert."""

        def last() -> dict[str, Any] | None:
            found = self.about(alertname, **labels)
            return found[-1] if found and found[-1]["status"] == status else None

        return wait_until(last, what=f"{alertname} {labels} to be {status}")


class Stack:
    """The programs, each on a free port of the loopback interface; a context manager.

    Args:
        settings: of the store that the unlocker and mutexdash use.
        folder: for the shortened files and the programs' data.
    """

    def __init__(self, settings: Settings, folder: Path) -> None:
        self.settings = settings
        self.receiver = Receiver()
        self._folder = folder
        self._ports = {
            name: free_port() for name in ("unlocker", "mutexdash", "prometheus", "alertmanager")
        }
        self._running = ExitStack()
        self.unlocker: Service

    def url(self, name: str) -> str:
        return f"http://127.0.0.1:{self._ports[name]}"

    def __enter__(self) -> Stack:
        with ExitStack() as running:
            self._running = running
            running.enter_context(self.receiver)
            self.start_unlocker()
            self._start_ours("mutexdash")
            self._start_alertmanager()
            self._start_prometheus()
            self._running = running.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._running.close()

    def start_unlocker(self) -> None:
        """Start it, again if it was killed, where Prometheus looks for it."""
        self.unlocker = self._start_ours("unlocker")

    def query(self, expression: str) -> list[dict[str, Any]]:
        """Ask Prometheus; return the vector. A query that is none fails."""
        words = urllib.parse.urlencode({"query": expression})
        try:
            answer = json.loads(get(f"{self.url('prometheus')}/api/v1/query?{words}"))
        except urllib.error.HTTPError as error:
            pytest.fail(f"{expression}: {error.read().decode()}")
        result: list[dict[str, Any]] = answer["data"]["result"]
        return result

    def alerts(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(get(f"{self.url('alertmanager')}/api/v2/alerts"))
        return found

    def _start_ours(self, name: str, *options: str) -> Service:
        listen = f"127.0.0.1:{self._ports[name]}"
        words = [name, "--url", self.settings.url(), "--listen", listen, *options]
        return self._start(name, words, "/readyz")

    def _start(self, name: str, words: list[str], page: str) -> Service:
        service = self._running.enter_context(start_service(words))

        def up() -> bool:
            assert service.process.poll() is None, service.log_text()
            return ready(self.url(name) + page)

        wait_until(up, what=f"{name} to be ready")
        return service

    def _write(self, name: str, content: Any) -> str:
        path = self._folder / name
        YAML(typ="safe").dump(content, path)
        return str(path)

    def _start_alertmanager(self) -> None:
        config = read("alertmanager/alertmanager.yml")
        for route in (config["route"], *config["route"]["routes"]):
            route |= {"group_wait": "0s", "group_interval": "1s"}
        for receiver in config["receivers"]:
            receiver["webhook_configs"] = [{"url": self.receiver.url}]
        words = [
            needed("alertmanager"),
            f"--config.file={self._write('alertmanager.yml', config)}",
            f"--storage.path={self._folder / 'alertmanager'}",
            f"--web.listen-address=127.0.0.1:{self._ports['alertmanager']}",
            "--cluster.listen-address=",
        ]
        self._start("alertmanager", words, "/-/ready")

    def _start_prometheus(self) -> None:
        rules = read("prometheus/clustermutex.rules.yml")
        for rule in (rule for group in rules["groups"] for rule in group["rules"]):
            rule |= {name: limit for name, limit in _SHORT.items() if name in rule}
            rule["expr"] = rule["expr"].replace("[1m]", "[3s]")
        links = read("prometheus/links.rules.yml")
        links["groups"][0]["rules"][0]["labels"]["dashboard"] = self.url("mutexdash")
        config = read("prometheus/prometheus.yml")
        config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
        config["rule_files"] = [self._write("rules.yml", rules), self._write("links.yml", links)]
        address = {name: [f"127.0.0.1:{port}"] for name, port in self._ports.items()}
        address["etcd"] = list(self.settings.endpoints)
        sends = config["alerting"]["alertmanagers"][0]["static_configs"][0]
        sends["targets"] = address["alertmanager"]
        for job in config["scrape_configs"]:
            job["static_configs"] = [{"targets": address[job["job_name"]]}]
        words = [
            needed("prometheus"),
            f"--config.file={self._write('prometheus.yml', config)}",
            f"--storage.tsdb.path={self._folder / 'prometheus'}",
            f"--web.listen-address=127.0.0.1:{self._ports['prometheus']}",
        ]
        self._start("prometheus", words, "/-/ready")
        # Its first scrapes come seconds later; no increase shows what happened before them.
        jobs = len(config["scrape_configs"])
        wait_until(lambda: len(self.query("up == 1")) == jobs, what="the first scrapes")


_SHORT = {"for": "2s", "keep_firing_for": "8s"}
"""The second must outlast the first and a few scrapes, as in the rules themselves."""
