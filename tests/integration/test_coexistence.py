"""In other people's processes: a quick import, no warnings, no `assert` that matters, no clash.

With other versions of protobuf, grpcio and Python the same is run by `.ci/matrix`.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from lockclient.cli.setup.etcd_server import Etcd
from tests.support.processes import run_to_end

CHECK = Path(__file__).parents[2] / ".ci/matrix_check.py"
BROUGHT = """
import sys, grpc
before = set(sys.modules)
import lockclient
print(*(each for each in set(sys.modules) - before if not each.startswith("_")))
"""
LATE = """
import os, sys
os.environ["CLUSTERMUTEX_URL"] = sys.argv[1]
from lockclient import ClusterMutex
mutex = ClusterMutex("x")
before = set(sys.modules)
mutex.acquire()
mutex.release()
theirs = ("_", "encodings", "grpc")
print(*(each for each in set(sys.modules) - before if not each.startswith(theirs)))
"""


def run(*words: str) -> str:
    """Run Python with these words; it must end well. Return what it printed."""
    done = run_to_end(sys.executable, *words)
    assert "Traceback" not in done.stderr
    return done.stdout


def test_the_import_is_quick() -> None:
    """It brings little along that gRPC does not, a count that no noise can move."""
    brought = run("-c", BROUGHT).split()
    others = {each.partition(".")[0] for each in brought if not each.startswith("lockclient")}
    assert others <= {"json", "uuid", "datetime", "dataclasses", "copy", "platform", "queue"}
    assert len(brought) <= 58


def test_the_first_acquire_imports_nothing(etcd: Etcd) -> None:
    late = run("-c", LATE, f"etcd://{etcd.endpoint}/late").split()
    assert late == []


@pytest.mark.parametrize("options", [["-W", "error"], ["-W", "error", "-O"]], ids=" ".join)
def test_a_lock_under_strict_options(options: list[str], etcd: Etcd) -> None:
    """Taken, waited for, pushed, lost, released, forked: no warning, no work in an `assert`."""
    run(*options, "-c", "import lockclient")
    run(*options, str(CHECK), etcd.endpoint)


def test_beside_an_imported_etcd3(etcd: Etcd) -> None:
    """Two sets of messages of one protocol in one process, and both clients work."""
    run("-W", "error", str(CHECK), etcd.endpoint, "--with-etcd3")
