"""The systemd units and the Kubernetes manifest, by those who read them: systemd and its schema."""

from __future__ import annotations

import os
import re
import subprocess
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import kubernetes_validate  # type: ignore[import-untyped]
import pytest
from ruamel.yaml import YAML

from lockclient.cli.local import Etcd
from lockclient.version import __version__
from tests.processes import BIN, needed, start_service, wait_until

DEPLOY = Path(__file__).parents[2] / "deploy"
MANIFEST = DEPLOY / "kubernetes/clustermutex.yaml"
OBJECTS: list[dict[str, Any]] = list(YAML(typ="safe").load_all(MANIFEST))
SERVICES = ("unlocker", "mutexdash")
VERSIONS = ("1.28", "1.37")
"""Of Kubernetes: from one that is out of support to the newest that the schemas know."""


def named(kind: str, name: str) -> dict[str, Any]:
    """Return an object of the manifest."""
    (found,) = [
        each for each in OBJECTS if each["kind"] == kind and each["metadata"]["name"] == name
    ]
    return found


def pod(name: str) -> dict[str, Any]:
    """Return what a Deployment says about its pods."""
    spec: dict[str, Any] = named("Deployment", name)["spec"]["template"]["spec"]
    return spec


def container(name: str) -> dict[str, Any]:
    """Return a Deployment's only container."""
    (found,) = pod(name)["containers"]
    content: dict[str, Any] = found
    return content


class TestKubernetes:
    @pytest.mark.parametrize("version", VERSIONS)
    def test_each_object_is_valid_by_the_schema(self, version: str) -> None:
        """Strictly: a field that is misspelt or stands at the wrong place is an error."""
        for each in OBJECTS:
            kubernetes_validate.validate(each, version, strict=True)

    @pytest.mark.parametrize("name", SERVICES)
    def test_a_pod_has_no_more_rights_than_it_needs(self, name: str) -> None:
        """All that the Pod Security Standard `restricted` asks for, and a read-only root."""
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
        assert {"cpu", "memory"} <= resources["requests"].keys()
        assert "memory" in resources["limits"]

    def test_the_namespace_lets_in_no_pod_with_more(self) -> None:
        labels = named("Namespace", "clustermutex")["metadata"]["labels"]
        assert labels["pod-security.kubernetes.io/enforce"] == "restricted"
        assert {
            each["metadata"].get("namespace") for each in OBJECTS if each["kind"] != "Namespace"
        } == {"clustermutex"}

    def test_the_user_is_the_images_and_the_image_this_version(self) -> None:
        dockerfile = (DEPLOY.parent / "Dockerfile").read_text(encoding="utf-8")
        assert "USER 65532:65532" in dockerfile
        for name in SERVICES:
            assert container(name)["image"] == f"clustermutex:{__version__}"

    @pytest.mark.parametrize("name", SERVICES)
    def test_a_service_runs_with_what_it_is_given_and_its_probes_pass(
        self, name: str, etcd: Etcd
    ) -> None:
        """Its very command and variables; only addresses are replaced."""
        spec = container(name)
        given = {each["name"]: each["value"] for each in spec["env"]}
        (settings,) = [
            named("ConfigMap", each["configMapRef"]["name"])["data"]
            for each in spec["envFrom"]
            if "configMapRef" in each
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
                wait_until(lambda asked=asked: answers(service.url + asked["path"]))  # type: ignore[misc]
            assert service.terminate() == 0
        assert (spec["livenessProbe"]["httpGet"]["path"]) == "/healthz"  # etcd away: no restart
        assert (spec["readinessProbe"]["httpGet"]["path"]) == "/readyz"

    @pytest.mark.parametrize("name", SERVICES)
    def test_what_belongs_together_is_named_alike(self, name: str) -> None:
        """Deployment, Service, Prometheus' job: a wrong label is an empty Service, silently."""
        deployment, service = named("Deployment", name)["spec"], named("Service", name)["spec"]
        labels = deployment["template"]["metadata"]["labels"]
        assert deployment["selector"]["matchLabels"].items() <= labels.items()
        assert service["selector"].items() <= labels.items()
        (port,) = service["ports"]
        assert port["targetPort"] == container(name)["ports"][0]["name"]
        policy = named("NetworkPolicy", "only-prometheus")["spec"]
        assert policy["podSelector"]["matchLabels"].items() <= labels.items()
        jobs = YAML(typ="safe").load(DEPLOY / "prometheus/kubernetes.yml")["scrape_configs"]
        (job,) = [each for each in jobs if each["job_name"] == name]
        assert f"'{name}.clustermutex.svc.cluster.local" in str(job)
        assert str(port["port"]) in str(job)


class TestSystemd:
    @pytest.mark.parametrize("name", SERVICES)
    def test_systemd_takes_the_unit(self, name: str, tmp_path: Path) -> None:
        """It wants the program to be there, which is elsewhere here, and nothing else is wrong."""
        text = (DEPLOY / f"systemd/{name}.service").read_text(encoding="utf-8")
        assert f"ExecStart=/opt/clustermutex/bin/{name}\n" in text
        unit = tmp_path / f"{name}.service"
        unit.write_text(text.replace("/opt/clustermutex/bin/", f"{BIN}/"), encoding="utf-8")
        done = systemd_analyze("verify", str(unit))
        assert (done.returncode, done.stdout + done.stderr) == (0, "")

    @pytest.mark.parametrize("name", SERVICES)
    def test_the_unit_gives_no_more_rights_than_needed(self, name: str) -> None:
        """By systemd's own judgement, from 0 to 10 (a unit that says nothing is at 9.6)."""
        unit = str(DEPLOY / f"systemd/{name}.service")
        done = systemd_analyze("security", "--offline=true", "--threshold=20", unit)
        assert done.returncode == 0, done.stdout + done.stderr

    def test_both_units_are_hardened_alike(self) -> None:
        """From `[Service]` on they differ in names only."""
        texts = [
            (DEPLOY / f"systemd/{name}.service").read_text(encoding="utf-8").partition("[Unit]")[2]
            for name in SERVICES
        ]
        unlocker, mutexdash = (text.partition("[Service]")[2] for text in texts)
        assert unlocker.replace("unlocker", "mutexdash") == mutexdash


def systemd_analyze(*words: str) -> subprocess.CompletedProcess[str]:
    """Run systemd's checker, without a pager and without a running systemd."""
    return subprocess.run(
        [needed("systemd-analyze"), "--no-pager", *words],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "SYSTEMD_LOG_LEVEL": "warning"},
    )


def answers(url: str) -> bool:
    """Tell whether a probe would be content."""
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return bool(200 <= answer.status < 400)
    except urllib.error.HTTPError as error:
        error.close()
        return False
