"""`clustermutex doctor`: each finding with and without its fault, the format, the exit status."""

from __future__ import annotations

import json
import re
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from lockclient import ClusterMutex, Settings, StoreUnavailable
from lockclient.cli.setup.etcd_server import Etcd, etcd_version
from lockclient.stores.service_store import ServiceStore, Tickets
from lockclient.stores.settings import made_of
from tests.support.bucket.server import BucketServer
from tests.support.bucket_store import settings_of, store_of
from tests.support.certificates import Authority, TlsEtcd
from tests.support.doctor_bench import Bench
from tests.support.doctor_cases import CASES, Case
from tests.support.etcd_binary import OPEN, Etcdctl, etcdctl_of, path_with_etcdctl
from tests.support.memory_store import MemoryStore
from tests.support.processes import run_to_end, wait_until
from tests.support.terminal import called, shown
from tests.support.unlocker_process import unlocker as unlocker_on

Found = list[dict[str, Any]]


def examine(
    where: Settings | MemoryStore, listen: str = "0", status: int | None = None, **more: Any
) -> Found:
    """Return what it finds, having seen that the exit status is that of the worst."""
    done = called(where, "doctor", "--json", "--listen", listen, status=None, **more)
    said = json.loads(done.stdout)
    found: Found = said["findings"]
    levels = ["ok", "warning", "error"]
    assert levels.index(said["status"]) == done.returncode
    assert done.returncode == max(levels.index(finding["level"]) for finding in found)
    assert status in (None, done.returncode), said
    assert all(finding["advice"] for finding in found if finding["level"] != "ok")
    return found


def says(findings: Found, check: str, *expected: tuple[str, str]) -> None:
    """See that this is what a check found: its levels, and parts of texts or advice."""
    found = [finding for finding in findings if finding["check"] == check]
    assert [finding["level"] for finding in found] == [level for level, _ in expected], found
    for finding, (_, part) in zip(found, expected, strict=True):
        assert part in f"{finding['text']} {finding['advice']}"


def measures(findings: Found, what: str) -> None:
    """See that the latency was measured. A busy machine makes a warning of it, and no error."""
    (found,) = [finding for finding in findings if finding["check"] == "latency"]
    assert found["level"] in ("ok", "warning")
    assert re.match(rf"50 {what}: p50 [\d.]+ ms, p99 [\d.]+ ms", found["text"])


# ---------------------------------------------------------------- real stores


@pytest.fixture
def bench(
    etcd: Etcd,
    settings: Settings,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Bench]:
    with ExitStack() as exits:
        yield Bench(etcd, settings, tmp_path, request, monkeypatch, exits)


BY_CASE: defaultdict[Case, list[str]] = defaultdict(list)
for _said, _case in CASES.items():
    BY_CASE[_case].append(_said)


@pytest.mark.parametrize("case", BY_CASE, ids=lambda case: BY_CASE[case][0])
def test_each_finding_appears_only_with_its_fault(bench: Bench, case: Case) -> None:
    number = 0
    for number, settings in enumerate(case(bench)):
        faults = [finding for finding in examine(settings) if finding["level"] != "ok"]
        text = "\n".join(f"{finding['text']} {finding['advice']}" for finding in faults)
        assert [said in text for said in BY_CASE[case]] == [number == 1] * len(BY_CASE[case]), text
    assert number


def test_a_healthy_cluster(
    settings: Settings, store: ServiceStore, etcd_binary: str, etcdctl: Etcdctl
) -> None:
    """Nothing is written."""
    with unlocker_on(settings) as running, ClusterMutex("x", store=store):
        wait_until(lambda: etcdctl("get", "--prefix", f"{settings.root}/unlockers/"), what="it")
        before = etcdctl("get", "--prefix", "", "--keys-only")
        found = examine(settings, "8")
        after = etcdctl("get", "--prefix", "", "--keys-only")
        assert set(after.split()) <= set(before.split())  # others' leases may end meanwhile
        assert running.terminate() == 0
    version = etcd_version(etcd_binary)
    answers = f"{settings.endpoints[0]} answers, version {version}, the leader"
    says(found, "member", ("ok", answers))
    measures(found, r"transactions \(unlocks of nothing\)")
    says(found, "rights", ("ok", "client, unlocker, dashboard, operator"))
    says(found, "auth", ("warning", "asks for no user"))
    says(found, "unlocker", ("ok", "1 running: unlocker@"))
    says(found, "clock", ("ok", "unlocker unlocker@"))
    says(found, "locks", ("ok", "1 lock held: 1 well."))


def test_a_bucket(server: BucketServer) -> None:
    """Healthy, without the right to list, and none at all; nothing is written."""
    settings = settings_of(server)
    store = store_of(settings)
    with ClusterMutex("x", store=store):
        before = server.bucket.names()
        found = examine(settings, status=2)
        assert server.bucket.names() == before
    store.close()
    checks = ["bucket", "rights", "settings", "latency", "unlocker", "clock", "locks"]
    assert [finding["check"] for finding in found] == checks
    says(found, "rights", ("ok", "create, get, update, delete, list"))
    measures(found, "reads of a lock that nobody has")
    says(found, "clock", ("ok", "Google Cloud Storage"))
    says(found, "locks", ("ok", "1 lock held"))
    server.denied = {"storage.objects.list"}
    found = examine(settings, status=2)
    says(found, "rights", ("error", "storage.objects.list on the bucket locks, which is needed to"))
    says(found, "gcs", ("error", "storage.objects.list"))
    says(examine(Settings.load("gs://another"), status=2), "gcs", ("error", "Create the bucket"))


ROLES = {
    "shop": ("client", "may do what these need: client, dashboard."),
    "ann": ("operator", "may do what these need: dashboard, operator."),
    "eve": ("dashboard", "may do what these need: dashboard. It may not write to locks, queue"),
}


def test_users_and_their_rights(bench: Bench) -> None:
    """Each user's rights decide; a user without a role gets advice."""
    settings = bench.restarted("--bcrypt-cost=4", *OPEN)
    words = [word for user, (role, _) in ROLES.items() for word in (f"--{role}", user)]
    script = called(settings, "setup-auth", "--root", settings.root, *words).stdout
    passwords = {f"{role.upper()}_PASSWORD": "secret" for role, _ in ROLES.values()}
    there = {"ETCDCTL_ENDPOINTS": bench.own.endpoint, "PATH": path_with_etcdctl(bench.own)}
    run_to_end("sh", typed=script, env={**passwords, **there})
    etcdctl = etcdctl_of(bench.own)
    for user in ("nobody", "root"):
        etcdctl("user", "add", f"{user}:secret")
    etcdctl("auth", "enable")

    def as_user(user: str) -> Found:
        return examine(Settings(settings.endpoints, settings.root, user=user, password="secret"))

    for user, (_, may) in ROLES.items():
        found = as_user(user)
        rights = [finding["text"] for finding in found if finding["check"] == "rights"]
        assert f"The user '{user}' {may}" in rights[0]
        says(found, "auth", ("ok", "etcd asks its clients for a user."))
        says(found, "pages", ("ok", "asks it for a user"))
        # Its level depends on this machine's load.
        (latency,) = [finding["text"] for finding in found if finding["check"] == "latency"]
        assert ("reads" if user == "eve" else "unlocks") in latency
    says(as_user("nobody"), "etcd", ("error", "setup-auth"))


@pytest.mark.parametrize("asks", [True, False])
def test_clients_with_a_certificate(etcd_binary: str, tmp_path: Path, *, asks: bool) -> None:
    """An etcd that lets in nobody without one, and one that lets in everybody."""
    authority = Authority(tmp_path)
    server, client = authority.issue("127.0.0.1", "localhost"), authority.issue(user="client")
    files = {"cacert": authority.cacert, "cert": client.cert, "key": client.key}
    variables: dict[str, Any] = {f"ETCDCTL_{name.upper()}": file for name, file in files.items()}
    folders = (tmp_path / "etcd", tmp_path / "etcd.log")
    with TlsEtcd(authority, server, etcd_binary, *folders, ask_clients=asks) as etcd:
        found = examine(made_of(None, [etcd.endpoint], files), **variables)
    only = ("ok", "lets in clients with a certificate only")
    says(found, "auth", only if asks else ("warning", "asks for no user"))


# ---------------------------------------------------------------- any store


class Examined(MemoryStore):
    """A store in memory whose clients write something while `doctor` listens."""

    meanwhile: Callable[[MemoryStore], object] | None = None

    def another(self) -> MemoryStore:
        opened = super().another()
        assert isinstance(opened, Examined)
        opened.meanwhile = self.meanwhile
        return opened

    def examine(self) -> Iterator[Any]:
        return iter(())

    def clock_offsets(self, timeout: float) -> list[float]:
        if self.meanwhile:
            self.meanwhile(self)
        return super().clock_offsets(timeout)


class Unreadable(Examined):
    """The waiters are unknown: there is no answer, or all tickets are too long."""

    answers = False

    def tickets(self, *_: Any) -> Any:
        if self.answers:
            return Tickets()
        raise StoreUnavailable("The store did not answer in time.")


def _unlockers(store: MemoryStore) -> None:
    for name, said in {"a": '{"version": "1.2"}', "b": "[" * 100_000, "c\x1b": '"text"'}.items():
        store.write(("unlockers", name, "", said.encode()))


def _announce(said: str) -> Callable[[MemoryStore], object]:
    return lambda store: store.write(("unlockers", "u", "", said.encode()))


def _ill_locks(store: MemoryStore) -> None:
    store.take("fine")
    store.take("past", held_for=310)
    store.take("gone", held_for=905)
    store.take("ever", unlock=None)
    store.take("new", format=2)
    store.take("long", max_hold=50)
    store.write(("locks", "odd", "uuid", b"u"))


def _deadlock(store: MemoryStore) -> None:
    for name, other in (("x", "y"), ("y", "x")):
        store.take(name, actor=f"of-{name}")
        store.wait(other, "t", hostname="h", pid=1, actor=f"of-{name}", since=time.time() - 60)


ILL = [
    ("error", "'odd') is broken"),
    ("warning", "'past') is past the alert"),
    ("warning", "'gone') is past the auto-unlock and still there, for 5 s"),
    ("warning", "'long') is held for longer than its max_hold"),
    ("warning", "'ever') is without an auto-unlock"),
    ("warning", "'new') is undecided"),
    ("ok", "7 locks held: 2 well, 5 not, as listed above."),
]


@pytest.mark.parametrize(
    ("check", "write", "expected"),
    [
        ("unlocker", lambda _: None, [("error", "No unlocker is running")]),
        ("unlocker", _unlockers, [("ok", r"3 running: a (version 1.2), b, c\x1b.")]),
        (
            "unlocker",
            _announce('{"failing": ["ops"]}'),
            [("ok", "1 running"), ("warning", "by ops have failed for ten minutes or longer")],
        ),
        (
            "unlocker",
            _announce('{"damaged": ["ops"]}'),
            [("ok", "1 running"), ("warning", "Unlockers can't read what ops was sent.")],
        ),
        ("locks", lambda _: None, [("ok", "No lock is held.")]),
        ("locks", _ill_locks, ILL),
        # An unlocker would have removed it long ago.
        ("locks", lambda store: store.take("x", held_for=1500), [("error", "10 min"), ("ok", "")]),
        (
            "locks",
            lambda store: [store.take(f"n{number}", held_for=310) for number in range(7)],
            [("warning", "7 locks ('n0', 'n1', 'n2', 'n3', 'n4' and 2 more)"), ("ok", "")],
        ),
        ("locks", _deadlock, [("warning", "unless one of these waits has a limit"), ("ok", "")]),
        # A found stamp may be of any moment before: it shows a clock that is ahead, no other.
        ("clock", lambda store: store.take("x", held_for=600), [("ok", "A store in memory.")]),
        (
            "clock",
            lambda store: store.take("x", held_for=-29.9),
            [("warning", "The clock of host worker-1 is 29 s ahead of this machine's. Set both")],
        ),
        (
            "clock",
            _announce('{"clocks": "unknown"}'),
            [("warning", "can't compare clocks"), ("ok", "")],
        ),
    ],
)
def test_findings_in_any_store(
    check: str, write: Callable[[MemoryStore], object], expected: list[tuple[str, str]]
) -> None:
    store = Examined()
    write(store)
    says(examine(store), check, *expected)


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        (False, ("error", "Who waits for what can't be read.")),
        (True, ("warning", "have too long tickets")),
    ],
)
def test_unreadable_waiters(*, answers: bool, expected: tuple[str, str]) -> None:
    store = Unreadable()
    Unreadable.answers = answers
    store.take("x")
    store.wait("x", "t", hostname="h")
    says(examine(store), "locks", expected, ("ok", "1 lock held"))


def test_clocks_are_compared_by_new_writes() -> None:
    store = Examined()
    store.take("x", held_for=60)
    _unlockers(store)

    def meanwhile(other: MemoryStore) -> None:
        other.push("x", alert=300.0 - 30.5, unlock=900.0 - 30.5)
        for name, ahead in (("a", 40.9), ("b", 0), ("c\x1b", 0)):
            other.write(("unlockers", name, "", json.dumps({"now": time.time() + ahead}).encode()))

    store.meanwhile = meanwhile
    says(
        examine(store, "60"),
        "clock",
        ("warning", "The clock of unlocker a is 40 s ahead of this machine's."),
        ("warning", "The clock of host worker-1 is 30 s behind this machine's."),
    )


def test_for_people() -> None:
    """A line for each check, its level in colour, what to do after an arrow, the sum at the end."""
    store = Examined()
    store.take("x", held_for=310)
    words = ("doctor", "--listen", "0")
    wide, narrow = (called(store, *words, columns=columns, status=2) for columns in (400, 50))
    assert "\x1b[32m\x1b[1mok" in wide.stdout
    assert "\x1b[31m\x1b[1merror" in wide.stdout
    *lines, total = shown(wide).splitlines()
    assert total == "error: 1, warning: 1, ok: 2"
    assert lines[0].startswith("error    unlocker  No unlocker is running")
    assert " → Start" in lines[0]
    assert called(store, *words, status=2).stdout.splitlines() == [*lines, total]
    assert max(map(len, shown(narrow).splitlines())) <= 50
    assert shown(narrow).split() == shown(wide).split()
    for columns in range(45, 70):  # neither a command is broken, nor a number from its unit
        lines = shown(called(store, *words, columns=columns, status=2)).splitlines()
        for whole in ("`clustermutex show NAME`", "Within 2 s"):
            assert any(whole in line for line in lines), columns
