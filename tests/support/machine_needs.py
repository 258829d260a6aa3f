"""The programs that the tests need beyond Python, in one list: for `make test`, CI, reports.

`python tests/support/machine_needs.py` installs what is missing where that may be done: as root,
with apt-get. What is missing after that it names once. Tests that need it are left out (`needed`
in tests/support/processes.py) and counted at the end of the run (tests/conftest.py).

Any Python runs this, also before there is an environment: it imports the standard library only.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterable
from pathlib import Path

_OWN = f"{sys.version_info[0]}.{sys.version_info[1]}"

NEEDS = {
    # What it is called: its Debian package, then programs and files of which one must be there.
    "alertmanager": ("prometheus-alertmanager", "prometheus-alertmanager", "alertmanager"),
    "amtool": ("prometheus-alertmanager", "amtool"),
    "bash": ("bash", "bash"),
    "chromium": ("chromium", "chromium", "chromium-browser"),
    "curl": ("curl", "curl"),
    "etcd": ("etcd-server", "etcd"),
    "etcdctl": ("etcd-client", "etcdctl"),
    "fish": ("fish", "fish"),
    "gcc": ("gcc", "gcc", "cc"),
    "nginx": ("nginx", "nginx", "/usr/sbin/nginx"),  # on root's PATH only
    "prometheus": ("prometheus", "prometheus"),
    "promtool": ("prometheus", "promtool"),
    "redis-cli": ("redis-tools", "redis-cli"),
    "redis-server": ("redis-server", "redis-server"),
    "stdlib.h": ("libc6-dev", "/usr/include/stdlib.h"),  # gcc comes without it
    "systemd-analyze": ("systemd", "systemd-analyze"),
    # CPython's tests of its own lock, which Debian's Python comes without.
    "test.lock_tests": (
        f"libpython{_OWN}-testsuite",
        f"{sysconfig.get_path('stdlib')}/test/lock_tests.py",
    ),
    "unshare": ("util-linux", "unshare"),
    "zsh": ("zsh", "zsh"),
}


def find(name: str) -> str | None:
    """Return where something of the list is, if it is there."""
    # Beside this Python there are an etcd and etcdctl, if they came in a wheel.
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), str(Path(sys.executable).parent)])
    for place in NEEDS[name][1:]:
        found = shutil.which(place, os.F_OK, path)  # not X_OK: some are no programs
        if found is not None:
            return found
    return None


def missing() -> list[str]:
    return [name for name in NEEDS if find(name) is None]


def packages(names: Iterable[str]) -> list[str]:
    return sorted({NEEDS[name][0] for name in names})


def install(names: Iterable[str]) -> None:
    """Install Debian packages; one that can't be had does not keep the others out."""
    # Prometheus and its like are wanted as programs: their services are not to be started.
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "SYSTEMD_OFFLINE": "1"}
    installs = [["install", "-y", "--no-install-recommends", name] for name in names]
    for words in (["update"], *installs):
        done = subprocess.run(
            ["apt-get", "-q", "-o", "DPkg::Lock::Timeout=300", *words],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            env=env,
        )
        if done.returncode:
            print(f"apt-get {' '.join(words)} failed: {done.stderr.strip()}", flush=True)


def main() -> None:
    """Install what is missing, or name it."""
    if missing() and os.geteuid() == 0 and shutil.which("apt-get"):
        wanted = packages(missing())
        print("Installing what the tests need:", *wanted, flush=True)
        install(wanted)
    if missing():
        print(
            f"Not on this machine: {', '.join(missing())}. The tests that need them are left out "
            "and counted at the end.\nOn Debian this installs them: apt-get install "
            f"--no-install-recommends {' '.join(packages(missing()))}",
            flush=True,
        )


if __name__ == "__main__":
    main()
