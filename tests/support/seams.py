"""Tests that reach below the seams: `python -m tests.support.seams` prints three counts.

A seam is a module that stays while the code behind it changes; tests may import the modules in
`SEAMS`. Everything else is below. `tests/unit/house/test_seams.py` holds the counts down.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

CHECKOUT = Path(__file__).parents[2]
PRODUCT = ("lockclient", "unlocker", "mutexdash", "clustermutex")
SEAMS = (
    # the public API
    "clustermutex",
    "lockclient",
    "lockclient.aio",
    "lockclient.default_store",
    "lockclient.errors",
    "lockclient.instruments",
    "lockclient.mutex",
    "lockclient.stores.settings",
    "lockclient.testing.*",
    # the store: its protocol, its registry, and the model that it equals
    "lockclient.stores.findings",
    "lockclient.stores.location",
    "lockclient.stores.outcomes",
    "lockclient.stores.mutex_store",
    "lockclient.stores.registry",
    "lockclient.stores.request_types",
    "lockclient.stores.service_store",
    "lockclient.stores.timeouts",
    "lockclient.testing.lock_model",
    # the state machine
    "lockclient.acquisition.state_machine",
    "lockclient.acquisition.thread_driver",
    # where stores are, by URL, and the names that docs/protocol*.md gives to what stands in them
    "lockclient.stores.common.segments",
    "lockclient.stores.etcd.keys",
    "lockclient.stores.etcd.location",
    "lockclient.stores.gcs.keys",
    "lockclient.stores.gcs.location",
    "lockclient.stores.valkey.keys",
    "lockclient.stores.valkey.location",
    # what errors of servers mean, and what people read of them: pure functions
    "lockclient.stores.common.network_errors",
    "lockclient.stores.etcd.errors",
    "lockclient.stores.valkey.errors",
    # records and pure functions
    "lockclient.model.*",
    "lockclient.text.*",
    "lockclient.overview.lock_presentation",
    "lockclient.overview.search",
    "lockclient.overview.lock_status",
    "lockclient.overview.rows",
    "mutexdash.markup.*",
    "unlocker.notifications.conditions",
    "unlocker.notifications.difference",
    "unlocker.notifications.message",
    "unlocker.notifications.sent_document",
    "unlocker.notifications.truth",
    "unlocker.alert_and_removal_times",
    "unlocker.rate_limit",
    # the services' factories, the command, and the servers that `clustermutex up` starts
    "lockclient.cli.setup.*",
    "lockclient.cli.root_command",
    "lockclient.cli.main",
    "mutexdash.app",
    "mutexdash.cli",
    "unlocker.cli",
    "unlocker.http_app",
    "unlocker.notifications.apprise_recipients",
    "unlocker.unlocker",
)
"""Modules that tests may import; `.*` stands for all modules of a folder."""


@dataclass(frozen=True)
class Counts:
    """The counts over all files under `tests/`.

    Attributes:
        tests: test functions.
        below: those in files that import below the seams, directly or through `tests/support`.
        private: attributes `x._name` where `x` is not `self` or `cls`.
        patches: uses of `monkeypatch.setattr`.
    """

    tests: int
    below: int
    private: int
    patches: int


def is_seam(module: str) -> bool:
    """Tell whether tests may import this module of the product."""
    return any(
        module == seam or (seam.endswith(".*") and f"{module}.".startswith(seam[:-1]))
        for seam in SEAMS
    )


def counts() -> Counts:
    """Count over the files under `tests/`."""
    tests = below = private = patches = 0
    for path in sorted((CHECKOUT / "tests").rglob("*.py")):
        tree = _tree(path)
        functions = sum(
            isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            and node.name.startswith("test_")
            for node in ast.walk(tree)
        )
        if path.name.startswith("test_"):
            tests += functions
            below += functions if reaches(path) else 0
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute):
                owner = node.value.id if isinstance(node.value, ast.Name) else ""
                hidden = node.attr.startswith("_") and not node.attr.startswith("__")
                private += hidden and owner not in ("self", "cls")
                patches += node.attr == "setattr" and owner == "monkeypatch"
    return Counts(tests, below, private, patches)


def reaches(path: Path) -> frozenset[str]:
    """Return the modules below the seams that a test file imports, also through `tests/support`."""
    return _reached(path, frozenset())


def _reached(path: Path, through: frozenset[Path]) -> frozenset[str]:
    found: set[str] = set()
    for module in _imports(path):
        if module.partition(".")[0] in PRODUCT:
            found |= set() if is_seam(module) else {module}
        elif module.startswith("tests.support"):
            file = _file(module)
            if file is not None and file not in through:
                found |= _reached(file, through | {path})
    return frozenset(found)


@cache
def _imports(path: Path) -> frozenset[str]:
    return frozenset(_imported(_tree(path)))


def _imported(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None and not node.level:
            for name in node.names:  # `from package import module` imports that module
                module = f"{node.module}.{name.name}"
                yield module if _file(module) is not None else node.module


@cache
def _file(module: str) -> Path | None:
    path = CHECKOUT.joinpath(*module.split("."))
    candidates = (path.with_suffix(".py"), path / "__init__.py")
    return next((file for file in candidates if file.is_file()), None)


@cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


if __name__ == "__main__":
    found = counts()
    print(f"{found.below} of {found.tests} test functions import below the seams")
    print(f"{found.private} private attributes of objects of the product")
    print(f"{found.patches} uses of monkeypatch.setattr")
