"""Files, folders and their sizes; which may import which is in pyproject.toml, for `make lint`."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from lockclient.stores import registry

CHECKOUT = Path(__file__).parents[3]
PACKAGES = ("lockclient", "unlocker", "mutexdash")

BOXES = 14
"""Files and folders that a reader can take in at once."""
PLUMBING = {"__init__", "__main__"}
"""Which need not be looked at, and so don't count."""

SERVICES_NEED = ("click", "flask", "waitress", "prometheus_client", "apscheduler", "bcrypt")


def module_of(path: Path) -> str:
    """Return a file's dotted name, a package's for its `__init__.py`."""
    parts = path.relative_to(CHECKOUT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


SOURCES = {
    module_of(path): path for package in PACKAGES for path in (CHECKOUT / package).rglob("*.py")
}


@cache
def imports_of(module: str) -> tuple[str, ...]:
    """Return the dotted names that a module imports, wherever in it the statement stands."""
    return tuple(_imports_of(module))


def _imports_of(module: str) -> Iterator[str]:
    path = SOURCES[module]
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1]
            base = ".".join([*(above if node.level else []), *filter(None, [node.module])])
            # `from package import name` may mean a module of that name or something inside it.
            for alias in node.names:
                inner = f"{base}.{alias.name}"
                yield inner if inner in SOURCES else base


def lies_in(module: str, package: str) -> bool:
    return module == package or module.startswith(f"{package}.")


def box_in(package: str, module: str) -> str:
    return module.removeprefix(package).lstrip(".").partition(".")[0] or "__init__"


def test_no_files_import_each_other() -> None:
    graph = {
        module: {name for name in imports_of(module) if name in SOURCES and name != module}
        for module in SOURCES
    }
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(f"files import each other: {' -> '.join(error.args[1])}")


@pytest.mark.parametrize("package", PACKAGES)
def test_a_reader_can_take_in_a_package_at_once(package: str) -> None:
    """At most fourteen boxes on the floor of the library, and of each service."""
    boxes = {box_in(package, name) for name in SOURCES if lies_in(name, package)}
    boxes -= PLUMBING
    assert len(boxes) <= BOXES, sorted(boxes)


def test_each_scheme_leads_to_a_store_of_its_own() -> None:
    """By its module's name: it is imported when such a URL comes."""
    for entry in registry.ENTRIES.values():
        named = {entry.location(), entry.store(), entry.setup_script()}
        assert {thing.__module__.rpartition(".")[0] for thing in named} == {
            f"lockclient.stores.{entry.name}"
        }


def test_the_architecture_page_names_existing_files() -> None:
    docs = CHECKOUT / "docs"
    page = (docs / "architecture.md").read_text(encoding="utf-8")
    named = re.findall(r"`(\w+/[\w./]*)`", page)
    assert len(named) > 50
    stores = CHECKOUT / "lockclient" / "stores"
    rooms = [
        CHECKOUT,
        stores.parent,
        stores,
        *(stores / name for name in ("etcd", "gcs", "valkey")),
    ]
    rooms += [CHECKOUT / "mutexdash"]
    for name in named:
        paths = [room / name for room in rooms]
        assert any(path.exists() or path.with_suffix(".py").exists() for path in paths), name
    for link in re.findall(r"\]\(([^)#]+)(?:#[\w-]+)?\)", page):
        assert (docs / link).exists(), link
    tree = page.partition("```text")[2].partition("```")[0]
    shown = {box_in("lockclient", name) for name in SOURCES if lies_in(name, "lockclient")}
    shown -= PLUMBING
    assert not [box for box in shown if not re.search(rf"\b{box}\b", tree)]


@pytest.mark.parametrize(
    ("script", "others"),
    [
        ("", {"grpc", "google.auth", "requests"}),
        ("lockclient.ClusterMutex('x')", {"google.auth", "requests"}),
        ("lockclient.Settings.load('gs://bucket/x'); lockclient.ClusterMutex('x')", {"grpc"}),
    ],
)
def test_importing_the_library_loads_no_optional_module_and_starts_nothing(
    script: str, others: set[str]
) -> None:
    url = re.search("gs://[^']+", script)
    done = subprocess.run(
        [
            *(sys.executable, "-W", "error", "-c"),
            "import sys, threading, lockclient\n"
            f"assert lockclient.ClusterMutex\n{script}\n"
            "print(threading.active_count(), *sys.modules)",
        ],
        env={**os.environ, **({"CLUSTERMUTEX_URL": url[0]} if url else {})},
        capture_output=True,
        text=True,
        timeout=60,
        cwd=CHECKOUT,
    )
    assert done.returncode == 0, done.stderr
    threads, *loaded = done.stdout.split()
    assert threads == "1"
    brought = {"bcrypt"} if url else set()  # by google-auth, by way of what it signs with
    assert not ({*SERVICES_NEED, *others} - brought) & set(loaded)
