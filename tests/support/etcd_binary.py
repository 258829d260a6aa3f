"""Tools around an etcd: etcdctl, its counters, freezing it."""

from __future__ import annotations

import os
import re
import signal
import string
import subprocess
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from lockclient.cli.setup.etcd_server import Etcd
from tests.support.processes import Service, needed, wait_until

Etcdctl = Callable[..., str]

OPEN = ["--enable-grpc-gateway=true", "--host-whitelist=*", "--cors=*"]
"""Flags for an etcd that is as open to web pages as etcd is by itself."""


def etcdctl_beside(server: Etcd) -> str:
    """Return the path of the etcdctl that came with a server's etcd, else of another one."""
    beside = Path(server.binary).with_name("etcdctl")
    return str(beside) if beside.exists() else needed("etcdctl")


def restoring(server: Etcd) -> str:
    """Return the path of the program with `snapshot restore`: since 3.5 etcdutl, before etcdctl."""
    etcdutl = Path(server.binary).with_name("etcdutl")
    return str(etcdutl) if etcdutl.exists() else etcdctl_beside(server)


def path_with_etcdctl(server: Etcd) -> str:
    """Return the PATH with which scripts find that etcdctl first."""
    return f"{Path(etcdctl_beside(server)).parent}{os.pathsep}{os.environ['PATH']}"


def etcdctl_of(server: Etcd) -> Etcdctl:
    """Return etcd's own command for a server: a function of its words."""
    program = etcdctl_beside(server)

    def run(*words: str, input: str | bytes = b"") -> str:  # noqa: A002 - as subprocess has it
        done = subprocess.run(
            [program, f"--endpoints={server.endpoint}", *words],
            input=input.encode() if isinstance(input, str) else input,
            capture_output=True,
            timeout=30,
            env={**os.environ, "ETCDCTL_API": "3"},
        )
        assert done.returncode == 0, done.stderr.decode()
        return done.stdout.decode(errors="replace")

    return run


def add_users(etcdctl: Etcdctl, **prefixes: Sequence[str]) -> None:
    """Make users, whose passwords are their names: each may do all below these prefixes.

    Root is one of them, and users are asked for from now on.
    """
    for user in ("root", *prefixes):
        etcdctl("user", "add", f"{user}:{user}")
        etcdctl("role", "add", user)
        etcdctl("user", "grant-role", user, user)
        for prefix in prefixes.get(user, ()):
            allow(etcdctl, user, prefix)
    etcdctl("auth", "enable")


def allow(etcdctl: Etcdctl, role: str, prefix: str) -> None:
    etcdctl("role", "grant-permission", role, "--prefix=true", "readwrite", prefix)


def exhaust_space(server: Etcd) -> None:
    """Start a server anew with a quota, and have it find that it is over that: it takes no more.

    One request that would not fit raises the alarm, and it stays. (Really over its quota an etcd
    3.5.1 refuses transactions that only read or delete, too; later ones do not.)
    """
    server.stop()
    server.extra = ["--quota-backend-bytes=1000000"]
    server.start()
    with pytest.raises(AssertionError, match="database space exceeded"):
        etcdctl_of(server)("put", "/fill", input=b"x" * 1_200_000)


def put_at_once(etcdctl: Etcdctl, prefix: str, values: Mapping[str, str | bytes]) -> None:
    """Write keys below a prefix, whatever is in their values, in one transaction."""
    puts = [f"put -- {prefix}{key} {_quoted(value)}" for key, value in values.items()]
    # No comparison, the puts, nothing else: each of the three parts ends with an empty line.
    assert etcdctl("txn", input="\n".join(["", *puts, "", "", ""])).startswith("SUCCESS")


def _quoted(value: str | bytes) -> str:
    raw = value.encode() if isinstance(value, str) else value
    plain = {ord(char) for char in string.printable[:95]} - set(b'"\\')
    return '"' + "".join(chr(byte) if byte in plain else f"\\x{byte:02x}" for byte in raw) + '"'


def served(server: Etcd) -> Counter[str]:
    """Return how many requests of each kind a server has begun to serve, by etcd's own count."""
    with urllib.request.urlopen(f"http://{server.endpoint}/metrics", timeout=60) as answer:
        text = answer.read().decode()
    lines = re.findall(
        r'^grpc_server_started_total\{.*grpc_method="(\w+)".*\} (\S+)$', text, re.MULTILINE
    )
    return Counter({method: int(float(count)) for method, count in lines})


@contextmanager
def frozen(server: Etcd | Service) -> Iterator[None]:
    """Stop a program where it stands, as a machine that hangs, for the time of the block."""
    assert server.process is not None
    server.process.send_signal(signal.SIGSTOP)
    # A thread that runs on another core goes on for a moment after the signal was sent.
    threads = Path(f"/proc/{server.process.pid}/task")
    wait_until(
        lambda: all("State:\tT" in (thread / "status").read_text() for thread in threads.iterdir()),
        what="the server to stand still",
    )
    try:
        yield
    finally:
        server.process.send_signal(signal.SIGCONT)
