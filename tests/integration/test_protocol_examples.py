"""docs/protocol.md keeps its word: its examples run as they stand, its tables are what we do, and
what is done by hand and what `ClusterMutex` does are the same locks."""

from __future__ import annotations

import doctest
import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import dropwhile, takewhile
from pathlib import Path
from time import monotonic
from typing import Any

import etcd3
import pytest

from lockclient import ClusterMutex, LockLost, Settings
from lockclient.cli.setup.etcd_server import Etcd
from lockclient.model.fields import ABOUT
from lockclient.model.holder import FACTS, REQUIRED, SUBKEYS
from lockclient.stores.common.segments import encode
from lockclient.stores.outcomes import ReadResult
from lockclient.stores.service_store import ServiceStore
from tests.support import documents
from tests.support.etcd_binary import path_with_etcdctl
from tests.support.locks import has, read
from tests.support.locks import held as holder_of
from tests.support.processes import needed, run_to_end, wait_until
from tests.support.unlocker_process import fetch, figure, mutexdash, unlocker, when_ready

PAGE = documents.text("protocol.md")
NAME = "nightly-report"
A = "aaaaaaaa-0000-4000-8000-000000000001"
B = "bbbbbbbb-0000-4000-8000-000000000002"
C = "cccccccc-0000-4000-8000-000000000003"
CUT = "-- 8< --"


@dataclass
class Example:
    """A block of shell, the section that it stands in, and what the page says that it prints."""

    section: str
    code: str
    printed: str = ""


EXAMPLES: list[Example] = []
for _section, _kind, _code in documents.blocks("protocol.md", "sh", "text"):
    if _kind == "text":
        EXAMPLES[-1].printed = _code
    else:
        EXAMPLES.append(Example(_section, _code))
(CLIENT,) = [example for example in EXAMPLES if example.code.startswith("#!/bin/sh")]
STORY = [example for example in EXAMPLES if example is not CLIENT]
DEFINED = re.findall(
    r"^\w+\(\) \{.*?^\}$", "\n".join(example.code for example in STORY), re.MULTILINE | re.DOTALL
)
"""The functions of all sections: some use those of others."""


class Shell:
    """A shell in which the page's examples run against the test's etcd and root."""

    def __init__(self, etcd: Etcd, root: str, folder: Path) -> None:
        self._folder = folder
        self._root = root
        needed("curl")
        path = path_with_etcdctl(etcd)
        self._env = {"PATH": path, "ROOT": root, "ETCDCTL_ENDPOINTS": etcd.endpoint}

    def run(self, *sections: str, hasty: bool = False) -> list[tuple[Example, str]]:
        """Run the examples of these sections, or all; return each with what it printed.

        `hasty` makes seconds of the 5 and 15 minutes after which a lock is alerted on and removed.
        """
        chosen = [each for each in STORY if not sections or each.section in ("Examples", *sections)]
        words = ["set -eu", *DEFINED, *(f"{each.code}\necho '{CUT}'\n" for each in chosen)]
        script = "\n".join(words)
        if hasty:
            script = re.sub(r"([+:] ?)300\b", r"\g<1>2", script)
            script = re.sub(r"([+:] ?)900\b", r"\g<1>5", script)
        printed = self.sh(script).split(f"{CUT}\n")
        return list(zip(chosen, printed[:-1], strict=True))

    def sh(self, script: str) -> str:
        done = run_to_end("sh", typed=script, folder=self._folder, env=self._env)
        return done.stdout.replace(self._root, "/clustermutex")


@pytest.fixture(scope="module")
def etcd(etcd_binary: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Etcd]:
    """One with a gateway, which the examples send JSON to; the etcd of all other tests has none."""
    folder = tmp_path_factory.mktemp("etcd")
    server = Etcd(etcd_binary, folder / "data", folder / "etcd.log")
    server.extra = ["--enable-grpc-gateway=true"]
    with server:
        yield server


@pytest.fixture
def shell(etcd: Etcd, root: str, tmp_path: Path) -> Shell:
    (tmp_path / "lock.sh").write_text(CLIENT.code, encoding="utf-8")
    return Shell(etcd, root, tmp_path)


@pytest.fixture
def foreign(etcd: Etcd) -> Iterator[Any]:
    """The independent client: python3-etcd3."""
    client = etcd3.client(host="127.0.0.1", port=etcd.port)
    yield client
    client.close()


@contextmanager
def held(mutex: ClusterMutex) -> Iterator[None]:
    assert mutex.acquire(blocking=False)
    try:
        yield
    finally:
        mutex.release()


def seen(store: ServiceStore, uuid: str | None = None) -> ReadResult:
    """Read the examples' lock, its line, and a removal."""
    return read(store, NAME, uuid)


def table_under(heading: str) -> list[list[str]]:
    """Return the cells of the first table below a heading, without backquotes."""
    lines = PAGE.partition(f"# {heading}\n")[2].splitlines()
    rows = takewhile(lambda line: line[:1] == "|", dropwhile(lambda line: line[:1] != "|", lines))
    cells = [[cell.strip(" `") for cell in row.strip("|").split("|")] for row in rows]
    return cells[2:]


# ---------------------------------------------------------------- the examples


def test_the_examples_print_the_shown_output(shell: Shell) -> None:
    checker = doctest.OutputChecker()
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    for example, printed in shell.run():
        assert checker.check_output(example.printed, printed, flags), (
            f"{example.section}:\n{example.code}\nsays\n{example.printed}\nand printed\n{printed}"
        )


def test_every_transaction_has_an_example() -> None:
    """Each name in the table of transactions leads to a section that shows it."""
    links = re.findall(r"^\| \[[\w -]+\]\(#([\w-]+)\)", PAGE, re.MULTILINE)
    shown = {each.section.lower().replace(" ", "-") for each in STORY}
    assert len(links) == 11
    assert set(links) <= shown


@pytest.mark.parametrize(
    "sections", [("Push",), ("Unlock",), ("Take", "Take or queue", "Claim")], ids=" ".join
)
def test_an_example_at_the_wrong_time_changes_nothing(
    sections: tuple[str, ...], shell: Shell, store: ServiceStore
) -> None:
    """Its comparisons, and not the order of the page, are what keeps it from doing harm."""
    *earlier, last = ("Examples", *sections)
    shell.run(*earlier)
    before = seen(store)
    assert shell.run(last)[-1][1].startswith("FAILURE")
    after = seen(store)
    assert (after.holder, after.waiters, after.removal) == (before.holder, before.waiters, None)


def test_take_or_queue_takes_a_free_lock(shell: Shell, store: ServiceStore) -> None:
    for _ in range(2):
        shell.run("Take or queue")
        assert has(store, NAME) == B
        assert [ticket.uuid for ticket in seen(store).waiters] == [C]


# ---------------------------------------------------------------- by hand and by us


def test_a_lock_made_by_hand_is_respected(shell: Shell, store: ServiceStore) -> None:
    """It refuses us until it is unlocked by hand, and shows its holder."""
    shell.run("Take")
    mutex = ClusterMutex(NAME, store=store)
    assert not mutex.acquire(blocking=False)
    holder = holder_of(store, NAME)
    assert (holder.uuid, holder.hostname, holder.pid) == (A, "web-1", 4711)
    assert (holder.reason, holder.identity) == ("totals", "worker-7")
    assert holder.alive_at == holder.locked_at
    assert holder.faults() == ()
    assert holder.undecided() == ""
    assert holder.fencing_token > 0

    shell.run("Unlock")
    with held(mutex):
        assert mutex.fencing_token > holder.fencing_token


def test_a_lock_made_by_hand_is_shown_alerted_on_and_removed(
    shell: Shell, store: ServiceStore, settings: Settings
) -> None:
    """mutexdash and unlocker treat it like any other."""
    with when_ready(unlocker(settings)) as service, when_ready(mutexdash(settings)) as dash:
        shell.run("Take", hasty=True)
        (lock,) = wait_until(
            lambda: json.loads(fetch(dash, "/api/locks")[1])["locks"], what="the dashboard"
        )
        assert (lock["name"], lock["uuid"], lock["hostname"]) == (NAME, A, "web-1")
        series = f'clustermutex_lock_past_alert_seconds{{name="{NAME}"}}'
        wait_until(lambda: figure(service, series), what="the alert")
        removal = wait_until(lambda: seen(store, A).removal, what="the removal")
        assert removal.how == "auto-unlock"
        assert removal.holder.reason == "totals"
        assert has(store, NAME) is None


def test_a_lock_of_four_keys_is_alerted_on_and_removed(
    shell: Shell, store: ServiceStore, settings: Settings
) -> None:
    """The page's rule: not before the time between its two stamps has passed."""
    with when_ready(unlocker(settings)) as service:
        written_after = monotonic()
        shell.run("A lock of four keys", hasty=True)
        removal = wait_until(lambda: read(store, "backup", A).removal, what="the removal")
        assert monotonic() > written_after + 3
        assert (removal.how, removal.holder.auto_unlock_after) == ("auto-unlock", None)
        assert removal.removed_at
        assert removal.holder.auto_unlock_at
        assert removal.removed_at > removal.holder.auto_unlock_at
        assert "Lock 'backup' is past its alert" in service.log_text()


def test_a_lock_of_ours_refuses_a_take_by_hand(shell: Shell, store: ServiceStore) -> None:
    """The first example of the page says FAILURE and our uuid."""
    mutex = ClusterMutex(NAME, store=store)
    with held(mutex):
        first = shell.run("Take")[1][1]
        refused = ["FAILURE", f"/clustermutex/locks/{NAME}/uuid", mutex.uuid]
        assert first.split() == 2 * refused


def test_manual_tickets_form_a_queue(shell: Shell, store: ServiceStore) -> None:
    shell.run("Take", "Take or queue")
    first, second = seen(store).waiters
    assert (first.uuid, second.uuid) == (B, C)
    assert (first.hostname, first.pid) == ("web-2", 12)
    assert first.since is not None

    shell.run("Withdraw")
    assert [ticket.uuid for ticket in seen(store).waiters] == [B]


def test_removals_made_by_hand_are_records_to_us(shell: Shell, store: ServiceStore) -> None:
    """One by an unlocker and one by a person; nothing else is left behind by the examples."""
    shell.run()
    for uuid, how, by in ((B, "auto-unlock", "unlocker-1"), (C, "force-unlock", "ann")):
        removal = seen(store, uuid).removal
        assert removal is not None
        assert (removal.how, removal.removed_by) == (how, by)
        assert removal.holder.uuid == uuid
        assert removal.removed_at is not None
        assert removal.why
    left = seen(store)
    assert left.holder is None
    assert left.waiters == ()


def test_the_complete_client_and_ours_exclude_each_other(shell: Shell, store: ServiceStore) -> None:
    """In both directions, and what the script writes is a sound lock."""
    mutex = ClusterMutex("deploy/prod", store=store)
    shell.sh("sh lock.sh take deploy%2Fprod me")
    assert not mutex.acquire(blocking=False)
    holder = holder_of(store, "deploy/prod")
    assert holder.uuid == "me"
    assert holder.faults() == ()
    assert holder.undecided() == ""
    assert holder.alive_at == holder.locked_at
    assert holder.pid is not None
    shell.sh("sh lock.sh push deploy%2Fprod me")
    pushed = holder_of(store, "deploy/prod")
    assert pushed.stamp_revisions > holder.stamp_revisions
    assert pushed.undecided() == ""
    # The answer to the first sending may have been lost: the second says the same.
    shell.sh("sh lock.sh take deploy%2Fprod me")
    shell.sh("sh lock.sh unlock deploy%2Fprod me")
    with held(mutex):
        assert shell.sh("sh lock.sh take deploy%2Fprod me || echo $?") == "1\n"
        assert shell.sh("sh lock.sh push deploy%2Fprod me || echo $?") == "1\n"
        assert shell.sh("sh lock.sh unlock deploy%2Fprod me || echo $?") == "1\n"
        mutex.check_health()


def test_the_complete_client_reports_an_unknown_outcome(shell: Shell) -> None:
    away = "ETCDCTL_ENDPOINTS=127.0.0.1:1 sh lock.sh"
    assert shell.sh(f"{away} take x me 2>/dev/null || echo $?") == "2\n"


def test_a_lock_of_ours_is_read_by_an_independent_client(
    foreign: Any, root: str, store: ServiceStore
) -> None:
    """python3-etcd3 finds the documented keys and values, and can unlock as the page says."""
    mutex = ClusterMutex(NAME, store=store, reason="rebuild 🔒", expected_runtime=300)
    assert mutex.acquire(blocking=False)
    prefix = f"{root}/locks/{NAME}/"
    found = {
        meta.key.decode().removeprefix(prefix): (value.decode(), meta)
        for value, meta in foreign.get_prefix(prefix)
    }
    assert set(REQUIRED) <= set(found) <= {row[0] for row in table_under("Subkeys of a lock")}
    value = {subkey: text for subkey, (text, _) in found.items()}
    about = json.loads(value["about"])
    assert set(about) <= {row[0] for row in table_under("About")}
    assert value["uuid"] == mutex.uuid
    assert (about["reason"], about["pid"]) == ("rebuild 🔒", os.getpid())
    assert found["uuid"][1].mod_revision == mutex.fencing_token
    for stamp, after in (("alert_at", "expected_runtime"), ("auto_unlock_at", "auto_unlock_after")):
        assert re.fullmatch(r"\d+\.\d{3}", value[stamp])
        assert float(value[stamp]) - about[after] == pytest.approx(about["locked_at"], abs=0.002)
    assert __file__ in about["backtrace"]

    uuid = foreign.transactions.value(f"{prefix}uuid")
    refused, _ = foreign.transaction(
        [foreign.transactions.version(f"{prefix}uuid") == 0],
        [foreign.transactions.put(f"{prefix}uuid", "barger")],
        [],
    )
    assert not refused
    keys = [foreign.transactions.delete(f"{prefix}{subkey}") for subkey in found]
    unlocked, _ = foreign.transaction([uuid == mutex.uuid], keys, [])
    assert unlocked
    wait_until(lambda: not mutex.healthy, what="the holder to learn that its lock is gone")
    with pytest.raises(LockLost):
        mutex.release()


# ---------------------------------------------------------------- the tables


def test_names_are_encoded_as_documented() -> None:
    rows = table_under("Names")
    assert len(rows) == 8
    assert {name: encode(name) for name, _ in rows} == dict(rows)


def test_the_subkeys_are_documented() -> None:
    rows = table_under("Subkeys of a lock")
    assert sorted(row[0] for row in rows) == sorted(SUBKEYS)
    assert sorted(row[0] for row in rows if row[1] == "yes") == sorted(REQUIRED)


def test_the_facts_of_about_are_documented() -> None:
    rows = table_under("About")
    assert {(row[0], row[1]) for row in rows} == {
        (each.name, each.kind) for each in FACTS if each.place == ABOUT
    }


def test_the_facts_of_a_removal_are_documented() -> None:
    section = PAGE.partition("### Removals\n")[2].partition("\n## ")[0]
    recorded = {each.name for each in FACTS if each.in_json and each.place != ABOUT}
    recorded |= {"removed_at", "removed_by", "how", "why", "backtrace", "code"}
    assert recorded == set(re.findall(r"`(\w+)`", section)) - {"about", "process"}
