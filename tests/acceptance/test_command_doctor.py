"""`clustermutex doctor` on real clusters, healthy and ill."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lockclient import ClusterMutex, Settings
from lockclient.cli.setup.etcd_server import Etcd, etcd_version
from lockclient.settings import made_of
from lockclient.stores.etcd.releases import DATA_LOSS_VERSIONS
from lockclient.stores.etcd.store import EtcdStore
from tests.support.certificates import Authority, TlsEtcd
from tests.support.clock_shim import Clock, compile_library
from tests.support.etcd_binary import (
    OPEN,
    Etcdctl,
    etcdctl_of,
    exhaust_space,
    frozen,
    path_with_etcdctl,
)
from tests.support.locks import HolderProcess, read
from tests.support.processes import Service, run_to_end, wait_until
from tests.support.terminal import called, in_terminal, one_line, piped
from tests.support.unlocker_process import unlocker as unlocker_on


def examine(
    settings: Settings, *words: str, status: int | None = None, **more: str
) -> list[dict[str, Any]]:
    """Return what it finds, having seen that the exit status is that of the worst."""
    run = piped if more else called  # what is to change a process needs one
    words = (*("doctor", "--json"), *(words or ("--listen", "0")))
    done = run(settings, *words, status=None, **more)
    said = json.loads(done.stdout)
    levels = ["ok", "warning", "error"]
    assert levels.index(said["status"]) == done.returncode
    assert done.returncode == max(levels.index(finding["level"]) for finding in said["findings"])
    assert status in (None, done.returncode), said
    found: list[dict[str, Any]] = said["findings"]
    assert all(finding["advice"] for finding in found if finding["level"] != "ok")
    return found


def of(findings: list[dict[str, Any]], check: str) -> list[tuple[str, str]]:
    return [
        (finding["level"], finding["text"]) for finding in findings if finding["check"] == check
    ]


@pytest.fixture
def unlocker(settings: Settings) -> Iterator[Service]:
    with unlocker_on(settings) as service:
        yield service
        assert service.terminate() == 0


def test_a_healthy_cluster(
    settings: Settings, store: EtcdStore, unlocker: Service, etcd_binary: str, etcdctl: Etcdctl
) -> None:
    """Members, versions, latency, rights, the unlocker, clocks and locks: and nothing written."""
    version = etcd_version(etcd_binary)
    wait_until(lambda: of(examine(settings), "unlocker")[0][0] == "ok", what="the unlocker")
    with ClusterMutex("x", store=store):
        before = etcdctl("get", "--prefix", "", "--keys-only")
        found = examine(settings, "--listen", "8")
        after = etcdctl("get", "--prefix", "", "--keys-only")
        assert set(after.split()) <= set(before.split())  # others' leases may end meanwhile
    ((level, text),) = of(found, "member")
    assert level == "ok"
    assert f"{settings.endpoints[0]} answers, version {version}, the leader" in text
    assert of(found, "cluster")[0][1].startswith("1 member: default (")
    warnings = ["warning"] * (version in DATA_LOSS_VERSIONS)
    notes = ["ok"] * version.startswith(("3.5.", "3.6."))
    assert [level for level, _ in of(found, "version")] == warnings + notes
    ((_, text),) = of(found, "latency")
    assert text.startswith("50 transactions (unlocks of nothing): p50 ")
    assert "p99 " in text
    assert "client, unlocker, dashboard, operator" in of(found, "rights")[0][1]
    assert of(found, "auth")[0][0] == "warning"
    assert "1 running: unlocker@" in of(found, "unlocker")[0][1]
    ((level, text),) = of(found, "clock")
    assert level == "ok"
    assert "etcd at " in text
    assert "unlocker unlocker@" in text, "its heartbeat was heard"
    assert of(found, "locks") == [("ok", "1 lock held: 1 well.")]


def test_for_people(settings: Settings) -> None:
    """A line for each check, its level in colour, what to do after an arrow, the sum at the end."""
    with in_terminal(settings, "doctor", "--listen", "0", columns=400) as terminal:
        assert terminal.ended() == 2
        assert "\x1b[32m\x1b[1mok" in terminal.raw
        assert "\x1b[31m\x1b[1merror" in terminal.raw
        *lines, total = terminal.text.splitlines()
        assert total.startswith("error: 1, warning: ")
    said = called(settings, "doctor", "--listen", "0", status=2).stdout
    assert "\x1b" not in said
    assert len(said.splitlines()) == len(lines) + 1
    with in_terminal(settings, "doctor", "--listen", "0", columns=50) as terminal:
        assert terminal.ended() == 2
        broken = terminal.text.splitlines()
    assert max(map(len, broken)) <= 50
    words = {word for line in broken for word in line.split()}
    assert words >= set(next(line for line in lines if "unlocker  No" in line).split())
    assert any(
        line.startswith("error    unlocker  No unlocker") and "→ Start" in line
        for line in said.splitlines()
    )


def test_locks_that_want_looking_at(settings: Settings, store: EtcdStore, etcdctl: Etcdctl) -> None:
    """Past their alert, past their end, broken, never expiring."""
    for name, expected, end in (("past", 0.01, 900.0), ("gone", 0.01, 0.02), ("ever", 300.0, None)):
        mutex = ClusterMutex(name, expected_runtime=expected, auto_unlock_after=end, store=store)
        mutex.acquire()
    etcdctl("put", f"{settings.root}/locks/odd/uuid", "u")
    found = of(examine(settings, status=2), "locks")
    assert [(level, text.split("'")[1]) for level, text in found[:-1]] == [
        ("error", "odd"),
        ("warning", "past"),
        ("warning", "gone"),
        ("warning", "ever"),
    ]


def test_an_etcd_that_is_away_or_hangs(own_etcd: Etcd) -> None:
    """An error with what to do, in a few seconds."""
    settings = Settings((own_etcd.endpoint,))
    with frozen(own_etcd):
        found = examine(settings, status=2)
        assert "no answer in 2 s" in of(found, "member")[0][1]
        assert "did not answer in time" in of(found, "etcd")[0][1]
    own_etcd.stop()
    found = examine(settings, status=2)
    assert "connection refused" in of(found, "member")[0][1]
    assert len(found) == 2
    away = Settings((own_etcd.endpoint, "127.0.0.1:1"))
    own_etcd.start()
    assert [level for level, _ in of(examine(away), "member")] == ["ok", "warning"]


def test_out_of_space(own_etcd: Etcd) -> None:
    """The alarm is told, with how to be rid of it."""
    exhaust_space(own_etcd)
    found = examine(Settings((own_etcd.endpoint,)), status=2)
    assert any("NOSPACE" in text for _, text in of(found, "member"))
    assert "the rest is unknown: etcd is out of space" in of(found, "rights")[0][1]
    assert of(found, "latency")[0][1].startswith("50 transactions (reads")


def test_an_etcd_that_does_not_compact(own_etcd: Etcd, own_store: EtcdStore) -> None:
    """It can show what was six hours ago; a compaction is seen by what it can't show any more."""
    settings, etcdctl = Settings((own_etcd.endpoint,)), etcdctl_of(own_etcd)
    assert of(examine(settings), "history")[0][0] == "ok", "new"
    for number, ago in enumerate((6 * 3600, 3600)):
        said = json.dumps({"now": time.time() - ago})
        etcdctl("put", f"{settings.root}/unlockers/u", said)
        with ClusterMutex("x", store=own_store) as mutex:
            for _ in range(20):
                mutex.alive(force=True)
        if number == 0:
            middle = read(own_store, "x").revision
    ((level, text),) = of(examine(settings), "history")
    assert level == "warning"
    assert re.search(
        r"at least (6 h|5 h 59 min).* back\. It is not compacted, and never was\.", text
    )
    etcdctl("compaction", str(middle))
    ((level, text),) = of(examine(settings), "history")
    assert level == "warning", "an hour ago still begins with what was six hours ago"
    assert text.endswith("It is not compacted.")
    etcdctl("compaction", str(read(own_store, "x").revision))
    ((level, text),) = of(examine(settings), "history")
    assert level == "ok"
    assert re.search(r"keeps \d revisions of history, at least (1 h|59 min)", text)


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        ([], False),
        (OPEN, True),
        # A gateway by itself is for programs: a page needs its origin, or a name of its own.
        (OPEN[:1], False),
        ([OPEN[0], OPEN[1]], True),
        ([OPEN[0], OPEN[2]], True),
        (OPEN[1:], False),
    ],
)
def test_an_etcd_that_answers_web_pages(
    etcd_binary: str, tmp_path: Path, flags: list[str], *, told: bool
) -> None:
    """Each that is open in a browser here could forge locks; and the flags that help are told."""
    server = Etcd(etcd_binary, tmp_path / "data", tmp_path / "etcd.log")
    server.extra = flags
    with server:
        found = examine(Settings((server.endpoint,)))
        assert [level for level, _ in of(found, "pages")] == ["warning"] * told
        assert ", the leader" in of(found, "member")[0][1]
        assert of(found, "cluster")[0][1].startswith("1 member: default (")
    advice = [finding["advice"] for finding in found if finding["check"] == "pages"]
    assert all(flag.partition("=")[0] in advice[0] for flag in OPEN if told)


def test_an_etcd_that_knows_itself_by_another_name(etcd_binary: str, tmp_path: Path) -> None:
    """A list of hosts that lacks one is told as that, and not as an etcd that is none."""
    server = Etcd(etcd_binary, tmp_path / "data", tmp_path / "etcd.log")
    server.extra = ["--host-whitelist=127.0.0.1"]
    with server:
        ((level, text),) = of(examine(Settings((f"localhost:{server.port}",))), "member")
        assert (level, "--host-whitelist" in text) == ("error", True)


ROLES = {
    "shop": ("client", "may do what these need: client, dashboard."),
    "ann": ("operator", "may do what these need: dashboard, operator."),
    "eve": ("dashboard", "may do what these need: dashboard. It may not write to locks, queue"),
}


def test_users_and_their_rights(etcd_binary: str, tmp_path: Path) -> None:
    """By what etcd lets each do; a user without any role is told what to do."""
    server = Etcd(etcd_binary, tmp_path / "data", tmp_path / "etcd.log")
    server.extra = ["--bcrypt-cost=4", *OPEN]
    words = [word for user, (role, _) in ROLES.items() for word in (f"--{role}", user)]
    root = Settings().root
    with server:
        script = called(Settings(), "setup-auth", "--root", root, *words).stdout
        passwords = {f"{role.upper()}_PASSWORD": "secret" for role, _ in ROLES.values()}
        endpoint = {"ETCDCTL_ENDPOINTS": server.endpoint, "PATH": path_with_etcdctl(server)}
        run_to_end("sh", typed=script, env={**passwords, **endpoint})
        etcdctl = etcdctl_of(server)
        etcdctl("user", "add", "nobody:secret")
        etcdctl("user", "add", "root:secret")
        etcdctl("auth", "enable")
        for user, (_, told) in ROLES.items():
            found = examine(Settings((server.endpoint,), root, user=user, password="secret"))
            assert f"The user '{user}' {told}" in of(found, "rights")[0][1]
            assert of(found, "auth") == [("ok", "etcd asks its clients for a user.")]
            ((level, text),) = of(found, "pages")
            assert (level, "asks it for a user" in text) == ("ok", True)
            kind = "reads" if user == "eve" else "unlocks"
            assert f"({kind}" in of(found, "latency")[0][1]
        nobody = Settings((server.endpoint,), root, user="nobody", password="secret")
        assert "permission denied" in of(examine(nobody, status=2), "etcd")[0][1]
        assert "setup-auth" in of(examine(nobody, status=2), "etcd")[0][1]


def test_who_is_let_in_by_a_certificate(etcd_binary: str, tmp_path: Path) -> None:
    """An etcd that lets nobody in without one, and one that lets in whoever reaches it."""
    authority = Authority(tmp_path)
    server, client = authority.issue("127.0.0.1", "localhost"), authority.issue(user="client")
    files = {"cacert": authority.cacert, "cert": client.cert, "key": client.key}
    for name, asks in (("asking", True), ("open", False)):
        etcd = TlsEtcd(
            *(authority, server, etcd_binary, tmp_path / name, tmp_path / f"{name}.log"),
            ask_clients=asks,
        )
        with etcd:
            found = examine(
                made_of(None, [etcd.endpoint], files),
                ETCDCTL_CACERT=authority.cacert,
                ETCDCTL_CERT=client.cert,
                ETCDCTL_KEY=client.key,
            )
            ((level, text),) = of(found, "auth")
            assert level == ("ok" if asks else "warning")
            assert ("lets in clients with a certificate only" in text) == asks
            assert ("with a certificate" in of(found, "rights")[0][1]) == asks


def test_bad_settings_are_one_line(settings: Settings) -> None:
    """Before anything is asked."""
    told = one_line(called(settings, "doctor", "--url", "http://x", status=2))
    assert "etcd://" in told


def test_clocks_that_are_wrong(settings: Settings, tmp_path: Path) -> None:
    """The unlocker's and the holders' against this machine's, by what they write while it looks."""
    library = compile_library(tmp_path)
    warden, worker, doctor = (Clock(library) for _ in range(3))
    warden.move(100)
    worker.move(-50)
    pushing = {"keepalive": True, "expected_runtime": 1.6, "auto_unlock_after": 600}
    with (
        unlocker_on(settings, env=warden.env),
        HolderProcess(settings, "x", worker.env, **pushing),
    ):
        wait_until(lambda: of(examine(settings), "unlocker")[0][0] == "ok", what="the unlocker")
        found = of(examine(settings, "--listen", "8"), "clock")
        assert [level for level, _ in found] == ["warning", "warning"]
        assert re.search(
            "unlocker unlocker@.* is 1 min (39|40) s ahead of this machine's", found[0][1]
        )
        assert re.search("host .* is 50 s behind this machine's", found[1][1])
        doctor.move(1000)
        found = of(examine(settings, status=2, **doctor.env), "clock")
        assert re.search(r"etcd at .* is 16 min \d+ s behind this machine's", found[0][1])
