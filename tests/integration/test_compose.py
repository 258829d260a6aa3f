"""docker-compose.yml and what it mounts and builds do what they say, as far as can be seen without
a Docker engine: each of our services runs here with the very command and environment it gives."""

from __future__ import annotations

import re
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from lockclient.cli.local import Etcd
from tests.processes import BIN, Service, start_service, wait_until

CHECKOUT = Path(__file__).parents[2]
PROMETHEUS = CHECKOUT / "deploy/prometheus/prometheus.yml"
RULES = CHECKOUT / "deploy/prometheus/clustermutex.rules.yml"


def read_yaml(path: Path) -> Any:
    """Return a YAML file's content."""
    return YAML(typ="safe").load(path)


COMPOSE = read_yaml(CHECKOUT / "docker-compose.yml")
SERVICES: dict[str, Any] = COMPOSE["services"]
OURS = ("unlocker1", "unlocker2", "mutexdash")


def start(name: str, etcd: Etcd) -> Service:
    """Start a service as the file says; only addresses are replaced."""
    command = list(SERVICES[name]["command"])
    listen = command.index("--listen") + 1
    command[listen] = "127.0.0.1:0"
    environment = {
        key: re.sub(r"\betcd\d:2379\b", etcd.endpoint, value)
        for key, value in SERVICES[name]["environment"].items()
    }
    return start_service(command, env=environment)


def status_of(url: str) -> int:
    """Return the HTTP status of a GET."""
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        error.close()
        return error.code


def port_of(name: str) -> str:
    """Return the port that a service of ours listens on in its container."""
    command = SERVICES[name]["command"]
    return str(command[command.index("--listen") + 1]).rpartition(":")[2]


def test_the_file_is_valid() -> None:
    """By the Compose specification's own schema, which check-jsonschema brings along."""
    done = subprocess.run(
        [
            *(str(BIN / "check-jsonschema"), "--builtin-schema", "vendor.compose-spec"),
            str(CHECKOUT / "docker-compose.yml"),
        ],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", OURS)
def test_a_service_becomes_ready_with_the_command_and_environment_given(
    name: str, etcd: Etcd
) -> None:
    """And the file's own health check, run as it stands, agrees."""
    with start(name, etcd) as service:
        wait_until(lambda: status_of(f"{service.url}/readyz") == 200, what=f"{name} to be ready")
        kind, program, *words = SERVICES[name]["healthcheck"]["test"]
        assert (kind, program) == ("CMD", "python")
        assert f"http://127.0.0.1:{port_of(name)}/" in words[1]
        here = [each.replace(f"http://127.0.0.1:{port_of(name)}", service.url) for each in words]
        subprocess.run([sys.executable, *here], check=True, timeout=60)
        assert service.terminate() == 0


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_is_checked_restarted_and_has_no_more_rights_than_it_needs(name: str) -> None:
    """A root filesystem nobody can write to, no capabilities, and nothing open to the network."""
    service = SERVICES[name]
    assert service["read_only"]
    assert service["cap_drop"] == ["ALL"]
    assert service["restart"] == "unless-stopped"
    assert service["healthcheck"]["test"][0] == "CMD"  # there is no shell in etcd's image
    assert all(each.startswith("127.0.0.1:") for each in service.get("ports", []))
    assert "build" in service or re.search(r":v\d+\.\d+\.\d+$", service["image"])


@pytest.mark.parametrize("name", SERVICES)
def test_what_a_service_mounts_is_there(name: str) -> None:
    """Files in the checkout, or volumes that the file declares."""
    for volume in SERVICES[name].get("volumes", []):
        source = volume.partition(":")[0]
        assert (CHECKOUT / source).is_dir() if source[0] == "." else source in COMPOSE["volumes"]


def test_etcd_is_none_that_loses_data() -> None:
    """3.5.0 to 3.5.2 may do so in a crash."""
    for name in ("etcd1", "etcd2", "etcd3"):
        version = SERVICES[name]["image"].rpartition(":v")[2]
        assert tuple(map(int, version.split("."))) > (3, 5, 2)


def test_prometheus_scrapes_every_service_where_it_listens() -> None:
    """A wrong port would be seen only when an alert is missed."""
    targets = {
        target
        for job in read_yaml(PROMETHEUS)["scrape_configs"]
        for group in job["static_configs"]
        for target in group["targets"]
    }
    assert targets == {f"{name}:{port_of(name)}" for name in OURS} | {
        f"etcd{number}:2379" for number in (1, 2, 3)
    }


def test_alerts_are_made_of_metrics_that_there_are(etcd: Etcd) -> None:
    """A renamed metric silences an alert without a word."""
    used = set(re.findall(r"\bclustermutex_\w+", RULES.read_text(encoding="utf-8")))
    with start("unlocker1", etcd) as service:
        wait_until(lambda: status_of(f"{service.url}/readyz") == 200, what="the unlocker")
        with urllib.request.urlopen(f"{service.url}/metrics", timeout=10) as answer:
            text = answer.read().decode()
    assert used
    assert used <= set(re.findall(r"^# HELP (\w+)", text, re.MULTILINE))


def test_the_image_is_built_from_what_is_sent_to_the_builder() -> None:
    """Each package is copied, and .dockerignore lets through all that is."""
    lines = (CHECKOUT / "Dockerfile").read_text(encoding="utf-8").splitlines()
    copied = {
        source.rstrip("/")
        for line in lines
        if line.startswith("COPY ")
        for source in line.split()[1:-1]
    }
    ignored = (CHECKOUT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    assert copied >= {"lockclient", "unlocker", "mutexdash"}
    assert {f"!{each}" for each in copied} == {each for each in ignored if each.startswith("!")}
