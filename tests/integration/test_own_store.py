"""docs/stores.md, A store of your own: by an entry point, and held to the contract suite."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from tests.contract.subject import named
from tests.support.processes import run_to_end

CHECKOUT = Path(__file__).parents[2]
SUITE = (sys.executable, "-m", "pytest", "tests/contract", "-p", "no:cacheprovider", "--store")
PROGRAM = """
import runpy, sys
from lockclient import ClusterMutex
with ClusterMutex("nightly", reason="totals") as held:
    assert ClusterMutex("nightly").acquire(blocking=False) is None
    held.alive(force=True)
    sys.argv[1:] = ["ls", "--json"]
    runpy.run_module("lockclient", run_name="__main__")
"""


@pytest.fixture
def installed(tmp_path: Path) -> dict[str, str]:
    """The environment of programs in which the store is installed, by its metadata."""
    metadata = tmp_path / "their_locks-1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: their-locks\nVersion: 1\n")
    (metadata / "entry_points.txt").write_text(
        "[clustermutex.stores]\ntheirs = their_locks:open_store\n"
    )
    own = CHECKOUT / "tests" / "support" / "own_store"
    return {"PYTHONPATH": f"{tmp_path}:{own}", "CLUSTERMUTEX_URL": "theirs://user:secret@x/y"}


@pytest.mark.parametrize(
    ("store", "left_out"),
    [("theirs://{}", "lose_tickets, write"), ("tests.contract.subject:in_memory", "-")],
)
def test_the_contract_suite_runs_on_the_store(
    store: str, left_out: str, installed: dict[str, str]
) -> None:
    these = ("-k", "test_two_names_never_meet or test_only_the_read_acquisition")
    done = run_to_end(*SUITE, store, *these, folder=CHECKOUT, env=installed)
    assert f"no tests of: {left_out}" in done.stdout
    assert "skipped" not in done.stdout


def test_a_url_opens_the_store(installed: dict[str, str]) -> None:
    done = run_to_end(sys.executable, "-c", PROGRAM, env=installed)
    assert '"totals"' in done.stdout
    assert "secret" not in done.stdout


@pytest.mark.parametrize(
    ("store", "text"),
    [
        ("theirs://x", "must have {}"),
        ("nowhere", "must be a URL with {} in it, or module:function"),
        ("nowhere:subject", "No module named"),
        ("nothing://{}", "must begin with etcd"),
    ],
)
def test_a_store_that_can_not_be_opened_is_named(store: str, text: str) -> None:
    with pytest.raises(ValueError, match=re.escape(text)):
        named(store)().__enter__()


INTERRUPTED = """
import signal, their_locks
from lockclient import ClusterMutex

opened, really_open = [], their_locks.open_store

def open_interrupted(url):
    if not opened:
        opened.append(True)
        signal.raise_signal(signal.SIGUSR1)
    return really_open(url)

def handle(*_):
    with ClusterMutex("of-the-handler"):
        print("handled")

their_locks.open_store = open_interrupted
signal.signal(signal.SIGUSR1, handle)
with ClusterMutex("x"):
    print("held")
"""


def test_a_signal_handler_may_use_the_default_store_while_it_opens(
    installed: dict[str, str],
) -> None:
    done = run_to_end(sys.executable, "-c", INTERRUPTED, env=installed, timeout=20)
    assert done.stdout == "handled\nheld\n", done.stderr
