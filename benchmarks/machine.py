"""The machine of a measurement: figures without it are worth nothing."""

from __future__ import annotations

import os
import platform
import re
import resource
import statistics
import tempfile
import time
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import contenders
from benchmarks.samples import timed
from benchmarks.servers import Servers
from lockclient import __version__


def describe(running: Servers, folder: Path) -> dict[str, Any]:
    """Return the machine, the versions and the state it is in; `folder` holds the data."""
    return {
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "cores": len(os.sched_getaffinity(0)),
        "cpu": _cpu_model(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "kernel": f"{platform.system()} {platform.release()}",
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "file_system": _file_system(folder),
        "sync_to_disk": _sync_to_disk(folder),
        "load_before": os.getloadavg()[0],
        "versions": {"clustermutex": __version__, **running.versions(), **contenders.versions()},
    }


class Others:
    """Time that other programs use on this machine: figures count only if that is little.

    It is the time that the kernel counts as busy, minus that of this process and of its children
    that have ended.
    """

    def __init__(self) -> None:
        self._started = time.monotonic()
        self._before = _others()

    def share(self) -> float:
        """Return the share of all cores' time that others took since the beginning, 0 to 1."""
        took = (time.monotonic() - self._started) * (os.cpu_count() or 1)
        return max(0.0, _others() - self._before) / took


def _others() -> float:
    """Return the CPU seconds that other programs, or other guests of the host, took so far."""
    fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, fields[:8])
    busy = (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")
    own = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return busy - sum(usage.ru_utime + usage.ru_stime for usage in own)


def _cpu_model() -> str:
    found = re.search(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return found[1].strip() if found else platform.machine()


def _file_system(folder: Path) -> str:
    """Return the kind of file system: on one in memory, fsync costs nothing."""
    device = folder.stat().st_dev
    mounted = rf"^\d+ \d+ {os.major(device)}:{os.minor(device)} .* - (\S+)"
    found = re.search(mounted, Path("/proc/self/mountinfo").read_text(), re.MULTILINE)
    return found[1] if found else "unknown"


def _sync_to_disk(folder: Path) -> float:
    """Return how long it takes to append 2 kB and sync them, seconds, the median of 200."""
    with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
        sync, append = partial(os.fdatasync, file.fileno()), partial(file.write, bytes(2000))
        return statistics.median(timed(sync, 200, before=append))
