"""A wrong wall clock for a program that the tests start: set, moved, or too fast.

A library of a few lines of C (`clock_shim.c`), preloaded into the program, moves what it reads off
the wall clock by what stands in a file, also while it runs. Its monotonic clock stays right. Not
done with libfaketime, which moves the program's waits and the times of its files as well.
"""

from __future__ import annotations

import struct
import subprocess
import time
from pathlib import Path
from tempfile import mkdtemp

from tests.support.processes import needed


def compile_library(folder: Path) -> Path:
    compiler = needed("gcc")
    needed("stdlib.h")
    library = folder / "clocks.so"
    source = Path(__file__).with_suffix(".c")
    options = ["-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o", str(library)]
    subprocess.run([compiler, *options, str(source)], check=True)
    return library


class Clock:
    """One host's wall clock, right until it is moved.

    Args:
        library: what `compile_library` has made.

    Attributes:
        env: the variables with which a program is to be started to have this clock.
    """

    def __init__(self, library: Path) -> None:
        self._file = Path(mkdtemp(dir=library.parent)) / "moved"
        self._file.write_bytes(bytes(24))
        self.move()
        self.env = {"LD_PRELOAD": str(library), "MOVED_CLOCK": str(self._file)}

    def move(self, ahead: float = 0.0, *, gains: float = 0.0) -> None:
        """Put it so many seconds `ahead` of the right time.

        From now on it `gains` so many more in each second.
        """
        with self._file.open("r+b") as file:
            file.write(struct.pack("ddd", ahead, gains, time.monotonic()))
