"""`clustermutex doctor`: each finding with and without its fault, the format, the exit status."""

from __future__ import annotations

import ast
import inspect
import json
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from lockclient import ClusterMutex, Settings
from lockclient.cli.operate import doctor, doctor_checks
from lockclient.cli.setup.etcd_server import Etcd, etcd_version
from lockclient.settings import made_of
from lockclient.stores.etcd import diagnosis as etcd_diagnosis
from lockclient.stores.etcd.releases import DATA_LOSS_VERSIONS
from lockclient.stores.gcs import diagnosis as gcs_diagnosis
from lockclient.stores.service_protocol import ServiceStore
from lockclient.stores.valkey import diagnosis as valkey_diagnosis
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


def of(findings: Found, check: str) -> list[tuple[str, str]]:
    return [
        (finding["level"], finding["text"]) for finding in findings if finding["check"] == check
    ]


def says(findings: Found, check: str, *expected: tuple[str, str]) -> None:
    """See that this is what a check found: its levels, and parts of the texts."""
    found = of(findings, check)
    assert [level for level, _ in found] == [level for level, _ in expected], found
    for (_, text), (_, part) in zip(found, expected, strict=True):
        assert part in text


# ---------------------------------------------------------------- each finding


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
for _said, (_, _case) in CASES.items():
    BY_CASE[_case].append(_said)


@pytest.mark.parametrize("case", BY_CASE, ids=lambda case: BY_CASE[case][0])
def test_a_finding_is_told_of_what_has_it_alone(bench: Bench, case: Case) -> None:
    number = 0
    for number, settings in enumerate(case(bench)):
        faults = [finding for finding in examine(settings) if finding["level"] != "ok"]
        text = "\n".join(f"{finding['text']} {finding['advice']}" for finding in faults)
        assert [said in text for said in BY_CASE[case]] == [number == 1] * len(BY_CASE[case]), text
    assert number


def _found_in(module: ModuleType) -> int:
    """Count what a module finds fault with: rows of a table are as many."""
    found = 0
    for function in ast.walk(ast.parse(inspect.getsource(module))):
        if not isinstance(function, ast.FunctionDef):
            continue
        rows = sum(
            len(loop.iter.elts)
            for loop in ast.walk(function)
            if isinstance(loop, ast.For) and isinstance(loop.iter, ast.Tuple)
        )
        sites = [call for call in ast.walk(function) if _finds_fault(call)]
        found += (rows or len(sites)) if sites else 0
    return found


def _finds_fault(node: ast.AST) -> bool:
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name)):
        return False
    made = {"Finding", "_version_warning", "_harm", "_cost"}
    return node.func.id in made and not any(ast.unparse(word) == "FINE" for word in node.args)


def test_no_finding_is_without_a_case() -> None:
    """One that is added needs a case in `doctor_cases.py`, with and without."""
    modules = (doctor, doctor_checks, etcd_diagnosis, valkey_diagnosis, gcs_diagnosis)
    found = {module.__name__: _found_in(module) for module in modules}
    assert found == Counter(where for where, _ in CASES.values())


# ---------------------------------------------------------------- of any store


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


def _unlockers(store: MemoryStore) -> None:
    for name, said in {"a": '{"version": "1.2"}', "b": "[" * 100_000, "c\x1b": '"text"'}.items():
        store.write(("unlockers", name, "", said.encode()))


def _ill_locks(store: MemoryStore) -> None:
    store.take("fine")
    store.take("past", held_for=310)
    store.take("gone", held_for=905)
    store.take("ever", unlock=None)
    store.take("new", needs=["two-keys"])
    store.write(("locks", "odd", "uuid", b"u"))


ILL = [
    ("error", "'odd') is broken"),
    ("warning", "'past') is past the alert"),
    ("warning", "'gone') is past the auto-unlock and still there, for 5 s"),
    ("warning", "'ever') is without an auto-unlock"),
    ("warning", "'new') is undecided"),
    ("ok", "6 locks held: 2 well, 4 not, as told above."),
]


@pytest.mark.parametrize(
    ("check", "write", "expected"),
    [
        ("unlocker", _unlockers, [("ok", r"3 running: a (version 1.2), b, c\x1b.")]),
        ("locks", _ill_locks, ILL),
        # An unlocker would have removed it long ago.
        ("locks", lambda store: store.take("x", held_for=1500), [("error", "10 min"), ("ok", "")]),
        (
            "locks",
            lambda store: [store.take(f"n{number}", held_for=310) for number in range(7)],
            [("warning", "7 locks ('n0', 'n1', 'n2', 'n3', 'n4' and 2 more)"), ("ok", "")],
        ),
        # A found stamp may be of any moment before: it shows a clock that is ahead, no other.
        ("clock", lambda store: store.take("x", held_for=600), [("ok", "A store in memory.")]),
        (
            "clock",
            lambda store: store.take("x", held_for=-29.9),
            [("warning", "The clock of host worker-1 is 29 s ahead of this machine's.")],
        ),
    ],
)
def test_what_is_found_in_any_store(
    check: str, write: Callable[[MemoryStore], object], expected: list[tuple[str, str]]
) -> None:
    store = Examined()
    write(store)
    says(examine(store), check, *expected)


def test_clocks_by_what_is_written_meanwhile() -> None:
    """A push and an announcement that come while it listens show a clock that is behind."""
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


# ---------------------------------------------------------------- real stores


def test_a_healthy_cluster(
    settings: Settings, store: ServiceStore, etcd_binary: str, etcdctl: Etcdctl
) -> None:
    """Members, versions, latency, rights, the unlocker, clocks and locks: and nothing written."""
    version = etcd_version(etcd_binary)
    with unlocker_on(settings) as running, ClusterMutex("x", store=store):
        wait_until(lambda: of(examine(settings), "unlocker")[0][0] == "ok", what="the unlocker")
        before = etcdctl("get", "--prefix", "", "--keys-only")
        found = examine(settings, "8")
        after = etcdctl("get", "--prefix", "", "--keys-only")
        assert set(after.split()) <= set(before.split())  # others' leases may end meanwhile
        assert running.terminate() == 0
    answers = f"{settings.endpoints[0]} answers, version {version}, the leader"
    says(found, "member", ("ok", answers))
    says(found, "cluster", ("ok", "1 member: default ("))
    warnings = ["warning"] * (version in DATA_LOSS_VERSIONS)
    notes = ["ok"] * version.startswith(("3.5.", "3.6."))
    assert [level for level, _ in of(found, "version")] == warnings + notes
    says(found, "latency", ("ok", "50 transactions (unlocks of nothing): p50 "))
    says(found, "rights", ("ok", "client, unlocker, dashboard, operator"))
    says(found, "auth", ("warning", "asks for no user"))
    says(found, "unlocker", ("ok", "1 running: unlocker@"))
    says(found, "clock", ("ok", "etcd at "))
    assert "unlocker unlocker@" in of(found, "clock")[0][1], "its heartbeat was heard"
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
    says(found, "latency", ("ok", "50 reads of a lock that nobody has: p50 "))
    says(found, "clock", ("ok", "Google Cloud Storage"))
    says(found, "locks", ("ok", "1 lock held"))
    server.denied = {"storage.objects.list"}
    found = examine(settings, status=2)
    says(found, "rights", ("error", "storage.objects.list on the bucket locks, which is needed to"))
    says(found, "gcs", ("error", "storage.objects.list"))
    (only,) = of(examine(Settings.load("gs://another"), status=2), "gcs")
    assert "Create the bucket" in only[1]


def test_an_etcd_that_pages_reach_by_a_name_of_their_own(bench: Bench) -> None:
    """A gateway needs no origin for that."""
    found = examine(bench.restarted(*OPEN[:2]))
    assert [level for level, _ in of(found, "pages")] == ["warning"]
    says(found, "member", ("ok", ", the leader"))


def test_an_etcd_that_knows_itself_by_another_name(bench: Bench) -> None:
    """A list of hosts that lacks one is told as that, and not as an etcd that is none."""
    bench.restarted("--host-whitelist=127.0.0.1")
    found = examine(Settings((f"localhost:{bench.own.port}",)))
    says(found, "member", ("error", "--host-whitelist"))


ROLES = {
    "shop": ("client", "may do what these need: client, dashboard."),
    "ann": ("operator", "may do what these need: dashboard, operator."),
    "eve": ("dashboard", "may do what these need: dashboard. It may not write to locks, queue"),
}


def test_users_and_their_rights(bench: Bench) -> None:
    """By what etcd lets each do; a user without any role is told what to do."""
    settings = bench.restarted("--bcrypt-cost=4", *OPEN)
    words = [word for user, (role, _) in ROLES.items() for word in (f"--{role}", user)]
    script = called(settings, "setup-auth", "--root", settings.root, *words).stdout
    passwords = {f"{role.upper()}_PASSWORD": "secret" for role, _ in ROLES.values()}
    there = {"ETCDCTL_ENDPOINTS": bench.own.endpoint, "PATH": path_with_etcdctl(bench.own)}
    run_to_end("sh", typed=script, env={**passwords, **there})
    etcdctl = etcdctl_of(bench.own)
    etcdctl("user", "add", "nobody:secret")
    etcdctl("user", "add", "root:secret")
    etcdctl("auth", "enable")

    def as_user(user: str, status: int | None = None) -> Found:
        where = Settings(settings.endpoints, settings.root, user=user, password="secret")
        return examine(where, status=status)

    for user, (_, may) in ROLES.items():
        found = as_user(user)
        assert f"The user '{user}' {may}" in of(found, "rights")[0][1]
        says(found, "auth", ("ok", "etcd asks its clients for a user."))
        says(found, "pages", ("ok", "asks it for a user"))
        assert f"({'reads' if user == 'eve' else 'unlocks'}" in of(found, "latency")[0][1]
    found = as_user("nobody", 2)
    says(found, "etcd", ("error", "permission denied"))
    says(found, "etcd", ("error", "setup-auth"))


@pytest.mark.parametrize("asks", [True, False])
def test_who_is_let_in_by_a_certificate(etcd_binary: str, tmp_path: Path, *, asks: bool) -> None:
    """An etcd that lets nobody in without one, and one that lets in whoever reaches it."""
    authority = Authority(tmp_path)
    server, client = authority.issue("127.0.0.1", "localhost"), authority.issue(user="client")
    files = {"cacert": authority.cacert, "cert": client.cert, "key": client.key}
    variables: dict[str, Any] = {f"ETCDCTL_{name.upper()}": file for name, file in files.items()}
    folders = (tmp_path / "etcd", tmp_path / "etcd.log")
    with TlsEtcd(authority, server, etcd_binary, *folders, ask_clients=asks) as etcd:
        found = examine(made_of(None, [etcd.endpoint], files), **variables)
    (auth,) = of(found, "auth")
    assert auth[0] == ("ok" if asks else "warning")
    assert ("lets in clients with a certificate only" in auth[1]) == asks
    assert ("with a certificate" in of(found, "rights")[0][1]) == asks


# ---------------------------------------------------------------- its format


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
