"""The identity of a process, by which another one on its machine can tell if it still runs.

A pid alone is used again; boot, pid namespace, pid and start time name one process for ever. None
of them changes when a process replaces its program by `exec`. What changes is the auxiliary vector,
which the kernel writes at each `exec`: its digest is the *image*, one for all threads and
sub-interpreters. Linux only: elsewhere nothing can be proved.
"""

from __future__ import annotations

import os
import re
import threading
from functools import cache, lru_cache
from itertools import count
from pathlib import Path
from typing import Final
from uuid import uuid4
from weakref import WeakKeyDictionary

_MAX_NAME_CHARS = 200
"""Of a thread's or a user's name that is written: a program may have put anything there."""


@lru_cache(maxsize=8)
def fingerprint(pid: int) -> str | None:
    """Return the fingerprint of process `pid` of this machine; None: it can't be found out."""
    start = _start_time(str(pid))
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        namespace = Path("/proc/self/ns/pid").readlink()
    except OSError:
        return None
    return f"{boot} {namespace} {pid} {start} {_image(pid)}" if start else None


def _image(pid: int) -> str:
    from hashlib import sha256  # with the first identity: it brings OpenSSL along

    try:
        vector = Path(f"/proc/{pid}/auxv").read_bytes()
    except OSError:  # as after `setuid`: a predecessor of this process counts as alive
        return "-"
    return sha256(vector).hexdigest()[:16]  # the vector says where in memory things are


def provably_runs(said: str | None) -> bool:
    """Tell whether the process of a fingerprint certainly runs still; False: it may or may not.

    Of this very process another image has ended: it was replaced by `exec`.
    """
    words = (said or "").split(" ")
    if len(words) != 5 or not (words[2].isascii() and words[2].isdecimal()):
        return False
    own = (fingerprint(os.getpid()) or "").split(" ")
    if words[:4] == own[:4]:
        return words == own
    return words[:2] == own[:2] and _start_time(words[2]) == words[3]


def _start_time(pid: str) -> str | None:
    """Return when a process began, in the kernel's ticks since boot."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    # Field 22; the second one, the program's name, may hold spaces, brackets and any bytes.
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] in ("Z", "X") else fields[19]


@cache
def process_token() -> str:
    """Return what names this process in actors: a pid is used again, and containers share them."""
    return uuid4().hex[:12]


def this_thread() -> tuple[str, str]:
    """Return the calling thread's name and actor, in one call: every acquisition makes it.

    The system reuses the number of an ended thread, so an actor has a number of the process's own
    beside it. `threading.current_thread()` would leave an entry for each thread that Python did not
    start.
    """
    thread: threading.Thread | None = getattr(_here, "thread", None) or _find_thread()
    ident = threading.get_ident()
    number = getattr(_here, "number", None)
    if number is None:
        number = _here.number = next(_numbers)
    name = f"{ident}" if thread is None else thread.name
    shown = name.encode(errors="replace").decode()[:_MAX_NAME_CHARS]
    return shown, f"{process_token()}.{ident:x}.{number}"


def task_actor(task: object) -> str:
    """Return a task's actor; its address may have been an ended task's."""
    number = _task_numbers.get(task)
    if number is None:
        number = _task_numbers[task] = next(_numbers)
    return f"{process_token()}.{id(task):x}.t{number}"


@lru_cache(maxsize=8)
def user_name(uid: int) -> str:
    try:
        from pwd import getpwuid

        return getpwuid(uid).pw_name.encode(errors="replace").decode()[:_MAX_NAME_CHARS]
    except (ImportError, KeyError):  # as in many containers
        return f"uid {uid}"


@cache
def container() -> str | None:
    """Return `namespace/pod` or a container's id; None: in neither."""
    if "KUBERNETES_SERVICE_HOST" in os.environ:
        # A pod's name is its host's, unless its `hostname` says otherwise.
        namespace = _read("/var/run/secrets/kubernetes.io/serviceaccount/namespace").strip()
        return f"{namespace or 'unknown'}/{os.environ.get('HOSTNAME') or os.uname().nodename}"
    # By the group of processes, or, where that has a namespace of its own, by what the container's
    # engine has put in the place of files that each container has its own of.
    mounts = [line for line in _read("/proc/self/mountinfo").splitlines() if " /etc/host" in line]
    found = _CONTAINER.search("\n".join((_read("/proc/self/cgroup"), *mounts)))
    return found[0][:12] if found else None


def _read(path: str) -> str:
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return ""


_CONTAINER: Final = re.compile("[0-9a-f]{64}")
_here = threading.local()
_numbers = count(1)
"""Of threads and tasks of this process: none comes twice, and the child of a fork counts on."""
_task_numbers: WeakKeyDictionary[object, int] = WeakKeyDictionary()


def _find_thread() -> threading.Thread | None:
    ident = threading.get_ident()
    main = threading.main_thread()
    # Not by `enumerate` for the main thread: a signal's handler may run while that is in there.
    found = [main] if ident == main.ident else threading.enumerate()
    _here.thread = next((thread for thread in found if thread.ident == ident), None)
    return _here.thread  # type: ignore[no-any-return]


os.register_at_fork(after_in_child=fingerprint.cache_clear)  # a parent's pid may come again here
os.register_at_fork(after_in_child=process_token.cache_clear)
