"""The whole command: its start, help, reference and errors."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from lockclient import ClusterMutex, Settings
from lockclient.cli.root_command import SECTIONS
from lockclient.cli.setup.etcd_server import Etcd
from lockclient.stores.service_store import ServiceStore
from reference.commands import renewed
from tests.support.etcd_binary import served
from tests.support.memory_store import MemoryStore
from tests.support.processes import Figure
from tests.support.terminal import COMMAND, called, environment, in_terminal, one_line, piped

PAGE = Path(__file__).parents[2] / "docs" / "command.md"
BARE = (sys.executable, "-X", "importtime", "-c", "import click, grpc, google.protobuf.message")
NAMES = [name for section in SECTIONS.values() for name in section]


@pytest.mark.parametrize(
    ("words", "most", "asks"),
    [
        (["--help"], 85, 0),
        (["run", "y", "--", "true"], 150, 10),
        (["ls"], 185, 5),
    ],
)
def test_the_command_imports_little(
    own_etcd: Etcd, own_store: ServiceStore, figure: Figure, words: list[str], most: int, asks: int
) -> None:
    with ClusterMutex("x", store=own_store):
        before = served(own_etcd)
        done = piped(Settings((own_etcd.endpoint,)), *words, PYTHONPROFILEIMPORTTIME="1")
        requests = (served(own_etcd) - before).total()
    bare = subprocess.run(BARE, check=True, capture_output=True, text=True).stderr
    ours = imported(done.stderr) - imported(bare)
    figure(f"`clustermutex {' '.join(words)}` imports {len(ours)}, and makes {requests} requests.")
    assert len(ours) <= most
    assert requests <= asks


def imported(times: str) -> set[str]:
    """Return the modules that Python says it has imported."""
    lines = [line for line in times.splitlines() if line.startswith("import time:")]
    return {line.rpartition("|")[2].strip() for line in lines}


def test_the_bare_command_names_the_three_most_useful_commands(settings: Settings) -> None:
    said = piped(settings).stdout
    assert [line.split()[1] for line in said.splitlines() if line.startswith("  clustermutex")] == [
        *("ls", "show", "run"),
    ]
    assert max(map(len, said.splitlines())) <= 80


def test_rich_is_loaded_for_a_terminal_only(settings: Settings, tmp_path: Path) -> None:
    """Without rich a terminal's table says what to install; everything else works."""
    (tmp_path / "rich.py").write_text("raise ModuleNotFoundError('none', name='rich')\n")
    path = os.pathsep.join([str(tmp_path), *sys.path[1:]])
    assert piped(settings, "ls", PYTHONPATH=path).stdout.startswith("STATE")
    with in_terminal(settings, "ls", PYTHONPATH=path) as terminal:
        assert terminal.ended() == 1
        told = "clustermutex needs rich: pip install 'clustermutex[command]'."
        assert told in terminal.text
        assert "Traceback" not in terminal.text


def test_every_command_has_help(settings: Settings) -> None:
    """The help of the whole command names each of them."""
    whole = " ".join(called(settings, "--help").stdout.split())
    for name, first in (
        (name, first) for section in SECTIONS.values() for name, first in section.items()
    ):
        assert f" {name} {first} " in whole
        said = called(settings, name, "-h").stdout
        assert said.startswith(f"Usage: clustermutex {name} ")
        assert f" {first} " in " ".join(said.split())


def test_the_reference_is_made_from_the_help_texts() -> None:
    """docs/command.md is what the generator makes of it."""
    page = PAGE.read_text(encoding="utf-8")
    assert renewed(page) == page, "make reference"
    for name in NAMES:
        assert f"### clustermutex {name}\n" in page
    with pytest.raises(ValueError, match="marks"):
        renewed("no marks")


# ---------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["lss"], "No such command 'lss'. Did you mean 'ls'? See clustermutex --help."),
        (["locks"], "Did you mean one of: 'lock', 'unlock'?"),
        (["qqq"], "No such command 'qqq'. See clustermutex --help."),
        (["--url", "etcd://h:1", "completion", "bash"], "`completion` asks no store"),
        (["--url", "http://x", "ls"], "It must begin with etcd://"),
        (["ls", "--stat", "x"], "No such option"),
        (["show"], "Missing argument 'NAME'. See clustermutex show --help."),
        (["show", ""], "must have 1 to 255 bytes"),
        (["show", "a\x1bb"], r"'a\x1bb' has control characters"),
        (["ls", "--state", "odd"], "'odd' is not one of"),
        (["ls", "--url", "http://x"], "It must begin with etcd://"),
        (["doctor", "--listen", "soon"], "'soon' is no duration: give seconds or units, like 90"),
        (["doctor", "--listen", "61d"], "'61d' is out of range: "),
        (["completion", "tcsh"], "'tcsh' is not one of"),
        (["run", "x"], "COMMAND"),
        (["run", "x", "--timeout", "soon", "--", "true"], "--timeout"),
        (["run", "x", "--timeout", "-1", "--", "true"], "--timeout"),
        (["run", "x", "--timeout", "5", "--no-wait", "--", "true"], "--no-wait"),
        (["run", "x", "--auto-unlock-after", "soon", "--", "true"], "never"),
        (["run", "x", "--auto-unlock-after", "inf", "--", "true"], "is no duration"),
        (["run", "x", "--auto-unlock-after", "0", "--", "true"], "--auto-unlock-after must be"),
        (["run", "x", "--auto-unlock-after", "5", "--", "true"], "--expected-runtime (5 min)"),
        (["run", "x", "--expected-runtime", "nan", "--", "true"], "--expected-runtime"),
        (["run", "x", "--url", "http://x", "--", "true"], "etcd://"),
        *((["run", name, "--", "true"], "name") for name in ("", "two\nlines", "n" * 256)),
    ],
)
def test_a_usage_error_is_one_line(words: list[str], told: str) -> None:
    nowhere = Settings(("127.0.0.1:1",))
    said = one_line(called(nowhere, *words, status=69 if told == "name" else 2))
    assert told in said
    assert said.startswith("clustermutex: ")
    assert "\x1b" not in said


def test_the_url_may_come_before_or_after_the_command(
    settings: Settings, store: ServiceStore
) -> None:
    nowhere = Settings(("127.0.0.1:1",))
    with ClusterMutex("x", store=store):
        for words in (
            ["--url", settings.url(), "ls"],
            ["ls", "--url", settings.url()],
            ["--url", nowhere.url(), "ls", "--url", settings.url()],
        ):
            assert "\tx\t" in called(nowhere, *words).stdout
    said = piped(nowhere, "--url", settings.url(), "run", "y", "--", "printenv", "CLUSTERMUTEX_URL")
    assert said.stdout.strip() == settings.url()


def test_near_misses_are_suggested() -> None:
    memory = MemoryStore()
    memory.take("deploy/prod")
    memory.take("report")
    for words, told in (
        ("show deploy", "Did you mean 'deploy/prod'?"),
        ("show deploy/prd", "Did you mean 'deploy/prod'?"),
        ("force-unlock reprot --reason x --yes", "Did you mean 'report'?"),
        ("show zzz", "Nobody holds the lock 'zzz'."),
    ):
        assert one_line(called(memory, *words.split(), status=1)).endswith(told)


def test_debug_shows_the_traceback() -> None:
    nowhere = Settings(("127.0.0.1:1",))
    told = one_line(called(nowhere, "ls", status=69))
    assert "etcd at 127.0.0.1:1 did not answer in time (connection refused)" in told
    assert "CLUSTERMUTEX_URL" in told
    memory = MemoryStore()
    memory.memory.away = True
    for words in (["--debug", "ls"], ["ls", "--debug"]):
        said = called(memory, *words, status=69).stderr
        assert "Traceback (most recent call last)" in said
        assert said.splitlines()[-1].startswith("clustermutex: The store in memory is away")


def test_an_internal_error_is_one_line() -> None:
    class Broken(MemoryStore):
        def names(self, *_: object) -> list[str]:
            raise RuntimeError("unforeseen")

    told = one_line(called(Broken(), "ls", status=70))
    assert "RuntimeError: unforeseen. Add --debug" in told


def test_a_closed_pipe_is_no_error(settings: Settings) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [COMMAND, "--help"],
        stdout=writing,
        stderr=subprocess.PIPE,
        timeout=60,
        env=environment(settings),
    )
    os.close(writing)
    assert done.stderr == b""
    assert done.returncode == 1


@pytest.mark.parametrize(
    ("words", "status", "told"),
    [
        ("ls >/dev/full", 74, "can't be written: No space left"),
        ("ls >&-", 74, "can't be written: Bad file"),
        ("--version >&-", 74, "can't be written: Bad file"),
        ("up", 71, "no home directory"),
    ],
)
def test_failures_of_the_environment_have_their_own_status(
    settings: Settings, store: ServiceStore, words: str, status: int, told: str
) -> None:
    user = ["unshare", "--user", "--map-user=1000090", "env", "-u", "HOME", "-u", "XDG_STATE_HOME"]
    if words == "up" and subprocess.run([*user, "true"], capture_output=True).returncode:
        pytest.skip("the system gives no user namespace")
    done = subprocess.run(
        [*(user if words == "up" else ()), "sh", "-c", f"{COMMAND} {words}"],
        capture_output=True,
        text=True,
        timeout=60,
        env=environment(settings),
    )
    assert done.returncode == status, done.stderr
    assert told in one_line(done)


def test_errors_are_red_on_a_terminal_only() -> None:
    """NO_COLOR turns the colour off."""
    for columns, no_color in ((80, ""), (80, "1"), (0, "")):
        done = called(MemoryStore(), "show", "x", columns=columns, status=1, NO_COLOR=no_color)
        assert ("\x1b[31m" in done.stderr) is (columns > 0 and not no_color)


def test_all_output_can_be_written_in_any_locale(settings: Settings, store: ServiceStore) -> None:
    """The locale here has no letters for the lock's name."""
    ascii_only: dict[str, Any] = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
    with ClusterMutex("Grüße, 名前", store=store):
        piped(settings, "ls", **ascii_only)
        with in_terminal(settings, "ls", columns=120, **ascii_only) as terminal:
            assert terminal.ended() == 0
            assert "Gr" in terminal.text
