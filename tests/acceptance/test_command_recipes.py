"""docs/recipes.md: each recipe, run as it stands, by /bin/sh."""

from __future__ import annotations

import re
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from lockclient import ClusterMutex
from lockclient.stores.service_protocol import ServiceStore
from tests.acceptance.shells import PATIENCE, held, in_line
from tests.support.documents import codes
from tests.support.locks import has, read
from tests.support.processes import run_to_end, wait_until

BLOCKS = codes("recipes.md", "sh", "crontab")

Make = Callable[..., None]


def recipe(words: str) -> str:
    (found,) = [block for block in BLOCKS if words in block]
    return found


@pytest.fixture
def env(env: dict[str, str], tmp_path: Path) -> dict[str, str]:
    """The environment of a shell that finds the programs of the recipes in `bin`."""
    (tmp_path / "bin").mkdir()
    return env | {"PATH": f"{tmp_path / 'bin'}:{env['PATH']}"}


@pytest.fixture
def program(tmp_path: Path) -> Make:
    """Makes a program that a recipe calls: its path, and what it does besides being noted down."""

    def make(path: str, script: str = "") -> None:
        file = tmp_path / path
        note = f'echo "{file.name} $*" >> {tmp_path}/done\n'
        file.write_text(f"#!/bin/sh\n{note}{script}\n")
        file.chmod(0o755)

    return make


def _sh(script: str, env: dict[str, str], folder: Path) -> subprocess.CompletedProcess[str]:
    return run_to_end("/bin/sh", "-c", script, env=env, folder=folder, status=None)


def _done(folder: Path) -> list[str]:
    return (folder / "done").read_text().splitlines() if (folder / "done").exists() else []


def test_there_is_a_test_for_each() -> None:
    """A recipe that is added needs one."""
    assert len(BLOCKS) == 7


def test_cron(env: dict[str, str], store: ServiceStore, tmp_path: Path, program: Make) -> None:
    """The line's command, as cron runs it: on one host it works, on the others it does nothing."""
    program("bin/nightly-report", "clustermutex show nightly-report > shown")
    line = recipe("nightly-report")
    command = line.strip().split(" ", 5)[5]
    assert line.split(" ", 5)[:5] == ["0", "3", "*", "*", "*"]
    done = _sh(command, env, tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert _done(tmp_path) == ["nightly-report --all"]
    with ClusterMutex("nightly-report", store=store):
        done = _sh(command, env, tmp_path)
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr.startswith("clustermutex: The lock 'nightly-report' is not free.")
    assert len(_done(tmp_path)) == 1


def test_ci(env: dict[str, str], store: ServiceStore, tmp_path: Path, program: Make) -> None:
    """It waits for its turn, visibly, and the job's status is the deploy's."""
    program("deploy.sh", "exit 3")
    env |= {"CI_ENVIRONMENT": "prod", "CI_JOB_URL": "https://ci.example/7"}
    with ClusterMutex("deploy/prod", store=store):
        job = subprocess.Popen(["/bin/sh", "-c", recipe("$CI_JOB_URL")], env=env, cwd=tmp_path)
        in_line(store, "deploy/prod")
        assert read(store, "deploy/prod").waiters[0].reason == "https://ci.example/7"
        assert not _done(tmp_path)
    assert job.wait(PATIENCE) == 3
    assert _done(tmp_path) == ["deploy.sh prod"]


def test_a_wrapper(env: dict[str, str], store: ServiceStore, tmp_path: Path, program: Make) -> None:
    """What changes something has the lock, what looks has none."""
    program("bin/terraform", "exec clustermutex show --json terraform/$(basename $PWD) > shown")
    wrapper = tmp_path / "bin" / "tf"
    wrapper.write_text(recipe("terraform"))
    wrapper.chmod(0o755)
    assert _sh("tf apply -auto-approve", env, tmp_path).returncode == 0
    assert "terraform apply by " in (tmp_path / "shown").read_text()
    _sh("tf plan", env, tmp_path)
    assert "terraform" not in (tmp_path / "shown").read_text()
    assert _done(tmp_path) == ["terraform apply -auto-approve", "terraform plan"]


def test_steps(env: dict[str, str], store: ServiceStore, tmp_path: Path, program: Make) -> None:
    """Held over all steps, and pushed between them; released in the end, and after a failure."""
    for step in ("build", "upload", "restart"):
        program(step, "clustermutex show --json deploy/shop | grep alive_at >> stamps")
    assert _sh(recipe("./restart"), env, tmp_path).returncode == 0
    assert _done(tmp_path) == ["build ", "upload ", "restart "]
    stamps = (tmp_path / "stamps").read_text().splitlines()
    assert len(set(stamps)) == 3
    assert has(store, "deploy/shop") is None
    program("upload", "exit 9")
    assert _sh(recipe("./restart"), env, tmp_path).returncode == 9
    assert _done(tmp_path)[3:] == ["build ", "upload "]
    assert has(store, "deploy/shop") is None


def test_steps_that_are_interrupted(
    env: dict[str, str], store: ServiceStore, tmp_path: Path, program: Make
) -> None:
    """The trap releases the lock."""
    program("build", "until test -e go; do sleep 0.05; done")
    script = tmp_path / "deploy"
    script.write_text(recipe("./restart"))
    deploy = subprocess.Popen(["/bin/sh", str(script)], env=env, cwd=tmp_path)
    wait_until(lambda: _done(tmp_path), PATIENCE, "the first step")
    assert held(store, "deploy/shop").pid == deploy.pid, "people look for the script"
    deploy.send_signal(signal.SIGTERM)
    (tmp_path / "go").touch()
    assert deploy.wait(PATIENCE) == 143
    assert _done(tmp_path) == ["build "]
    assert has(store, "deploy/shop") is None


def test_exported(env: dict[str, str], store: ServiceStore, tmp_path: Path, program: Make) -> None:
    """The script knows its fencing token; without the lock it ends before it has done anything."""
    program("upload")
    script = recipe("--export")
    assert _sh(script, env, tmp_path).returncode == 0
    assert re.fullmatch(r"upload --if-newer-than \d+", _done(tmp_path)[0])
    assert has(store, "deploy/shop") is None
    with ClusterMutex("deploy/shop", store=store):
        done = _sh(script.replace("--timeout 60", "--timeout 0"), env, tmp_path)
    assert done.returncode == 75
    assert len(_done(tmp_path)) == 1


def test_its_own_word(env: dict[str, str], tmp_path: Path, program: Make) -> None:
    """Each file is a heartbeat."""
    program("import-file", "clustermutex show --json import | grep alive_at >> stamps")
    (tmp_path / "inbox").mkdir()
    for name in "ab":
        (tmp_path / "inbox" / name).touch()
    assert _sh(recipe("manual"), env, tmp_path).returncode == 0
    assert _done(tmp_path) == ["import-file inbox/a", "import-file inbox/b"]
    assert len(set((tmp_path / "stamps").read_text().splitlines())) == 2


def test_fencing(env: dict[str, str], tmp_path: Path, program: Make) -> None:
    """A token that is not larger than the last is refused."""
    program("compute-totals", "echo 42")
    for _ in range(2):
        assert _sh(recipe("totals.token"), env, tmp_path).returncode == 0
    assert (tmp_path / "totals").read_text() == "42\n"
    (tmp_path / "totals.token").write_text("999999999\n")
    assert _sh(recipe("totals.token"), env, tmp_path).returncode == 1
    assert len(_done(tmp_path)) == 2
