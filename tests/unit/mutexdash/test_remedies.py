"""What to do about a stuck lock: commands that are safe to paste, whatever the lock says."""

from __future__ import annotations

import subprocess
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lockclient.model.holder import Holder
from mutexdash.markup.remedies import quoted, remedies, runbook
from tests.deploy.test_rules import WANTED

URL = "etcd://10.0.0.7:2379/clustermutex"
STUCK = Holder("deploy/prod", "u-1", "ci-3.example.com", 881, client="clustermutex/1 python/3.12")


def commands(holder: Holder) -> list[str]:
    return [remedy.command for remedy in remedies(holder, URL)]


def test_from_the_host_to_the_force_unlock() -> None:
    assert commands(STUCK) == [
        "ssh ci-3.example.com",
        "ps -o pid,stat,lstart,args -p 881",
        "py-spy dump --pid 881",
        f"clustermutex force-unlock --url {URL} --uuid u-1 -- deploy/prod",
    ]


def test_what_is_not_known_has_no_command() -> None:
    assert commands(Holder("a")) == []
    assert "py-spy" not in " ".join(commands(replace(STUCK, client="lock.sh")))
    assert "force-unlock" not in " ".join(commands(replace(STUCK, uuid="unreadable-7")))


@pytest.mark.parametrize(
    "host", ["-oProxyCommand=id", "a b", "root@h", "h;id", "h\n", "$(id)", "", "ü", "h" * 254]
)
def test_a_host_that_is_none_is_not_gone_to(host: str) -> None:
    """Quotes would not help: ssh takes it for an option, or another user."""
    assert not any(command.startswith("ssh") for command in commands(replace(STUCK, hostname=host)))


def test_the_runbook_has_a_section_for_each_state_that_is_not_well() -> None:
    sections = {name.lower() for name in WANTED}
    for state in ("alert", "overdue", "undecided", "broken"):
        assert {name.lower() for name in runbook(state, deadlock=True)} < sections
    assert runbook("ok") == []
    assert runbook("ok", deadlock=True) == ["LockDeadlock"]


NASTY = st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\0"), max_size=40)


@given(NASTY)
@example("'; rm -rf / #")
@example("$(id) `id` \u202e'\\")
@example("-\u200b!\U0001f512")
def test_what_is_pasted_is_the_text_and_nothing_runs(text: str) -> None:
    said = subprocess.run(
        ["bash", "-c", f"printf %s {quoted(text)}"], capture_output=True, env={"LC_ALL": "C.UTF-8"}
    )
    assert (said.stdout.decode(), said.stderr) == (text, b"")
