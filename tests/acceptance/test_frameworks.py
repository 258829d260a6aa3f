"""docs/programs.md, Frameworks, with the real packages in an environment of their own: `make soak`.

`make test` has what needs no other package than the tests have themselves, and FastAPI, which is
few packages: they are installed beside the tests' own. What runs for long is tested by
`test_programs_in_outage.py`, too.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from lockclient import ClusterMutex, Settings
from lockclient.cli.setup.ports import free_port
from lockclient.cli.setup.spawn import end, spawn
from lockclient.stores.service_store import ServiceStore
from tests.support import documents
from tests.support.processes import run_to_end, wait_until
from tests.support.recipe_packages import python_with
from tests.support.soak import soaking
from tests.support.valkey_servers import running
from tests.support.wheel import build_wheel

CHECKOUT = Path(__file__).parents[2]
PAGE = documents.text("programs.md#frameworks")
_, API, API_TEST, GUNICORN, POOL, POD, TASKS, _, COMMAND, AIRFLOW = documents.codes(
    "programs.md#frameworks", "python"
)
GREEN = re.findall(r"^\| `((\w+)\.[^`]+)` \| (\w+) \| (\w+) \|$", PAGE, re.MULTILINE)
"""What patches threads, the package, and what comes of it with etcd and with Valkey."""

OWN = Path(sys.executable)
FASTAPI = ("fastapi", "httpx")
Install = Callable[..., Path]


@pytest.fixture(scope="module")
def install(tmp_path_factory: pytest.TempPathFactory) -> Install:
    """Return a Python that has some packages, and this library with extras, of a wheel."""

    @cache
    def installed(*needs: str, extras: str = "prometheus,testing,valkey") -> Path:
        folder = tmp_path_factory.mktemp("venv")
        found = folder / "bin" / "python"
        if needs == FASTAPI:
            return python_with(folder, needs)
        steps: tuple[tuple[str | Path, ...], ...] = (
            (sys.executable, "-m", "venv", folder),
            (found, "-m", "pip", "install", "-q", *needs, f"{build_wheel(folder)}[{extras}]"),
        )
        for words in steps:
            subprocess.run(words, check=True, timeout=600)
        return found

    return lambda *needs: installed(*needs) if needs else OWN


def _environment(settings: Settings) -> dict[str, str]:
    return {**os.environ, "CLUSTERMUTEX_URL": settings.url()}


def run(python: Path, folder: Path, settings: Settings, program: str) -> str:
    """Run a program beside the recipe, and return what it said."""
    (folder / "program.py").write_text(program)
    done = run_to_end(
        *(python, "program.py"), folder=folder, env=_environment(settings), status=None
    )
    return f"{done.stdout}{done.stderr}"


USES_API = """
import time
from fastapi.testclient import TestClient
import api
from lockclient import ClusterMutex
with TestClient(api.app) as client:
    while (leader := ClusterMutex("shop-worker").holder()) is None:
        time.sleep(0.1)
    print("leader", leader.owner, client.post("/orders/7").status_code)
    with ClusterMutex("order/8"):
        print(client.post("/orders/8").status_code)
    print("clustermutex_client_held 1.0" in client.get("/metrics").text)
print(ClusterMutex("shop-worker").holder())
"""
TESTS_API = """
import pathlib, sys, pytest
pathlib.Path("conftest.py").write_text('pytest_plugins = ["lockclient.testing.plugin"]')
sys.exit(pytest.main(["test_api.py"]))
"""
USES_TASKS = """
from celery.contrib.testing.worker import start_worker
from tasks import app, rebuild
from lockclient import ClusterMutex
app.conf.update(broker_url="memory://", result_backend="cache+memory://")
with start_worker(app, perform_ping_check=False, pool="threads", concurrency=2):
    print(rebuild.delay(3).get(timeout=60))
    with ClusterMutex("report"):
        print(rebuild.delay(3).get(timeout=60))
"""
USES_GUNICORN = """
import time, types
import conf
from lockclient import ClusterMutex
worker = types.SimpleNamespace()
with ClusterMutex("mailer") as held:
    conf.post_fork(None, worker)
    while not held.waiters():
        time.sleep(0.05)
    begun = time.monotonic()
    conf.worker_exit(None, worker)
    print("a waiting worker ends soon:", time.monotonic() - begun < 4)
"""
USES_COMMAND = """
import django
from django.conf import settings
from django.core.management import call_command
settings.configure(
    INSTALLED_APPS=["django.contrib.contenttypes", "shop"],
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "db.sqlite3"}},
)
django.setup()
call_command("migrate_once")
call_command("migrate_once")
"""


@pytest.mark.parametrize(
    ("needs", "files", "program", "said"),
    [
        (FASTAPI, {"api.py": API}, USES_API, "leader team-shop 200\n409\nTrue\nNone\n"),
        ((), {}, POOL, "^4 acquisitions\n$"),
        ((), {"conf.py": GUNICORN}, USES_GUNICORN, "^a waiting worker ends soon: True\n"),
        *soaking(
            (FASTAPI, {"api.py": API, "test_api.py": API_TEST}, TESTS_API, "2 passed"),
            (("celery",), {"tasks.py": TASKS}, USES_TASKS, "done\nskipped\n"),
            (
                ("django",),
                {"shop/management/commands/migrate_once.py": COMMAND},
                USES_COMMAND,
                r"Applying contenttypes\.0001_initial\.\.\. OK(?s:.*)No migrations to apply\.",
            ),
        ),
    ],
    ids=["fastapi", "pool", "gunicorn", "its tests", "celery", "django"],
)
def test_the_programs_of_each_recipe(
    install: Install,
    settings: Settings,
    tmp_path: Path,
    needs: tuple[str, ...],
    files: dict[str, str],
    program: str,
    said: str,
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert re.search(said, done := run(install(*needs), tmp_path, settings, program)), done


UVICORN = "uvicorn api:app --workers 2 --port"
GUNICORN_WORDS = "gunicorn app:app --workers 2 --preload --bind"


@pytest.mark.parametrize(
    ("needs", "name", "recipe", "words", "lock"),
    [
        ((), "gunicorn.conf.py", GUNICORN, f"{GUNICORN_WORDS} 127.0.0.1:", "mailer"),
        *soaking(((*FASTAPI, "uvicorn"), "api.py", API, f"{UVICORN} ", "shop-worker")),
    ],
)
def test_one_of_two_workers_leads(
    *, install: Install, settings: Settings, store: ServiceStore, tmp_path: Path,
    needs: tuple[str, ...], name: str, recipe: str, words: str, lock: str,
) -> None:  # fmt: skip
    (tmp_path / name).write_text(recipe)
    (tmp_path / "app.py").write_text("def app(environ, start):\n    raise NotImplementedError\n")
    command = [str(install(*needs)), "-m", *f"{words}{free_port()}".split()]
    mutex = ClusterMutex(lock, store=store)
    with (tmp_path / "log").open("wb") as log:
        server = spawn(command, output=log.fileno(), env=_environment(settings), cwd=tmp_path)
        try:
            first = wait_until(mutex.holder, 120, "a leader")
            assert first.pid is not None
            assert first.pid != server.pid
            os.kill(first.pid, signal.SIGTERM)
            wait_until(
                lambda: (now := mutex.holder()) is not None and now.pid != first.pid,
                120,
                "another leader",
            )
            server.terminate()
            assert server.wait(60) in (0, -signal.SIGTERM)
            assert mutex.holder() is None
        finally:
            end(server)


def test_a_terminated_pod_leaves_no_lock(
    settings: Settings, store: ServiceStore, tmp_path: Path
) -> None:
    (tmp_path / "program.py").write_text(POD)
    mutex = ClusterMutex("reindex", store=store)
    env = _environment(settings) | {"KUBERNETES_SERVICE_HOST": "::1", "HOSTNAME": "reindex-7"}
    with (tmp_path / "log").open("wb") as log:
        pod = spawn([str(OWN), "program.py"], output=log.fileno(), env=env, cwd=tmp_path)
        try:
            held = wait_until(mutex.holder, 60, "the lock")
            assert held.container == "unknown/reindex-7"
            pod.terminate()
            assert pod.wait(60) == 143
            assert mutex.holder() is None
        finally:
            end(pod)


@pytest.mark.soak
@pytest.mark.parametrize(("patch", "package", "by_etcd", "by_valkey"), GREEN)
def test_green_threads_work_or_are_refused(
    install: Install,
    settings: Settings,
    tmp_path: Path,
    patch: str,
    package: str,
    by_etcd: str,
    by_valkey: str,
) -> None:
    program = f"""import {package}{".monkey" if package == "gevent" else ""}
{patch}
from lockclient import ClusterMutex, ClusterMutexError
try:
    with ClusterMutex("x", timeout=10) as held:
        held.alive(force=True)
    print("works")
except ClusterMutexError as error:
    print("refused", "{package}" in str(error))
"""
    expected = {"works": "works\n", "refused": "refused True\n"}
    with running(tmp_path, 1) as servers, servers.store():
        places = ((settings, by_etcd), (Settings.load(servers.place().url()), by_valkey))
        for place, what in places:
            python = install("gevent", "eventlet")
            assert expected[what] in run(python, tmp_path, place, program)


@pytest.mark.soak
def test_airflow(install: Install, settings: Settings, store: ServiceStore, tmp_path: Path) -> None:
    """A task runs, is skipped where the lock is held, and releases it as SIGTERM ends it."""
    airflow = install("apache-airflow>=3,<4").with_name("airflow")
    (tmp_path / "dags").mkdir()
    (tmp_path / "dags" / "shop.py").write_text(AIRFLOW)
    env = _environment(settings) | {
        "AIRFLOW_HOME": str(tmp_path),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__USAGE_DATA_COLLECTION__ENABLED": "False",
    }
    for words in (("db", "migrate"), ("dags", "reserialize")):
        subprocess.run((airflow, *words), env=env, capture_output=True, check=True, timeout=300)
    task = [str(airflow), "tasks", "test", "shop", "rebuild"]
    mutex = ClusterMutex("rebuild", store=store)
    assert _ended_as(task, env, tmp_path) == "success"
    assert mutex.holder() is None
    with mutex:
        assert _ended_as(task, env, tmp_path) == "skipped"

    def terminate(running: subprocess.Popen[bytes]) -> None:
        assert wait_until(mutex.holder, 120, "the task's lock").pid == running.pid
        running.terminate()

    parts = ["--task-params", '{"parts": 100000}']
    assert _ended_as(task + parts, env, tmp_path, terminate) == "failed"
    assert mutex.holder() is None


def _ended_as(
    words: list[str],
    env: dict[str, str],
    folder: Path,
    meanwhile: Callable[[subprocess.Popen[bytes]], None] = lambda _: None,
) -> str:
    """Run a task of Airflow's, and return the state in which it ended."""
    with (folder / "log").open("wb") as log:
        running = spawn(words, output=log.fileno(), env=env, cwd=folder)
        try:
            meanwhile(running)
            assert running.wait(120) == 0
        finally:
            end(running)
    said = (folder / "log").read_text()
    states: list[str] = re.findall(r"new_state=(\w+)", said)
    assert states, said
    return states[-1]
