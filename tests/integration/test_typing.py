"""Type checkers on a project that uses all public names, and on the wheel."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import sysconfig
from collections import Counter
from pathlib import Path
from zipfile import ZipFile

import pytest

import lockclient
from lockclient import instruments, stores, testing
from tests.support.processes import run_to_end
from tests.support.wheel import build_wheel

PROGRAM = Path(__file__).with_name("typed_program.py")
ALL = {
    *(name for module in (lockclient, instruments, stores, testing) for name in module.__all__),
    *("PrometheusInstrument", "OpenTelemetryInstrument", "EtcdLocks"),
}
OUTSIDE = {"PYTHONPATH": ""}
"""Where nothing leads to the checkout."""
PYRIGHT_SETTINGS = '{"typeCheckingMode": "strict", "reportUnnecessaryTypeIgnoreComment": true}'


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder with the program and an environment in which the wheel is installed."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True)
    # What it needs is the tests' own; that this checkout is installed there, too, comes later.
    (site,) = (tmp_path / "venv" / "lib").glob("python3*/site-packages")
    with ZipFile(build_wheel(tmp_path)) as wheel:
        wheel.extractall(site)
    (site / "needs.pth").write_text(sysconfig.get_path("purelib"))
    folder = tmp_path / "project"
    folder.mkdir()
    shutil.copy(PROGRAM, folder)
    return folder


def test_the_program_has_all_public_names() -> None:
    text = PROGRAM.read_text(encoding="utf-8")
    used = Counter(re.findall(r"\w+", text))
    assert not {name for name in ALL if used[name] < 2 - name.startswith("__")}


def test_mypy_is_content(project: Path) -> None:
    python = project.parent / "venv" / "bin" / "python"
    words = ("-m", "mypy", "--strict", "--warn-unused-ignores", "--python-executable", python)
    done = run_to_end(sys.executable, *words, PROGRAM.name, folder=project, env=OUTSIDE)
    assert done.stdout.startswith("Success")
    where = run_to_end(
        python, "-c", "import lockclient; print(lockclient.__file__)", folder=project
    )
    assert where.stdout.startswith(str(project.parent)), "it is the wheel that was looked at"


@pytest.mark.soak
def test_pyright_is_content(project: Path) -> None:
    """Pyright in its strictest mode; it needs node."""
    tools = project.parent / "tools"
    subprocess.run([sys.executable, "-m", "venv", tools], check=True)
    subprocess.run([tools / "bin" / "pip", "install", "-q", "pyright"], check=True, timeout=300)
    (project / "pyrightconfig.json").write_text(PYRIGHT_SETTINGS)
    python = project.parent / "venv" / "bin" / "python"
    done = run_to_end(
        *(tools / "bin" / "pyright", "--pythonpath", python, PROGRAM.name),
        folder=project,
        env=OUTSIDE,
        status=None,
    )
    assert "0 errors" in done.stdout, done.stdout
