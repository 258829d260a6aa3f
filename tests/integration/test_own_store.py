"""docs/stores.md, A store of your own: over SQLite, by an entry point and the contract suite."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from tests.contract.subject import named
from tests.support.processes import run_to_end
from tests.support.soak import soaking

EXAMPLE = Path(__file__).parents[1] / "support" / "own_store"
STORE = EXAMPLE / "sqlite_locks.py"
CHECKOUT = Path(__file__).parents[2]
PAGE = CHECKOUT / "docs" / "stores.md"
MOST_LINES = 150
SUITE = (sys.executable, "-m", "pytest", "tests/contract", "-p", "no:cacheprovider")
PROGRAM = """
from lockclient import ClusterMutex
with ClusterMutex("nightly", reason="totals") as held:
    assert ClusterMutex("nightly").acquire(blocking=False) is None
    input()
    held.alive(force=True)
"""


@pytest.fixture
def installed(tmp_path: Path) -> dict[str, str]:
    """The environment of programs in which the store is installed, by its metadata."""
    metadata = tmp_path / "sqlite_locks-1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: sqlite-locks\nVersion: 1\n")
    (metadata / "entry_points.txt").write_text(
        "[clustermutex.stores]\nsqlite = sqlite_locks:open_store\n"
    )
    return {"PYTHONPATH": f"{tmp_path}:{EXAMPLE}"}


@pytest.mark.parametrize(
    "these", ["test_requests or test_model or test_service_store", *soaking("test")]
)
def test_it_keeps_the_contract(these: str, installed: dict[str, str]) -> None:
    """By the suite as an author runs it, from a checkout."""
    done = run_to_end(
        *(*SUITE, "--store", "sqlite_subject:subject", "-k", these), folder=CHECKOUT, env=installed
    )
    assert "store: SQLite; no tests of: queue, watch, guard, lose_tickets" in done.stdout
    assert "skipped" not in done.stdout


def test_it_is_short_and_what_the_page_shows() -> None:
    text = STORE.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= MOST_LINES
    page = PAGE.read_text(encoding="utf-8")
    assert text in page
    assert (EXAMPLE / "sqlite_subject.py").read_text(encoding="utf-8") in page


def test_a_url_leads_to_it(tmp_path: Path, installed: dict[str, str]) -> None:
    """For programs, the command and the suite; what a URL may hide is shown to nobody."""
    env = {**installed, "CLUSTERMUTEX_URL": f"sqlite://{tmp_path}/locks.db"}
    program = f"import subprocess, sys\n{PROGRAM}".replace(
        "input()",
        "print(subprocess.check_output("
        "[sys.executable, '-m', 'lockclient', 'ls', '--json'], text=True))",
    )
    done = run_to_end(sys.executable, "-c", program, env=env)
    assert '"nightly"' in done.stdout
    assert '"totals"' in done.stdout
    done = run_to_end(sys.executable, "-m", "lockclient", "doctor", env=env, status=None)
    assert "answers, in" in done.stdout
    url = f"sqlite://{tmp_path}/{{}}.db"
    these = ("--store", url, "-k", "test_two_names_never_meet or test_withdrawing_leaves")
    done = run_to_end(*SUITE, *these, folder=CHECKOUT, env=env)
    assert "lose_tickets, write" in done.stdout


@pytest.mark.parametrize(
    ("store", "text"),
    [
        ("sqlite:///x.db", "must have {}"),
        ("nowhere", "must be a URL with {} in it, or module:function"),
        ("nowhere:subject", "No module named"),
        ("nothing://{}", "must begin with etcd"),
    ],
)
def test_a_store_that_can_t_be_had_is_named(store: str, text: str) -> None:
    with pytest.raises(ValueError, match=re.escape(text)):
        named(store)().__enter__()


INTERRUPTED = """
import signal, sqlite_locks
from lockclient import ClusterMutex

opened, really_open = [], sqlite_locks.open_store

def open_interrupted(url):
    if not opened:
        opened.append(True)
        signal.raise_signal(signal.SIGUSR1)
    return really_open(url)

def handle(*_):
    with ClusterMutex("of-the-handler"):
        print("handled")

sqlite_locks.open_store = open_interrupted
signal.signal(signal.SIGUSR1, handle)
with ClusterMutex("x"):
    print("held")
"""


def test_the_handler_of_a_signal_may_use_the_default_store_while_it_opens(
    tmp_path: Path, installed: dict[str, str]
) -> None:
    env = {**installed, "CLUSTERMUTEX_URL": f"sqlite://{tmp_path}/locks.db"}
    done = run_to_end(sys.executable, "-c", INTERRUPTED, env=env, timeout=20)
    assert done.stdout == "handled\nheld\n", done.stderr
