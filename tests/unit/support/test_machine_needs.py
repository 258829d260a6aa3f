"""The programs that tests need: installed where possible, else named and counted."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.support import machine_needs
from tests.support.processes import run_to_end

CHECKOUT = Path(__file__).parents[3]
MACHINE_NEEDS = machine_needs.__file__
TESTS = """
import pytest
from tests.support.processes import needed

@pytest.fixture(scope="session")
def promtool():
    return needed("promtool")

@pytest.mark.parametrize("number", range(3))
def test_in_zsh(number):
    needed("zsh")

def test_of_rules(promtool):
    pass

def test_without_any():
    pass
"""
APT_GET = """#!/bin/sh
echo "$*" >> "${0%/*}/calls"
case $* in
*" fish") echo "E: Unable to locate package fish" >&2; exit 100;;
*" zsh") : > "${0%/*}/zsh";;
esac
"""


@pytest.mark.parametrize(("workers", "no_skips", "status"), [("0", "", 0), ("2", "1", 1)])
def test_tests_are_left_out_and_counted(
    tmp_path: Path, workers: str, no_skips: str, status: int
) -> None:
    """Where nothing is installed; in CI the run fails. By one process, and by several."""
    (tmp_path / "test_all.py").write_text(TESTS)
    options = ["-c", str(CHECKOUT / "pyproject.toml"), "-p", "tests.conftest", "-n", workers]
    done = run_to_end(
        *[sys.executable, "-m", "pytest", *options, str(tmp_path)],
        folder=CHECKOUT,
        env={"PATH": str(tmp_path), "CLUSTERMUTEX_TEST_NO_SKIPS": no_skips},
        status=status,
    )
    *said, last = done.stdout.splitlines()
    counts = ["1 test left out: no promtool", "3 tests left out: no zsh"]
    if no_skips:
        counts.append("CLUSTERMUTEX_TEST_NO_SKIPS is set: tests that are skipped fail the run.")
    assert said[-len(counts) :] == counts
    assert "1 passed, 4 skipped" in last


def test_missing_packages_are_installed_by_root_and_else_named(tmp_path: Path) -> None:
    program, calls = tmp_path / "apt-get", tmp_path / "calls"
    program.write_text(APT_GET)
    program.chmod(0o755)
    is_root = os.geteuid() == 0
    said = run_to_end(sys.executable, MACHINE_NEEDS, env={"PATH": str(tmp_path)}).stdout
    before, _, missing = said.rpartition("Not on this machine: ")
    assert "fish" in missing
    assert ("zsh" in missing) is not is_root
    assert "apt-get install --no-install-recommends " in missing
    if is_root:
        update, *installs = calls.read_text().splitlines()
        assert update.endswith(" update")
        assert {"fish", "zsh"} <= {words.split()[-1] for words in installs}
        assert before.startswith("Installing what the tests need: ")
        assert " fish failed: E: Unable to locate package fish\n" in before
    else:
        assert not calls.exists()
