"""`clustermutex show` and `force-unlock`."""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Iterator, Sequence

import pytest

from lockclient import ClusterMutex, HeldLock, Settings
from lockclient.cli.setup.etcd_server import Etcd
from lockclient.model.clocks import Deadline
from lockclient.model.holder import Holder
from lockclient.stores.outcomes import Outcome
from lockclient.stores.request_types import Remove, Request
from lockclient.stores.service_store import ServiceStore
from mutexdash.markup.next_steps import steps_about_holder
from tests.contract.asking import holder
from tests.support.etcd_binary import Etcdctl, exhaust_space, put_at_once
from tests.support.locks import has, queue_up, take
from tests.support.memory_store import MemoryStore
from tests.support.terminal import called, in_terminal, one_line

NAME = "deploy/prod"


@pytest.fixture
def memory() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def held(memory: MemoryStore) -> Iterator[HeldLock]:
    """A lock with a holder and one waiter."""
    with ClusterMutex(NAME, reason="release 7", identity="me", store=memory) as mutex:
        waiter = ClusterMutex(NAME, reason="release 8", store=memory)
        thread = queue_up(waiter, 60)
        yield mutex
    thread.join(60)
    waiter.release()


# ---------------------------------------------------------------- show


def test_all_facts(held: HeldLock, memory: MemoryStore) -> None:
    """Holder, times as a bar, waiters, and the backtrace with its frames."""
    said = called(memory, "show", NAME).stdout
    record = held.record
    assert "\x1b" not in said
    for fact in (
        *(f"{NAME}  ok", "release 7", str(record.uuid), str(held.fencing_token)),
        *("clustermutex/", " UTC, in 14 min"),
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
    assert frames[-1][:2] == (__file__, "held")
    assert "with ClusterMutex(NAME" in frames[-1][2]
    assert len(frames) > 3
    colours = called(memory, "show", NAME, columns=120).stdout
    assert f"\x1b[1m{NAME}\x1b[0m  \x1b[32mok" in colours
    assert "\x1b[" not in called(memory, "show", NAME, columns=120, NO_COLOR="1").stdout


def test_json_has_backtrace_and_queue(held: HeldLock, memory: MemoryStore) -> None:
    """Beside what a lock of the list has, and whose deadlock it is in."""
    lock = json.loads(called(memory, "show", "--json", NAME).stdout)
    (listed,) = json.loads(called(memory, "ls", "--json").stdout)["locks"]
    assert {key: lock[key] for key in listed} == listed
    assert lock.keys() - listed.keys() == {"backtrace", "queue", "remarks"}
    assert __file__ in lock["backtrace"]
    assert [waiter["reason"] for waiter in lock["queue"]] == ["release 8"]


def test_show_of_a_free_lock(memory: MemoryStore) -> None:
    assert "Nobody holds the lock 'x'." in one_line(called(memory, "show", "x", status=1))
    ClusterMutex("x", store=memory).acquire()
    called(memory, "force-unlock", "x", "--reason", "gone", "--yes")
    told = one_line(called(memory, "show", "x", status=1))
    assert re.search("force-unlock by .*@.*: gone", told)
    memory.wait("x", "w1", hostname="host-1", pid=71, reason="my turn")
    memory.wait("x", "w2", hostname="host-2", pid=72)
    done = called(memory, "show", "x", status=1)
    assert re.search(
        r"waiters +2\n +1\. host-1, pid 71, for 'my turn'\n +2\. host-2, pid 72", done.stdout
    )
    assert "Nobody holds the lock 'x'. 2 wait for it; the first" in done.stderr
    assert called(memory, "show", "x", "--json", status=1).stdout == ""


def test_show_of_a_broken_lock_names_each_problem(memory: MemoryStore) -> None:
    about = {"pid": "twelve", "backtrace": "no \x1b[31mframes\x07"}
    memory.write(
        ("locks", "odd", "uuid", b"u"), ("locks", "odd", "about", json.dumps(about).encode())
    )
    said = called(memory, "show", "odd").stdout
    for words in (
        *("odd  broken", "hostname: is missing", "about: pid is not a whole number"),
        r"no \x1b[31mframes\x07",
    ):
        assert words in said


def test_show_of_an_undecided_lock_says_why(memory: MemoryStore) -> None:
    memory.take("new", format=2)
    why = "its format 2 is newer than the one known here, 1"
    said = called(memory, "show", "new").stdout
    assert re.search(rf"  undecided +{re.escape(why)}\. People are alerted", said)
    assert re.search(r"  auto-unlock +undecided, [\d-]+ [\d:]+ UTC\n", said)
    assert re.search(r"  format +2\n", said)
    lock = json.loads(called(memory, "show", "--json", "new").stdout)
    assert (lock["undecided"], lock["state"], lock["format"]) == (why, "undecided", 2)
    assert "\tundecided\n" in called(memory, "ls").stdout


# ---------------------------------------------------------------- force-unlock


WHY = ("--reason", "it hangs")
NEWER = "its format 2 is newer than the one known here"
UUID = "b6a1e1d2-70a3-4a53-9b5c-8f5d2d3c0001"


@pytest.mark.parametrize(
    ("name", "columns", "words", "typed", "status", "told"),
    [
        # On a terminal it shows the holder and asks: nothing but a yes removes it.
        (NAME, 120, WHY, "n\n", 1, [UUID, "for 'release 7', since ", "The answer was no"]),
        (NAME, 120, WHY, "\n", 1, ["[y/N]", "The answer was no"]),
        (NAME, 120, [], "y\nit hangs\n", 0, [UUID, "1 waited for it"]),
        # A script says --yes, or nothing happens; a reason is needed either way.
        (NAME, 0, WHY, "", 2, ["--yes"]),
        (NAME, 0, ["--yes"], "", 2, ["--reason"]),
        (NAME, 0, ["--yes", "--reason", " "], "", 2, ["--reason"]),
        # It may name the holder that it means.
        (NAME, 0, [*WHY, "--yes", "--uuid", "another"], "", 1, ["is not held by 'another' but by"]),
        (NAME, 0, [*WHY, "--yes", "--uuid", UUID], "", 0, [f"Removed: {NAME}"]),
        # A person may remove a lock of a newer format, and sees that it is one.
        ("new", 120, WHY, "n\n", 1, [NEWER, "The answer was no"]),
        ("new", 120, WHY, "y\n", 0, [NEWER, "Removed: new"]),
        # There is nothing to remove, or only what a foreign client has left.
        ("free", 0, [*WHY, "--yes"], "", 1, ["Nobody holds the lock 'free'"]),
        ("odd", 0, [*WHY, "--yes"], "", 1, ["no uuid"]),
    ],
)
def test_force_unlock_asks_and_removes_the_shown_holder(
    *, memory: MemoryStore, name: str, columns: int, words: Sequence[str], typed: str, status: int,
    told: list[str],
) -> None:  # fmt: skip
    memory.take(NAME, reason="release 7")
    memory.wait(NAME, "w", hostname="h")
    memory.take("new", format=2)
    memory.write(("locks", "odd", "hostname", b"h"))
    before = has(memory, name)
    done = called(memory, "force-unlock", name, *words, columns=columns, typed=typed, status=status)
    assert [part for part in told if part not in done.stdout + done.stderr] == []
    removed = json.loads(called(memory, "removed", "--json").stdout)["removed"]
    if status:
        assert columns or one_line(done)
        assert (has(memory, name), removed) == (before, [])
        return
    assert has(memory, name) is None
    assert [removed[0][key] for key in ("name", "uuid", "how", "why")] == [
        *(name, UUID, "force-unlock", "it hangs")
    ]
    assert "@" in removed[0]["removed_by"]


class ChangesHands(MemoryStore):
    """A store where the lock has the next holder before it can be removed."""

    def another(self) -> MemoryStore:
        return self

    def ask(self, request: Request, deadline: Deadline) -> Outcome:
        if isinstance(request, Remove):
            self.take(NAME, uuid="another", reason="release 8")
        return super().ask(request, deadline)


def test_force_unlock_does_not_remove_the_next_holder() -> None:
    store = ChangesHands()
    store.take(NAME, reason="release 7")
    told = called(store, "force-unlock", NAME, *WHY, columns=120, typed="y\n", status=1).stderr
    assert "changed hands" in told
    assert "release 8" in told
    assert has(MemoryStore(memory=store.memory), NAME) == "another"


def test_ctrl_c_at_the_question_removes_nothing(settings: Settings, store: ServiceStore) -> None:
    with ClusterMutex(NAME, store=store):
        with in_terminal(settings, "force-unlock", NAME, *WHY) as terminal:
            terminal.wait_for("[y/N]: ")  # it reads, and imports nothing more that drops a Ctrl-C
            assert terminal.interrupt() == 130
            assert "Traceback" not in terminal.text
        assert has(store, NAME)


def test_the_command_shown_by_a_page_removes_any_lock(memory: MemoryStore) -> None:
    odd = Holder("a\u200b'; touch pwned; #", "u\0\n'", hostname="h")
    memory.take(odd.name, uuid=odd.uuid)
    (*_, remedy) = steps_about_holder(odd, "etcd://h:1")
    _, verb, *words = shlex.split(remedy.command)
    words = [verb, "--yes", "--reason", "x", *words]
    said = one_line(called(memory, *words[:-2], "--uuid", "00", *words[-2:], status=1))
    assert "is not held by '\\x00'" in said
    for wrong in ("zz", "ff", "a"):
        said = called(memory, *words[:-1], wrong, status=2).stderr
        assert f"{wrong!r} is no UTF-8 in hexadecimal" in said
    assert "Removed" in called(memory, *words).stdout
    assert not has(memory, odd.name)


@pytest.mark.parametrize("uuid", [b"", b"u" * 70_000])
def test_force_unlock_removes_an_unreadable_lock(
    settings: Settings, store: ServiceStore, etcdctl: Etcdctl, uuid: bytes
) -> None:
    put_at_once(etcdctl, f"{settings.root}/locks/x/", {"hostname": "h", "uuid": uuid})
    words = ["force-unlock", "x", "--yes", "--reason", os.fsdecode(b"\xff burnt")]
    assert "Removed" in called(settings, *words).stdout
    assert not has(store, "x")


def test_force_unlock_without_space_for_a_record_asks(
    own_etcd: Etcd, own_store: ServiceStore
) -> None:
    settings = Settings((own_etcd.endpoint,))
    take(own_store, holder("full"))
    exhaust_space(own_etcd)
    words = ["force-unlock", "full", "--reason", "we need it"]
    told = one_line(called(settings, *words, "--yes", status=1))
    assert "no record can be kept" in told
    assert "give --yes a second time" in told
    assert has(own_store, "full")
    done = called(settings, *words, "--yes", "--yes")
    assert '"we need it"' in done.stderr
    assert "Removed: full" in done.stdout
    assert not has(own_store, "full")
