"""The systemd units and the Kubernetes manifest, checked by systemd and by the schema."""

from __future__ import annotations

import base64
import os
import re
import signal
import socket
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import kubernetes_validate  # type: ignore[import-untyped]
import pytest
from ruamel.yaml import YAML

from lockclient.cli.setup.etcd_server import Etcd
from lockclient.model.version import __version__
from tests.acceptance.shells import Running, gone, written
from tests.deploy import operator_rules
from tests.support.board import hashed
from tests.support.pages import request
from tests.support.processes import BIN, needed, run_to_end, start_service, wait_until

DEPLOY = Path(__file__).parents[2] / "deploy"
MANIFEST = DEPLOY / "kubernetes/clustermutex.yaml"
OBJECTS: list[dict[str, Any]] = list(YAML(typ="safe").load_all(MANIFEST))
MONITORING = MANIFEST.with_name("monitoring")
MONITORS: list[dict[str, Any]] = list(YAML(typ="safe").load_all(MONITORING / "monitors.yaml"))
SERVICES = ("unlocker", "mutexdash")
UNITS = {name: name for name in SERVICES} | {"clustermutex-run": "clustermutex run worker -- "}
"""Units of systemd, and how the line goes on that names their program."""
VERSIONS = ("1.28", "1.37")
"""Of Kubernetes: from one that is out of support to the newest that the schemas know."""
WORKER = """
import os, pathlib, signal, subprocess, time

got = []

def count(*_):
    got.append(None)
    pathlib.Path("got").write_text(str(len(got)))

signal.signal(signal.SIGTERM, signal.SIG_IGN)
stays = subprocess.Popen(["sleep", "600"], start_new_session=True)
signal.signal(signal.SIGTERM, count)
pathlib.Path("stays").write_text(str(stays.pid))
pathlib.Path("pid").write_text(f"{os.getpid()}\\n")
while not pathlib.Path("go").exists():
    time.sleep(0.01)
"""
"""A program that counts each SIGTERM and ends when it may; it leaves one that ignores SIGTERM."""


def named(kind: str, name: str, among: list[dict[str, Any]] = OBJECTS) -> dict[str, Any]:
    """Return an object of the manifest, or of those for the Prometheus Operator."""
    (found,) = [
        document
        for document in among
        if document["kind"] == kind and document["metadata"]["name"] == name
    ]
    return found


def pod(name: str) -> dict[str, Any]:
    spec: dict[str, Any] = named("Deployment", name)["spec"]["template"]["spec"]
    return spec


def container(name: str) -> dict[str, Any]:
    (found,) = pod(name)["containers"]
    content: dict[str, Any] = found
    return content


class TestKubernetes:
    @pytest.mark.parametrize("version", VERSIONS)
    def test_each_object_is_valid_by_the_schema(self, version: str) -> None:
        """Strictly: a field that is misspelt or stands at the wrong place is an error."""
        for document in OBJECTS:
            kubernetes_validate.validate(document, version, strict=True)

    @pytest.mark.parametrize("name", SERVICES)
    def test_pods_are_restricted(self, name: str) -> None:
        assert not pod(name)["automountServiceAccountToken"]
        # A Service's variables, such as UNLOCKER_PORT, would be taken for options.
        assert not pod(name)["enableServiceLinks"]
        security = pod(name)["securityContext"]
        assert security["runAsNonRoot"]
        assert security["runAsUser"] == security["runAsGroup"] == 65532
        assert security["seccompProfile"] == {"type": "RuntimeDefault"}
        assert container(name)["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        resources = container(name)["resources"]
        assert resources["requests"].keys() == {"cpu", "memory"}
        # It may need 200 MB, and a limit that it meets is a restart, over and over.
        assert resources["requests"]["memory"] == "200Mi"
        assert resources["limits"] == {"memory": "400Mi"}

    def test_the_namespace_lets_in_no_pod_with_more(self) -> None:
        labels = named("Namespace", "clustermutex")["metadata"]["labels"]
        assert labels["pod-security.kubernetes.io/enforce"] == "restricted"
        assert {
            document["metadata"].get("namespace")
            for document in OBJECTS
            if document["kind"] != "Namespace"
        } == {"clustermutex"}

    def test_the_user_is_the_images_and_the_image_this_version(self) -> None:
        dockerfile = (DEPLOY.parent / "Dockerfile").read_text(encoding="utf-8")
        assert "USER 65532:65532" in dockerfile
        for name in SERVICES:
            assert container(name)["image"] == f"clustermutex:{__version__}"

    def test_kustomize_takes_in_all_files_and_puts_the_image_in(self) -> None:
        """kubectl is not everywhere: what it would do with these few fields is looked up here."""
        whole = YAML(typ="safe").load(MANIFEST.with_name("kustomization.yaml"))
        assert whole["resources"] == [MANIFEST.name]
        (image,) = whole["images"]
        assert {container(name)["image"] for name in SERVICES} == {
            f"{image['name']}:{image['newTag']}"
        }
        more = YAML(typ="safe").load(MONITORING / "kustomization.yaml")
        assert {*more["resources"]} == {file.name for file in MONITORING.iterdir()} - {
            "kustomization.yaml"
        }
        assert {document["kind"] for document in (whole, more)} == {"Kustomization"}

    def test_a_node_can_be_drained_while_etcd_is_down(self) -> None:
        """No unlocker is ready then: a budget that waits for one would wait for ever."""
        budget = named("PodDisruptionBudget", "unlocker")["spec"]
        labels = named("Deployment", "unlocker")["spec"]["template"]["metadata"]["labels"]
        assert budget["selector"]["matchLabels"].items() <= labels.items()
        assert budget["minAvailable"] < named("Deployment", "unlocker")["spec"]["replicas"]
        assert budget["unhealthyPodEvictionPolicy"] == "AlwaysAllow"

    @pytest.mark.parametrize("name", SERVICES)
    def test_the_commands_and_probes_of_the_manifest_work(
        self, name: str, etcd: Etcd, tmp_path: Path
    ) -> None:
        spec = container(name)
        given = {variable["name"]: variable["value"] for variable in spec["env"]}
        mounted = {mount["mountPath"]: tmp_path for mount in spec["volumeMounts"]}
        (tmp_path / "htpasswd").write_text(f"ann:{hashed('secret')}\n", encoding="utf-8")
        for variable, value in given.items():
            if Path(value).parent.as_posix() in mounted:
                given[variable] = str(tmp_path / Path(value).name)
        (settings,) = [
            named("ConfigMap", source["configMapRef"]["name"])["data"]
            for source in spec["envFrom"]
            if "configMapRef" in source
        ]
        (port,) = spec["ports"]
        listen = f"{name.upper()}_LISTEN"
        assert given[listen] == f"0.0.0.0:{port['containerPort']}"
        env = given | settings | {listen: "127.0.0.1:0"}
        env["CLUSTERMUTEX_URL"] = re.sub(r"\betcd\d:2379\b", etcd.endpoint, env["CLUSTERMUTEX_URL"])
        with start_service(spec["command"], env=env) as service:
            for probe in ("livenessProbe", "readinessProbe"):
                asked = spec[probe]["httpGet"]
                assert asked["port"] == port["name"]
                wait_until(partial(answers, service.url, asked["path"]))
            if name == "mutexdash":  # a page is for who logs in, under a name that it knows
                right = {"Authorization": "Basic " + base64.b64encode(b"ann:secret").decode()}
                other = {**right, "Host": "page.example:8722"}
                asking = [request(service.url, "/api/locks", **how) for how in ({}, right, other)]
                assert [answer.status for answer in asking] == [401, 200, 421]
            assert service.terminate() == 0
        assert (spec["livenessProbe"]["httpGet"]["path"]) == "/healthz"  # etcd away: no restart
        assert (spec["readinessProbe"]["httpGet"]["path"]) == "/readyz"

    @pytest.mark.parametrize("name", SERVICES)
    def test_labels_and_selectors_match(self, name: str) -> None:
        deployment, service = named("Deployment", name)["spec"], named("Service", name)["spec"]
        labels = deployment["template"]["metadata"]["labels"]
        assert deployment["selector"]["matchLabels"].items() <= labels.items()
        assert service["selector"].items() <= labels.items()
        (port,) = service["ports"]
        assert port["targetPort"] == container(name)["ports"][0]["name"]
        for policy in policies():
            assert policy["podSelector"]["matchLabels"].items() <= labels.items()
        jobs = YAML(typ="safe").load(DEPLOY / "prometheus/kubernetes.yml")["scrape_configs"]
        (job,) = [scraped for scraped in jobs if scraped["job_name"] == name]
        assert f"'{name}.clustermutex.svc.cluster.local" in str(job)
        assert str(port["port"]) in str(job)

    def test_no_two_services_share_a_secret(self) -> None:
        secrets = {name: secrets_of(name) for name in SERVICES}
        assert secrets["unlocker"] == {"unlocker-etcd", "unlocker-tls"}
        assert secrets["mutexdash"] == {"mutexdash-etcd", "mutexdash-tls", "mutexdash-login"}
        text = MANIFEST.read_text(encoding="utf-8")
        for secret in secrets["unlocker"] | secrets["mutexdash"]:
            assert f"create secret generic {secret} " in text, "no command creates it"

    def test_the_dashboard_requires_a_login(self) -> None:
        env = {variable["name"]: variable["value"] for variable in container("mutexdash")["env"]}
        assert env["MUTEXDASH_AUTH"] == "basic"
        assert env["MUTEXDASH_ALLOWED_HOST"]
        assert "MUTEXDASH_NO_AUTH" not in env
        (login,) = [volume for volume in pod("mutexdash")["volumes"] if volume["name"] == "login"]
        assert login["secret"].keys() == {"secretName"}, "not optional"

    def test_traffic_is_let_through_by_the_names_of_namespaces(self) -> None:
        """A selector of all namespaces lets in every pod that gives itself the label."""
        assert {kind for policy in policies() for kind in policy["policyTypes"]} == {
            "Ingress",
            "Egress",
        }
        rules = [
            rule
            for policy in policies()
            for way in ("ingress", "egress")
            for rule in policy.get(way, [])
        ]
        for rule in rules:
            for peer in [*rule.get("from", []), *rule.get("to", [])]:
                if "ipBlock" not in peer:
                    (name,) = peer["namespaceSelector"]["matchLabels"].items()
                    assert name in {
                        ("kubernetes.io/metadata.name", "monitoring"),
                        ("kubernetes.io/metadata.name", "kube-system"),
                    }
                    assert peer["podSelector"]["matchLabels"]
        out = [rule for policy in policies() for rule in policy.get("egress", [])]
        assert {port["port"] for rule in out for port in rule["ports"]} == {53, 2379}
        assert all(rule["ports"] for rule in rules)

    def test_commented_rules_and_policies_are_valid(self) -> None:
        """The Ingress's rule in only-prometheus, and the policy for the unlockers' recipients."""
        text, _, policy = MANIFEST.read_text(encoding="utf-8").partition("\n# ---\n")
        text = re.sub(r"^    # (?=- from:|  )", "    ", text, flags=re.MULTILINE)
        policy = "\n".join(
            line[2:] for line in policy[policy.index("# apiVersion:") :].splitlines()
        )
        for document in YAML(typ="safe").load_all(f"{text}\n---\n{policy}"):
            kubernetes_validate.validate(document, VERSIONS[-1], strict=True)
        assert "- from:" in text.partition("name: only-prometheus")[2].partition("- from:")[2]
        assert YAML(typ="safe").load(policy)["kind"] == "NetworkPolicy"


class TestOperator:
    def test_the_operator_rules_equal_the_prometheus_rules(self) -> None:
        written = operator_rules.OBJECT.read_text(encoding="utf-8")
        assert written == operator_rules.text(), "out of date: make rules"
        found = YAML(typ="safe").load(operator_rules.OBJECT)
        assert found["spec"] == YAML(typ="safe").load(operator_rules.RULES)

    def test_links_are_the_same_as_elsewhere(self) -> None:
        found = named("PrometheusRule", "clustermutex-links", MONITORS)["spec"]
        assert found == YAML(typ="safe").load(DEPLOY / "prometheus/links.rules.yml")

    @pytest.mark.parametrize("name", SERVICES)
    def test_pod_monitors_use_the_job_of_the_rules(self, name: str) -> None:
        spec = named("PodMonitor", name, MONITORS)["spec"]
        labels = named("Deployment", name)["spec"]["template"]["metadata"]["labels"]
        assert spec.keys() == {"jobLabel", "selector", "podMetricsEndpoints"}
        assert labels[spec["jobLabel"]] == name
        assert spec["selector"]["matchLabels"].items() <= labels.items()
        (endpoint,) = spec["podMetricsEndpoints"]
        assert endpoint.keys() == {"port", "path", "interval"}
        assert endpoint["path"] == "/metrics"
        assert endpoint["port"] in {port["name"] for port in container(name)["ports"]}

    def test_all_live_where_the_pods_do(self) -> None:
        objects = [*MONITORS, YAML(typ="safe").load(operator_rules.OBJECT)]
        assert {document["apiVersion"] for document in objects} == {"monitoring.coreos.com/v1"}
        assert {document["metadata"]["namespace"] for document in objects} == {"clustermutex"}


class TestSystemd:
    def test_each_unit_is_checked(self) -> None:
        assert {file.stem for file in (DEPLOY / "systemd").iterdir()} == {*UNITS}

    @pytest.mark.parametrize("name", UNITS)
    def test_systemd_takes_the_unit(self, name: str, tmp_path: Path) -> None:
        """It wants the program to be there, which is elsewhere here, and nothing else is wrong."""
        text = unit_text(name)
        assert f"\nExecStart=/opt/clustermutex/bin/{UNITS[name]}" in text
        unit = tmp_path / f"{name}.service"
        unit.write_text(text.replace("/opt/clustermutex/bin/", f"{BIN}/"), encoding="utf-8")
        done = systemd_analyze("verify", str(unit))
        assert (done.stdout, done.stderr) == ("", "")

    @pytest.mark.parametrize("name", UNITS)
    def test_the_unit_gives_no_more_rights_than_needed(self, name: str) -> None:
        """By systemd's own judgement, from 0 to 10 (a unit that says nothing is at 9.6)."""
        unit = str(DEPLOY / f"systemd/{name}.service")
        systemd_analyze("security", "--offline=true", "--threshold=11", unit)

    @pytest.mark.parametrize("name", SERVICES)
    def test_services_notify_systemd(self, name: str, etcd: Etcd, tmp_path: Path) -> None:
        text = unit_text(name)
        assert "\nType=notify\n" in text
        (patience,) = re.findall(r"^WatchdogSec=(\d+)$", text, re.MULTILINE)
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
            systemd.bind(str(tmp_path / "notify"))
            systemd.settimeout(int(patience))
            words = [name, "--url", f"etcd://{etcd.endpoint}/x", "--listen", "127.0.0.1:0"]
            with start_service(words, env={"NOTIFY_SOCKET": str(tmp_path / "notify")}) as service:
                told = [systemd.recv(99) for _ in range(3)]
                assert told == [b"READY=1", b"WATCHDOG=1", b"WATCHDOG=1"]
                assert service.terminate() == 0
            last = b""
            while last != b"STOPPING=1":
                last = systemd.recv(99)

    def test_all_units_are_hardened_alike(self) -> None:
        """The services differ in names only; a unit for any program limits no memory, either."""
        texts = [unit_text(name).partition("[Unit]")[2] for name in SERVICES]
        unlocker, mutexdash = (text.partition("[Service]")[2] for text in texts)
        assert unlocker.replace("unlocker", "mutexdash") == mutexdash
        assert "\nMemoryMax=400M\n" in unlocker  # as in Kubernetes
        rights = rights_in(unlocker)
        rights.remove("MemoryMax=400M")
        assert rights == rights_in(unit_text("clustermutex-run"))

    @pytest.mark.parametrize(
        ("mode", "deliveries"), [("mixed", 1), ("control-group", 2)], ids=["ours", "the default"]
    )
    def test_run_under_systemd(
        self, mode: str, deliveries: int, etcd: Etcd, tmp_path: Path
    ) -> None:
        """The unit's KillMode brings the program one SIGTERM; systemd's default brings two.

        Nothing that the program started is left, not even a process that ignores SIGTERM.
        """
        text = unit_text("clustermutex-run")
        assert f"\nKillMode={mode}\n" in text or mode == "control-group"
        (line,) = re.findall("^ExecStart=/opt/clustermutex/bin/(.*)$", text, re.MULTILINE)
        (tmp_path / "worker.py").write_text(WORKER)
        own = f"--grace 0.5 -- {sys.executable} worker.py"
        words = line.replace("-- /usr/local/bin/worker", own).split()
        env = {**os.environ, "CLUSTERMUTEX_URL": f"etcd://{etcd.endpoint}/{mode}"}
        with Running([f"{BIN}/{words[0]}", *words[1:]], env, tmp_path) as run:
            pids = [int(written(tmp_path / "pid")), int((tmp_path / "stays").read_text())]
            if mode == "control-group":  # systemd signals the others, too, in any order
                for pid in pids:
                    os.kill(pid, signal.SIGTERM)
                received(tmp_path, 1)
            run.terminate()
            received(tmp_path, deliveries)
            run.go()
        assert (tmp_path / "got").read_text() == str(deliveries)
        assert all(gone(pid) for pid in pids)


def policies() -> list[dict[str, Any]]:
    return [document["spec"] for document in OBJECTS if document["kind"] == "NetworkPolicy"]


def secrets_of(name: str) -> set[str]:
    given = {
        source["secretRef"]["name"]
        for source in container(name)["envFrom"]
        if "secretRef" in source
    }
    return given | {
        volume["secret"]["secretName"] for volume in pod(name)["volumes"] if "secret" in volume
    }


def unit_text(name: str) -> str:
    return (DEPLOY / f"systemd/{name}.service").read_text(encoding="utf-8")


def rights_in(text: str) -> list[str]:
    """Return the lines of a unit from `DynamicUser` on, without comments."""
    after = text.partition("\nDynamicUser=")[2].splitlines()
    return [line for line in after if not line.startswith("#")]


def received(folder: Path, number: int) -> None:
    """Wait until the worker has counted so many SIGTERMs."""
    counter = folder / "got"
    wait_until(lambda: counter.exists() and counter.read_text() == str(number), what="SIGTERM")


def answers(url: str, path: str) -> bool:
    return 200 <= request(url, path).status < 400


def systemd_analyze(*words: str) -> subprocess.CompletedProcess[str]:
    """Run systemd's checker, without a pager and without a running systemd."""
    program = (needed("systemd-analyze"), "--no-pager", *words)
    return run_to_end(*program, env={"SYSTEMD_LOG_LEVEL": "warning"})
