"""docs/frameworks.md with the real packages, in an environment of their own: for `make soak`.

What needs no other package than the tests have themselves is run by `make test`, too.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from lockclient import ClusterMutex, Settings
from lockclient.cli.setup.ports import free_port
from lockclient.cli.setup.processes import end, spawn
from lockclient.stores.etcd.store import EtcdStore
from tests.support.processes import wait_until

CHECKOUT = Path(__file__).parents[2]
PAGE = (CHECKOUT / "docs" / "frameworks.md").read_text(encoding="utf-8")
_, API, API_TEST, GUNICORN, POOL, POD, TASKS, JOBS, COMMAND, AIRFLOW = re.findall(
    r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL
)
NEEDS = (
    *("fastapi", "httpx", "uvicorn"),
    *("celery", "apscheduler<4", "django", "gevent", "eventlet"),
)

OWN = Path(sys.executable)


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python that has the frameworks, and this library with its extra."""
    folder = tmp_path_factory.mktemp("frameworks")
    found = folder / "bin" / "python"
    for words in (
        (sys.executable, "-m", "venv", folder),
        (found, "-m", "pip", "install", "-q", *NEEDS, f"{CHECKOUT}[prometheus,testing]"),
    ):
        subprocess.run(words, check=True, timeout=600)
    return found


def _environment(settings: Settings) -> dict[str, str]:
    return {**os.environ, "CLUSTERMUTEX_URL": settings.url()}


def run(python: Path, folder: Path, settings: Settings, program: str, *words: str) -> str:
    """Run a program beside the recipe, and return what it said."""
    (folder / "program.py").write_text(program)
    done = subprocess.run(
        [python, "program.py", *words],
        cwd=folder,
        env=_environment(settings),
        capture_output=True,
        text=True,
        timeout=120,
    )
    return f"{done.stdout}{done.stderr}"


@pytest.mark.soak
def test_fastapi(python: Path, settings: Settings, tmp_path: Path) -> None:
    (tmp_path / "api.py").write_text(API)
    program = """
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
    said = run(python, tmp_path, settings, program)
    assert "leader team-shop 200\n409\nTrue\nNone\n" in said, said


@pytest.mark.soak
def test_fastapi_s_tests(python: Path, settings: Settings, tmp_path: Path) -> None:
    (tmp_path / "api.py").write_text(API)
    (tmp_path / "conftest.py").write_text('pytest_plugins = ["lockclient.testing.plugin"]\n')
    (tmp_path / "test_api.py").write_text(API_TEST)
    said = run(python, tmp_path, settings, "import sys, pytest; sys.exit(pytest.main())")
    assert "2 passed" in said, said


@pytest.mark.soak
def test_uvicorn_workers(
    python: Path, settings: Settings, store: EtcdStore, tmp_path: Path
) -> None:
    """Of two workers one leads; the one that is ended lets the other lead."""
    (tmp_path / "api.py").write_text(API)
    server = [str(python), "-m", "uvicorn", "api:app", "--workers", "2", "--port", str(free_port())]
    _leads_one_after_another(server, ClusterMutex("shop-worker", store=store), settings, tmp_path)


def test_gunicorn_workers(settings: Settings, store: EtcdStore, tmp_path: Path) -> None:
    (tmp_path / "gunicorn.conf.py").write_text(GUNICORN)
    (tmp_path / "app.py").write_text("def app(environ, start):\n    raise NotImplementedError\n")
    server = [str(OWN), "-m", "gunicorn", "app:app", "--workers", "2", "--preload"]
    server += ["--bind", f"127.0.0.1:{free_port()}"]
    _leads_one_after_another(server, ClusterMutex("mailer", store=store), settings, tmp_path)


def _leads_one_after_another(
    words: list[str], mutex: ClusterMutex, settings: Settings, folder: Path
) -> None:
    with (folder / "log").open("wb") as log:
        server = spawn(words, output=log.fileno(), env=_environment(settings), cwd=folder)
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


def test_a_pool_of_processes(settings: Settings, tmp_path: Path) -> None:
    assert run(OWN, tmp_path, settings, POOL) == "4 acquisitions\n"


def test_a_pod_that_is_ended(settings: Settings, store: EtcdStore, tmp_path: Path) -> None:
    """It is known by its names, and SIGTERM leaves no lock."""
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
def test_celery(python: Path, settings: Settings, tmp_path: Path) -> None:
    (tmp_path / "tasks.py").write_text(TASKS)
    program = """
from celery.contrib.testing.worker import start_worker
from tasks import app, rebuild
from lockclient import ClusterMutex
app.conf.update(broker_url="memory://", result_backend="cache+memory://")
with start_worker(app, perform_ping_check=False, pool="threads", concurrency=2):
    print(rebuild.delay(3).get(timeout=60))
    with ClusterMutex("report"):
        print(rebuild.delay(3).get(timeout=60))
"""
    said = run(python, tmp_path, settings, program)
    assert "done\nskipped\n" in said, said


@pytest.mark.soak
def test_apscheduler(python: Path, settings: Settings, tmp_path: Path) -> None:
    (tmp_path / "jobs.py").write_text(JOBS)
    program = """
import time
from lockclient import ClusterMutex
with ClusterMutex("nightly"):
    import jobs
    time.sleep(3)
time.sleep(3)
"""
    said = run(python, tmp_path, settings, program)
    skipped, _, ran = said.partition("ran\n")
    assert "Skipping job: The lock 'nightly' is not free. It is held by " in skipped, said
    assert "Skipping" not in ran, said


@pytest.mark.soak
def test_django(python: Path, settings: Settings, tmp_path: Path) -> None:
    commands = tmp_path / "shop" / "management" / "commands"
    commands.mkdir(parents=True)
    for package in (commands, commands.parent, commands.parent.parent):
        (package / "__init__.py").touch()
    (commands / "migrate_once.py").write_text(COMMAND)
    program = """
import sys
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
    said = run(python, tmp_path, settings, program)
    assert "Applying contenttypes.0001_initial... OK" in said, said
    assert "No migrations to apply." in said


@pytest.mark.soak
@pytest.mark.parametrize(
    ("patch", "said"),
    [
        ("from gevent import monkey; monkey.patch_all()", "gevent.monkey has replaced"),
        ("import eventlet; eventlet.monkey_patch()", "eventlet.patcher has replaced"),
        (
            "from gevent import monkey\n"
            "monkey.patch_all(thread=False, threading=False, queue=False)",
            "released",
        ),
    ],
)
def test_green_threads_work_or_are_refused(
    patch: str, said: str, python: Path, settings: Settings, tmp_path: Path
) -> None:
    program = f"""{patch}
from lockclient import ClusterMutex
with ClusterMutex("x", timeout=10) as held:
    held.alive(force=True)
print("released")
"""
    assert said in run(python, tmp_path, settings, program)
