"""The command beside hostile clients: what it prints steers no terminal and names no wrong lock."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from urllib.parse import quote

import pytest

from lockclient import ClusterMutex, Settings
from lockclient.stores.etcd.store import EtcdStore
from tests.support.etcd_binary import Etcdctl, put_at_once
from tests.support.polls import ALL, REAL
from tests.support.terminal import called, in_terminal, piped

HOSTILE = "h\x1b[2J\x9b\x7f\u202e\u3164\nclustermutex: all is well"


@pytest.fixture
def held(store: EtcdStore, settings: Settings) -> Iterator[Settings]:
    """All look-alikes of a lock, and itself."""
    with ExitStack() as exits:
        for name in (REAL, *ALL.values()):
            exits.enter_context(ClusterMutex(name, store=store, expected_runtime=300))
        yield settings


def test_ls_and_watch_tell_all_look_alikes_apart(held: Settings) -> None:
    """Piped, and on a terminal, with a word on how many there are."""
    rows = [line.split("\t") for line in called(held, "ls").stdout.splitlines()[1:]]
    names = {row[1] for row in rows}
    assert len(names) == len(ALL) + 1
    assert all(name.isascii() for name in names)
    with in_terminal(held, "ls", columns=160) as terminal:
        assert terminal.ended() == 0
        for name in names:
            assert f" {name} " in terminal.text
        assert f"{len(names)} names look like another's." in terminal.text
    with in_terminal(held, "watch", "--initial", columns=200) as terminal:
        for name in names:
            terminal.wait_for(f"  {name}  by ")
        assert terminal.interrupt() == 0


def test_show_says_which_other_lock_it_looks_like(held: Settings) -> None:
    """Before a person acts on it."""
    for name in ALL.values():
        first, second, *_ = called(held, "show", name).stdout.splitlines()
        assert first.partition("  ")[0] != REAL
        assert first.isascii()
        assert second.split() == ["looks", "like", f"{REAL},", "which", "is", "held,", "too"]


def test_a_hostile_host_steers_no_terminal_by_an_error_or_its_traceback(
    settings: Settings, etcdctl: Etcdctl
) -> None:
    """A lock that is held by a host of that name, and a command that does not get it."""
    folder = f"{settings.root}/locks/{quote(REAL, safe='')}/"
    put_at_once(etcdctl, folder, {"uuid": "u", "hostname": HOSTILE, "alert_at": "2000000000"})
    for words in (
        ["run", "--no-wait", REAL, "true"],
        ["--debug", "run", "--no-wait", REAL, "true"],
        ["show", REAL],
        ["ls"],
    ):
        done = piped(settings, *words, status=75 if "run" in words else 0)
        said = done.stdout + done.stderr
        assert "all is well" in said
        assert "\nclustermutex: all is well" not in said
        assert not {*said} & {*HOSTILE} - {"\n"} - {*map(chr, range(32, 127))}
