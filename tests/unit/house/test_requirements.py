"""The requirements in pyproject.toml: each import is there, and no version with a known hole."""

from __future__ import annotations

import ast
import re
import socket
import sys
from importlib.metadata import packages_distributions
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version
from setuptools.config.pyprojecttoml import load_file  # type: ignore[import-untyped]
from urllib3.connection import HTTPConnection, HTTPSConnection

from tests.unit.house.test_layout import CHECKOUT, SOURCES, imports_of, lies_in

PROJECT: dict[str, Any] = load_file(CHECKOUT / "pyproject.toml")["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]

HOLES = {
    # The last version with a hole of each line that was mended, and the first that is allowed.
    "grpcio": (("1.60.1", "1.64.1", "1.65.2"), "1.65.4"),  # HPACK tables: CVE-2024-7246
    "protobuf": (  # recursion without end: CVE-2025-4565
        ("4.25.7", "5.26.0", "5.27.5", "5.28.3", "5.29.0", "5.29.4", "6.30.0", "6.30.2", "6.31.0"),
        "4.25.8",
    ),
    "waitress": (("2.1.2", "3.0.0"), "3.0.1"),  # CVE-2024-49768, CVE-2024-49769
    # CVE-2024-34069, CVE-2024-49766, CVE-2024-49767; and with 3.0 what should be 421 was 500.
    "werkzeug": (("2.3.8", "3.0.5", "3.0.6"), "3.1.0"),
    "requests": (("2.31.0", "2.32.3"), "2.32.4"),  # CVE-2024-35195, CVE-2024-47081
}
MENDED = {"protobuf": ("5.29.5", "6.31.1", "7.34.0"), "grpcio": ("1.66.0", "1.85.1")}

MAY_IMPORT = {
    "lockclient": (),
    "lockclient.cli": ("command", "embedded"),
    "lockclient.__main__": ("command",),
    "lockclient.testing": ("testing", "embedded"),
    "lockclient.instruments.prometheus": ("prometheus",),
    "lockclient.instruments.opentelemetry": ("opentelemetry",),
    "lockclient.service.service_flags": ("services",),
    "lockclient.service.metrics": ("services",),
    "lockclient.service.http_server": ("services",),
    "lockclient.stores.gcs": ("gcs",),
    "lockclient.stores.valkey": ("valkey",),
    "unlocker": ("services", "notify"),
    "mutexdash": ("services",),
}
"""Which extras a package may count on, or look for, beside what is always installed."""


def requirements(*extras: str) -> dict[str, Requirement]:
    """Return what is asked for, by its name, with these extras and those that they bring."""
    asked = [Requirement(text) for text in PROJECT["dependencies"]]
    for extra in extras:
        asked += [Requirement(text) for text in EXTRAS[extra]]
    own = [need for need in asked if need.name == PROJECT["name"]]
    found = {str(canonicalize_name(need.name)): need for need in asked if need not in own}
    for need in own:
        found |= requirements(*need.extras)
    return found


@pytest.mark.parametrize("name", HOLES)
def test_no_version_with_a_known_hole_is_allowed(name: str) -> None:
    allowed = requirements("services", "gcs")[canonicalize_name(name)].specifier
    bad, first = HOLES[name]
    assert not [version for version in bad if version in allowed]
    assert not [version for version in (first, *MENDED.get(name, ())) if version not in allowed]


def test_each_import_is_a_declared_requirement() -> None:
    brought = packages_distributions()
    assert brought["werkzeug"] == ["Werkzeug"]
    for module in SOURCES:
        home = max((package for package in MAY_IMPORT if lies_in(module, package)), key=len)
        asked = requirements(*MAY_IMPORT[home])
        for imported in imports_of(module):
            top = imported.partition(".")[0]
            if top not in sys.stdlib_module_names and top not in ("lockclient", home):
                by = {
                    str(canonicalize_name(package)) for package in brought[top]
                }  # several: google
                assert by & asked.keys(), f"{module} imports {imported}"


def test_the_lowest_versions_are_tested() -> None:
    tree = ast.parse((CHECKOUT / ".ci/matrix.py").read_text(encoding="utf-8"))
    said = {
        target.id: node.value
        for node in tree.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    asked = requirements()
    for name, versions in (
        ("protobuf", ast.literal_eval(said["PROTOBUFS"])),
        ("grpcio", ast.literal_eval(said["OLDEST"]).values()),
    ):
        assert min(versions, key=Version) == HOLES[name][1]
        assert all(version in asked[name].specifier for version in versions)
    script = (CHECKOUT / ".ci/matrix").read_text(encoding="utf-8")
    web = dict(re.findall(r"\b(flask|werkzeug)==([0-9.]+)", script))
    for name in ("flask", "werkzeug"):
        (floor,) = requirements("services")[name].specifier
        assert (floor.operator, Version(floor.version)) == (">=", Version(web[name]))


# ---------------------------------------------------------------- what is used though it is private


@pytest.mark.parametrize(("extra", "name"), [("gcs", "urllib3"), ("valkey", "valkey")])
def test_the_next_major_version_is_not_allowed(extra: str, name: str) -> None:
    allowed = requirements(extra)[name].specifier
    assert not [major for major in ("3.0", "7.0", "8.0") if major in allowed]


@pytest.mark.parametrize("kind", [HTTPConnection, HTTPSConnection])
def test_urllib3_makes_its_sockets_by_new_conn(kind: type[HTTPConnection]) -> None:
    """Without it a host with addresses that nobody answers takes a timeout for each of them:
    see faults/bucket/test_tries.py."""

    class Refusing(kind):  # type: ignore[valid-type, misc]
        def _new_conn(self) -> socket.socket:
            raise OSError("asked for a socket")

    with pytest.raises(OSError, match="asked for a socket"):
        Refusing("localhost", 1).connect()
