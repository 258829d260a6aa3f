"""The command as a whole: its start, its help and its reference, its errors."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from lockclient import ClusterMutex, Settings
from lockclient.cli.group import SECTIONS
from lockclient.cli.setup.etcd_server import Etcd
from lockclient.stores.etcd.store import EtcdStore
from tests.support.command_reference import renewed
from tests.support.etcd_binary import served
from tests.support.processes import Figure, run_to_end
from tests.support.soak import soaking
from tests.support.terminal import COMMAND, called, environment, in_terminal, one_line, piped

PAGE = Path(__file__).parents[2] / "docs" / "command.md"
BARE = (sys.executable, "-X", "importtime", "-c", "import click, grpc, google.protobuf.message")
NAMES = [name for section in SECTIONS.values() for name in section]


@pytest.mark.parametrize(
    ("words", "most", "asks"),
    [
        (["--help"], 180, 0),
        (["ls"], 185, 5),
        *soaking((["--version"], 110, 0), (["show", "--help"], 120, 0)),
    ],
)
def test_it_starts_quickly(
    own_etcd: Etcd, own_store: EtcdStore, figure: Figure, words: list[str], most: int, asks: int
) -> None:
    """By counts that no noise can move: 0.3 s of a processor when idle.

    It imports little that click, grpc and protobuf do not, and asks etcd a handful of questions.
    """
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


def test_alone_it_says_the_three_most_useful_commands(settings: Settings) -> None:
    said = piped(settings).stdout
    assert [line.split()[1] for line in said.splitlines() if line.startswith("  clustermutex")] == [
        *("ls", "show", "run"),
    ]
    assert max(map(len, said.splitlines())) <= 80


def test_rich_is_loaded_for_a_terminal_only(settings: Settings, tmp_path: Path) -> None:
    """Without it everything but a terminal's table works, and that says what to install."""
    (tmp_path / "rich.py").write_text("raise ModuleNotFoundError('none', name='rich')\n")
    path = os.pathsep.join([str(tmp_path), *sys.path[1:]])
    assert piped(settings, "ls", PYTHONPATH=path).stdout.startswith("STATE")
    with in_terminal(settings, "ls", PYTHONPATH=path) as terminal:
        assert terminal.ended() == 1
        told = "clustermutex needs rich: pip install 'clustermutex[command]'."
        assert told in terminal.text
        assert "Traceback" not in terminal.text


@pytest.mark.parametrize("name", NAMES)
def test_every_command_has_help(settings: Settings, name: str) -> None:
    """What it does, each option in a sentence."""
    said = called(settings, name, "-h").stdout
    assert said.startswith(f"Usage: clustermutex {name} ")


def test_the_help_names_every_command(settings: Settings) -> None:
    said = called(settings, "--help").stdout
    assert [name for name in NAMES if name not in said] == []


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
        (["lss"], "No such command 'lss'. Did you mean `ls`? See clustermutex --help."),
        (["locks"], "Did you mean `lock` or `unlock`?"),
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
        (["run", "x", "--alive", "manual", "--alive-on-output", "--", "true"], "not both"),
        (["run", "x", "--url", "http://x", "--", "true"], "etcd://"),
    ],
)
def test_a_wrong_line_is_one_line(settings: Settings, words: list[str], told: str) -> None:
    """What is wrong and where the help is, on stderr, status 2."""
    said = one_line(called(settings, *words, status=2))
    assert told in said
    assert said.startswith("clustermutex: ")
    assert "\x1b" not in said


@pytest.mark.parametrize("name", ["", "two\nlines", "n" * 256])
def test_a_bad_name_to_run_under_is_one_line(name: str) -> None:
    """Before etcd is asked."""
    nowhere = Settings.load("etcd://127.0.0.1:1")
    assert "name" in one_line(called(nowhere, "run", name, "--", "true", status=69))


def test_the_url_stands_before_the_command_or_after_it(
    settings: Settings, store: EtcdStore
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


def test_near_misses_are_suggested(settings: Settings, store: EtcdStore) -> None:
    with ClusterMutex("deploy/prod", store=store), ClusterMutex("report", store=store):
        for asked in ("deploy", "deploy/prd"):
            told = one_line(called(settings, "show", asked, status=1))
            assert told.endswith("Did you mean 'deploy/prod'?")
        words = ["force-unlock", "reprot", "--reason", "x", "--yes"]
        assert one_line(called(settings, *words, status=1)).endswith("Did you mean 'report'?")
        assert "mean" not in one_line(called(settings, "show", "zzz", status=1))


def test_debug_shows_the_traceback() -> None:
    """And what is done meanwhile; without it there is one line."""
    nowhere = Settings(("127.0.0.1:1",))
    lines = (["ls"], ["--debug", "ls"], ["ls", "--debug"])
    with ThreadPoolExecutor(len(lines)) as threads:  # each tries for five seconds
        quiet, *debugged = threads.map(lambda words: piped(nowhere, *words, status=69), lines)
    told = one_line(quiet)
    assert "etcd at 127.0.0.1:1 did not answer in time (connection refused)" in told
    assert "CLUSTERMUTEX_URL" in told
    for done in debugged:
        assert "Traceback (most recent call last)" in done.stderr
        assert done.stderr.splitlines()[-1] == told


def test_a_mistake_of_ours_is_one_line_too(settings: Settings) -> None:
    """Status 70, and how to see where."""
    program = (
        "import sys\n"
        "from lockclient.cli import main, store_access\n"
        "def mistake(*_): raise RuntimeError('unforeseen')\n"
        "store_access.open_store = mistake\n"
        "sys.argv[0] = 'clustermutex'\n"
        "main()\n"
    )
    env = environment(settings)
    done = run_to_end(sys.executable, "-c", program, "ls", env=env, status=70)
    assert "RuntimeError: unforeseen. Add --debug" in one_line(done)


def test_who_reads_its_output_may_have_enough(settings: Settings) -> None:
    """`| head`: no error about a pipe that was closed."""
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


def test_errors_are_red_on_a_terminal_only(settings: Settings) -> None:
    """Unless NO_COLOR is set."""
    for no_color in ("", "1"):
        with in_terminal(settings, "show", "x", NO_COLOR=no_color) as terminal:
            assert terminal.ended() == 1
            assert ("\x1b[31m" in terminal.raw) is not bool(no_color)


def test_all_output_can_be_written_in_any_locale(settings: Settings, store: EtcdStore) -> None:
    """Also where it has no letters for a name."""
    ascii_only = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
    with ClusterMutex("Grüße, 名前", store=store):
        called(settings, "ls", status=0, **ascii_only)
        with in_terminal(settings, "ls", columns=120, **ascii_only) as terminal:
            assert terminal.ended() == 0
            assert "Gr" in terminal.text
