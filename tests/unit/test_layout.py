"""Who may import whom, read off the import statements: the directions of the design, section 2."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[2]
PACKAGES = ("lockclient", "unlocker", "mutexdash")

LAYERS = (
    {"errors", "timing", "version", "settings", "extras"},
    {"record", "backtrace", "process"},
    {"store", "shown", "timers"},
    {"engine", "table", "config", "driving", "unlocking"},
    {"background"},
    {"holding", "waiting"},
    {"handle", "statement"},
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
    "limits",
)


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
    """Return the library's modules, etcd/ and the package itself aside."""
    inside = (each for each in SOURCES if lies_in(each, "lockclient") and each != "lockclient")
    return sorted(each for each in inside if not lies_in(each, "lockclient.etcd"))


@pytest.mark.parametrize("module", in_layers())
def test_the_library_imports_downwards_only(module: str) -> None:
    """errors, timing ← record ← store ← engine ← mutex; the package itself is above all."""
    for imported in imports_of(module):
        if not lies_in(imported, "lockclient") or lies_in(imported, "lockclient.etcd"):
            continue
        if lies_in(module, "lockclient.cli"):  # the top: it may import all, itself included
            continue
        assert imported != "lockclient", f"{module} imports the package that is made of it"
        assert layer_of(imported) < layer_of(module), f"{module} imports {imported}"


def test_etcd_is_opened_by_config_alone() -> None:
    """A second store is a folder beside etcd/ and a branch in config.py, and nothing else."""
    users = {
        module
        for module in SOURCES
        if not lies_in(module, "lockclient.etcd")
        and any(lies_in(imported, "lockclient.etcd") for imported in imports_of(module))
    }
    assert users == {"lockclient.config"}


def test_etcd_stands_on_the_store_and_below() -> None:
    """The folder knows what a store is, and nothing of those who use one."""
    known = {f"lockclient.{each}" for each in ("errors", "timing", "record", "store", "settings")}
    known |= {"lockclient.background", "lockclient.timers"}  # each store owns its threads
    for module in (each for each in SOURCES if lies_in(each, "lockclient.etcd")):
        for imported in imports_of(module):
            if lies_in(imported, "lockclient") and not lies_in(imported, "lockclient.etcd"):
                assert imported in known, f"{module} imports {imported}"


def test_only_etcd_speaks_grpc() -> None:
    """What goes over etcd's wire is known in one folder."""
    for module in (each for each in SOURCES if not lies_in(each, "lockclient.etcd")):
        for imported in imports_of(module):
            foreign = [each for each in ("grpc", "google", "etcd3") if lies_in(imported, each)]
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


def test_importing_the_library_loads_nothing_of_the_services_and_starts_nothing() -> None:
    """A lock library lives in other people's programs: two dependencies and no side effects."""
    script = (
        "import sys, threading, lockclient\n"
        "assert lockclient.ClusterMutex\n"
        "print(threading.active_count(), *{each.partition('.')[0] for each in sys.modules})"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=CHECKOUT,
    )
    assert done.returncode == 0, done.stderr
    threads, *loaded = done.stdout.split()
    assert threads == "1"
    assert not set(SERVICES_NEED) & set(loaded)
