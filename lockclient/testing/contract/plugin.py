"""The option `--store` of pytest: which store the contract suites are to be run over.

It comes by `python -m lockclient.testing.contract`, by `-p lockclient.testing.contract.plugin`, or
by `pytest_plugins` in a `conftest.py`: pytest reads the conftest of a package that is named by
`--pyargs` too late for options, and an entry point would burden everybody's runs.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from lockclient.testing.contract.subject import Subject, Subjects, named

SUBJECTS = pytest.StashKey[Subjects]()
EXAMPLE = pytest.StashKey[Subject]()
SUITES = Path(__file__).parent


def pytest_addoption(parser: pytest.Parser) -> None:
    """Take the store."""
    parser.addoption(
        "--store",
        help="The store to hold to its contract: module:function of a context manager that yields "
        "a lockclient.testing.contract.subject.Subject, or a URL with {} where each test has "
        "another name.",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Open a store for a moment, to see what it can do."""
    config.addinivalue_line("markers", "needs(*abilities): not made for stores without them")
    config.addinivalue_line("markers", "soak: the same again, at length")
    store = config.getoption("--store", None)
    if store is None:
        return
    try:
        subjects = config.stash[SUBJECTS] = named(store)
        with subjects() as subject:
            config.stash[EXAMPLE] = subject
    except ValueError as error:
        raise pytest.UsageError(f"--store: {error}") from error


def pytest_report_header(config: pytest.Config) -> str:
    """Say what the store can do, and so which tests are not made."""
    subject = config.stash.get(EXAMPLE, None)
    if subject is None:
        return "store: none, say which by --store"
    abilities = ("queue", "watch", "fencing", "guard", "services", "lose_tickets", "write")
    missing = [need for need in abilities if not subject.able(need)]
    return f"store: {subject.store.can.display_name}; no tests of: {', '.join(missing) or '-'}"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what the store need not do: the header says what that is."""
    subject = config.stash.get(EXAMPLE, None)
    if subject is None:
        return
    left_out = [
        item
        for item in items
        if item.path.parent == SUITES
        if not all(subject.able(need) for mark in item.iter_markers("needs") for need in mark.args)
    ]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in left_out]
