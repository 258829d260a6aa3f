"""Users and passwords with a real etcd: expired tokens, missing rights, changes meanwhile."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import grpc
import pytest

from lockclient import ClusterMutex, LockLost, Settings, StoreError
from lockclient.cli.setup.etcd_server import Etcd
from lockclient.overview.live_table import Table
from lockclient.stores.etcd.wire import messages_pb2 as wire
from lockclient.stores.etcd.wire.rpc_methods import AUTHENTICATE, TXN, make_call
from lockclient.stores.service_store import ServiceStore
from lockclient.stores.timeouts import STORE_TIMEOUT_S
from tests.support.certificates import Authority, TlsEtcd, jwt_keys
from tests.support.etcd_binary import Etcdctl, add_users, etcdctl_of, served
from tests.support.locks import queue_up, remove
from tests.support.processes import Figure, wait_until

ROOT = "/auth"
TTL = 2
"""Seconds that a token lasts."""

Opener = Callable[..., ServiceStore]


class Guarded:
    """An etcd with auth on; `ann` has all rights below the root, `bob` may only read there."""

    def __init__(self, server: Etcd) -> None:
        self.server = server
        self.etcdctl: Etcdctl = etcdctl_of(server)

    def set_up(self, *, enable: bool = True) -> None:
        for user in ("root", "ann", "bob"):
            self.etcdctl("user", "add", f"{user}:of-{user}")
        for user, right in (("ann", "readwrite"), ("bob", "read")):
            self.etcdctl("role", "add", user)
            self.etcdctl("role", "grant-permission", user, right, f"{ROOT}/", "--prefix")
            self.etcdctl("user", "grant-role", user, user)
        if enable:
            self.etcdctl("auth", "enable")

    def as_root(self, *words: str, input: str = "") -> str:  # noqa: A002 - as subprocess has it
        return self.etcdctl("--user=root:of-root", *words, input=input)

    def settings(self, user: str | None = "ann", password: str | None = None) -> Settings:
        if user is None:
            return Settings((self.server.endpoint,), ROOT)
        return Settings((self.server.endpoint,), ROOT, user=user, password=password or f"of-{user}")

    def outlive_tokens(self) -> None:
        """Wait until each token that is idle from now on has expired.

        A simple token is kept alive by its use: so there are many, of which each is tried once.
        """
        with grpc.insecure_channel(self.server.endpoint) as channel:
            authenticate, txn = make_call(channel, AUTHENTICATE), make_call(channel, TXN)
            ann = wire.Authenticate(name="ann", password="of-ann")
            tokens = [authenticate(ann, timeout=5).token for _ in range(40)]

            def expired() -> bool:
                time.sleep(0.5)
                try:
                    txn(wire.Txn(), timeout=5, metadata=[("token", tokens.pop())])
                except grpc.RpcError as error:
                    return "invalid auth token" in (error.details() or "")
                return False

            wait_until(expired, what="the tokens to expire")


def start(binary: str, folder: Path, kind: str) -> Etcd:
    """Return an etcd to start, with tokens of a kind that last 2 s."""
    server = Etcd(binary, folder / "data", folder / "etcd.log")
    tokens = f"--auth-token-ttl={TTL}" if kind == "simple" else ""
    if kind == "jwt":
        tokens = f"--auth-token={jwt_keys(folder)},ttl={TTL}s"
    server.extra = ["--bcrypt-cost=4", tokens]  # quick to check: the passwords are no secrets
    return server


@pytest.fixture(scope="module", params=["simple", "jwt"])
def guarded(
    request: pytest.FixtureRequest, etcd_binary: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Guarded]:
    """An etcd with auth on, with each kind of tokens."""
    with start(etcd_binary, tmp_path_factory.mktemp(request.param), request.param) as server:
        guarded = Guarded(server)
        guarded.set_up()
        yield guarded


@pytest.fixture(params=["simple", "jwt"])
def unguarded(
    request: pytest.FixtureRequest, etcd_binary: str, tmp_path: Path
) -> Iterator[Guarded]:
    """The test's own, with auth off at first."""
    with start(etcd_binary, tmp_path, request.param) as server:
        guarded = Guarded(server)
        guarded.set_up(enable=False)
        yield guarded


@contextmanager
def waiting(mutex: ClusterMutex) -> Iterator[None]:
    """Let a thread wait for a lock that is held; at the end of the block it must get it."""
    thread = queue_up(mutex)
    try:
        yield
    finally:
        # Half of the time after which a waiter looks for itself: it must have heard of it.
        thread.join(30)
    assert mutex.locked()


class TestTokens:
    def test_tokens_expire_during_all_requests(
        self, guarded: Guarded, opened: Opener, figure: Figure
    ) -> None:
        store = opened(guarded.settings())
        table = Table(store)
        table.start()
        lost = threading.Event()
        held = ClusterMutex("held", store=store)
        loser = ClusterMutex("lost", store=store, on_lost=lambda loss: lost.set())
        blocker = ClusterMutex("waited for", store=opened(guarded.settings()))
        waiter = ClusterMutex("waited for", store=store)
        for each in (held, loser, blocker):
            each.acquire(timeout=30)
        with waiting(waiter):
            before = served(guarded.server)["Authenticate"]
            guarded.outlive_tokens()
            began = time.monotonic()
            blocker.release()
        figure(f"the waiter had the lock {time.monotonic() - began:.2f} s after its release")
        held.alive(force=True)
        held.release()
        remove(opened(guarded.settings()), loser.record)
        assert lost.wait(60)
        with pytest.raises(LockLost, match="force-unlock"):
            loser.release()
        # The same stream: it stands as long as the process.
        again = ClusterMutex("waited for", store=store)
        with waiting(again):
            asked = served(guarded.server)["Txn"]
            time.sleep(2.5)
            assert served(guarded.server)["Txn"] <= asked + 1  # it listens: it does not have to ask
            began = time.monotonic()
            waiter.release()
        figure(f"on an old stream: {time.monotonic() - began:.2f} s")
        wait_until(lambda: table.rows().keys() == {"waited for"}, what="the table")
        again.release()
        table.stop()
        assert served(guarded.server)["Authenticate"] > before + 40  # those of `outlive_tokens`

    def test_repeated_changes_of_users_disturb_no_client(
        self,
        guarded: Guarded,
        opened: Opener,
        figure: Figure,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        store = opened(guarded.settings())
        failures: list[Exception] = []
        cycles = 0
        ending = threading.Event()

        def work() -> None:
            nonlocal cycles
            while not ending.is_set():
                try:
                    with ClusterMutex("busy", store=store) as mutex:
                        mutex.alive(force=True)
                        mutex.holder()  # reads only: another way through etcd
                    cycles += 1
                except Exception as error:  # noqa: BLE001 - each is a failure of the test
                    failures.append(error)

        worker = threading.Thread(target=work)
        worker.start()
        for _ in range(20):
            guarded.as_root("role", "grant-permission", "bob", "read", "/elsewhere")
            guarded.as_root("role", "revoke-permission", "bob", "/elsewhere")
        ending.set()
        worker.join(60)
        assert not failures
        assert cycles > 0
        assert "does not answer" not in caplog.text  # it does, in one etcd's own words or another's
        figure(f"{cycles} locks during 40 changes, no failure")


class TestRefusals:
    @pytest.mark.parametrize(
        ("user", "password", "said"),
        [
            ("ann", "wrong", "Check ETCDCTL_USER and ETCDCTL_PASSWORD: .* as 'ann'"),
            ("nobody", "x", "Check ETCDCTL_USER and ETCDCTL_PASSWORD: .* as 'nobody'"),
            (None, None, "This etcd asks for a user: set ETCDCTL_USER and ETCDCTL_PASSWORD"),
        ],
    )
    def test_a_refused_login_fails_at_once(
        self,
        guarded: Guarded,
        opened: Opener,
        caplog: pytest.LogCaptureFixture,
        user: str | None,
        password: str | None,
        said: str,
    ) -> None:
        store = opened(guarded.settings(user, password))
        began = time.monotonic()
        with pytest.raises(StoreError, match=said):
            ClusterMutex("x", store=store).acquire()
        assert time.monotonic() - began < STORE_TIMEOUT_S, "as for an etcd that is away"
        assert "leaning up" not in caplog.text

    def test_a_lack_of_rights_names_user_and_keys(self, guarded: Guarded, opened: Opener) -> None:
        bob = opened(guarded.settings("bob"))
        with pytest.raises(StoreError) as caught:
            ClusterMutex("x", store=bob).acquire()
        text = str(caught.value)
        assert "permission denied" in text
        assert (
            f"The user 'bob' has no role, or the role lacks a right on keys below {ROOT}/" in text
        )
        assert f"clustermutex setup-auth --root {ROOT}" in text
        assert ClusterMutex("x", store=bob).holder() is None  # that he may

    def test_a_right_revoked_under_a_held_lock(self, guarded: Guarded, opened: Opener) -> None:
        guarded.as_root("user", "add", "eve:of-eve")
        guarded.as_root("user", "grant-role", "eve", "ann")
        held = ClusterMutex("taken away", store=opened(guarded.settings("eve")))
        held.acquire()
        guarded.as_root("user", "revoke-role", "eve", "ann")
        with pytest.raises(StoreError, match="lacks a right"):
            held.alive(force=True)
        assert held.healthy
        guarded.as_root("user", "grant-role", "eve", "ann")
        held.alive(force=True)
        held.release()


class TestChanges:
    def test_a_password_changed_under_a_held_lock(self, guarded: Guarded, opened: Opener) -> None:
        guarded.as_root("user", "add", "dan:of-dan")
        guarded.as_root("user", "grant-role", "dan", "ann")
        held = ClusterMutex("changed", store=opened(guarded.settings("dan")))
        other = ClusterMutex("other", store=opened(guarded.settings()))
        held.acquire()
        other.acquire()
        guarded.as_root("user", "passwd", "dan", "--interactive=false", input="new\n")
        with pytest.raises(StoreError, match="Check ETCDCTL_USER and ETCDCTL_PASSWORD"):
            held.alive(force=True)
        other.alive(force=True)
        other.release()
        again = opened(guarded.settings("dan", "new"))
        remove(again, held.record)
        with ClusterMutex("changed", store=again):
            pass

    def test_auth_is_switched_on_and_off_while_all_runs(
        self, unguarded: Guarded, opened: Opener
    ) -> None:
        store, stranger = opened(unguarded.settings()), opened(unguarded.settings(None))
        held = ClusterMutex("x", store=store)
        waiter = ClusterMutex("x", store=opened(unguarded.settings()))
        nobody = ClusterMutex("y", store=stranger)
        held.acquire()
        held.alive(force=True)  # a user is no harm where none is asked for
        nobody.acquire()
        with waiting(waiter):
            unguarded.etcdctl("auth", "enable")
            with pytest.raises(StoreError, match="This etcd asks for a user"):
                nobody.alive(force=True)
            held.alive(force=True)
            held.release()
        # The streams were opened before: new watches on them are refused now.
        with waiting(held):
            waiter.release()
        unguarded.as_root("auth", "disable")
        nobody.alive(force=True)
        nobody.release()
        with waiting(waiter):
            held.release()
        waiter.release()

    def test_the_user_beats_the_certificate(
        self, etcd_binary: str, tmp_path: Path, opened: Opener
    ) -> None:
        authority = Authority(tmp_path)
        files = (etcd_binary, tmp_path / "data", tmp_path / "etcd.log")
        server, client = authority.issue("127.0.0.1"), authority.issue(user="somebody")
        with TlsEtcd(authority, server, *files, ask_clients=True) as etcd:
            tls = (authority.cacert, client.cert, client.key)
            flags = map("{}={}".format, ("--cacert", "--cert", "--key"), tls)
            etcdctl = partial(etcdctl_of(etcd), *flags)
            ann = Settings((etcd.endpoint,), ROOT, *tls, user="ann", password="ann")
            held = ClusterMutex("x", store=opened(ann))
            held.acquire()  # users are not asked for yet
            add_users(etcdctl, ann=[f"{ROOT}/"])
            held.alive(force=True)
            held.release()
