"""The Pythons of this machine, and the packages that the library needs in each."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import metadata
from pathlib import Path

import pytest

PYTHONS = ("3.10", "3.11", "3.12", "3.13", "3.14")
OWN = f"{sys.version_info[0]}.{sys.version_info[1]}"
CHECKOUT = Path(__file__).parents[2]
NEEDED = ("grpcio", "protobuf")


@cache
def python_programs() -> dict[str, str]:
    """Return the Pythons of this machine that can make environments, by their versions."""
    found = {OWN: sys.executable}
    pyenv = Path.home() / ".pyenv/versions"
    for version in PYTHONS:
        programs = [shutil.which(f"python{version}"), *pyenv.glob(f"{version}.*/bin/python3")]
        for program in map(str, filter(None, programs)):
            answer = subprocess.run(
                [program, "-c", "import sys, venv; print(*sys.version_info[:2], sep='.')"],
                capture_output=True,
                text=True,
            )
            if answer.stdout.strip() == version:  # a shim of pyenv's may name none that is there
                found.setdefault(version, program)
    return found


@dataclass(frozen=True)
class Python:
    """A Python that can run programs with this checkout's library.

    Attributes:
        version: like "3.12".
        program: its path.
        env: what its environment needs beside that of the tests.
    """

    version: str
    program: str
    env: Mapping[str, str] = field(default_factory=dict)

    @property
    def starts_threads_at_exit(self) -> bool:
        """True if threads start while `atexit` runs."""
        return self.version != "3.12"


def equip(version: str) -> Python:
    """Return a Python of this machine with the packages that the library needs."""
    places = [str(CHECKOUT), *([] if version == OWN else [_packages(version)])]
    env = {"PYTHONPATH": os.pathsep.join(places), "PYTHONDONTWRITEBYTECODE": "1"}
    return Python(version, python_programs()[version], env)


def _packages(python: str) -> str:
    """Return a folder with the packages for that Python, as new as in this environment.

    They are kept in the folder in which `.ci/etcd` keeps etcds.
    """
    pins = [f"{name}=={metadata.version(name)}" for name in NEEDED]
    cache_folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = cache_folder / "clustermutex/packages" / "-".join([python, *pins])
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        work = tempfile.mkdtemp(prefix=".installing-", dir=folder.parent)
        pip = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "install")
        options = ("--only-binary=:all:", "--python-version", python, "--target", work)
        done = subprocess.run([*pip, *options, *pins], capture_output=True, text=True, timeout=300)
        if done.returncode:
            shutil.rmtree(work)
            pytest.skip(f"no packages for Python {python}")
        try:
            Path(work).rename(folder)
        except OSError:  # another process was faster
            shutil.rmtree(work)
    return str(folder)
