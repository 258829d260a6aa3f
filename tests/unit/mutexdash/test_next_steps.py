"""Next steps for a stuck lock: commands that are safe to paste, whatever the lock's texts."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from urllib.parse import unquote

import click
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from lockclient.cli.root_command import group
from lockclient.model.holder import Holder
from lockclient.overview.lock_status import LockStatus
from mutexdash.markup.next_steps import runbook_sections, steps_about_holder
from reference import runbook
from tests.deploy.test_rules import WANTED

URL = "etcd://10.0.0.7:2379/clustermutex"
STUCK = Holder("deploy/prod", "u-1", "ci-3.example.com", 881, client="clustermutex/1 python/3.12")


def commands(holder: Holder) -> list[str]:
    return [remedy.command for remedy in steps_about_holder(holder, URL)]


def test_from_the_host_to_the_force_unlock() -> None:
    assert commands(STUCK) == [
        "ssh ci-3.example.com",
        "ps -o pid,stat,lstart,args -p 881",
        "py-spy dump --pid 881",
        f"clustermutex force-unlock --url {URL} --uuid u-1 -- deploy/prod",
    ]


def test_a_hung_holder_is_ended_before_its_lock_is_removed() -> None:
    """The runbook's advice: SIGINT leaves the `with` blocks, which releases the lock."""
    *_, seen, removed = (step.what for step in steps_about_holder(STUCK, URL))
    assert seen == "See what it is doing; if it hangs, end it by kill -INT 881:"
    assert "force-unlock" in removed


def test_unknown_facts_give_no_command() -> None:
    assert commands(Holder("a")) == []
    assert "py-spy" not in " ".join(commands(replace(STUCK, client="lock.sh")))
    assert "force-unlock" not in " ".join(commands(replace(STUCK, uuid="unreadable-7")))


@pytest.mark.parametrize(
    "host", ["-oProxyCommand=id", "a b", "root@h", "h;id", "h\n", "$(id)", "", "ü", "h" * 254]
)
def test_an_invalid_host_name_gives_no_ssh_command(host: str) -> None:
    assert not any(command.startswith("ssh") for command in commands(replace(STUCK, hostname=host)))


@pytest.mark.parametrize(
    ("container", "first"),
    [
        ("shop/web-7d9f5b6c4d-x2x4q", "kubectl exec -n shop -it web-7d9f5b6c4d-x2x4q -- sh"),
        ("0123456789ab", "ssh "),
        ("shop/-it; rm -rf", "ssh "),
        ("-n/web", "ssh "),
        ("a/b/c", "ssh "),
        (None, "ssh "),
    ],
)
def test_a_holder_in_a_pod_is_gone_to_by_kubectl(container: str | None, first: str) -> None:
    command = next(iter(commands(replace(STUCK, container=container))))
    assert command.startswith(first)
    assert ("kubectl" in command) == first.startswith("kubectl")


SECTIONS = {
    name.lower()
    for state in ("alert", "overdue", "undecided", "broken")
    for name in runbook_sections(LockStatus(state, True, True))
}


def test_the_runbook_has_a_section_for_each_unhealthy_state() -> None:
    assert {name.lower() for name in WANTED} > SECTIONS
    assert runbook_sections(LockStatus("ok")) == []
    assert runbook_sections(LockStatus("ok", deadlock=True)) == ["LockDeadlock"]
    assert runbook_sections(LockStatus("ok", held_too_long=True)) == ["LockHeldTooLong"]


def test_the_served_runbook_is_as_new_as_its_source() -> None:
    assert runbook.RENDERED.read_text(encoding="utf-8") == runbook.text()


def test_each_alert_has_a_section_in_the_runbook() -> None:
    source = runbook.SOURCE.read_text(encoding="utf-8")
    html = runbook.RENDERED.read_text(encoding="utf-8")
    sections = re.findall(r'<h2 id="(\w+)">', html)
    assert sections == [name.lower() for name in re.findall(r"^## (\w+)$", source, re.MULTILINE)]
    assert set(sections) > SECTIONS
    links = set(re.findall(r'href="([^"]*)"', html))
    assert {link for link in links if not link.startswith("https://")} <= {
        f"#{section}" for section in sections
    }


def test_the_runbook_has_no_html_of_its_own() -> None:
    html = runbook.RENDERED.read_text(encoding="utf-8")
    tags = {tag.lower() for tag in re.findall(r"</?([a-zA-Z0-9]+)", html)}
    plain = {"h1", "h2", "h3", "p", "strong", "em", "code", "pre", "ul", "ol", "li", "a", "hr"}
    assert tags <= plain | {"table", "thead", "tbody", "tr", "th", "td"}
    names = {name for tag in re.findall(r"<([^>]*)>", html) for name in re.findall(r" (\w+)=", tag)}
    assert names <= {"id", "href", "class", "tabindex", "start"}


SHELLS = {
    name: command
    for name in ("sh", "bash", "dash", "zsh", "fish", "ksh", "mksh", "yash", "busybox", "tcsh")
    if (command := shutil.which(name))
}
NASTY = st.text(st.characters(blacklist_categories=["Cs"]), min_size=1, max_size=40)


def heard(shell: str, command: str, folder: Path) -> list[str]:
    """Let a shell run what was pasted; return the words that `clustermutex` was given."""
    program = folder / "clustermutex"
    if not program.exists():
        program.write_text("#!/bin/sh\nprintf '%s\\0' \"$@\"\n")
        program.chmod(0o755)
    words = [SHELLS[shell], *(["sh"] if shell == "busybox" else []), "-c", command]
    done = subprocess.run(
        words,
        capture_output=True,
        cwd=folder,
        env={"PATH": f"{folder}:/usr/bin:/bin", "LC_ALL": "C.UTF-8", "HOME": str(folder)},
    )
    assert done.stderr == b""
    return done.stdout.decode().split("\0")[:-1]


@pytest.mark.parametrize("shell", SHELLS)
@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(name=NASTY, uuid=NASTY, root=NASTY)
@example("'; touch pwned; #", "$(touch pwned)", "`touch pwned`")
@example("a\u200b'; touch pwned; #", "\\'; touch pwned; #", "\\'; touch pwned; #")
@example("a\\", "\0", "!$&*?[~=%")
@example("-rf", "u", "/clustermutex?expire=1&longest=60")
@example("a\nb", "u\r\n", " ")
def test_pasted_commands_are_quoted_in_each_shell(
    tmp_path: Path, shell: str, name: str, uuid: str, root: str
) -> None:
    url = f"etcd://h:2379/{root}"
    (remedy,) = steps_about_holder(Holder(name, uuid), url)
    words = heard(shell, remedy.command, tmp_path)
    command = group.get_command(click.Context(group), "force-unlock")
    assert command is not None
    ctx = command.make_context("force-unlock", [], resilient_parsing=True)
    found, rest, _ = command.make_parser(ctx).parse_args(words[1:])
    assert not (tmp_path / "pwned").exists()
    assert (words[0], unquote(found["settings"])) == ("force-unlock", url)
    read = bytes.fromhex if found.get("hexadecimal") else str.encode
    assert (read(found["uuid"]), read((rest and rest[0]) or found["name"])) == (
        *(uuid.encode(), name.encode()),
    )
