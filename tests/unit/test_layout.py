"""Who may import whom, read off the import statements: the directions of the design, section 2."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from lockclient import settings

CHECKOUT = Path(__file__).parents[2]
PACKAGES = ("lockclient", "unlocker", "mutexdash")

LAYERS = (
    {"durations"},
    {"texts", "timing", "version", "extras", "door"},
    {"errors", "settings", "lookalikes", "logs"},
    {"facts", "process"},
    {"record", "backtrace", "restoring"},
    {"removal"},
    {"store", "shown", "timers", "searching", "deadlocks"},
    {"services", "engine", "driving"},
    {"reading", "backlog", "config", "unlocking", "polling"},
    {"table", "polled"},
    {"lines"},
    {"background", "looking", "freshness", "supervision", "listening"},
    {"holding", "opened"},
    {"waiting", "statement", "threaded"},
    {"handle"},
    {"mutex", "aio"},
    {"serving", "cli"},
)
"""The library from the bottom up: a module imports from lower layers only."""

SERVICES_NEED = (
    "click",
    "flask",
    "waitress",
    "prometheus_client",
    "apscheduler",
    "bcrypt",
)


STORES = {
    "lockclient.etcd": ("grpc", "google.protobuf", "etcd3"),
    "lockclient.gcs": ("google.auth", "requests"),
    "lockclient.valkey": ("valkey",),
}
"""The stores' folders, and what only they speak with."""


def module_of(path: Path) -> str:
    """Return a file's dotted name, a package's for its `__init__.py`."""
    parts = path.relative_to(CHECKOUT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


SOURCES = {module_of(path): path for each in PACKAGES for path in (CHECKOUT / each).rglob("*.py")}


def imports_of(module: str) -> Iterator[str]:
    """Yield the dotted names that a module imports, wherever in it the statement stands."""
    path = SOURCES[module]
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1]
            base = ".".join([*(above if node.level else []), *filter(None, [node.module])])
            # `from package import name` may mean a module of that name or something inside it.
            for each in node.names:
                inner = f"{base}.{each.name}"
                yield inner if inner in SOURCES else base


def lies_in(module: str, package: str) -> bool:
    """Tell whether a module is that package or lies below it."""
    return module == package or module.startswith(f"{package}.")


def layer_of(module: str) -> int:
    """Return the layer of a module of the library."""
    part = module.split(".")[1]
    for number, names in enumerate(LAYERS):
        if part in names:
            return number
    raise AssertionError(f"{module} has no layer yet: say in LAYERS where it belongs.")


def in_layers() -> list[str]:
    """Return the library's modules, the stores' folders and the package itself aside."""
    inside = (each for each in SOURCES if lies_in(each, "lockclient") and each != "lockclient")
    return sorted(each for each in inside if not of_a_store(each))


def of_a_store(module: str) -> bool:
    """Tell whether a module belongs to the folder of a store."""
    return any(lies_in(module, store) for store in STORES)


@pytest.mark.parametrize("module", in_layers())
def test_the_library_imports_downwards_only(module: str) -> None:
    """errors, timing ← record ← store ← engine ← mutex; the package itself is above all."""
    for imported in imports_of(module):
        if not lies_in(imported, "lockclient") or of_a_store(imported):
            continue
        if lies_in(module, "lockclient.cli"):  # the top: it may import all, itself included
            continue
        assert imported != "lockclient", f"{module} imports the package that is made of it"
        assert layer_of(imported) < layer_of(module), f"{module} imports {imported}"


@pytest.mark.parametrize("store", STORES)
def test_a_store_is_opened_by_config_alone(store: str) -> None:
    """Another one is a folder beside etcd/ and its schemes in `settings.STORES`, nothing else."""
    users = {
        module
        for module in SOURCES
        if not lies_in(module, store)
        and any(lies_in(imported, store) for imported in imports_of(module))
    }
    assert users <= {"lockclient.config"}


def test_each_scheme_leads_to_a_store_of_its_own() -> None:
    """By its module's name: it is imported when such a URL comes."""
    for module in settings.STORES.values():
        assert of_a_store(module)
        assert "place_of" in SOURCES[module].read_text(encoding="utf-8")


@pytest.mark.parametrize("store", STORES)
def test_a_store_stands_on_the_seam_and_below(store: str) -> None:
    """The folder knows what a store is, and nothing of those who use one."""
    known = {
        f"lockclient.{each}"
        for each in (
            "errors",
            "texts",
            "timing",
            "facts",
            "record",
            "removal",
            "store",
            "services",
            "settings",
        )
    }
    # Each store owns its threads.
    known |= {
        f"lockclient.{each}" for each in ("background", "looking", "polled", "polling", "timers")
    }
    known |= {f"lockclient.{each}" for each in ("opened", "threaded")}
    for module in (each for each in SOURCES if lies_in(each, store)):
        for imported in imports_of(module):
            if lies_in(imported, "lockclient") and not lies_in(imported, store):
                assert imported in known, f"{module} imports {imported}"


@pytest.mark.parametrize("store", STORES)
def test_only_a_store_speaks_with_its_server(store: str) -> None:
    """What goes over its wire is known in one folder."""
    for module in (each for each in SOURCES if not lies_in(each, store)):
        for imported in imports_of(module):
            foreign = [each for each in STORES[store] if lies_in(imported, each)]
            assert not foreign, f"{module} imports {imported}"


@pytest.mark.parametrize(
    ("package", "others"),
    [
        ("lockclient", ("unlocker", "mutexdash")),
        ("unlocker", ("mutexdash",)),
        ("mutexdash", ("unlocker",)),
    ],
)
def test_services_import_the_library_and_not_each_other(
    package: str, others: tuple[str, ...]
) -> None:
    """unlocker ► lockclient ◄ mutexdash, never the other way."""
    for module in (each for each in SOURCES if lies_in(each, package)):
        for imported in imports_of(module):
            assert not any(lies_in(imported, other) for other in others), (
                f"{module} imports {imported}"
            )


def test_the_page_about_it_names_what_is_there() -> None:
    """docs/architecture.md: each file and folder, each link, and each module of its picture."""
    docs = CHECKOUT / "docs"
    page = (docs / "architecture.md").read_text(encoding="utf-8")
    named = re.findall(r"`(\w+/[\w./]*)`", page)
    assert len(named) > 50
    for each in named:
        path = CHECKOUT / ("lockclient" if each.startswith("etcd/") else "") / each
        assert path.exists() or path.with_suffix(".py").exists(), each
    for link in re.findall(r"\]\(([^)#]+)(?:#[\w-]+)?\)", page):
        assert (docs / link).exists(), link
    picture = page.partition("```text")[2].partition("```")[0]
    shown = {part for layer in LAYERS for part in layer} - {"version", "extras", "statement"}
    assert not [each for each in shown if not re.search(rf"\b{each}\b", picture)]


@pytest.mark.parametrize(
    ("script", "others"),
    [
        ("", {"grpc", "google.auth", "requests"}),
        ("lockclient.ClusterMutex('x')", {"google.auth", "requests"}),
        ("lockclient.Settings.load('gs://bucket/x'); lockclient.ClusterMutex('x')", {"grpc"}),
    ],
)
def test_importing_the_library_loads_nothing_that_nobody_asked_for_and_starts_nothing(
    script: str, others: set[str]
) -> None:
    """A lock library lives in other people's programs: two dependencies and no side effects.

    What only one store needs is loaded when a URL, or its lack, says that it is this one.
    """
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
