"""docker-compose.yml and what it mounts and builds do what they say, as far as can be seen without
a Docker engine: each of our services runs here with the very command and environment it gives."""

from __future__ import annotations

import json
import re
import sys
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML
from setuptools.config.pyprojecttoml import load_file  # type: ignore[import-untyped]

from lockclient.cli.setup.etcd_server import Etcd
from lockclient.cli.setup.ports import free_port
from tests.support.etcd_binary import etcdctl_of, frozen
from tests.support.pages import Answer, request
from tests.support.processes import BIN, Service, needed, run_to_end, start_service, wait_until
from tests.support.unlocker_process import when_ready

CHECKOUT = Path(__file__).parents[2]
PROMETHEUS = CHECKOUT / "deploy/prometheus/prometheus.yml"
RULES = CHECKOUT / "deploy/prometheus/clustermutex.rules.yml"


def read_yaml(path: Path) -> Any:
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


def port_of(name: str) -> str:
    """Return the port that a service of ours listens on in its container."""
    command = SERVICES[name]["command"]
    return str(command[command.index("--listen") + 1]).rpartition(":")[2]


def test_the_file_is_valid() -> None:
    """By the Compose specification's own schema, which check-jsonschema brings along."""
    schema = ("--builtin-schema", "vendor.compose-spec")
    run_to_end(BIN / "check-jsonschema", *schema, CHECKOUT / "docker-compose.yml")


@pytest.mark.parametrize("name", OURS)
def test_a_service_becomes_ready_with_the_command_and_environment_given(
    name: str, etcd: Etcd
) -> None:
    text = (CHECKOUT / "Dockerfile").read_text(encoding="utf-8")
    (image,) = re.findall(r"^HEALTHCHECK .*?CMD (\[.+?\])$", text, re.MULTILINE | re.DOTALL)
    _, *check = json.loads(image)
    usual = ", ".join(port_of(service) for service in ("unlocker1", "mutexdash"))
    assert f"({usual})" in check[-1]
    used = set(re.findall(r"\bclustermutex_\w+", RULES.read_text(encoding="utf-8")))
    with when_ready(start(name, etcd)) as service:
        kind, program, *words = SERVICES[name]["healthcheck"]["test"]
        assert (kind, program) == ("CMD", "python")
        assert f"http://127.0.0.1:{port_of(name)}/" in words[1]
        here = [word.replace(f"http://127.0.0.1:{port_of(name)}", service.url) for word in words]
        run_to_end(sys.executable, *here)
        port = service.url.rpartition(":")[2]
        check[-1] = check[-1].replace(f"({usual})", f"({free_port()}, {port})")
        run_to_end(sys.executable, *check)
        assert used
        if name != "mutexdash":
            metrics = request(service.url, "/metrics").text
            assert used <= set(re.findall(r"^# HELP (\w+)", metrics, re.MULTILINE))
        with frozen(service):
            assert run_to_end(sys.executable, *check, status=None).returncode
        assert service.terminate() == 0
    assert run_to_end(sys.executable, *check, status=None).returncode


@pytest.mark.parametrize("name", SERVICES)
def test_services_are_restricted_and_restarted(name: str) -> None:
    service = SERVICES[name]
    assert service["read_only"]
    assert service["cap_drop"] == ["ALL"]
    assert service["restart"] == "unless-stopped"
    assert service["healthcheck"]["test"][0] == "CMD"  # there is no shell in etcd's image
    assert all(port.startswith("127.0.0.1:") for port in service.get("ports", []))
    assert "build" in service or re.search(r":v\d+\.\d+\.\d+$", service["image"])
    assert service["pids_limit"] <= 200
    kept = [re.fullmatch(r"/tmp:size=(\w+),mode=1777", file) for file in service.get("tmpfs", [])]
    assert all(kept)
    left = bytes_of(service["mem_limit"]) - sum(bytes_of(file[1]) for file in kept if file)
    assert left <= bytes_of("4g")
    # 200 MB are the most that ours need; with a limit below it they would start for ever.
    assert left >= bytes_of("400m") or name not in OURS


def bytes_of(size: str) -> int:
    """Return what Compose makes of `400m`."""
    return int(size[:-1]) << {"m": 20, "g": 30}[size[-1]]


def test_an_etcd_answers_its_names_and_no_web_page(etcd_binary: str, tmp_path: Path) -> None:
    """By the variables of the file, as flags: what a page may not, and what the others need."""
    given, *others = (
        {
            key: value
            for key, value in SERVICES[name]["environment"].items()
            if key.startswith(("ETCD_ENABLE", "ETCD_HOST", "ETCD_CORS"))
        }
        for name in ("etcd1", "etcd2", "etcd3")
    )
    assert others == [given, given]
    assert len(given) == 3
    hosts = set(given["ETCD_HOST_WHITELIST"].split(","))
    assert hosts == {"etcd1", "etcd2", "etcd3", "localhost", "127.0.0.1"}
    server = Etcd(etcd_binary, tmp_path / "data", tmp_path / "log")
    server.extra = [
        f"--{key.removeprefix('ETCD_').lower().replace('_', '-')}={value}"
        for key, value in given.items()
    ]

    def asked(path: str, **headers: str) -> tuple[int, str | None]:
        answer = request(f"http://{server.endpoint}", path, **headers)
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
def test_published_services_check_the_host_name(name: str) -> None:
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
    (flag,) = [word for word in SERVICES["prometheus"]["command"] if "origin" in word]
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
        with start_service(words):
            answer = wait_until(partial(answered, f"http://127.0.0.1:{port}"), what="Prometheus")
        assert bool(answer.headers.get("Access-Control-Allow-Origin")) is (number == 0)


def answered(url: str) -> Answer | None:
    """Return what Prometheus answers a page, once it answers well."""
    with suppress(OSError):
        answer = request(url, "/api/v1/query?query=1", Origin="http://page.example")
        return answer if answer.status == 200 else None
    return None


@pytest.mark.parametrize("name", SERVICES)
def test_mounted_files_exist(name: str) -> None:
    for volume in SERVICES[name].get("volumes", []):
        source = volume.partition(":")[0]
        assert (CHECKOUT / source).is_dir() if source[0] == "." else source in COMPOSE["volumes"]


def test_the_etcd_version_is_a_safe_one() -> None:
    for name in ("etcd1", "etcd2", "etcd3"):
        version = SERVICES[name]["image"].rpartition(":v")[2]
        assert tuple(map(int, version.split("."))) > (3, 5, 2)


def test_prometheus_scrapes_each_service() -> None:
    targets = {
        target
        for job in read_yaml(PROMETHEUS)["scrape_configs"]
        for group in job["static_configs"]
        for target in group["targets"]
    }
    assert targets == {f"{name}:{port_of(name)}" for name in OURS} | {
        f"etcd{number}:2379" for number in (1, 2, 3)
    }


def test_the_image_copies_each_package() -> None:
    lines = (CHECKOUT / "Dockerfile").read_text(encoding="utf-8").splitlines()
    copied = {
        source.rstrip("/")
        for line in lines
        if line.startswith("COPY ") and "--from=" not in line
        for source in line.split()[1:-1]
    }
    ignored = (CHECKOUT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    assert copied >= {"lockclient", "unlocker", "mutexdash"}
    assert {f"!{name}" for name in copied} == {line for line in ignored if line.startswith("!")}


def test_the_image_has_the_needed_extras() -> None:
    text = (CHECKOUT / "Dockerfile").read_text(encoding="utf-8")
    (installed,) = re.findall(r"pip .*install [^']*'\.\[([a-z,]+)\]'", text.replace("\\\n", ""))
    extras = load_file(CHECKOUT / "pyproject.toml")["project"]["optional-dependencies"]
    assert {"services", "notify"} <= set(installed.split(",")) <= extras.keys()


def test_the_image_is_its_base_to_the_bit_and_leaves_pip_behind() -> None:
    """Both stages begin with one base image, by its digest; what is in the last one is copied."""
    text = (CHECKOUT / "Dockerfile").read_text(encoding="utf-8")
    assert re.search(r"^ARG PYTHON=python:3\.\d+-slim@sha256:[0-9a-f]{64}$", text, re.MULTILINE)
    assert re.findall(r"^FROM (.+)$", text, re.MULTILINE) == ["${PYTHON} AS build", "${PYTHON}"]
    last = text.rpartition("\nFROM ")[2]
    assert "pip install" not in last
    assert "pip uninstall" in last
