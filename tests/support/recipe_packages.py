"""A Python that has the packages of a recipe beside those of the tests."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from pathlib import Path


def python_with(folder: Path, packages: tuple[str, ...]) -> Path:
    """Return a Python that has these packages and all that the tests have."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True, timeout=600)
    installed = sysconfig.get_path("purelib", vars={"base": str(folder)})
    own = f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n"
    Path(installed, "own.pth").write_text(own)
    found = folder / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(found), "install", "-q", *packages]
    subprocess.run(pip, check=True, timeout=600)
    return found
