"""`clustermutex show` and `force-unlock`: who holds a lock, and taking it from them."""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest

from lockclient import ClusterMutex, HeldLock, LockLost, Settings
from lockclient.cli.setup.etcd_server import Etcd
from lockclient.stores.service_protocol import ServiceStore
from mutexdash.markup.remedies import remedies
from tests.contract.asking import holder
from tests.support.etcd_binary import Etcdctl, exhaust_space, put_at_once
from tests.support.locks import has, queue_up, take
from tests.support.memory_store import MemoryStore
from tests.support.processes import wait_until
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
        if mutex.healthy:
            mutex.release()
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


def test_nobody_holds_it(memory: MemoryStore) -> None:
    """Status 1 and a line; its last removal if there was one, and its waiters, the next first."""
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


def test_a_broken_lock_says_what_is_wrong(memory: MemoryStore) -> None:
    """As far as it can be read."""
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


def test_what_is_undecided_is_told(memory: MemoryStore) -> None:
    """By a sentence, and no auto-unlock is promised."""
    memory.take("new", needs=["two-keys"])
    why = "it needs what this version does not know (two-keys)"
    said = called(memory, "show", "new").stdout
    assert re.search(rf"  undecided +{re.escape(why)}\. People are alerted", said)
    assert re.search(r"  auto-unlock +undecided, [\d-]+ [\d:]+ UTC\n", said)
    assert re.search(r"  needs +two-keys\n", said)
    lock = json.loads(called(memory, "show", "--json", "new").stdout)
    assert (lock["undecided"], lock["state"], lock["needs"]) == (why, "undecided", ["two-keys"])
    assert "\tundecided\n" in called(memory, "ls").stdout


# ---------------------------------------------------------------- force-unlock


WHY = ("--reason", "it hangs")


@pytest.mark.parametrize(
    ("columns", "words", "typed", "status", "told"),
    [
        # On a terminal it shows the holder and asks: nothing but a yes removes it.
        (120, WHY, "n\n", 1, "for 'release 7', since "),
        (120, WHY, "\n", 1, "The answer was no"),
        (120, [], "y\nit hangs\n", 0, "1 waited for it"),
        # A script says --yes, or nothing happens; a reason is needed either way.
        (0, WHY, "", 2, "--yes"),
        (0, ["--yes"], "", 2, "--reason"),
        (0, ["--yes", "--reason", " "], "", 2, "--reason"),
        # It may name the holder that it means.
        (0, [*WHY, "--yes", "--uuid", "another"], "", 1, "is not held by 'another' but by"),
        (0, [*WHY, "--yes", "--uuid", "UUID"], "", 0, f"Removed: {NAME}"),
    ],
)
def test_who_is_asked_and_what_is_removed(
    held: HeldLock,
    memory: MemoryStore,
    columns: int,
    words: Sequence[str],
    typed: str,
    status: int,
    told: str,
) -> None:
    """The holder is told by whom and why, a record is kept, and the next in line gets it."""
    words = [str(held.uuid) if word == "UUID" else word for word in words]
    done = called(memory, "force-unlock", NAME, *words, columns=columns, typed=typed, status=status)
    assert told in done.stdout + done.stderr
    if columns:
        assert str(held.uuid) in done.stdout
    if status:
        assert columns or one_line(done)
        held.alive(force=True)
        return
    with pytest.raises(LockLost, match="it hangs"):
        held.release()
    (removal,) = json.loads(called(memory, "removed", "--json").stdout)["removed"]
    assert (removal["uuid"], removal["how"]) == (held.uuid, "force-unlock")
    assert "@" in removal["removed_by"]


def test_a_lock_that_changed_hands_is_not_removed(settings: Settings, store: ServiceStore) -> None:
    """Between showing and answering: the next holder keeps it. Nor does Ctrl-C remove it."""
    words = ("force-unlock", NAME, *WHY)
    first, second = (ClusterMutex(NAME, reason=f"release {n}", store=store) for n in (7, 8))
    first.acquire()
    with in_terminal(settings, *words) as terminal:
        terminal.wait_for("[y/N]: ")  # so it reads, and imports nothing more that drops a Ctrl-C
        terminal.enter("\x03")
        assert terminal.ended() == 130
        assert "Traceback" not in terminal.text
    thread = queue_up(second, 60)
    with in_terminal(settings, *words) as terminal:
        terminal.wait_for("[y/N]")
        first.release()
        thread.join(60)
        terminal.enter("y\n")
        assert terminal.ended() == 1
        assert "changed hands" in terminal.text
        assert "release 8" in terminal.text
    second.release()
    assert json.loads(called(settings, "removed", "--json").stdout)["removed"] == []


def test_what_a_page_shows_to_copy_removes_it_whatever_it_is_called(
    settings: Settings, store: ServiceStore
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


@pytest.mark.parametrize("uuid", [b"", b"u" * 70_000])
def test_a_person_can_remove_what_nobody_can_read(
    settings: Settings, store: ServiceStore, etcdctl: Etcdctl, uuid: bytes
) -> None:
    """Its uuid, or the reason that a terminal of another encoding sends."""
    put_at_once(etcdctl, f"{settings.root}/locks/x/", {"hostname": "h", "uuid": uuid})
    words = ["force-unlock", "x", "--yes", "--reason", os.fsdecode(b"\xff burnt")]
    assert "Removed" in called(settings, *words).stdout
    assert not has(store, "x")


@pytest.mark.parametrize(
    ("columns", "words", "typed", "questions"),
    [
        (0, ["--yes"], "", 0),
        (120, [], "y\nn\n", 2),
        (120, [], "n\n", 1),
        (120, ["--yes"], "\n", 1),
        (120, [], "y\ny\n", 2),
        (0, ["--yes", "--yes"], "", 0),
    ],
)
def test_what_a_lock_needs_is_asked_for_a_second_time(
    memory: MemoryStore, columns: int, words: list[str], typed: str, questions: int
) -> None:
    """On a terminal by a question, without one by a second --yes; else nothing is removed."""
    memory.take("new", needs=["two-keys"])
    words, removed = ["force-unlock", "new", *WHY, *words], typed == "y\ny\n" or len(words) == 2
    done = called(memory, *words, columns=columns, typed=typed, status=not removed)
    assert (has(memory, "new") is None) is removed
    assert done.stdout.count("[y/N]") == questions
    despite = "Take the lock despite that?" in done.stdout
    assert despite is (typed not in ("", "n\n"))
    if not columns and not removed:
        assert "needs what this version does not know (two-keys)" in one_line(done)
        assert "--yes a second time" in one_line(done)


def test_nothing_to_remove(memory: MemoryStore) -> None:
    """Nobody holds it, or there are only the remains of a foreign client."""
    words = ["--yes", *WHY]
    told = one_line(called(memory, "force-unlock", "free", *words, status=1))
    assert "Nobody holds the lock 'free'" in told
    memory.write(("locks", "odd", "hostname", b"h"))
    assert "no uuid" in one_line(called(memory, "force-unlock", "odd", *words, status=1))


def test_out_of_space_it_asks_before_it_removes_without_a_record(
    own_etcd: Etcd, own_store: ServiceStore
) -> None:
    """Deletes still work there; the record that can't be written goes to stderr."""
    settings = Settings((own_etcd.endpoint,))
    mutex = ClusterMutex("full", store=own_store)
    mutex.acquire()
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
    wait_until(lambda: not mutex.healthy, what="the holder to know")
