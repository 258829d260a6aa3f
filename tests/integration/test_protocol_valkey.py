"""docs/protocol-valkey.md keeps its word: its examples run as they stand, its keys are ours."""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lockclient import ClusterMutex
from lockclient.stores.request_types import Take
from lockclient.stores.valkey import announcements_and_documents, lua_scripts, reads
from lockclient.stores.valkey.errors import ErrorReply
from lockclient.stores.valkey.keys import KeyNames
from tests.contract.asking import holder
from tests.support import documents
from tests.support.locks import ask, has, take
from tests.support.valkey_servers import Servers, opened, running
from tests.support.valkey_user import as_user

PAGE = documents.text("protocol-valkey.md")
NAME = "nightly-report"
A = "aaaaaaaa-0000-4000-8000-000000000001"
ROOT = "clustermutex"


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[Servers]:
    """One server, with the prefix that the page has."""
    with running(tmp_path, 1) as one:
        one.root = ROOT
        yield one


def run(servers: Servers, example: str) -> str:
    """Do what an example of the page does; return what valkey-cli would print."""
    program, *words = shlex.split(example)
    assert program == "valkey-cli"
    said: Any = servers.all[0].command(*words)
    lines = said if isinstance(said, list) else [said]
    return "\n".join(line.decode() if isinstance(line, bytes) else str(line) for line in lines)


def examples() -> dict[str, tuple[str, str]]:
    """Return the page's examples by their command: the words, and what they print."""
    found = documents.blocks("protocol-valkey.md", "sh", "text")
    return {
        block.code.split()[1]: (block.code.rstrip(), printed.code.rstrip())
        for block, printed in itertools.pairwise(found)
        if (block.kind, printed.kind) == ("sh", "text")
    }


def test_the_examples_work(servers: Servers) -> None:
    example = examples()
    with servers.store(vouched=False) as store:
        with pytest.raises(ConnectionError, match="votes in"):
            ask(store, Take(holder(NAME)), 0.5)
        assert run(servers, example["HSET"][0]) == example["HSET"][1]
        mine = replace(
            holder(NAME), uuid=A, hostname="host-1", alert_at=1767225900.0,
            auto_unlock_at=1767226500.0, expected_runtime=300.0, auto_unlock_after=900.0,
        )  # fmt: skip
        take(store, mine)
        assert run(servers, example["HMGET"][0]) == example["HMGET"][1]
        assert run(servers, example["DEL"][0]) == example["DEL"][1]
        assert has(store, NAME) is None


def test_the_least_rights_are_enough(servers: Servers, caplog: pytest.LogCaptureFixture) -> None:
    """The server's configuration is none of their business."""
    code, printed = examples()["ACL"]
    assert run(servers, code) == printed
    place = servers.place(user="locks", password="secret")
    with closing(opened(place)) as store:
        store.vouch()
        store.vouch_kept()
        waiting = ClusterMutex(NAME, store=store, expected_runtime=60)
        with ClusterMutex(NAME, store=store, expected_runtime=60) as one:
            one.alive(force=True)
            assert not waiting.acquire(timeout=0.5)
            assert one.holder() is not None
        assert waiting.acquire(timeout=5)
        waiting.release()
    with pytest.raises(ErrorReply, match=r"(?i)no permission"):
        as_user(place, servers.all[0].endpoint, "CONFIG", "GET", "requirepass")
    assert "hints" not in caplog.text


def test_the_documented_user_receives_release_hints(servers: Servers) -> None:
    run(servers, examples()["ACL"][0])
    place = servers.place(user="locks", password="secret")
    for word, what in (
        ("SUBSCRIBE", KeyNames(ROOT).channel(NAME)),
        ("PSUBSCRIBE", KeyNames(ROOT).channels),
    ):
        kind, told, _ = as_user(place, servers.all[0].endpoint, word, what)
        assert (kind.decode(), told.decode()) == (word.lower(), what)


def test_its_keys_and_fields_are_ours(servers: Servers) -> None:
    keys, text = KeyNames("<prefix>"), PAGE.replace("%3Cname%3E", "<name>")
    for key in (
        *(keys.server, keys.lock("<name>"), keys.tombstone("<name>", "<uuid>")),
        *(keys.record("<name>", "<uuid>"), keys.channel("<name>")),
    ):
        plain = key.replace("%3C", "<").replace("%3E", ">")
        assert f"| `{plain}` |" in text
    with servers.store() as store, ClusterMutex(NAME, store=store):
        fields = servers.all[0].command("HKEYS", KeyNames(ROOT).lock(NAME))
        state = servers.all[0].command("HKEYS", f"{ROOT}/server")
    assert all(f"`{field.decode()}`" in PAGE for field in (*fields, *state))


def test_the_rights_cover_each_script() -> None:
    rights = set(re.findall(r"\+([a-z]+)", examples()["ACL"][0]))
    scripts = vars(lua_scripts) | vars(reads) | vars(announcements_and_documents)
    for name, script in scripts.items():
        if isinstance(script, lua_scripts.Script):
            used = re.findall(r"redis\.call\('(\w+)'", script.source)
            assert {command.lower() for command in used} <= rights, name
