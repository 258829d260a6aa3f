"""Clusters with and without each fault that `clustermutex doctor` finds.

A case is a generator: it yields the settings of a cluster without the fault, then those of one with
it (mostly the same cluster), and may yield those of one that followed the advice.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from typing import Any

from lockclient import Settings
from lockclient.cli.setup.etcd_server import Etcd, embedded_etcd
from lockclient.cli.setup.ports import free_port, is_free
from tests.contract.asking import NAME
from tests.support.bucket.server import SLOW
from tests.support.bucket_store import settings_of
from tests.support.doctor_bench import Bench
from tests.support.etcd_binary import OPEN, add_users, etcdctl_of, exhaust_space, frozen
from tests.support.etcd_learner import voter_and_learner
from tests.support.locks import take
from tests.support.processes import wait_until

Case = Callable[[Bench], Iterator[Settings]]
CASES: dict[str, Case] = {}
"""By what is said, text and advice."""


def finds(said: str) -> Callable[[Case], Case]:
    def note(case: Case) -> Case:
        CASES[said] = case
        return case

    return note


# ---------------------------------------------------------------- any store: see the table, too


@finds("The other checks need it and were left out.")
def _away(bench: Bench) -> Iterator[Settings]:
    settings = bench.restarted()
    yield settings
    with frozen(bench.own):
        yield settings


@finds("The locks could not be read.")
@finds("Run this again when etcd answers steadily.")
def _rights_on_locks_alone(bench: Bench) -> Iterator[Settings]:
    """Root, then a user who has rights on nothing else."""
    bench.patch.setattr("lockclient.cli.operate.doctor.READ_ALL_TIMEOUT_S", 2.0)
    settings = bench.restarted("--bcrypt-cost=4")
    etcdctl, locks = etcdctl_of(bench.own), f"{settings.root}/locks"
    add_users(etcdctl, ann=())
    span = (f"{locks}/", f"{locks}0")
    etcdctl("--user=root:root", "role", "grant-permission", "ann", "readwrite", *span)
    for user in ("root", "ann"):
        yield Settings((bench.own.endpoint,), settings.root, user=user, password=user)


# ---------------------------------------------------------------- etcd


@finds("does not answer over HTTP")
def _member_away(bench: Bench) -> Iterator[Settings]:
    yield bench.settings
    yield Settings((*bench.settings.endpoints, "127.0.0.1:1"), bench.settings.root)


@finds("answers as `etcd grpc-proxy`")
def _grpc_proxy(bench: Bench) -> Iterator[Settings]:
    yield bench.settings
    port = free_port()
    endpoint = f"127.0.0.1:{port}"
    command = [
        *(bench.etcd.binary, "grpc-proxy", "start", f"--endpoints={bench.etcd.endpoint}"),
        *(f"--listen-addr={endpoint}", f"--advertise-client-url={endpoint}"),
    ]
    with (bench.folder / "proxy.log").open("wb") as log:
        proxy = subprocess.Popen(command, stdout=log, stderr=log)
    bench.exits.callback(proxy.wait)
    bench.exits.callback(proxy.kill)
    wait_until(lambda: not is_free(port), what="the proxy")
    yield Settings((endpoint,), bench.settings.root)


@finds("is a learner")
def _learner(bench: Bench) -> Iterator[Settings]:
    members = voter_and_learner(bench.etcd.binary, bench.folder)
    voter, learner = bench.exits.enter_context(members)
    yield Settings((voter.endpoint,))
    yield Settings((learner.endpoint, voter.endpoint))


@finds("raises an alarm")
@finds("the rest is unknown: etcd is out of space.")
def _no_space(bench: Bench) -> Iterator[Settings]:
    yield bench.restarted()
    exhaust_space(bench.own)
    yield Settings((bench.own.endpoint,))


def _said_version(bench: Bench, version: str) -> None:
    """Have the relay's etcd name another version of the same length."""
    own = bench.etcd.version
    assert len(own) == len(version)
    bench.relay.change = lambda data: data.replace(
        b'"etcdserver":"%s"' % own.encode(), b'"etcdserver":"%s"' % version.encode()
    )


@finds("which can lose or corrupt data")
def _losing_version(bench: Bench) -> Iterator[Settings]:
    _said_version(bench, "3.5.30"[: len(bench.etcd.version)])
    yield bench.through_relay
    losing = embedded_etcd()
    assert losing
    with Etcd(losing, bench.folder / "losing", bench.folder / "losing.log") as server:
        yield Settings((server.endpoint,))


@finds("is tested with 3.4 to 3.7.")
def _old_version(bench: Bench) -> Iterator[Settings]:
    yield bench.through_relay
    _said_version(bench, "3.3" + bench.etcd.version[3:])
    yield bench.through_relay


@finds("The members run different versions")
def _two_versions(bench: Bench) -> Iterator[Settings]:
    both = Settings((*bench.settings.endpoints, bench.relay.endpoint), bench.settings.root)
    yield both
    _said_version(bench, "3.4" + bench.etcd.version[3:-1] + "7")
    yield both


@finds("of its quota of")
def _fills_up(bench: Bench) -> Iterator[Settings]:
    settings = bench.restarted()
    etcdctl_of(bench.own)("put", "/fill", input=b"x" * 1_000_000)
    yield settings
    yield bench.restarted("--quota-backend-bytes=1200000")


@finds("can read, forge and delete all locks")
def _open_to_pages(bench: Bench) -> Iterator[Settings]:
    yield bench.restarted(*OPEN[1:])
    yield bench.restarted(OPEN[0], OPEN[2])
    yield bench.restarted(OPEN[0])  # a gateway by itself is for programs


@finds("forge and delete all locks")
def _open_to_pages_by_a_name(bench: Bench) -> Iterator[Settings]:
    """A gateway needs no origin for a page that has a name of its own."""
    yield bench.restarted(OPEN[0])
    yield bench.restarted(*OPEN[:2])


@finds("--host-whitelist")
def _known_by_another_name(bench: Bench) -> Iterator[Settings]:
    """The finding for a list of hosts that lacks one says so, and not that this is no etcd."""
    yield bench.restarted("--host-whitelist=127.0.0.1")
    yield Settings((f"localhost:{bench.own.port}",))


@finds("asks for no user")
def _asks_for_no_user(bench: Bench) -> Iterator[Settings]:
    bench.restarted("--bcrypt-cost=4")
    add_users(etcdctl_of(bench.own))
    yield Settings((bench.own.endpoint,), user="root", password="root")
    etcdctl_of(bench.own)("--user=root:root", "auth", "disable")
    yield Settings((bench.own.endpoint,))


@finds("but not all that any program needs")
def _half_a_role(bench: Bench) -> Iterator[Settings]:
    root = bench.restarted("--bcrypt-cost=4").root
    add_users(etcdctl_of(bench.own), ann=[root])
    yield Settings((bench.own.endpoint,), root, user="ann", password="ann")
    etcdctl = etcdctl_of(bench.own)
    etcdctl("--user=root:root", "role", "revoke-permission", "--prefix=true", "ann", root)
    for rights, prefix in (("read", ""), ("readwrite", "/locks/")):
        words = ("grant-permission", "--prefix=true", "ann", rights, root + prefix)
        etcdctl("--user=root:root", "role", *words)
    yield Settings((bench.own.endpoint,), root, user="ann", password="ann")


# ---------------------------------------------------------------- Valkey


@finds("has no vote")
@finds("none may fail")
def _one_of_three_is_down(bench: Bench) -> Iterator[Settings]:
    servers = bench.servers(3)
    yield Settings(location=servers.place())
    servers.all[0].stop()
    yield Settings(location=servers.place())


@finds("held on 2 of 3 servers.")
def _lost_by_one(bench: Bench) -> Iterator[Settings]:
    servers = bench.servers(3)
    with servers.store() as store:
        take(store)
        yield Settings(location=servers.place())
        servers.all[0].command("DEL", store.keys.lock(NAME))
        yield Settings(location=servers.place())


@finds("no lock can be acquired")
@finds("is new to this keyspace")
def _new_keyspace(bench: Bench) -> Iterator[Settings]:
    servers = bench.servers(1)
    yield Settings(location=servers.place())
    yield Settings(location=servers.place(root="another"))


@finds("may lose what it has answered")
def _not_kept(bench: Bench) -> Iterator[Settings]:
    servers = bench.servers(1)
    yield Settings(location=servers.place())
    with servers.store() as store:
        store.vouch_kept(kept=False)
    yield Settings(location=servers.place())


@finds("refuses the writes of a new lock")
def _full(bench: Bench) -> Iterator[Settings]:
    servers = bench.servers(1)
    yield Settings(location=servers.place())
    servers.command("CONFIG", "SET", "maxmemory", "1")
    yield Settings(location=servers.place())


@finds("it lacks &")
def _no_channels(bench: Bench) -> Iterator[Settings]:
    servers = bench.servers(1)
    yield Settings(location=servers.place())
    servers.command("ACL", "SETUSER", "app", "on", ">p", "~*", "+@all", "resetchannels")
    yield Settings(location=servers.place(user="app", password="p"))


# ---------------------------------------------------------------- a bucket


def _bucket_that(sicken: Callable[[Bench], object]) -> Case:
    def case(bench: Bench) -> Iterator[Settings]:
        settings = settings_of(bench.bucket)
        yield settings
        sicken(bench)
        yield settings

    return case


def _of_settings(settings: dict[str, Any]) -> Case:
    return _bucket_that(lambda bench: setattr(bench.bucket, "settings", settings))


_BAD: dict[str, dict[str, Any]] = {
    "a retention policy, or holds": {"retentionPolicy": {"retentionPeriod": "60"}},
    "A lifecycle rule deletes locks": {
        "lifecycle": {"rule": [{"action": {"type": "Delete"}, "condition": {"age": 3}}]}
    },
    "(soft delete)": {"softDeletePolicy": {"retentionDurationSeconds": "604800"}},
}
for _said, _settings in _BAD.items():
    finds(_said)(_of_settings(_settings))


def _without(right: str) -> Case:
    return _bucket_that(lambda bench: setattr(bench.bucket, "denied", {f"storage.{right}"}))


finds("these credentials lack storage.buckets.get")(_without("buckets.get"))
finds("These credentials lack storage.objects")(_without("objects.update"))
finds("with a right to read.")(_without("objects.get"))


@finds("in the region of the locks' users")
def _slow_bucket(bench: Bench) -> Iterator[Settings]:
    settings = settings_of(bench.bucket)
    yield settings
    bench.bucket.fault("GET", SLOW, part="/o/", seconds=1.2)
    yield settings
