"""What the tests need beyond Python: installed where that may be done, else named and counted."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import machine_needs

CHECKOUT = Path(__file__).parents[3]
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
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, str(tmp_path)],
        cwd=CHECKOUT,
        env={**os.environ, "PATH": str(tmp_path), "CLUSTERMUTEX_TEST_NO_SKIPS": no_skips},
        capture_output=True,
        text=True,
        timeout=600,
    )
    *said, last = done.stdout.splitlines()
    counts = ["1 test left out: no promtool", "3 tests left out: no zsh"]
    if no_skips:
        counts.append("CLUSTERMUTEX_TEST_NO_SKIPS is set: tests that are skipped fail the run.")
    assert said[-len(counts) :] == counts
    assert "1 passed, 4 skipped" in last
    assert done.returncode == status


@pytest.fixture
def apt_get(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine on which nothing is installed but an apt-get that has zsh and no fish; the file of
    the words that it was called with."""
    needs = {name: machine_needs.NEEDS[name] for name in ("bash", "fish", "zsh")}
    monkeypatch.setattr(machine_needs, "NEEDS", needs)
    monkeypatch.setenv("PATH", str(tmp_path))
    program = tmp_path / "apt-get"
    program.write_text(APT_GET)
    program.chmod(0o755)
    return tmp_path / "calls"


@pytest.mark.parametrize(("user", "there"), [(0, False), (1000, True)])
def test_where_nothing_can_be_installed_it_is_named_once(
    user: int,
    there: bool,
    apt_get: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without an apt-get, or by somebody else than root."""
    monkeypatch.setattr(os, "geteuid", lambda: user)
    if not there:
        apt_get.with_name("apt-get").unlink()
    machine_needs.main()
    assert not apt_get.exists()
    said = capsys.readouterr().out
    assert said.startswith("Not on this machine: bash, fish, zsh. ")
    assert said.endswith("apt-get install --no-install-recommends bash fish zsh\n")


def test_root_installs_what_can_be_had(
    apt_get: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    (apt_get.parent / "bash").touch()
    machine_needs.main()
    update, *installs = apt_get.read_text().splitlines()
    assert update.endswith(" update")
    assert [words.split()[-1] for words in installs] == ["fish", "zsh"]
    said = capsys.readouterr().out
    assert said.startswith("Installing what the tests need: fish zsh\n")
    assert " fish failed: E: Unable to locate package fish\n" in said
    assert "Not on this machine: fish. " in said

    (apt_get.parent / "fish").touch()
    machine_needs.main()
    assert len(apt_get.read_text().splitlines()) == 3, "all is there: nobody asks apt-get"
    assert capsys.readouterr().out == ""
