"""Completion in real shells, at a prompt in a terminal: commands, options, names from etcd."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from lockclient import ClusterMutex, Settings
from lockclient.stores.service_store import ServiceStore
from tests.support.processes import BIN, needed, run_to_end, wait_until
from tests.support.soak import soaking
from tests.support.terminal import Terminal, called, environment

NAMES = ("deploy/prod", "db:migrate", "Grüße")
QUOTED = ("invoice run", "it's, $(touch pwned)")
"""Names that a shell would have to quote."""
UNSEEN = ("deploy/\u202edorp", "gr\u200bid", "it\u3164")
"""Names that a terminal would show as others."""
ARGS = """
PS1='PS> '
args() { printf '<<'; printf '%s|' "$@"; echo '>>'; }
"""
RC = {
    "bash": f'eval "$(clustermutex completion bash)"\n{ARGS}',
    "zsh": f"autoload -U compinit\ncompinit -u -D\n"
    f'eval "$(clustermutex completion zsh)"\n{ARGS}PROMPT_SP=\n',
}
START = {"bash": ["--rcfile", "rc", "-i"], "zsh": ["-d", "-i"]}


@pytest.fixture
def env(settings: Settings, store: ServiceStore, tmp_path: Path) -> Iterator[dict[str, str]]:
    """Some locks that are held, and the environment of a shell that finds the command."""
    with ExitStack() as exits:
        for name in (*NAMES, *QUOTED, *UNSEEN):
            exits.enter_context(ClusterMutex(name, store=store))
        yield {
            **environment(settings, LANG="C.UTF-8", HOME=str(tmp_path), ZDOTDIR=str(tmp_path)),
            "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
        }


def completed(terminal: Terminal, typed: str, until: str) -> list[str]:
    """Type a line and Tab; return the words of the line that the shell made of it.

    They are got by putting another command in front, which prints what it is given.
    """
    wait_until(lambda: terminal.text.rstrip(" ").endswith("PS>"), 60, f"a prompt: {terminal.text}")
    terminal.enter(f"{typed}\t")
    shown = len(terminal.text)
    wait_until(lambda: until in terminal.text[shown:], 60, f"{until!r} in {terminal.text!r}")
    answers = len(_answers(terminal))
    terminal.enter("\x01args \x05\n")
    wait_until(lambda: len(_answers(terminal)) > answers, 60, f"the words: {terminal.text!r}")
    words: list[str] = _answers(terminal)[-1].split("|")[1:-1]
    return words


def _answers(terminal: Terminal) -> list[str]:
    return re.findall(r"<<(.*\|)>>\n", terminal.text)


TYPED = (
    ("sho", "w", ["show"]),
    ("ls --st", "ate", ["ls", "--state"]),
    ("force-unlock --reason x db", "migrate", ["force-unlock", "--reason", "x", "db:migrate"]),
    ("show dep", "prod", ["show", "deploy/prod"]),
    ("show db:m", "igrate", ["show", "db:migrate"]),
    ("show G", "e", ["show", "Grüße"]),
    ("ls --state al", "ert", ["ls", "--state", "alert"]),
)


@pytest.mark.parametrize(("name", "lines"), [("bash", 7), ("zsh", 4), *soaking(("zsh", 7))])
def test_at_a_prompt(name: str, lines: int, env: dict[str, str], tmp_path: Path) -> None:
    """The name of a lock comes as one word."""
    for rc in ("rc", ".zshrc"):
        (tmp_path / rc).write_text(RC[name])
    words = ["env", "-C", str(tmp_path), needed(name), *START[name]]
    with Terminal(words, env, columns=200) as terminal:
        for typed, until, wanted in TYPED[:lines]:
            assert completed(terminal, f"clustermutex {typed}", until) == wanted


def test_fish(env: dict[str, str], tmp_path: Path) -> None:
    """fish's own `complete -C` prints the names that it offers: those that need no quotes."""

    def offered(line: str) -> list[str]:
        script = f'clustermutex completion fish | source; complete -C "{line}"'
        done = run_to_end(needed("fish"), "--no-config", "-c", script, env=env, folder=tmp_path)
        return [line.partition("\t")[0] for line in done.stdout.splitlines()]

    assert sorted(offered("clustermutex show ")) == sorted(NAMES)
    assert offered("clustermutex show it") == []
    assert offered("clustermutex sho") == ["show"]
    assert offered("clustermutex ls --sta") == ["--state"]


def test_completion_uses_the_url_of_the_command_line(
    settings: Settings, env: dict[str, str]
) -> None:
    def offered(url: str) -> str:
        line = f"clustermutex show --url {url} de"
        asked: dict[str, Any] = {
            "_CLUSTERMUTEX_COMPLETE": "bash_complete",
            "COMP_WORDS": line,
            "COMP_CWORD": "de",
        }
        done = called(settings, status=0, CLUSTERMUTEX_URL="etcd://127.0.0.1:1", **asked)
        return done.stdout + done.stderr

    assert offered(settings.url()) == "plain,deploy/prod\n"
    assert offered("etcd://127.0.0.1:1").strip() == ""
    assert offered("nonsense").strip() == ""
