"""`clustermutex ls` and `removed`, as programs: on a terminal, piped, and for programs."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from lockclient import ClusterMutex, Settings
from lockclient.model.removal import Removal
from lockclient.stores.etcd.store import EtcdStore
from lockclient.stores.outcomes import Done
from lockclient.stores.requests import Remove
from tests.support.etcd_binary import Etcdctl
from tests.support.locks import ask
from tests.support.pages import request
from tests.support.processes import start_service, wait_until
from tests.support.terminal import COMMAND, called, environment, in_terminal
from tests.support.unlocker_process import mutexdash, when_ready

HOSTILE = "na\u202eme\u200b [red]x[/red]"


@pytest.fixture
def held(store: EtcdStore, settings: Settings) -> Iterator[Settings]:
    """Three locks: one past its alert, one with all sorts of characters in it."""
    with ExitStack() as exits:
        for name, reason, expected in (
            ("deploy/prod", "release 7", 300.0),
            ("nightly report", "", 0.05),
            (HOSTILE, "a\u202eb", 300.0),
        ):
            mutex = ClusterMutex(
                name, reason=reason, expected_runtime=expected, store=store, auto_unlock_after=900
            )
            exits.enter_context(mutex)
        late = time.time() + 0.06
        wait_until(lambda: time.time() > late)
        yield settings


def _rows(text: str) -> list[list[str]]:
    return [line.split("\t") for line in text.splitlines()]


# ---------------------------------------------------------------- ls


def test_piped_it_is_plain_lines(held: Settings) -> None:
    """Tabs between the columns, the titles first, no colour, the most urgent lock first."""
    said = called(held, "ls").stdout
    assert "\x1b" not in said
    titles, *rows = _rows(said)
    assert titles == [
        "STATE",
        *("NAME", "WAIT", "HOLDER", "REASON", "HELD"),
        *("SILENT", "ALERT", "UNLOCK"),
    ]
    assert [row[0] for row in rows] == ["alert", "ok", "ok"]
    assert rows[0][1] == "nightly report"
    assert all(len(row) == len(titles) for row in rows)


def test_on_a_terminal_it_is_a_table_in_colour(held: Settings) -> None:
    """That fits the terminal, with a sentence on the whole below."""
    with in_terminal(held, "ls", columns=78) as terminal:
        assert terminal.ended() == 0
        assert "\x1b[33malert" in terminal.raw
        assert "\t" not in terminal.raw
        assert "3 locks: 2 ok, 1 alert; 0 waiting; no unlocker is running." in terminal.text
        assert max(map(len, terminal.text.splitlines())) <= 78


def test_no_color(held: Settings) -> None:
    """NO_COLOR switches the colours off, not the table."""
    with in_terminal(held, "ls", NO_COLOR="1") as terminal:
        assert terminal.ended() == 0
        assert "\x1b[3" not in terminal.raw
        assert "3 locks" in terminal.text
    with in_terminal(held, "show", "deploy/prod", NO_COLOR="1") as terminal:
        assert terminal.ended() == 0
        assert "\x1b[" not in terminal.raw


def test_hostile_texts_show_and_steer_nothing(held: Settings) -> None:
    """What is invisible or turns the writing around is written as an escape."""
    with in_terminal(held, "ls", columns=200) as terminal:
        assert terminal.ended() == 0
        for said in (terminal.text, called(held, "ls").stdout):
            assert r"na\u202eme\u200b [red]x[/red]" in said
            assert r"a\u202eb" in said
            assert "\u202e" not in said
    assert "\u202e" not in called(held, "ls", "--json").stdout


def test_json_is_the_same_as_the_dashboard_s(held: Settings) -> None:
    """Lock by lock and field by field."""
    said = json.loads(called(held, "ls", "--json").stdout)
    with when_ready(mutexdash(held)) as board:
        api = request(board.url, "/api/locks?sort=state").json
    assert said["locks"] == api["locks"]
    assert said.keys() == api.keys()
    assert said["total"] == 3
    assert said["unlockers"] == 0
    assert said["connected"] is True
    assert abs(said["server_time"] - time.time()) < 60
    lock = next(listed for listed in said["locks"] if listed["name"] == "deploy/prod")
    assert list(lock) == [
        *("name", "uuid", "state", "undecided", "hostname", "pid", "thread", "actor", "reason"),
        *("identity", "owner", "labels", "context", "user", "container"),
        *("client", "locked_at", "alive_at", "alert_at", "auto_unlock_at", "expected_runtime"),
        *("auto_unlock_after", "max_hold", "keepalive", "needs", "fencing_token", "waiters"),
        *("deadlock", "held_too_long"),
    ]


def test_filter_and_sort(held: Settings) -> None:
    """By words, by state, by any column, either way."""

    def names(*words: str) -> list[str]:
        said = json.loads(called(held, "ls", "--json", *words).stdout)
        return [lock["name"] for lock in said["locks"]]

    assert names("DEPLOY", "release") == ["deploy/prod"]
    assert names("deploy", "nightly") == []
    assert names("--state", "alert") == ["nightly report"]
    assert names("--sort", "name") == ["deploy/prod", HOSTILE, "nightly report"]
    assert names("--sort", "-name") == ["nightly report", HOSTILE, "deploy/prod"]
    assert names("--sort", "locked_at") == ["deploy/prod", "nightly report", HOSTILE]
    assert "'color'" in called(held, "ls", "--sort", "color", status=2).stderr


@pytest.mark.parametrize("command", ["ls", "watch"])
def test_a_state_that_there_is_not(settings: Settings, command: str) -> None:
    """It is named, with those that there are: an empty list would look as if all were well."""
    done = called(settings, command, "state:foo", status=2)
    assert done.stdout == ""
    assert "No state is 'foo': there are ok, " in done.stderr


def test_nothing_held(settings: Settings) -> None:
    """A sentence for people, the titles alone for a pipe, an empty list for programs."""
    with in_terminal(settings, "ls") as terminal:
        assert terminal.ended() == 0
        assert "No lock is held" in terminal.text
    assert len(_rows(called(settings, "ls").stdout)) == 1
    assert json.loads(called(settings, "ls", "--json").stdout)["locks"] == []


def test_broken_and_eternal_locks_are_listed(settings: Settings, etcdctl: Etcdctl) -> None:
    """What nobody can judge is not left out, and what never ends says so."""
    locks = f"{settings.root}/locks"
    for key, value in (("uuid", "u"), ("hostname", "h"), ("alert_at", "9999999999")):
        etcdctl("put", f"{locks}/odd/{key}", value)
        etcdctl("put", f"{locks}/plain/{key}", value)
    etcdctl("put", f"{locks}/odd/auto_unlock_at", "soon")
    _, odd, plain = _rows(called(settings, "ls").stdout)
    assert (odd[:4], odd[8]) == (["broken", "odd", "0", "h:?"], "unknown")
    assert (plain[:4], plain[8]) == (["ok", "plain", "0", "h:?"], "never")


# ---------------------------------------------------------------- ls --watch


def test_watched_on_a_terminal(settings: Settings, store: EtcdStore) -> None:
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
def test_watched_through_a_pipe(settings: Settings, store: EtcdStore, as_json: bool) -> None:
    """Each change brings the list again: an object in a line, or a table after an empty line."""
    words = ["ls", "mine", "--watch", *(["--json"] if as_json else [])]
    with start_service([COMMAND, *words], environment(settings)) as watching:

        def lists() -> list[list[str]]:
            said = watching.log_text()
            if as_json:
                found = [json.loads(line) for line in said.splitlines()]
                return [[lock["name"] for lock in document["locks"]] for document in found]
            return (
                [[row[1] for row in _rows(table)[1:]] for table in said.split("\n\n")]
                if said
                else []
            )

        wait_until(lambda: lists() == [[]], what="the first list")
        with ClusterMutex("other", store=store), ClusterMutex("mine", store=store):
            wait_until(lambda: lists() == [[], ["mine"]], what="the second list")
        wait_until(lambda: lists() == [[], ["mine"], []], what="the third list")


# ---------------------------------------------------------------- removed


def test_removed(settings: Settings, store: EtcdStore) -> None:
    """Who took which lock from whom and why, the newest first; searched by any of it."""
    assert len(_rows(called(settings, "removed").stdout)) == 1
    for number, who in enumerate(("ann", "unlocker@a:1", "bob")):
        mutex = ClusterMutex(f"lock {number}", reason="r", store=store)
        mutex.acquire()
        how = "auto-unlock" if number == 1 else "force-unlock"
        removal = Removal(mutex.record, time.time(), who, how, f"why {number}")
        assert isinstance(ask(store, Remove(removal, None)), Done)
    titles, *rows = _rows(called(settings, "removed").stdout)
    assert titles == ["REMOVED", "NAME", "HOLDER", "HOW", "BY", "WHY"]
    assert [row[1] for row in rows] == ["lock 2", "lock 1", "lock 0"]
    assert rows[1][3:] == ["auto-unlock", "unlocker@a:1", "why 1"]
    said = json.loads(called(settings, "removed", "--json", "-n", "1", "force").stdout)
    assert said["total"] == 2
    (newest,) = said["removed"]
    assert (newest["name"], newest["removed_by"], newest["why"]) == ("lock 2", "bob", "why 2")
    assert newest["hostname"]
    assert "backtrace" not in newest
    with in_terminal(settings, "removed", "ann") as terminal:
        assert terminal.ended() == 0
        assert "1 of 3 removals in the last seven days." in terminal.text
    with in_terminal(settings, "removed", "nope") as terminal:
        assert terminal.ended() == 0
        assert "None of 3 removals in the last seven days match." in terminal.text
