# ruff: noqa: T201 - a program that prints
"""Make throw-away environments and run `matrix_check.py` in each.

`matrix.py FOLDER WHEEL [--one]`: with `--one` in that of the oldest versions alone.

All versions are pinned, so that the runs are the same each time. A Python that is not on this
machine is named as such and is no failure: CI has one, developers may have more.
"""

from __future__ import annotations

import itertools
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from lockclient.cli.setup.etcd_server import Etcd, find_etcd

sys.path.insert(0, str(Path(__file__).parents[1]))  # the checkout, for `tests`
from tests.support.pythons import OWN, PYTHONS, python_programs

CHECK = Path(__file__).with_name("matrix_check.py")
PROTOBUFS = ("4.25.8", "5.29.5", "6.31.1", "7.36.2")
NEWEST = "1.85.1"
OLDEST = {"3.10": "1.65.4", "3.11": "1.65.4", "3.12": "1.65.4", "3.13": "1.66.2"}
"""The oldest grpcio of our metadata, or else the first one with a wheel for that Python."""
NOISY = "4.25.8"
"""On Python 3.12 and later this protobuf warns of its own C code as it is imported."""
QUIET = ("-W", "ignore:Type google._upb:DeprecationWarning")
OTHERS = ("typing_extensions==4.16.0",)
ETCD3 = ("python3-etcd3==0.13.0",)


@dataclass
class Environment:
    """One environment, and what came of it."""

    python: str
    program: str
    grpcio: str
    protobuf: str
    more: tuple[str, ...] = ()
    words: tuple[str, ...] = ()
    result: str = "not run"
    seconds: float = field(default=0.0)

    @property
    def noisy(self) -> bool:
        """Whether a warning of protobuf's must be let pass."""
        return self.protobuf == NOISY and self.python not in ("3.10", "3.11")

    def try_out(self, folder: Path, wheel: str, endpoint: str) -> None:
        """Make it, run the check in it with and without `-O`, and remove it."""
        began = time.monotonic()
        try:
            self._install(folder, wheel)
            for optimise in ((), ("-O",)):
                options = ("-W", "error", *(QUIET if self.noisy else ()), *optimise)
                program = (str(folder / "bin/python"), *options, str(CHECK))
                run(*program, endpoint, *self.words, cwd=folder)
            self.result = "works"
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
            said = error.stdout or b""
            self.result = f"FAILED: {error}\n" + said.decode()
        finally:
            self.seconds = time.monotonic() - began
            shutil.rmtree(folder, ignore_errors=True)

    def _install(self, folder: Path, wheel: str) -> None:
        run(self.program, "-m", "venv", "--without-pip", str(folder))
        packages = [wheel, f"grpcio=={self.grpcio}", f"protobuf=={self.protobuf}", *self.more]
        pins = folder / "pins.txt"
        pins.write_text("\n".join(OTHERS))
        pip = (sys.executable, "-m", "pip", "--python", str(folder / "bin/python"))
        # Wheels only: where there is none, building gRPC would take an hour.
        run(*pip, "install", "--quiet", "--only-binary=:all:", "-c", str(pins), *packages)


def run(*words: str, cwd: Path | None = None) -> None:
    """Run a program, not longer than five minutes; it must end well, without a traceback."""
    done = subprocess.run(
        words,
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=300,
    )
    if done.returncode or b"Traceback" in done.stdout:
        raise subprocess.CalledProcessError(done.returncode, words, done.stdout)


def environments(programs: dict[str, str]) -> list[Environment]:
    """Return all that are to be tried: every pair on our own Python, the two ends on others."""
    pairs = itertools.product(PROTOBUFS, sorted({OLDEST.get(OWN, NEWEST), NEWEST}))
    tried = [Environment(OWN, programs[OWN], grpcio, protobuf) for protobuf, grpcio in pairs]
    tried.append(Environment(OWN, programs[OWN], NEWEST, PROTOBUFS[-1], ETCD3, ("--with-etcd3",)))
    for version in sorted(set(programs) - {OWN}):
        tried.append(Environment(version, programs[version], NEWEST, PROTOBUFS[-1]))
        if version in OLDEST:
            tried.append(Environment(version, programs[version], OLDEST[version], PROTOBUFS[0]))
    return tried


def show(tried: list[Environment], missing: list[str]) -> None:
    """Print the table, and below it what went wrong."""
    print(f"\n{'Python':8}{'grpcio':10}{'protobuf':10}{'beside':24}{'seconds':>8}  -W error, -O")
    for environment in tried:
        result = environment.result.partition(":")[0]
        if environment.noisy:
            result += ", but for a warning of protobuf's own"
        versions = f"{environment.python:8}{environment.grpcio:10}{environment.protobuf:10}"
        print(f"{versions}{' '.join(environment.more):24}{environment.seconds:8.1f}  {result}")
    print(f"Pythons that are not on this machine: {', '.join(missing) or 'none'}.")
    for failed in (environment for environment in tried if environment.result != "works"):
        print(f"\nPython {failed.python}, grpcio {failed.grpcio}, protobuf {failed.protobuf}:")
        print(failed.result)


def main(folder: str, wheel: str, *options: str) -> int:
    """Try all, or one; return how many failed."""
    work = Path(folder)
    binary = find_etcd()
    if binary is None:
        sys.exit("There is no etcd: install etcd-server.")
    one = "--one" in options
    programs = {OWN: sys.executable} if one else python_programs()
    tried = environments(programs)[: 1 if one else None]
    etcd = Etcd(binary, work / "data", work / "etcd.log")
    with etcd:
        for number, environment in enumerate(tried):  # one by one: beside the tests
            environment.try_out(work / f"env-{number}", wheel, etcd.endpoint)
    show(tried, [version for version in PYTHONS if version not in programs and not one])
    return sum(environment.result != "works" for environment in tried)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
