"""A three-member etcd on loopback whose members can be frozen, killed and cut off.

Heartbeats and elections are etcd's defaults (100 ms, 1000 ms): what callers see is what they would
see in production on a fast network.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc

from lockclient.cli.setup.etcd_server import Etcd
from lockclient.stores.etcd.wire import messages_pb2 as wire
from lockclient.stores.etcd.wire.rpc_methods import OPTIONS, STATUS, make_call
from tests.support.etcd_binary import etcdctl_of
from tests.support.etcd_learner import add_learner, succeeds
from tests.support.processes import wait_until

_SIZE = 3
_LOCALITY = "192.0.2"
"""Addresses set aside for examples (RFC 5737): nobody is there, only the proxies know them."""


class Wires:
    """The connections between members; `cut` silences a member, in both directions or in one.

    Each member dials its peers through a SOCKS proxy of its own, so that of every connection both
    ends are known. etcd takes the proxy from its environment, but not for peers on loopback: so
    the members advertise addresses that lead nowhere but to the proxies.
    """

    def __init__(self, peer_ports: list[int]) -> None:
        self._peer_ports = peer_ports
        self._says = [asyncio.Event() for _ in peer_ports]
        self._hears = [asyncio.Event() for _ in peer_ports]
        self._ending = asyncio.Event()
        self._ready = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ports: list[int] = []
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)

    @staticmethod
    def url(number: int) -> str:
        return f"http://{_LOCALITY}.{number + 1}:2380"

    def proxy(self, number: int) -> str:
        """The URL of the proxy through which a member dials its peers."""
        return f"socks5://127.0.0.1:{self._ports[number]}"

    @contextmanager
    def cut(self, number: int, *, says: bool = False, hears: bool = False) -> Iterator[None]:
        """Let nothing through from and to a member, for the time of the block; or one way only.

        Connections stay open, as they do when packets are lost, and go on afterwards.
        """
        assert self._loop is not None
        ways = [self._says[number]] * (not says) + [self._hears[number]] * (not hears)
        for way in ways:
            self._loop.call_soon_threadsafe(way.clear)
        try:
            yield
        finally:
            for way in ways:
                self._loop.call_soon_threadsafe(way.set)

    def __enter__(self) -> Wires:
        self._thread.start()
        assert self._ready.wait(60)
        return self

    def __exit__(self, *_: object) -> None:
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._ending.set)
        self._thread.join(60)

    async def _run(self) -> None:
        self._loop = asyncio.get_running_loop()
        for way in (*self._says, *self._hears):
            way.set()
        servers = [await self._listen(number) for number in range(len(self._peer_ports))]
        self._ports = [server.sockets[0].getsockname()[1] for server in servers]
        self._ready.set()
        await self._ending.wait()
        await all_ended()
        for server in servers:
            server.close()

    async def _listen(self, source: int) -> asyncio.Server:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with contextlib.closing(writer), contextlib.suppress(OSError, EOFError):
                await self._connect(source, reader, writer)

        return await asyncio.start_server(serve, "127.0.0.1", 0)

    async def _connect(
        self, source: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Serve one connection: SOCKS 5, no authentication, CONNECT to an IPv4 address."""
        _, methods = await reader.readexactly(2)
        await reader.readexactly(methods)
        writer.write(b"\x05\x00")
        *_, last_octet, _, _ = await reader.readexactly(10)
        target = last_octet - 1
        await self._through(source, target)
        await self._through(target, source)
        port = self._peer_ports[target]
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"\x05\x00\x00\x01" + bytes(6))
        await asyncio.gather(
            self._pass(source, target, reader, far_writer),
            self._pass(target, source, far_reader, writer),
        )

    async def _pass(
        self, sender: int, to: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        with contextlib.closing(writer), contextlib.suppress(OSError):
            while data := await reader.read(65536):
                await self._through(sender, to)
                writer.write(data)
                await writer.drain()

    async def _through(self, sender: int, to: int) -> None:
        await self._says[sender].wait()
        await self._hears[to].wait()


async def all_ended() -> None:
    """Let every connection of a proxy come to its end, whose clients are dead by now.

    Who had dialled is let in before (two turns of the loop). A server that is closed sooner loses
    what it lets in.
    """
    for _ in range(2):
        await asyncio.sleep(0)
    while running := asyncio.all_tasks() - {asyncio.current_task()}:
        await asyncio.wait(running)


@dataclass(frozen=True)
class Status:
    """A member's status, by its own answer; `leader` 0: it knows none."""

    member: int
    leader: int
    term: int
    applied: int


class Cluster:
    """Three members; a context manager that starts and ends them."""

    def __init__(self, binary: str, folder: Path) -> None:
        names = [f"m{number}" for number in range(_SIZE)]
        self.members = [_member(binary, folder / name) for name in names]
        self._wires = Wires([member.peer_port for member in self.members])
        self._stack = ExitStack()
        listed = ",".join(f"{name}={Wires.url(number)}" for number, name in enumerate(names))
        for number, member in enumerate(self.members):
            # The last of a flag given twice counts.
            member.extra = [
                *("--name", names[number], "--initial-cluster", listed),
                *("--initial-advertise-peer-urls", Wires.url(number)),
                *("--listen-peer-urls", f"http://127.0.0.1:{member.peer_port}"),
            ]

    def __enter__(self) -> Cluster:
        with ExitStack() as stack:
            stack.enter_context(self._wires)
            for number, member in enumerate(self.members):
                member.env = {**os.environ, "HTTP_PROXY": self._wires.proxy(number)}
                stack.callback(_kill, member)  # asked to end, a leader first seeks a successor
            # A member serves only when most of them are there, so they start side by side. The
            # threads stay until the end: a server has SIGTERM when the *thread* that started it
            # ends.
            pool = stack.enter_context(ThreadPoolExecutor(_SIZE))
            list(pool.map(Etcd.start, self.members))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    # ------------------------------------------------------------ looking

    def endpoints(self, first: Etcd) -> tuple[str, ...]:
        """All endpoints, that of `first` ahead."""
        return (
            first.endpoint,
            *(member.endpoint for member in self.members if member is not first),
        )

    def leader(self, without: Etcd | None = None) -> Etcd:
        """Return the leader, once there is one, among all members or all but one."""
        asked = [member for member in self.members if member is not without]

        def leading() -> Etcd | None:
            said = [(status, member) for member in asked if (status := _status(member))]
            leaders = [(s.term, member) for s, member in said if s.leader == s.member]
            newest = max((s.term for s, _ in said), default=0)
            return next((member for term, member in leaders if term == newest), None)

        return wait_until(leading, what="a leader")

    def followers(self) -> list[Etcd]:
        leader = self.leader()
        return [member for member in self.members if member is not leader]

    def settle(self) -> None:
        """Wait until all members serve, follow one leader and know the same."""

        def settled() -> bool:
            said = [_status(member) for member in self.members]
            known = {(s.leader, s.term, s.applied) for s in said if s}
            return all(said) and len(known) == 1 and 0 not in next(iter(known))

        wait_until(settled, what="the cluster to settle")

    def applied(self) -> int:
        """Return the highest index that a member has applied."""
        return max(status.applied for member in self.members if (status := _status(member)))

    def catch_up(self, member: Etcd) -> None:
        """Wait until a member follows a leader and has applied all that any has applied by now."""
        applied = self.applied()

        def caught_up() -> bool:
            status = _status(member)
            return status is not None and status.leader != 0 and status.applied >= applied

        wait_until(caught_up, what="a member to catch up")

    def keys(self, prefix: str) -> list[str]:
        said = etcdctl_of(self.leader())("get", "--prefix", "--keys-only", prefix)
        return [line for line in said.splitlines() if line]

    # ------------------------------------------------------------ breaking

    def move_leader(self, to: Etcd) -> None:
        """Let another member lead, as an administrator does before maintenance."""
        status = _status(to)
        assert status is not None
        etcdctl_of(self.leader())("move-leader", f"{status.member:x}")
        assert self.leader() is to

    def raise_no_space(self, member: Etcd) -> None:
        """Raise a member's alarm that it is full: none takes anything more until it is disarmed.

        Raises:
            TimeoutError: there is no leader.
        """
        status = _status(member)
        assert status is not None
        number, octets = status.member, []
        while number:  # a varint
            octets.append(number & 0x7F | (0x80 if number > 0x7F else 0))
            number >>= 7
        activate = b"\x08\x01\x10" + bytes(octets) + b"\x18\x01"  # AlarmRequest: ACTIVATE, NOSPACE
        with grpc.insecure_channel(member.endpoint, options=OPTIONS) as channel:
            method = "/etcdserverpb.Maintenance/Alarm"
            try:
                channel.unary_unary(method, bytes, bytes)(activate, timeout=10)
            except grpc.RpcError as error:
                raise TimeoutError(f"{member.endpoint} raises no alarm") from error

    @contextmanager
    def killed(self, member: Etcd) -> Iterator[None]:
        """Kill a member (SIGKILL); at the end of the block it starts again with its data."""
        _kill(member)
        try:
            yield
        finally:
            member.start()

    @contextmanager
    def cut_off(self, member: Etcd, *, says: bool = False, hears: bool = False) -> Iterator[None]:
        """Let a member reach no other for the time of the block, or let it only speak, or only
        hear; clients reach it all the time."""
        with self._wires.cut(self.members.index(member), says=says, hears=hears):
            yield

    @contextmanager
    def replaced(self, member: Etcd) -> Iterator[None]:
        """Remove a member and add it anew, as a learner until the end of the block."""
        status, process = _status(member), member.process
        assert status is not None
        assert process is not None
        number = self.members.index(member)
        known = self.members[number - 1]
        # etcd refuses while a member is connected for less than 5 s.
        removal = ("member", "remove", f"{status.member:x}")
        wait_until(lambda: succeeds(known, *removal), what="the removal")
        wait_until(lambda: process.poll() is not None, what="the removed member's end")
        shutil.rmtree(member.data)
        add_learner(known, member, f"m{number}", Wires.url(number))
        try:
            yield
        finally:
            status = _status(member)
            assert status is not None
            promotion = ("member", "promote", f"{status.member:x}")
            leader = self.leader(without=member)
            wait_until(lambda: succeeds(leader, *promotion), what="the promotion")

    def restart(self, member: Etcd) -> None:
        """End a member in good order (SIGTERM) and start it again with its data."""
        member.stop()
        member.start()


def _member(binary: str, folder: Path) -> Etcd:
    """Return a member in a folder of its own: beside its log each listens on one socket's path."""
    folder.mkdir()
    return Etcd(binary, folder / "data", folder / "etcd.log")


def _kill(member: Etcd) -> None:
    if member.process is not None:
        member.process.kill()
        member.process.wait()


def _status(member: Etcd) -> Status | None:
    """Ask a member, by itself, how it stands; None: it does not say."""
    try:
        with grpc.insecure_channel(member.endpoint, options=OPTIONS) as channel:
            said = make_call(channel, STATUS)(wire.Status(), timeout=2)
    except grpc.RpcError:
        return None
    return Status(said.header.member_id, said.leader, said.raft_term, said.raft_applied_index)
