"""docker-compose.yml and what it mounts and builds do what they say, as far as can be seen without
a Docker engine: each of our services runs here with the very command and environment it gives."""

from __future__ import annotations

import http.client
import json
import re
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from lockclient.cli.setup.etcd_server import Etcd
from lockclient.cli.setup.ports import free_port
from tests.support.etcd_binary import etcdctl_of, frozen
from tests.support.processes import BIN, Service, needed, start_service, wait_until

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
        with urllib.request.urlopen(url, timeout=60) as answer:
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
def test_a_service_that_goes_wrong_is_not_felt_by_the_others(name: str) -> None:
    """Memory, processes, and what is put into memory as a file."""
    service = SERVICES[name]
    assert service["pids_limit"] <= 200
    limit = bytes_of(service["mem_limit"])
    kept = [re.fullmatch(r"/tmp:size=(\w+),mode=1777", each) for each in service.get("tmpfs", [])]
    assert limit - sum(bytes_of(each[1]) for each in kept if each) <= bytes_of("4g")
    assert all(kept)
    if (
        name in OURS
    ):  # 200 MB are the most that it needs; with a limit below it would start for ever
        assert limit - sum(bytes_of(each[1]) for each in kept if each) >= bytes_of("400m")


def bytes_of(size: str) -> int:
    """Return what Compose makes of `400m`."""
    return int(size[:-1]) << {"m": 20, "g": 30}[size[-1]]


@pytest.mark.parametrize("name", ["etcd1", "etcd2", "etcd3"])
def test_an_etcd_answers_its_names_and_no_web_page(
    name: str, etcd_binary: str, tmp_path: Path
) -> None:
    """By the variables of the file, as flags: what a page may not, and what the others need."""
    given = {
        key: value
        for key, value in SERVICES[name]["environment"].items()
        if key.startswith(("ETCD_ENABLE", "ETCD_HOST", "ETCD_CORS"))
    }
    assert len(given) == 3
    hosts = set(given["ETCD_HOST_WHITELIST"].split(","))
    assert hosts == {"etcd1", "etcd2", "etcd3", "localhost", "127.0.0.1"}
    server = Etcd(etcd_binary, tmp_path / "data", tmp_path / "log")
    server.extra = [
        f"--{key.removeprefix('ETCD_').lower().replace('_', '-')}={value}"
        for key, value in given.items()
    ]

    def asked(path: str, **headers: str) -> tuple[int, str | None]:
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        connection.close()
        return answer.status, answer.headers.get("Access-Control-Allow-Origin")

    with server:
        page = "http://page.example"
        assert asked("/v3/kv/range", Origin=page) == (404, None)
        assert asked("/version", Origin=page) == (200, None)
        assert asked("/metrics", Host="page.example:2379") == (421, None)
        for host in hosts:  # Prometheus, and unlockers, which ask for its clock
            assert asked("/metrics", Host=f"{host}:2379") == (200, None)
        etcdctl_of(server)("endpoint", "health")


@pytest.mark.parametrize("name", SERVICES)
def test_what_is_published_knows_its_names(name: str) -> None:
    """Else a page whose own name leads to 127.0.0.1 reads it, in a browser on this machine.

    Prometheus and Alertmanager look at no host, and the latter lets every origin silence alerts.
    """
    service = SERVICES[name]
    if name.startswith("etcd"):
        assert service["environment"]["ETCD_HOST_WHITELIST"]
    elif service.get("ports"):
        names = service["command"][service["command"].index("--allowed-host") + 1].split(",")
        assert {"localhost", "127.0.0.1"} <= set(names)
    else:
        assert name in ("unlocker1", "unlocker2", "prometheus", "alertmanager")


def test_prometheus_lets_no_origin_read(tmp_path: Path) -> None:
    """The very flag, and Debian's Prometheus: by itself it lets every page read."""
    (flag,) = [each for each in SERVICES["prometheus"]["command"] if "origin" in each]
    (tmp_path / "prometheus.yml").write_text("{}", encoding="utf-8")
    for number, more in enumerate(([], [flag])):
        port = free_port()
        words = [
            needed("prometheus"),
            f"--config.file={tmp_path / 'prometheus.yml'}",
            f"--storage.tsdb.path={tmp_path / 'data'}",
            f"--web.listen-address=127.0.0.1:{port}",
            *more,
        ]
        url = f"http://127.0.0.1:{port}/api/v1/query?query=1"
        with start_service(words):
            wait_until(lambda url=url: listens(url), what="Prometheus")  # type: ignore[misc]
            request = urllib.request.Request(url, headers={"Origin": "http://page.example"})
            with urllib.request.urlopen(request, timeout=60) as answer:
                allowed = answer.headers.get("Access-Control-Allow-Origin")
        assert bool(allowed) is (number == 0)


def listens(url: str) -> bool:
    """Tell whether somebody answers there, and well."""
    try:
        return status_of(url) == 200
    except OSError:
        return False


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
        with urllib.request.urlopen(f"{service.url}/metrics", timeout=60) as answer:
            text = answer.read().decode()
    assert used
    assert used <= set(re.findall(r"^# HELP (\w+)", text, re.MULTILINE))


def test_the_image_is_built_from_what_is_sent_to_the_builder() -> None:
    """Each package is copied, and .dockerignore lets through all that is."""
    lines = (CHECKOUT / "Dockerfile").read_text(encoding="utf-8").splitlines()
    copied = {
        source.rstrip("/")
        for line in lines
        if line.startswith("COPY ") and "--from=" not in line
        for source in line.split()[1:-1]
    }
    ignored = (CHECKOUT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    assert copied >= {"lockclient", "unlocker", "mutexdash"}
    assert {f"!{each}" for each in copied} == {each for each in ignored if each.startswith("!")}


def test_the_image_is_its_base_to_the_bit_and_leaves_pip_behind() -> None:
    """Both stages begin with one base image, by its digest; what is in the last one is copied."""
    text = (CHECKOUT / "Dockerfile").read_text(encoding="utf-8")
    assert re.search(r"^ARG PYTHON=python:3\.\d+-slim@sha256:[0-9a-f]{64}$", text, re.MULTILINE)
    assert re.findall(r"^FROM (.+)$", text, re.MULTILINE) == ["${PYTHON} AS build", "${PYTHON}"]
    last = text.rpartition("\nFROM ")[2]
    assert "pip install" not in last
    assert "pip uninstall" in last


@pytest.mark.parametrize("name", ["unlocker1", "mutexdash"])
def test_the_image_says_itself_whether_its_service_lives(name: str, etcd: Etcd) -> None:
    """The very check of the Dockerfile, at other ports; nobody there, or one that hangs, fails."""
    text = (CHECKOUT / "Dockerfile").read_text(encoding="utf-8")
    (words,) = re.findall(r"^HEALTHCHECK .*?CMD (\[.+?\])$", text, re.MULTILINE | re.DOTALL)
    _, *check = json.loads(words)
    usual = ", ".join(f"{port_of(each)}" for each in ("unlocker1", "mutexdash"))
    assert f"({usual})" in check[-1]
    with start(name, etcd) as service:
        port = service.url.rpartition(":")[2]
        check[-1] = check[-1].replace(f"({usual})", f"({free_port()}, {port})")
        subprocess.run([sys.executable, *check], check=True, timeout=60)
        with frozen(service):
            assert subprocess.run([sys.executable, *check], capture_output=True).returncode
        assert service.terminate() == 0
    assert subprocess.run([sys.executable, *check], capture_output=True).returncode
