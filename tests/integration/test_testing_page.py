"""docs/guide.md, Testing: the examples run as printed, as tests of another project."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.support.documents import codes
from tests.support.processes import run_to_end

CONFTEST, BILLING, IN_MEMORY, IN_ETCD, UNITTEST = codes("guide.md#testing", "python")


def test_with_pytest(tmp_path: Path, etcd_binary: str) -> None:
    """In memory and in a real etcd, warnings as errors, by pytest as it is."""
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "billing.py").write_text(BILLING)
    (tmp_path / "test_memory.py").write_text(IN_MEMORY)
    (tmp_path / "test_etcd.py").write_text(IN_ETCD)
    words = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "error")
    done = run_to_end(*words, folder=tmp_path, env={"PYTHONPATH": str(tmp_path)})
    assert "6 passed" in done.stdout


def test_without_pytest(tmp_path: Path) -> None:
    (tmp_path / "test_billing.py").write_text(UNITTEST)
    done = run_to_end(sys.executable, "-W", "error", "test_billing.py", folder=tmp_path)
    assert "Ran 1 test" in done.stderr
