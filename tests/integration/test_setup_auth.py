"""`clustermutex setup-auth`: with its roles each program can do its work, and nothing else."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from lockclient import ClusterMutex, LockLost, Settings, StoreError
from lockclient.cli.setup.etcd_server import Etcd
from lockclient.model.clocks import Deadline
from lockclient.model.removal import Removal
from lockclient.stores.etcd.location import EtcdLocation
from lockclient.stores.etcd.roles import WRITES
from lockclient.stores.etcd.store import EtcdStore
from lockclient.stores.outcomes import Done
from lockclient.stores.requests import Remove
from tests.support.certificates import Authority, Pair, TlsEtcd
from tests.support.etcd_binary import etcdctl_beside, etcdctl_of, path_with_etcdctl
from tests.support.etcd_store import etcd_store
from tests.support.processes import BIN, start_service, wait_until

ROOT = "/team/locks"  # its last segment is also the name of a folder in it
USERS = {"client": "shop", "unlocker": "warden", "dashboard": "o'brien $(x)", "operator": "ann"}
SECRETS = {f"{kind.upper()}_PASSWORD": f"of-the-{kind}" for kind in USERS}
AS_ROOT = {"ETCDCTL_USER": "root:of-root"}
NAMED = [word for kind, user in USERS.items() for word in (f"--{kind}", user)]


def setup_auth(
    server: Etcd, environ: dict[str, str], *words: str, check: bool = True
) -> subprocess.CompletedProcess[str]:
    """Let sh run what `clustermutex setup-auth` prints, without a terminal."""
    script = subprocess.run(
        [str(BIN / "clustermutex"), "setup-auth", "--root", ROOT, *words],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    ).stdout
    assert "of-the-" not in script  # no password is in it
    path = path_with_etcdctl(server)
    done = subprocess.run(
        ["sh"],
        input=script,
        capture_output=True,
        text=True,
        timeout=60,
        start_new_session=True,
        env={**os.environ, "PATH": path, "ETCDCTL_ENDPOINTS": server.endpoint, **environ},
    )
    if check:
        assert done.returncode == 0, done.stderr
    return done


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


@contextmanager
def store_of(server: Etcd, kind: str) -> Iterator[EtcdStore]:
    """Open a store as a user of a kind."""
    store = etcd_store(settings_of(server, kind))
    yield store
    store.close()


def environ_of(server: Etcd, kind: str) -> dict[str, str]:
    """Return the same for a program's environment."""
    settings = settings_of(server, kind)
    assert settings.user is not None
    assert settings.password is not None
    return {
        "CLUSTERMUTEX_URL": settings.url(),
        "ETCDCTL_USER": settings.user,
        "ETCDCTL_PASSWORD": settings.password,
    }


# ---------------------------------------------------------------- the script


def test_it_can_be_run_again(guarded: Etcd) -> None:
    """With auth on and every user there: nothing is changed, no password is asked for."""
    users = etcdctl_of(guarded)("--user=root:of-root", "user", "list")
    setup_auth(guarded, AS_ROOT, *NAMED)
    assert etcdctl_of(guarded)("--user=root:of-root", "user", "list") == users
    with store_of(guarded, "client") as store, ClusterMutex("again", store=store):
        pass


def test_a_failure_ends_it(guarded: Etcd) -> None:
    """What could not be made is not passed over: here nobody says who asks."""
    done = setup_auth(guarded, {}, check=False)
    assert done.returncode != 0
    assert "user name is empty" in done.stderr
    assert "does not switch" not in done.stdout


def test_a_password_that_etcdctl_would_cut_is_refused(guarded: Etcd) -> None:
    """It reads up to the first space: the user would have a password that nobody knows."""
    spaced = {**AS_ROOT, "CLIENT_PASSWORD": "correct horse"}
    done = setup_auth(guarded, spaced, "--client", "eve", check=False)
    assert done.returncode == 1
    assert "would cut CLIENT_PASSWORD at its first space" in done.stderr
    done = setup_auth(guarded, AS_ROOT, "--client", "eve", check=False)
    assert done.returncode == 1
    assert "The user eve needs a password, and there is no terminal" in done.stderr
    assert "eve" not in etcdctl_of(guarded)("--user=root:of-root", "user", "list")


@pytest.mark.parametrize("name", ["", " ", "ann:secret", "--no-password", "a\nb"])
def test_a_name_that_etcdctl_would_misread_is_no_user(name: str) -> None:
    """A colon begins a password there, a dash an option."""
    done = subprocess.run(
        [str(BIN / "clustermutex"), "setup-auth", f"--client={name}"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 2
    assert "can't be a user of etcdctl's" in done.stderr


# ---------------------------------------------------------------- and nothing else

PLACES = {
    "locks": f"{ROOT}/locks/x/uuid",
    "queue": f"{ROOT}/queue/x/1",
    "withdrawn": f"{ROOT}/withdrawn/x/1",
    "removed": f"{ROOT}/removed/x/1",
    "code": f"{ROOT}/code/1",
    "unlockers": f"{ROOT}/unlockers/u",
    "a folder of tomorrow": f"{ROOT}/tomorrow/x",
    "the root": ROOT,
    "a neighbour": f"{ROOT}0",
    "elsewhere": "/elsewhere",
}


@pytest.mark.parametrize("kind", USERS)
def test_each_may_touch_what_it_must_and_nothing_else(guarded: Etcd, kind: str) -> None:
    """By etcd's own command: read all under the root, write what the role is for."""
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
    assert allowed("put", f"{ROOT}/restored", "{}") == (kind == "operator")
    assert allowed("get", "--prefix", f"{ROOT}/")
    assert not allowed("get", "--prefix", ROOT)
    assert not allowed("del", "--prefix", f"{ROOT}/")
    assert not allowed("user", "list")


def test_who_only_looks_is_told_so(guarded: Etcd) -> None:
    """Taking a lock, and taking one from another."""
    with store_of(guarded, "dashboard") as looking, store_of(guarded, "client") as store:
        with pytest.raises(StoreError, match="permission denied"):
            looking.announce_restored("{}", Deadline.after(10))
        with pytest.raises(StoreError, match="permission denied"):
            ClusterMutex("x", store=looking).acquire()
        with ClusterMutex("x", store=store) as held:
            removal = Removal(held.record, time.time(), "me", "force-unlock", "")
            with pytest.raises(StoreError, match="permission denied"):
                looking.ask(Remove(removal, None), Deadline.after(10))
            with pytest.raises(StoreError, match="permission denied"):
                store.ask(Remove(removal, None), Deadline.after(10))  # a client, likewise
            assert ClusterMutex("x", store=looking).holder() is not None


def test_nobody_revokes_the_lease_of_another(guarded: Etcd) -> None:
    """Tickets hang on it: etcd asks for the right to write them, also of who revokes."""
    etcdctl = etcdctl_of(guarded)

    def as_root(*words: str) -> str:
        return etcdctl("--user=root:of-root", *words)

    with store_of(guarded, "client") as store:
        waiter = ClusterMutex("x", store=store)
        with ClusterMutex("x", store=store):
            thread = threading.Thread(target=waiter.acquire, daemon=True)
            thread.start()
            wait_until(waiter.waiters, what="the waiter in line")
            # "found N leases", and then one a line
            leases = as_root("lease", "list").splitlines()[1:]
            told = {each: as_root("lease", "timetolive", each, "--keys") for each in leases}
            lease = next(each for each in leases if "/queue/x/" in told[each])
            for kind in ("dashboard", "operator", "unlocker"):
                with pytest.raises(AssertionError, match="permission denied"):
                    etcdctl(*login_of(kind), "lease", "revoke", lease)
        thread.join(30)
        waiter.release()


# ---------------------------------------------------------------- the whole work of each

HOLDER = """
import sys, time
from lockclient import ClusterMutex

mutex = ClusterMutex(sys.argv[1], identity=sys.argv[2] or None, expected_runtime=0.5,
                     auto_unlock_after=float(sys.argv[3]))
print(bool(mutex.acquire(timeout=30)), "http://held", flush=True)
time.sleep(300)
"""


@contextmanager
def holder(server: Etcd, name: str, identity: str = "", seconds: float = 900) -> Iterator[Any]:
    """Run a program that takes a lock and hangs."""
    words = [sys.executable, "-c", HOLDER, name, identity, str(seconds)]
    with start_service(words, environ_of(server, "client")) as service:
        wait_until(lambda: "True" in service.log_text(), what=f"the holder: {service.log_text()}")
        yield service


def test_a_client_lives_its_whole_life(guarded: Etcd) -> None:
    """Waiting in line, giving up, getting it, its own crash, and the loss."""
    with store_of(guarded, "client") as store:
        with holder(guarded, "life", "worker") as crashed:
            assert not ClusterMutex("life", store=store).acquire(timeout=0.5)
            crashed.process.kill()
            crashed.process.wait()
            with holder(guarded, "life", "worker") as back:
                waiter = ClusterMutex("life", store=store)
                thread = threading.Thread(target=waiter.acquire, daemon=True)
                thread.start()
                wait_until(waiter.waiters, what="the waiter in line")
                back.process.kill()
                back.process.wait()
                with store_of(guarded, "operator") as operator:
                    dead = ClusterMutex("life", store=operator).holder()
                    assert dead is not None
                    removal = Removal(dead, time.time(), "ann", "force-unlock", "it crashed")
                    assert isinstance(operator.ask(Remove(removal, None), Deadline.after(10)), Done)
                thread.join(30)
        waiter.alive(force=True)
        time.sleep(1.1)  # as long as a lock is held before its loss is watched for
        waiter.check_health()
        with store_of(guarded, "operator") as operator:
            removal = Removal(waiter.record, time.time(), "ann", "force-unlock", "it hangs")
            assert isinstance(operator.ask(Remove(removal, None), Deadline.after(10)), Done)
        wait_until(lambda: not waiter.healthy, what="the loss")
        with pytest.raises(LockLost, match="ann"):
            waiter.release()


def fetch(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=60) as answer:
        return json.load(answer)


def is_ready(url: str) -> bool:
    try:
        urllib.request.urlopen(f"{url}/readyz", timeout=60).close()
    except urllib.error.HTTPError as error:
        error.close()
        return False
    return True


def test_the_unlocker_removes_and_the_dashboard_shows(guarded: Etcd) -> None:
    """Both as programs: an abandoned lock is removed with a record, and both are seen."""
    warden = [sys.executable, "-m", "unlocker", "--listen", "127.0.0.1:0"]
    dash = [sys.executable, "-m", "mutexdash", "--listen", "127.0.0.1:0"]
    with (
        start_service(dash, environ_of(guarded, "dashboard")) as shown,
        start_service(warden, environ_of(guarded, "unlocker")) as unlocker,
        holder(guarded, "kept"),
        holder(guarded, "left", seconds=2) as left,
    ):
        left.process.kill()
        wait_until(lambda: is_ready(shown.url), what=f"readiness: {shown.log_text()}")
        api = f"{shown.url}/api"

        def names(page: str) -> list[str]:
            return [each["name"] for each in fetch(f"{api}/{page}")[page.partition("?")[0]]]

        wait_until(lambda: "left" in names("removed"), what="the removal to be shown")
        assert "left" not in names("locks")
        assert "kept" in names("locks")
        wait_until(lambda: fetch(f"{api}/locks")["unlockers"] == 1, what="the unlocker's sign")
        wait_until(lambda: is_ready(unlocker.url), what=f"readiness: {unlocker.log_text()}")
        assert unlocker.terminate() == 0
        wait_until(lambda: fetch(f"{api}/locks")["unlockers"] == 0, what="its sign to be gone")
        assert "denied" not in unlocker.log_text() + shown.log_text()


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
            subprocess.run([ctl, *words], check=True, env={**os.environ, **environ}, timeout=30)
        shop, looker = authority.issue(user="shop"), authority.issue(user="o'brien $(x)")

        def opened(user: Pair) -> EtcdStore:
            files = authority.cacert, user.cert, user.key
            return EtcdStore(EtcdLocation((server.endpoint,), ROOT, *files))

        store = opened(shop)
        with ClusterMutex("x", store=store) as held:
            held.alive(force=True)
        store.close()
        store = opened(looker)
        assert ClusterMutex("x", store=store).holder() is None
        with pytest.raises(StoreError, match="permission denied"):
            ClusterMutex("x", store=store).acquire()
        store.close()
