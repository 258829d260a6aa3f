"""The identity of a process, by which another process on its machine can tell if it still runs.

A pid is reused. Boot id, pid namespace, pid and start time together identify one process for ever,
also after it replaced its program by `exec`. The kernel rewrites the auxiliary vector at each
`exec`, so the vector's digest, the *image*, identifies the program. It is the same for all threads
and sub-interpreters. On other systems than Linux, nothing can be proved.
"""

from __future__ import annotations

import os
import re
from functools import cache, lru_cache
from pathlib import Path
from typing import Final
from uuid import uuid4

MAX_NAME_CHARS = 200
"""Characters kept of the name of a thread or user, which may be any text."""


@lru_cache(maxsize=8)
def fingerprint(pid: int) -> str | None:
    """Return the fingerprint of process `pid` of this machine; None: unknown."""
    start = _start_time(str(pid))
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        namespace = Path("/proc/self/ns/pid").readlink()
    except OSError:
        return None
    return f"{boot} {namespace} {pid} {start} {_image(pid)}" if start else None


def _image(pid: int) -> str:
    from hashlib import sha256  # imported late: it loads OpenSSL

    try:
        vector = Path(f"/proc/{pid}/auxv").read_bytes()
    except OSError:  # after `setuid`, say; then the program before an `exec` counts as running
        return "-"
    return sha256(vector).hexdigest()[:16]  # it contains memory addresses, random at each exec


def provably_runs(known: str | None) -> bool:
    """Return whether the process of a fingerprint certainly still runs; False: perhaps.

    If it is this process with another image, that program has ended by `exec`.
    """
    words = (known or "").split(" ")
    if len(words) != 5 or not (words[2].isascii() and words[2].isdecimal()):
        return False
    own = (fingerprint(os.getpid()) or "").split(" ")
    if words[:4] == own[:4]:
        return words == own
    return words[:2] == own[:2] and _start_time(words[2]) == words[3]


def _start_time(pid: str) -> str | None:
    """Return the start time of a process, in the kernel's ticks since boot."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    # Field 22; the second one, the program's name, may hold spaces, brackets and any bytes.
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] in ("Z", "X") else fields[19]


@cache
def process_token() -> str:
    """Return this process's random name in actors, as pids are reused and containers share them."""
    return uuid4().hex[:12]


@lru_cache(maxsize=8)
def user_name(uid: int) -> str:
    try:
        from pwd import getpwuid

        return getpwuid(uid).pw_name.encode(errors="replace").decode()[:MAX_NAME_CHARS]
    except (ImportError, KeyError):  # common in containers
        return f"uid {uid}"


@cache
def container() -> str | None:
    """Return `namespace/pod` or the container's id; None: not in a container."""
    if "KUBERNETES_SERVICE_HOST" in os.environ:
        # A pod's host name is its name, unless its `hostname` field is set.
        namespace = _read("/var/run/secrets/kubernetes.io/serviceaccount/namespace").strip()
        return f"{namespace or 'unknown'}/{os.environ.get('HOSTNAME') or os.uname().nodename}"
    # The id is in the control group's path; or, with a private cgroup namespace, in the sources of
    # the files that the engine mounts over /etc/hostname and /etc/hosts.
    mounts = [line for line in _read("/proc/self/mountinfo").splitlines() if " /etc/host" in line]
    found = _CONTAINER.search("\n".join((_read("/proc/self/cgroup"), *mounts)))
    return found[0][:12] if found else None


def _read(path: str) -> str:
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return ""


_CONTAINER: Final = re.compile("[0-9a-f]{64}")


os.register_at_fork(after_in_child=fingerprint.cache_clear)  # the parent's pid may be reused
os.register_at_fork(after_in_child=process_token.cache_clear)
