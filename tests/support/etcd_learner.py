"""A member that was added as a learner: it follows the cluster, and takes no requests yet."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import grpc

from lockclient.cli.setup.etcd_server import Etcd
from tests.support.etcd_binary import etcdctl_of
from tests.support.processes import wait_until

REFUSAL = "rpc not supported for learner"


@contextmanager
def voter_and_learner(binary: str, folder: Path, *extra: str) -> Iterator[tuple[Etcd, Etcd]]:
    """Start a cluster of a voting member and a learner, each with the flags `extra`, too."""
    members = voter, learner = tuple(_member(binary, folder / name) for name in ("m0", "m1"))
    urls = [f"http://127.0.0.1:{member.peer_port}" for member in members]
    listed = [f"m{number}={url}" for number, url in enumerate(urls)]
    for number, member in enumerate(members):
        member.extra = [
            *("--name", f"m{number}", "--initial-cluster", ",".join(listed[: number + 1])),
            *("--listen-peer-urls", urls[number]),
            *("--initial-advertise-peer-urls", urls[number], *extra),
        ]
    with ExitStack() as stack:
        for member in members:
            stack.callback(member.stop)
        voter.start()
        add_learner(voter, learner, "m1", urls[1])
        yield voter, learner


def add_learner(known: Etcd, learner: Etcd, name: str, peer_url: str) -> None:
    """Add a learner by a member of the cluster, start it, and wait until it refuses requests."""
    addition = ("member", "add", name, "--learner", "--peer-urls", peer_url)
    wait_until(lambda: succeeds(known, *addition), what="the addition of a learner")
    learner.extra += ["--initial-cluster-state", "existing"]
    learner.start()
    wait_until(lambda: REFUSAL in _answer(learner), what="the learner to refuse requests")


def succeeds(member: Etcd, *words: str) -> bool:
    """Run etcdctl; return whether it succeeded."""
    try:
        etcdctl_of(member)(*words)
    except AssertionError:
        return False
    return True


def _member(binary: str, folder: Path) -> Etcd:
    folder.mkdir()
    return Etcd(binary, folder / "data", folder / "etcd.log")


def _answer(member: Etcd) -> str:
    """Return the error by which a member refuses to give a token to no user."""
    try:
        with grpc.insecure_channel(member.endpoint) as channel:
            channel.unary_unary("/etcdserverpb.Auth/Authenticate", bytes, bytes)(b"", timeout=2)
    except grpc.RpcError as error:
        return str(error.details())
    return ""
