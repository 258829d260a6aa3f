"""The distributions of this checkout, built aside."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from reference import packaging
from tests.support.processes import run_to_end

CHECKOUT = Path(__file__).parents[2]
_LEFT_OUT = shutil.ignore_patterns(
    *(".*", "__pycache__", "*.egg-info", "artifacts", "build", "dist", "site", "tests")
)


def build(folder: Path, *kinds: str) -> subprocess.CompletedProcess[str]:
    """Build `--sdist`, `--wheel` or (without a word) both in a folder.

    Not in the checkout, where `build/` would stay: what is deleted here would be installed from it.
    """
    shutil.copytree(CHECKOUT, folder / "sources", ignore=_LEFT_OUT)
    packaging.write(folder / "sources" / "packaging")
    where = ("--outdir", folder, folder / "sources")
    return run_to_end(sys.executable, "-m", "build", "--no-isolation", *kinds, *where)


def build_wheel(folder: Path) -> Path:
    """Build the wheel in a folder and return its path."""
    build(folder, "--wheel")
    (wheel,) = folder.glob("*.whl")
    return wheel
