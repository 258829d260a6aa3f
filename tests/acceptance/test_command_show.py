"""`clustermutex show` and `force-unlock`: who holds a lock, and taking it from them."""

from __future__ import annotations

import json
import os
import re
import shlex
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest

from lockclient import ClusterMutex, HeldLock, LockLost, Settings
from lockclient.cli.setup.etcd_server import Etcd
from lockclient.model.holder import Holder
from lockclient.model.ticket import Ticket
from lockclient.stores.etcd.store import EtcdStore
from lockclient.stores.requests import Request, Take, TakeOrQueue, Unlock
from mutexdash.markup.remedies import remedies
from tests.contract.asking import holder
from tests.support.etcd_binary import Etcdctl, exhaust_space
from tests.support.locks import ask, has, queue_up, take
from tests.support.processes import wait_until
from tests.support.terminal import called, in_terminal, one_line


@pytest.fixture
def held(store: EtcdStore) -> Iterator[HeldLock]:
    """A lock with a holder and one waiter."""
    with ClusterMutex("deploy/prod", reason="release 7", identity="me", store=store) as mutex:
        waiter = ClusterMutex("deploy/prod", reason="release 8", store=store)
        thread = queue_up(waiter, 60)
        yield mutex
        if mutex.healthy:
            mutex.release()
        thread.join(60)
        waiter.release()


# ---------------------------------------------------------------- show


def test_all_facts(held: HeldLock, settings: Settings) -> None:
    """Holder, times as a bar, waiters, and the backtrace with its frames."""
    said = called(settings, "show", "deploy/prod").stdout
    record = held.record
    assert "\x1b" not in said
    for fact in (
        "deploy/prod  ok",
        "release 7",
        str(record.uuid),
        str(held.fencing_token),
        "clustermutex/",
        " UTC, in 14 min",
    ):
        assert fact in said
    for label, value in (
        *(("host", record.hostname), ("process", record.pid), ("identity", "me")),
        *(("expected runtime", "5 min"), ("auto-unlock after", "15 min")),
    ):
        assert re.search(rf"  {label} +{value}\n", said)
    assert re.search(r"[█░]*┃[█░]+┃\n", said), "the bar has a notch and an end"
    assert re.search(r"waiters +1\n +1\. .*for 'release 8', for \d+ s now\n", said)
    frames = re.findall(r'File "(.*)", line \d+, in (\w+)\n +(.*)', said)
    assert frames[-1][0] == __file__
    assert frames[-1][1] == "held"
    assert 'with ClusterMutex("deploy/prod"' in frames[-1][2]
    assert len(frames) > 3


def test_on_a_terminal_it_has_colours(held: HeldLock, settings: Settings) -> None:
    """The state in that of the list, the name and the innermost frame bold."""
    with in_terminal(settings, "show", "deploy/prod") as terminal:
        assert terminal.ended() == 0
        assert "\x1b[1mdeploy/prod\x1b[0m  \x1b[32mok" in terminal.raw


def test_json_has_backtrace_and_queue(held: HeldLock, settings: Settings) -> None:
    """Beside what a lock of the list has, and whose deadlock it is in."""
    lock = json.loads(called(settings, "show", "--json", "deploy/prod").stdout)
    (listed,) = json.loads(called(settings, "ls", "--json").stdout)["locks"]
    assert {key: lock[key] for key in listed} == listed
    assert lock.keys() - listed.keys() == {"backtrace", "queue", "remarks"}
    assert __file__ in lock["backtrace"]
    assert [waiter["reason"] for waiter in lock["queue"]] == ["release 8"]


def test_nobody_holds_it(settings: Settings, store: EtcdStore) -> None:
    """Status 1 and a line; its last removal, if there was one."""
    assert "Nobody holds the lock 'x'." in one_line(called(settings, "show", "x", status=1))
    ClusterMutex("x", store=store).acquire()
    called(settings, "force-unlock", "x", "--reason", "gone", "--yes")
    told = one_line(called(settings, "show", "x", status=1))
    assert re.search("force-unlock by .*@.*: gone", told)


def test_nobody_holds_it_and_some_wait(settings: Settings, store: EtcdStore) -> None:
    """Who they are, the next one first."""
    requests: list[Request] = [
        Take(Holder("free", "u1")),
        *(
            TakeOrQueue(Holder("free", ticket.uuid), ticket)
            for ticket in (
                Ticket("free", "w1", "host-1", 71, reason="my turn"),
                Ticket("free", "w2", "host-2", 72),
            )
        ),
        Unlock("free", "u1"),
    ]
    for request in requests:
        ask(store, request)
    done = called(settings, "show", "free", status=1)
    assert re.search(
        r"waiters +2\n +1\. host-1, pid 71, for 'my turn'\n +2\. host-2, pid 72", done.stdout
    )
    assert "Nobody holds the lock 'free'. 2 wait for it; the first" in done.stderr
    assert called(settings, "show", "free", "--json", status=1).stdout == ""


def test_a_broken_lock_says_what_is_wrong(settings: Settings, etcdctl: Etcdctl) -> None:
    """As far as it can be read."""
    about = json.dumps({"pid": "twelve", "backtrace": "no \x1b[31mframes\x07"})
    lock = f"{settings.root}/locks/odd"
    etcdctl("txn", input=f"\nput {lock}/uuid u\nput {lock}/about {json.dumps(about)}\n\n\n")
    said = called(settings, "show", "odd").stdout
    for words in (
        *("odd  broken", "hostname: is missing", "about: pid is not a whole number"),
        r"no \x1b[31mframes\x07",
    ):
        assert words in said


@pytest.fixture
def needy(store: EtcdStore) -> Holder:
    """A lock of a client of the future."""
    now = time.time()
    holder = Holder(
        *("new", "u1", "host-1", 71), locked_at=now, alert_at=now + 300, auto_unlock_at=now + 900,
        expected_runtime=300, auto_unlock_after=900, needs=("two-keys",),
    )  # fmt: skip
    take(store, holder)
    return holder


def test_what_is_undecided_is_told(needy: Holder, settings: Settings) -> None:
    """By a sentence, and no auto-unlock is promised."""
    why = "it needs what this version does not know (two-keys)"
    said = called(settings, "show", "new").stdout
    assert re.search(rf"  undecided +{re.escape(why)}\. People are alerted", said)
    assert re.search(r"  auto-unlock +undecided, [\d-]+ [\d:]+ UTC\n", said)
    assert re.search(r"  needs +two-keys\n", said)
    lock = json.loads(called(settings, "show", "--json", "new").stdout)
    assert (lock["undecided"], lock["state"], lock["needs"]) == (why, "undecided", ["two-keys"])
    assert "\tundecided\n" in called(settings, "ls").stdout


# ---------------------------------------------------------------- force-unlock


def test_it_shows_and_names_the_holder_and_asks(held: HeldLock, settings: Settings) -> None:
    """Yes removes it: the holder is told by whom and why, and the next in line gets it."""
    uuid, pid = held.uuid, held.record.pid
    with in_terminal(settings, "force-unlock", "deploy/prod") as terminal:
        terminal.wait_for("[y/N]")
        asked = terminal.text
        question = asked.splitlines()[-1]
        assert f"pid {pid}, for 'release 7'" in question
        assert str(uuid) in asked
        assert "File" in asked
        assert held.healthy
        terminal.enter("y\n")
        terminal.wait_for("Reason, for the former holder")
        assert held.healthy
        terminal.enter("it hangs\n")
        assert terminal.ended() == 0
        assert "1 waited for it" in terminal.text
    wait_until(lambda: not held.healthy, what="the holder to know")
    with pytest.raises(LockLost, match="it hangs"):
        held.release()
    (removal,) = json.loads(called(settings, "removed", "--json").stdout)["removed"]
    assert removal["uuid"] == uuid
    assert removal["how"] == "force-unlock"
    assert "@" in removal["removed_by"]


@pytest.mark.parametrize("answer", ["n\n", "\n", "\x03"])
def test_no_removes_nothing(held: HeldLock, settings: Settings, answer: str) -> None:
    """Nor does Enter alone, nor Ctrl-C."""
    with in_terminal(settings, "force-unlock", "deploy/prod", "--reason", "x") as terminal:
        terminal.wait_for("[y/N]")
        terminal.enter(answer)
        assert terminal.ended() == (130 if answer == "\x03" else 1)
        assert "Traceback" not in terminal.text
    held.alive(force=True)


def test_a_lock_that_changed_hands_is_not_removed(
    held: HeldLock, settings: Settings, store: EtcdStore
) -> None:
    """Between showing and answering: the one that was shown is gone, the next one stays."""
    with in_terminal(settings, "force-unlock", "deploy/prod", "--reason", "x") as terminal:
        terminal.wait_for("[y/N]")
        before = held.uuid
        held.release()

        wait_until(lambda: has(store, held.name) not in (None, before), what="the next holder")
        uuid = has(store, held.name)
        terminal.enter("y\n")
        assert terminal.ended() == 1
        assert "changed hands" in terminal.text
        assert "release 8" in terminal.text
    assert has(store, held.name) == uuid
    assert json.loads(called(settings, "removed", "--json").stdout)["removed"] == []


def test_without_a_terminal_it_wants_yes(held: HeldLock, settings: Settings) -> None:
    """A script says --yes, or nothing happens; a reason is needed either way."""
    words = ["force-unlock", "deploy/prod"]
    assert "--yes" in one_line(called(settings, *words, "--reason", "x", status=2))
    assert "--reason" in one_line(called(settings, *words, "--yes", status=2))
    assert "--reason" in one_line(called(settings, *words, "--yes", "--reason", " ", status=2))
    held.alive(force=True)


def test_a_script_may_name_the_holder_it_means(held: HeldLock, settings: Settings) -> None:
    """--uuid: only if that one still has it."""
    words = ["force-unlock", "deploy/prod", "--yes", "--reason", "x"]
    told = one_line(called(settings, *words, "--uuid", "another", status=1))
    assert str(held.uuid) in told
    held.alive(force=True)
    said = called(settings, *words, "--uuid", str(held.uuid)).stdout
    assert "Removed: deploy/prod" in said
    wait_until(lambda: not held.healthy, what="the loss")
    with pytest.raises(LockLost):
        held.release()


def test_what_a_page_shows_to_copy_removes_it_whatever_it_is_called(
    settings: Settings, store: EtcdStore
) -> None:
    """In hexadecimal, as no quoting suits every shell: also a uuid that nobody could type."""
    odd = replace(holder("a\u200b'; touch pwned; #"), uuid="u\0\n'")
    take(store, odd)
    (*_, remedy) = remedies(odd, settings.url())
    _, verb, *words = shlex.split(remedy.command)
    words = [verb, "--yes", "--reason", "x", *words]
    said = one_line(called(settings, *words[:-2], "--uuid", "00", *words[-2:], status=1))
    assert "is not held by '\\x00'" in said
    for wrong in ("zz", "ff", "a"):
        said = called(settings, *words[:-1], wrong, status=2).stderr
        assert f"{wrong!r} is no UTF-8 in hexadecimal" in said
    assert "Removed" in called(settings, *words).stdout
    assert not has(store, odd.name)


@pytest.mark.parametrize("uuid", ["", "u" * 70_000])
def test_a_person_can_remove_what_nobody_can_read(
    settings: Settings, store: EtcdStore, etcdctl: Etcdctl, uuid: str
) -> None:
    """Its uuid, or the reason that a terminal of another encoding sends."""
    etcdctl("put", f"{settings.root}/locks/x/hostname", "h")
    etcdctl("put", f"{settings.root}/locks/x/uuid", uuid)
    words = ["force-unlock", "x", "--yes", "--reason", os.fsdecode(b"\xff burnt")]
    assert "Removed" in called(settings, *words).stdout
    assert ClusterMutex("x", store=store).holder() is None


def test_what_a_lock_needs_is_asked_for_a_second_time(
    needy: Holder, settings: Settings, store: EtcdStore
) -> None:
    """On a terminal by a question, without one by a second --yes; else nothing is removed."""
    words = ["force-unlock", "new", "--reason", "x"]
    told = one_line(called(settings, *words, "--yes", status=1))
    assert "needs what this version does not know (two-keys)" in told
    assert "--yes a second time" in told
    for more, answers in (([], "y n"), ([], "n"), (["--yes"], ""), ([], "y y")):
        assert has(store, "new")
        with in_terminal(settings, *words, *more) as terminal:
            for number, answer in enumerate(answers.split(" "), 1):
                wait_until(lambda n=number: terminal.text.count("[y/N]") == n, what="a question")  # type: ignore[misc]
                terminal.enter(f"{answer}\n")
            assert terminal.ended() == (answers != "y y")
            assert ("nothing was removed" in terminal.text) == (answers != "y y")
            asked = "Take the lock despite that?" in terminal.text
            assert asked == (" " in answers or bool(more))
    assert not has(store, "new")
    take(store, replace(needy, uuid="u2"))
    called(settings, *words, "--yes", "--yes")
    assert not has(store, "new")


def test_nothing_to_remove(settings: Settings, etcdctl: Etcdctl) -> None:
    """Nobody holds it, or there are only the remains of a foreign client."""
    words = ["--yes", "--reason", "x"]
    told = one_line(called(settings, "force-unlock", "free", *words, status=1))
    assert "Nobody holds the lock 'free'" in told
    etcdctl("put", f"{settings.root}/locks/odd/hostname", "h")
    assert "no uuid" in one_line(called(settings, "force-unlock", "odd", *words, status=1))


def test_out_of_space_it_asks_before_it_removes_without_a_record(
    own_etcd: Etcd, own_store: EtcdStore
) -> None:
    """Deletes still work there; the record that can't be written goes to stderr."""
    settings = Settings((own_etcd.endpoint,))
    mutex = ClusterMutex("full", store=own_store)
    mutex.acquire()
    exhaust_space(own_etcd)
    words = ["force-unlock", "full", "--reason", "we need it"]
    done = called(settings, *words, "--yes", status=1)
    assert "no record can be kept" in one_line(done)
    assert "give --yes a second time" in one_line(done)
    assert has(own_store, "full")
    done = called(settings, *words, "--yes", "--yes")
    assert '"we need it"' in done.stderr
    assert "Removed: full" in done.stdout
    assert not has(own_store, "full")
    wait_until(lambda: not mutex.healthy, what="the holder to know")
