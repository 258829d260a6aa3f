"""`clustermutex ls` and `removed`: on a terminal, piped, for programs, beside hostile clients."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest

from lockclient import ClusterMutex, Settings
from lockclient.model.clocks import Deadline, monotonic
from lockclient.model.removal import Removal
from lockclient.stores.mutex_store import Capabilities
from lockclient.stores.request_types import Remove
from lockclient.stores.service_store import Batch, Kind, ServiceStore
from lockclient.text.escaping import ascii_name
from tests.support.board import Board, DashboardStore
from tests.support.memory_store import MemoryStore
from tests.support.polls import ALL, REAL
from tests.support.processes import start_service, wait_until
from tests.support.terminal import COMMAND, called, environment, in_terminal, one_line, shown

HOSTILE = "na\u202eme\u200b [red]x[/red]"
HOSTILE_HOST = "h\x1b[2J\x9b\x7f\u202e\u3164\nclustermutex: all is well"


@pytest.fixture
def memory() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def held(memory: MemoryStore) -> MemoryStore:
    """Three locks: one past its alert, one with all sorts of characters in it."""
    memory.take("deploy/prod", reason="release 7", held_for=3)
    memory.take("nightly report", reason="", held_for=301)
    memory.take(HOSTILE, reason="a\u202eb", held_for=2)
    return memory


def _rows(text: str) -> list[list[str]]:
    return [line.split("\t") for line in text.splitlines()]


# ---------------------------------------------------------------- ls


def test_ls_into_a_pipe_prints_plain_lines(held: MemoryStore) -> None:
    said = called(held, "ls").stdout
    assert "\x1b" not in said
    titles, *rows = _rows(said)
    assert titles == [
        *("STATE", "NAME", "WAIT", "HOLDER", "REASON", "HELD", "SILENT", "ALERT", "UNLOCK")
    ]
    assert [row[0] for row in rows] == ["alert", "ok", "ok"]
    assert rows[0][1] == "nightly report"
    assert all(len(row) == len(titles) for row in rows)


@pytest.mark.parametrize("colour", [True, False])
def test_ls_on_a_terminal_prints_a_table_in_colour(held: MemoryStore, *, colour: bool) -> None:
    done = called(held, "ls", columns=78, NO_COLOR="" if colour else "1")
    said = done.stdout
    assert ("\x1b[33malert" in said) is colour
    assert ("\x1b[3" in said) is colour
    assert "\t" not in said
    assert "3 locks: 2 ok, 1 alert; 0 waiting; no unlocker is running." in shown(done)
    assert max(map(len, shown(done).splitlines())) <= 78


def test_json_is_the_same_as_the_dashboard_s() -> None:
    """Lock by lock and field by field."""
    store = DashboardStore()
    for name in ("deploy/prod", HOSTILE):
        store.take(name)
    with Board(store=store) as board:
        api = board.get("/api/locks?sort=state").json
    said = json.loads(called(MemoryStore(memory=store.memory), "ls", "--json").stdout)
    assert said["locks"] == api["locks"]
    assert said.keys() == api.keys()
    assert (said["total"], said["unlockers"], said["connected"]) == (2, 0, True)
    assert abs(said["server_time"] - time.time()) < 60


@pytest.mark.parametrize(
    ("words", "names"),
    [
        ("DEPLOY release", ["deploy/prod"]),
        ("deploy nightly", []),
        ("--state alert", ["nightly report"]),
        ("--sort name", ["deploy/prod", HOSTILE, "nightly report"]),
        ("--sort -name", ["nightly report", HOSTILE, "deploy/prod"]),
        ("--sort locked_at", ["nightly report", "deploy/prod", HOSTILE]),
    ],
)
def test_filter_and_sort(held: MemoryStore, words: str, names: list[str]) -> None:
    """By words, by state, by any column, either way."""
    said = json.loads(called(held, "ls", "--json", *words.split()).stdout)
    assert [lock["name"] for lock in said["locks"]] == names


class PolledStore(MemoryStore):
    """A store whose contents were read five seconds ago, as between two polls."""

    can = Capabilities("A polled store", watch=False)

    def load(self, kinds: tuple[Kind, ...], deadline: Deadline) -> Iterator[Batch]:
        for batch in super().load(kinds, deadline):
            yield replace(batch, known_at=monotonic() - 5)


@pytest.mark.parametrize("words", [("ls", "--json"), ("doctor", "--json", "--listen", "0")])
def test_a_lock_is_not_past_its_alert_between_two_polls(words: tuple[str, ...]) -> None:
    """A heartbeat may have come since the last poll: the state is that of the poll."""
    store = PolledStore()
    store.take("seen", held_for=303)
    store.take("silent", held_for=309)
    said = called(store, *words, status=None).stdout
    if words[0] == "ls":
        states = {lock["name"]: lock["state"] for lock in json.loads(said)["locks"]}
        assert states == {"seen": "ok", "silent": "alert"}
    else:
        assert "1 lock ('silent') is past the alert" in said


def test_nothing_held(memory: MemoryStore) -> None:
    """A sentence for people, the titles alone for a pipe, an empty list for programs."""
    assert "No lock is held" in called(memory, "ls", columns=80).stdout
    assert len(_rows(called(memory, "ls").stdout)) == 1
    assert json.loads(called(memory, "ls", "--json").stdout)["locks"] == []


def test_broken_and_eternal_locks_are_listed(memory: MemoryStore) -> None:
    """A broken lock is listed, and one without an end says `never`."""
    for name in ("odd", "plain"):
        for key, value in (("uuid", b"u"), ("hostname", b"h"), ("alert_at", b"9999999999")):
            memory.write(("locks", name, key, value))
    memory.write(("locks", "odd", "auto_unlock_at", b"soon"))
    _, odd, plain = _rows(called(memory, "ls").stdout)
    assert (odd[:4], odd[8]) == (["broken", "odd", "0", "h:?"], "unknown")
    assert (plain[:4], plain[8]) == (["ok", "plain", "0", "h:?"], "never")


def test_watched_on_a_terminal(settings: Settings, store: ServiceStore) -> None:
    """The table changes with the locks, until Ctrl-C, and the screen is given back."""
    with in_terminal(settings, "ls", "--watch") as terminal:
        terminal.wait_for("No lock is held")
        with ClusterMutex("appears", store=store):
            terminal.wait_for("appears")
            terminal.wait_for("1 lock: 1 ok")
        seen = terminal.text.count("No lock is held")
        wait_until(lambda: terminal.text.count("No lock is held") > seen, what="its going")
        assert terminal.interrupt() == 0
        assert terminal.raw.rstrip().endswith("\x1b[?1049l")
        assert "Traceback" not in terminal.text


@pytest.mark.parametrize("as_json", [True, False])
def test_watched_through_a_pipe(settings: Settings, store: ServiceStore, *, as_json: bool) -> None:
    """Each change brings the list again: an object in a line, or a table after an empty line."""
    words = ["ls", "mine", "--watch", *(["--json"] if as_json else [])]
    with start_service([COMMAND, *words], environment(settings)) as watching:

        def lists() -> list[list[str]]:
            said = watching.log_text()
            if as_json:
                found = [json.loads(line) for line in said.splitlines()]
                return [[lock["name"] for lock in document["locks"]] for document in found]
            tables = said.split("\n\n") if said else []
            # The last line may be half there.
            return [[row[1] for row in _rows(table)[1:] if len(row) > 1] for table in tables]

        wait_until(lambda: lists() == [[]], what="the first list")
        with ClusterMutex("other", store=store), ClusterMutex("mine", store=store):
            wait_until(lambda: lists() == [[], ["mine"]], what="the second list")
        wait_until(lambda: lists() == [[], ["mine"], []], what="the third list")


# ---------------------------------------------------------------- hostile clients


def test_hostile_texts_show_and_steer_nothing(held: MemoryStore) -> None:
    """Invisible characters and those that change the direction of text are escaped."""
    for said in (called(held, "ls", columns=200).stdout, called(held, "ls").stdout):
        assert r"na\u202eme\u200b [red]x[/red]" in said
        assert r"a\u202eb" in said
        assert "\u202e" not in said
    assert "\u202e" not in called(held, "ls", "--json").stdout


def test_look_alike_names_are_shown_with_their_escaped_form(memory: MemoryStore) -> None:
    """The list shows them all, whatever the terminal's width; so do `show` and `removed`."""
    for name in (REAL, *ALL.values()):
        memory.take(name)
    for columns in (0, 160):
        text = shown(called(memory, "ls", columns=columns))
        assert [name for name in ALL.values() if ascii_name(name) not in text] == []
    for name in ALL.values():
        memory.removed(name, "u", how="auto-unlock", removed_at=time.time())
    removed = called(memory, "removed").stdout
    for name in ALL.values():
        assert ascii_name(name) in removed
        assert ascii_name(name) in called(memory, "show", name).stdout.splitlines()[0]


@pytest.mark.parametrize(
    ("words", "status"),
    [
        (["run", "--no-wait", REAL, "true"], 75),
        (["--debug", "run", "--no-wait", REAL, "true"], 75),
        (["show", REAL], 0),
        (["ls"], 0),
    ],
)
def test_a_hostile_host_steers_no_terminal(
    memory: MemoryStore, words: list[str], status: int
) -> None:
    """An error and its traceback escape the host's name, too."""
    memory.take(REAL, hostname=HOSTILE_HOST)
    done = called(memory, *words, status=status)
    said = done.stdout + done.stderr
    assert "all is well" in said
    assert "\nclustermutex: all is well" not in said
    assert not {*said} & {*HOSTILE_HOST} - {"\n"} - {*map(chr, range(32, 127))}


# ---------------------------------------------------------------- removed


def test_removed(memory: MemoryStore) -> None:
    """A row names the lock, its holder, the remover and the reason; the newest comes first, and a
    search looks at all of them."""
    assert len(_rows(called(memory, "removed").stdout)) == 1
    for number, who in enumerate(("ann", "unlocker@a:1", "bob")):
        mutex = ClusterMutex(f"lock {number}", reason="r", store=memory)
        mutex.acquire()
        how = "auto-unlock" if number == 1 else "force-unlock"
        memory.apply(Remove(Removal(mutex.record, time.time(), who, how, f"why {number}"), None))
    titles, *rows = _rows(called(memory, "removed").stdout)
    assert titles == ["REMOVED", "NAME", "HOLDER", "HOW", "BY", "WHY"]
    assert [row[1] for row in rows] == ["lock 2", "lock 1", "lock 0"]
    assert rows[1][3:] == ["auto-unlock", "unlocker@a:1", "why 1"]
    said = json.loads(called(memory, "removed", "--json", "-n", "1", "force").stdout)
    assert said["total"] == 2
    (newest,) = said["removed"]
    assert (newest["name"], newest["removed_by"], newest["why"]) == ("lock 2", "bob", "why 2")
    assert newest["hostname"]
    assert "backtrace" not in newest
    for word, told in (
        ("ann", "1 of 3 removals in the last seven days."),
        ("nope", "None of 3 removals in the last seven days match."),
    ):
        assert told in called(memory, "removed", word, columns=120).stdout


@pytest.mark.parametrize("words", ["ls --watch", "ls", "show x", "removed"])
def test_an_unreachable_store_at_the_start_is_an_error(words: str) -> None:
    memory = MemoryStore()
    memory.memory.away = True
    assert "The store in memory is away" in one_line(called(memory, *words.split(), status=69))


def test_an_unknown_state_is_an_error_that_names_the_states() -> None:
    """An empty list would look as if all were well."""
    printed = one_line(called(MemoryStore(), "ls", "state:foo", status=2))
    assert "No state is 'foo': there are ok, " in printed
