"""`clustermutex setup-auth`: with its roles each program can do its work, and nothing else."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from lockclient import ClusterMutex, LockLost, Settings, StoreError
from lockclient.cli.setup.etcd_server import Etcd
from lockclient.stores.etcd.location import EtcdLocation
from lockclient.stores.etcd.roles import WRITES
from lockclient.stores.etcd.store import EtcdStore
from tests.support.certificates import Authority, Pair, TlsEtcd
from tests.support.etcd_binary import etcdctl_beside, etcdctl_of, path_with_etcdctl
from tests.support.etcd_store import etcd_store
from tests.support.locks import HolderProcess, held, queue_up, remove
from tests.support.pages import request
from tests.support.processes import run_to_end, wait_until
from tests.support.terminal import called
from tests.support.unlocker_process import mutexdash, unlocker, when_ready

ROOT = "/locks/team"  # its first segment is also the name of a folder in it
USERS = {"client": "shop", "unlocker": "warden", "dashboard": "o'brien $(x)", "operator": "ann"}
SECRETS = {f"{kind.upper()}_PASSWORD": f"of-the-{kind}" for kind in USERS}
AS_ROOT = {"ETCDCTL_USER": "root:of-root"}
NAMED = [word for kind, user in USERS.items() for word in (f"--{kind}", user)]


def setup_auth(
    server: Etcd, environ: dict[str, str], *words: str, status: int | None = 0
) -> subprocess.CompletedProcess[str]:
    """Let sh run what `clustermutex setup-auth` prints, without a terminal."""
    script = called(Settings(), "setup-auth", "--root", ROOT, *words).stdout
    assert "of-the-" not in script  # no password is in it
    there = {"PATH": path_with_etcdctl(server), "ETCDCTL_ENDPOINTS": server.endpoint}
    return run_to_end("sh", typed=script, env={**there, **environ}, status=status)


@pytest.fixture(scope="module")
def guarded(etcd_binary: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Etcd]:
    """An etcd with auth on, and the users that the script has made."""
    folder = tmp_path_factory.mktemp("guarded")
    server = Etcd(etcd_binary, folder / "data", folder / "etcd.log")
    server.extra = ["--bcrypt-cost=4"]  # the passwords are no secrets, and quick to check so
    with server:
        said = setup_auth(server, SECRETS, *NAMED).stdout
        etcdctl = etcdctl_of(server)
        etcdctl("user", "add", "root:of-root")
        assert "etcdctl auth enable" in said
        etcdctl("auth", "enable")
        yield server


def settings_of(server: Etcd, kind: str) -> Settings:
    """Return what a program of a kind connects with."""
    secret = SECRETS[f"{kind.upper()}_PASSWORD"]
    return Settings((server.endpoint,), ROOT, user=USERS[kind], password=secret)


def login_of(kind: str) -> list[str]:
    """Return the same for etcdctl."""
    return ["--user", USERS[kind], "--password", SECRETS[f"{kind.upper()}_PASSWORD"]]


def store_of(server: Etcd, kind: str) -> closing[EtcdStore]:
    """Open a store as a user of a kind, for the time of a block."""
    return closing(etcd_store(settings_of(server, kind)))


# ---------------------------------------------------------------- the script


def test_the_script_can_be_run_again(guarded: Etcd) -> None:
    users = etcdctl_of(guarded)("--user=root:of-root", "user", "list")
    setup_auth(guarded, AS_ROOT, *NAMED)
    assert etcdctl_of(guarded)("--user=root:of-root", "user", "list") == users
    with store_of(guarded, "client") as store, ClusterMutex("again", store=store):
        pass


def test_a_failure_ends_the_script(guarded: Etcd) -> None:
    done = setup_auth(guarded, {}, status=None)
    assert done.returncode != 0
    assert "user name is empty" in done.stderr
    assert "does not switch" not in done.stdout


def test_a_password_with_a_space_is_refused(guarded: Etcd) -> None:
    spaced = {**AS_ROOT, "CLIENT_PASSWORD": "correct horse"}
    done = setup_auth(guarded, spaced, "--client", "eve", status=1)
    assert "would cut CLIENT_PASSWORD at its first space" in done.stderr
    done = setup_auth(guarded, AS_ROOT, "--client", "eve", status=1)
    assert "The user eve needs a password, and there is no terminal" in done.stderr
    assert "eve" not in etcdctl_of(guarded)("--user=root:of-root", "user", "list")


@pytest.mark.parametrize("name", ["", " ", "ann:secret", "--no-password", "a\nb"])
def test_a_user_name_with_two_meanings_is_refused(name: str) -> None:
    done = called(Settings(), "setup-auth", f"--client={name}", status=2)
    assert "can't be a user of etcdctl's" in done.stderr


# ---------------------------------------------------------------- and nothing else

PLACES = {
    "locks": f"{ROOT}/locks/x/uuid",
    "queue": f"{ROOT}/queue/x/1",
    "withdrawn": f"{ROOT}/withdrawn/x/1",
    "removed": f"{ROOT}/removed/x/1",
    "code": f"{ROOT}/code/1",
    "unlockers": f"{ROOT}/unlockers/u",
    "notifications": f"{ROOT}/notifications/note",
    "a folder of tomorrow": f"{ROOT}/tomorrow/x",
    "the root": ROOT,
    "a neighbour": f"{ROOT}0",
    "elsewhere": "/elsewhere",
}


@pytest.mark.parametrize("kind", USERS)
def test_each_role_has_the_least_rights(guarded: Etcd, kind: str) -> None:
    etcdctl = etcdctl_of(guarded)

    def allowed(*words: str) -> bool:
        try:
            etcdctl(*login_of(kind), *words)
        except AssertionError as error:
            if "permission denied" in str(error):
                return False
            raise
        return True

    outside = {"the root", "a neighbour", "elsewhere"}
    assert {name for name, key in PLACES.items() if allowed("get", key)} == PLACES.keys() - outside
    assert {name for name, key in PLACES.items() if allowed("put", key, "1")} == {*WRITES[kind]}
    assert {name for name, key in PLACES.items() if allowed("del", key)} == {*WRITES[kind]}
    assert allowed("get", "--prefix", f"{ROOT}/")
    assert not allowed("get", "--prefix", ROOT)
    assert not allowed("del", "--prefix", f"{ROOT}/")
    assert not allowed("user", "list")


def test_a_foreign_lease_can_not_be_revoked(guarded: Etcd) -> None:
    etcdctl = etcdctl_of(guarded)

    def as_root(*words: str) -> str:
        return etcdctl("--user=root:of-root", *words)

    with store_of(guarded, "client") as store:
        waiter = ClusterMutex("x", store=store)
        with ClusterMutex("x", store=store):
            thread = queue_up(waiter)
            # "found N leases", and then one a line
            leases = as_root("lease", "list").splitlines()[1:]
            told = {lease: as_root("lease", "timetolive", lease, "--keys") for lease in leases}
            (lease,) = (lease for lease, keys in told.items() if "/queue/x/" in keys)
            for kind in ("dashboard", "operator", "unlocker"):
                with pytest.raises(AssertionError, match="permission denied"):
                    etcdctl(*login_of(kind), "lease", "revoke", lease)
        thread.join(30)
        waiter.release()


# ---------------------------------------------------------------- the whole work of each


def test_a_client_lives_its_whole_life(guarded: Etcd) -> None:
    """Waiting in line, giving up, getting it, its own crash, and the loss."""
    client = settings_of(guarded, "client")
    with store_of(guarded, "client") as store, store_of(guarded, "operator") as operator:
        crashed = HolderProcess(client, "life", identity="worker")
        assert not ClusterMutex("life", store=store).acquire(timeout=0.5)
        crashed.kill()
        back = HolderProcess(client, "life", identity="worker", timeout=30)
        waiter = ClusterMutex("life", store=store)
        thread = queue_up(waiter)
        back.kill()
        remove(operator, held(operator, "life"))
        thread.join(30)
        waiter.alive(force=True)
        waiter.check_health()
        remove(operator, waiter.record)
        wait_until(lambda: not waiter.healthy, what="the loss")
        with pytest.raises(LockLost, match="ann"):
            waiter.release()


def test_the_unlocker_removes_and_the_dashboard_shows(guarded: Etcd) -> None:
    """Both as programs: an abandoned lock is removed with a record, and both are seen."""
    client = settings_of(guarded, "client")

    def login(kind: str) -> dict[str, str]:
        user = settings_of(guarded, kind)
        return {"ETCDCTL_USER": user.user or "", "ETCDCTL_PASSWORD": user.password or ""}

    with (
        when_ready(mutexdash(client, env=login("dashboard"))) as shown,
        when_ready(unlocker(client, env=login("unlocker"))) as service,
        HolderProcess(client, "kept"),
    ):
        HolderProcess(client, "left", expected_runtime=0.5, auto_unlock_after=2).kill()

        def names(page: str) -> list[str]:
            return [about["name"] for about in request(shown.url, f"/api/{page}").json[page]]

        wait_until(lambda: "left" in names("removed"), what="the removal to be shown")
        assert "left" not in names("locks")
        assert "kept" in names("locks")
        for number in (1, 0):
            wait_until(
                lambda: request(shown.url, "/api/locks").json["unlockers"] == number,  # noqa: B023
                what=f"{number} unlockers",
            )
            assert number == 0 or service.terminate() == 0
        assert "denied" not in service.log_text() + shown.log_text()


def test_a_certificate_s_common_name_is_a_user(etcd_binary: str, tmp_path: Path) -> None:
    """Without any password: what etcd calls client certificate authentication."""
    authority = Authority(tmp_path)
    server = TlsEtcd(
        authority,
        authority.issue("127.0.0.1"),
        etcd_binary,
        tmp_path / "data",
        tmp_path / "etcd.log",
        ask_clients=True,
    )
    admin = authority.issue(user="root")
    environ = {
        "ETCDCTL_ENDPOINTS": f"https://{server.endpoint}",
        "ETCDCTL_CACERT": authority.cacert,
        "ETCDCTL_CERT": admin.cert,
        "ETCDCTL_KEY": admin.key,
    }
    with server:
        setup_auth(server, environ, *NAMED, "--no-password")
        ctl = etcdctl_beside(server)
        for words in (["user", "add", "root", "--no-password"], ["auth", "enable"]):
            run_to_end(ctl, *words, env=environ)
        shop, looker = authority.issue(user="shop"), authority.issue(user="o'brien $(x)")

        def opened(user: Pair) -> EtcdStore:
            files = authority.cacert, user.cert, user.key
            return EtcdStore(EtcdLocation((server.endpoint,), ROOT, *files))

        with closing(opened(shop)) as store, ClusterMutex("x", store=store) as mutex:
            mutex.alive(force=True)
        with closing(opened(looker)) as store:
            assert ClusterMutex("x", store=store).holder() is None
            with pytest.raises(StoreError, match="permission denied"):
                ClusterMutex("x", store=store).acquire()
