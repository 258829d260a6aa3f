"""Clusters without and with each thing that `clustermutex doctor` finds fault with.

A case is a generator: it yields the settings of a cluster without the fault, then those of one with
it (mostly the same cluster), and may yield those of one that followed the advice.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from types import ModuleType
from typing import Any

from lockclient import Settings, open_store
from lockclient.cli.operate import doctor, doctor_checks
from lockclient.cli.setup.etcd_server import Etcd, embedded_etcd
from lockclient.errors import StoreUnavailable
from lockclient.stores.etcd import diagnosis as etcd
from lockclient.stores.etcd.store import EtcdStore
from lockclient.stores.gcs import diagnosis as gcs
from lockclient.stores.gcs import listing
from lockclient.stores.valkey import diagnosis as valkey
from tests.contract.asking import NAME
from tests.support.bucket.rules import Conditions
from tests.support.bucket.server import SLOW
from tests.support.bucket_store import settings_of
from tests.support.doctor_bench import Bench
from tests.support.etcd_binary import OPEN, add_users, etcdctl_of, exhaust_space, frozen
from tests.support.etcd_cluster import Cluster
from tests.support.locks import soon, take

Case = Callable[[Bench], Iterator[Settings]]
CASES: dict[str, tuple[str, Case]] = {}
"""By what is said: the module that says it, and the case."""


def finds(where: ModuleType, said: str) -> Callable[[Case], Case]:
    def note(case: Case) -> Case:
        CASES[said] = (where.__name__, case)
        return case

    return note


# ---------------------------------------------------------------- any store


@finds(doctor, "The other checks need it and were left out.")
def _away(bench: Bench) -> Iterator[Settings]:
    settings = bench.restarted()
    yield settings
    with frozen(bench.own):
        yield settings


@finds(doctor, "The locks could not be read.")
@finds(etcd, "Run this again when etcd answers steadily.")
def _reads_locks_alone(bench: Bench) -> Iterator[Settings]:
    """Root, then a user who may read nothing else."""
    bench.patch.setattr(doctor, "READ_ALL_TIMEOUT_S", 2.0)
    settings = bench.restarted("--bcrypt-cost=4")
    etcdctl, locks = etcdctl_of(bench.own), f"{settings.root}/locks"
    add_users(etcdctl, ann=())
    etcdctl("--user=root:root", "role", "grant-permission", "ann", "read", f"{locks}/", f"{locks}0")
    for user in ("root", "ann"):
        yield Settings((bench.own.endpoint,), settings.root, user=user, password=user)


@finds(doctor, "Who waits for what can't be read.")
def _queues_unreadable(bench: Bench) -> Iterator[Settings]:
    bench.lock("x", 50, 600)
    bench.put(queue__x__t={"hostname": "h"})
    yield bench.settings

    def fail(*_: object) -> None:  # between two requests, as nothing real does when it is wanted
        raise StoreUnavailable("etcd did not answer in time.")

    bench.patch.setattr(EtcdStore, "tickets", fail)
    yield bench.settings


@finds(doctor_checks, "No unlocker is running")
def _no_unlocker(bench: Bench) -> Iterator[Settings]:
    bench.put(unlockers__u={"now": time.time(), "version": "1"})
    yield bench.settings
    etcdctl_of(bench.etcd)("del", f"{bench.settings.root}/unlockers/u")
    yield bench.settings


@finds(doctor_checks, "have failed for ten minutes or longer")
def _failing_recipient(bench: Bench) -> Iterator[Settings]:
    bench.put(unlockers__u={"now": time.time(), "failing": []})
    yield bench.settings
    bench.put(unlockers__u={"now": time.time(), "failing": ["ops"]})
    yield bench.settings


@finds(doctor_checks, "can't compare clocks")
def _clocks_unknown(bench: Bench) -> Iterator[Settings]:
    bench.put(unlockers__u={"now": time.time()})
    yield bench.settings
    bench.put(unlockers__u={"now": time.time(), "clocks": "unknown"})
    yield bench.settings


@finds(doctor_checks, "Set both by NTP")
def _wrong_clock(bench: Bench) -> Iterator[Settings]:
    bench.lock("x", 55, 600)
    yield bench.settings
    bench.lock("x", 600, 900)
    yield bench.settings


@finds(doctor_checks, "unless one of these waits has a limit")
def _deadlock(bench: Bench) -> Iterator[Settings]:
    for name, other in (("x", "y"), ("y", "x")):
        yield from () if name == "x" else (bench.settings,)
        bench.lock(name, 50, 600, actor=f"of-{name}")
        waiter = {"hostname": "h", "pid": 1, "actor": f"of-{name}", "since": time.time() - 60}
        bench.put(**{f"queue__{other}__t": waiter})
    yield bench.settings


@finds(doctor_checks, "have too long tickets")
def _long_ticket(bench: Bench) -> Iterator[Settings]:
    bench.lock("x", 50, 600, actor="a")
    bench.put(queue__x__t={"hostname": "h", "actor": "b"})
    yield bench.settings
    bench.put(queue__x__t={"hostname": "h" * 70_000, "actor": "b"})
    yield bench.settings


def _lock_of(sick: dict[str, Any]) -> Case:
    def case(bench: Bench) -> Iterator[Settings]:
        bench.lock("x", 50, 600)
        yield bench.settings
        bench.lock("x", **{"alert": 50, "end": 600, **sick})
        yield bench.settings

    return case


_SICK_LOCKS: dict[str, dict[str, Any]] = {
    "past the alert, without a heartbeat": {"alert": -5},
    "past the auto-unlock and still there": {"alert": -500, "end": -50},
    "without an auto-unlock": {"end": None},
    "undecided, which no unlocker removes": {"needs": ["what-nobody-knows"]},
}
for _said, _sick in _SICK_LOCKS.items():
    finds(doctor_checks, _said)(_lock_of(_sick))


@finds(doctor_checks, "broken and can't be judged")
def _broken(bench: Bench) -> Iterator[Settings]:
    bench.lock("x", 50, 600)
    yield bench.settings
    bench.put(locks__y__uuid="u")
    yield bench.settings


# ---------------------------------------------------------------- etcd


@finds(etcd, "does not answer over HTTP")
def _member_away(bench: Bench) -> Iterator[Settings]:
    yield bench.settings
    yield Settings((*bench.settings.endpoints, "127.0.0.1:1"), bench.settings.root)


@finds(etcd, "raises an alarm")
@finds(etcd, "the rest is unknown: etcd is out of space.")
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


@finds(etcd, "which can lose or corrupt data")
def _losing_version(bench: Bench) -> Iterator[Settings]:
    _said_version(bench, "3.5.30"[: len(bench.etcd.version)])
    yield bench.through_relay
    losing = embedded_etcd()
    assert losing
    with Etcd(losing, bench.folder / "losing", bench.folder / "losing.log") as server:
        yield Settings((server.endpoint,))


@finds(etcd, "is tested with 3.4 to 3.7.")
def _old_version(bench: Bench) -> Iterator[Settings]:
    yield bench.through_relay
    _said_version(bench, "3.3" + bench.etcd.version[3:])
    yield bench.through_relay


@finds(etcd, "The members run different versions")
def _two_versions(bench: Bench) -> Iterator[Settings]:
    both = Settings((*bench.settings.endpoints, bench.relay.endpoint), bench.settings.root)
    yield both
    _said_version(bench, "3.4" + bench.etcd.version[3:-1] + "7")
    yield both


@finds(etcd, "of which 2 are named")
def _member_unnamed(bench: Bench) -> Iterator[Settings]:
    with Cluster(bench.etcd.binary, bench.folder) as cluster:
        endpoints = [member.endpoint for member in cluster.members]
        yield Settings((*endpoints,))
        yield Settings((*endpoints[:2],))


@finds(etcd, "of its quota of")
def _fills_up(bench: Bench) -> Iterator[Settings]:
    settings = bench.restarted()
    etcdctl_of(bench.own)("put", "/fill", input=b"x" * 1_000_000)
    yield settings
    yield bench.restarted("--quota-backend-bytes=1200000")


@finds(etcd, "can read, forge and delete all locks")
def _open_to_pages(bench: Bench) -> Iterator[Settings]:
    yield bench.restarted(*OPEN[1:])
    yield bench.restarted(OPEN[0], OPEN[2])
    yield bench.restarted(OPEN[0])  # a gateway by itself is for programs


@finds(etcd, "It is not compacted, and never was")
def _never_compacted(bench: Bench) -> Iterator[Settings]:
    settings = bench.restarted()
    etcdctl, key = etcdctl_of(bench.own), f"{settings.root}/unlockers/u"
    yield settings
    for _ in range(9):  # what etcd kept before there was an unlocker is of no known age
        etcdctl("put", key, json.dumps({"now": time.time() - 6 * 3600}))
    yield settings
    etcdctl("put", key, json.dumps({"now": time.time() - 3600}))
    written = json.loads(etcdctl("get", key, "-w", "json"))["header"]["revision"]
    etcdctl("put", key, json.dumps({"now": time.time()}))
    etcdctl("compaction", str(written))
    yield settings
    with closing(open_store(settings)) as store:
        assert store.history(soon()).oldest == written


@finds(etcd, "Look at etcd's disks")
def _slow_member(bench: Bench) -> Iterator[Settings]:
    bench.patch.setattr(etcd, "TRANSACTIONS", 3)
    bench.patch.setattr(etcd, "LATENCY_WARNING_S", 0.35)  # as slow as no machine of the tests is
    yield bench.through_relay
    # A relay delays one after another what comes together: with much more nobody is answered in
    # time, on a slow machine.
    bench.patch.setattr(etcd, "LATENCY_WARNING_S", 0.09)
    bench.relay.delay = 0.05  # each way
    yield bench.through_relay


@finds(etcd, "asks for no user")
def _asks_for_no_user(bench: Bench) -> Iterator[Settings]:
    bench.restarted("--bcrypt-cost=4")
    add_users(etcdctl_of(bench.own))
    yield Settings((bench.own.endpoint,), user="root", password="root")
    etcdctl_of(bench.own)("--user=root:root", "auth", "disable")
    yield Settings((bench.own.endpoint,))


@finds(etcd, "but not all that any program needs")
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


@finds(valkey, "has no vote")
@finds(valkey, "none may fail")
def _one_of_three_is_down(bench: Bench) -> Iterator[Settings]:
    servers = bench.servers(3)
    yield Settings(location=servers.place())
    servers.all[0].stop()
    yield Settings(location=servers.place())


@finds(doctor_checks, "held on 2 of 3 servers.")
def _lost_by_one(bench: Bench) -> Iterator[Settings]:
    servers = bench.servers(3)
    with servers.store() as store:
        take(store)
        yield Settings(location=servers.place())
        servers.all[0].command("DEL", store.keys.lock(NAME))
        yield Settings(location=servers.place())


@finds(valkey, "no lock can be acquired")
@finds(valkey, "is new to this keyspace")
def _new_keyspace(bench: Bench) -> Iterator[Settings]:
    servers = bench.servers(1)
    yield Settings(location=servers.place())
    yield Settings(location=servers.place(root="another"))


@finds(valkey, "may lose what it has answered")
def _not_kept(bench: Bench) -> Iterator[Settings]:
    servers = bench.servers(1)
    yield Settings(location=servers.place())
    with servers.store() as store:
        store.vouch_kept(kept=False)
    yield Settings(location=servers.place())


@finds(valkey, "refuses what a new lock would write")
def _full(bench: Bench) -> Iterator[Settings]:
    servers = bench.servers(1)
    yield Settings(location=servers.place())
    servers.command("CONFIG", "SET", "maxmemory", "1")
    yield Settings(location=servers.place())


@finds(valkey, "read its configuration")
def _reads_configuration(bench: Bench) -> Iterator[Settings]:
    servers = bench.servers(1)
    yield Settings(location=servers.place())
    servers.command("ACL", "SETUSER", "shop", "+config|get")
    yield Settings(location=servers.place())


@finds(valkey, "it lacks &")
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


_SICK_BUCKETS: dict[str, dict[str, Any]] = {
    "a retention policy, or holds": {"retentionPolicy": {"retentionPeriod": "60"}},
    "A lifecycle rule deletes locks": {
        "lifecycle": {"rule": [{"action": {"type": "Delete"}, "condition": {"age": 3}}]}
    },
    "no request of ours does": {"billing": {"requesterPays": True}},
    "object versioning": {"versioning": {"enabled": True}},
    "(soft delete)": {"softDeletePolicy": {"retentionDurationSeconds": "604800"}},
    "storage class is NEARLINE": {"storageClass": "NEARLINE"},
    "hierarchical namespace": {"hierarchicalNamespace": {"enabled": True}},
}
for _said, _settings in _SICK_BUCKETS.items():
    finds(gcs, _said)(
        _bucket_that(lambda bench, sick=_settings: setattr(bench.bucket, "settings", sick))  # type: ignore[misc]
    )


def _without(right: str) -> Case:
    return _bucket_that(lambda bench: setattr(bench.bucket, "denied", {f"storage.{right}"}))


finds(gcs, "these credentials lack storage.buckets.get")(_without("buckets.get"))
finds(gcs, "These credentials lack storage.objects")(_without("objects.update"))
finds(gcs, "and to who may read.")(_without("objects.get"))


@finds(gcs, "with more no lock is shown or auto-unlocked")
def _too_many_objects(bench: Bench) -> Iterator[Settings]:
    for number in range(4):
        bench.bucket.bucket.insert(f"of/the/test/locks{number}", b"", Conditions())
    for most in (8, 7):  # it warns from half of them on
        for module in (gcs, listing):
            bench.patch.setattr(module, "MAX_OBJECTS", most)
        yield settings_of(bench.bucket)


@finds(gcs, "Run this again when the bucket answers.")
def _listing_refused(bench: Bench) -> Iterator[Settings]:
    settings = settings_of(bench.bucket)
    yield settings
    bench.bucket.fault("GET", 403, part="/o")
    yield settings


@finds(gcs, "in the region of those who use the locks")
def _slow_bucket(bench: Bench) -> Iterator[Settings]:
    bench.patch.setattr(gcs, "_LATENCY_READS", 3)
    bench.patch.setattr(gcs, "_SLOW_P99_S", 1.5)  # as slow as no machine of the tests is
    settings = settings_of(bench.bucket)
    yield settings
    bench.bucket.fault("GET", SLOW, part="/o/", seconds=1.7)
    yield settings
