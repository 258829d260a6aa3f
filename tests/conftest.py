"""Shared by all tests: a real etcd, a fresh root for each test, no environment of ours."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import hypothesis
import pytest

from lockclient.cli.setup.etcd_server import Etcd, embedded_etcd, find_etcd
from lockclient.stores.etcd.store import EtcdStore
from lockclient.stores.settings import Settings
from lockclient.threads import log_queue
from tests.support.etcd_binary import Etcdctl, etcdctl_of
from tests.support.etcd_store import etcd_store

if TYPE_CHECKING:
    from tests.support.bucket.server import BucketServer

# The same examples each time, no files beside the tests, and no limit that a slow machine breaks.
hypothesis.settings.register_profile("ours", derandomize=True, database=None, deadline=None)
hypothesis.settings.load_profile("ours")


MEMORY = Path("/dev/shm")
ROOM = 4 << 30


def _keep_files_in_memory() -> None:
    """A busy disk stands still for ten seconds at times, and each etcd's writes with it."""
    runs = MEMORY.is_dir() and not os.statvfs(MEMORY).f_flag & os.ST_NOEXEC
    if "TMPDIR" not in os.environ and runs and shutil.disk_usage(MEMORY).free > ROOM:
        os.environ["TMPDIR"] = str(MEMORY)
        tempfile.tempdir = None


_keep_files_in_memory()


class FlushedCapture(pytest.LogCaptureFixture):  # type: ignore[misc]
    """All log records, also those that the library's own thread has yet to handle."""

    @property
    def handler(self) -> Any:
        log_queue.flush(10)
        return super().handler


@pytest.fixture
def caplog(
    caplog: pytest.LogCaptureFixture, request: pytest.FixtureRequest
) -> Iterator[pytest.LogCaptureFixture]:
    """All log records, except the late warnings about locks that other tests have forgotten."""

    def is_ours(record: logging.LogRecord) -> bool:
        text = record.getMessage()
        return "garbage-collected without" not in text or request.node.path.name in text

    caplog.__class__ = FlushedCapture
    handler = caplog.handler
    handler.addFilter(is_ours)
    yield caplog
    log_queue.flush(10)
    handler.removeFilter(is_ours)


@pytest.fixture
def figure(request: pytest.FixtureRequest) -> Callable[[str], None]:
    """A function that shows a measured figure at the end of the run."""

    def show(sentence: str) -> None:
        request.node.user_properties.append(("figure", sentence))

    return show


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(terminalreporter: Any) -> Iterator[None]:
    """Show what the tests have measured and, below all else, what was left out and why."""
    figures = [
        (report.nodeid.rpartition("::")[2], text)
        for report in terminalreporter.stats.get("passed", [])
        for kind, text in report.user_properties
        if kind == "figure" and report.when == "call"
    ]
    if figures:
        terminalreporter.section("figures")
    for test, text in figures:
        terminalreporter.write_line(f"{test}: {text}")
    yield
    reasons = Counter(
        report.longrepr[2].removeprefix("Skipped: ")
        for report in terminalreporter.stats.get("skipped", [])
    )
    for reason, count in sorted(reasons.items()):
        tests = "1 test" if count == 1 else f"{count} tests"
        terminalreporter.write_line(f"{tests} left out: {reason}", yellow=True)
    if _fails_by_skips(terminalreporter):
        line = "CLUSTERMUTEX_TEST_NO_SKIPS is set: tests that are skipped fail the run."
        terminalreporter.write_line(line, red=True)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Where everything is installed (`.ci/run` says so), a skipped test is a failed one."""
    reporter = session.config.pluginmanager.getplugin("terminalreporter")
    if _fails_by_skips(reporter):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def _fails_by_skips(reporter: Any) -> bool:
    return bool(os.environ.get("CLUSTERMUTEX_TEST_NO_SKIPS") and reporter.stats.get("skipped"))


@pytest.fixture(autouse=True, scope="session")
def _clean_environment() -> None:
    """No variable of the developer's shell may change what a test sees."""
    for name in list(os.environ):
        ours = name.startswith(("CLUSTERMUTEX_", "ETCDCTL_", "UNLOCKER_", "MUTEXDASH_"))
        if ours and not name.startswith("CLUSTERMUTEX_TEST_"):
            del os.environ[name]


@pytest.fixture(autouse=True, scope="session")
def _interruptible() -> None:
    """A shell's background job ignores SIGINT and SIGQUIT, and so would all that tests start.

    With `nohup`, SIGHUP too: that ends nothing here, and yet is no signal that programs which are
    started begin with ignoring, since a handler of Python's ends with `exec`.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGQUIT, signal.SIG_DFL)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, lambda *_: None)


@pytest.fixture
def logging_as_before() -> Iterator[None]:
    """Puts the root logger back, which a program configures for all of its process."""
    root = logging.getLogger()
    before, level = list(root.handlers), root.level
    yield
    root.handlers[:] = before
    root.setLevel(level)


@pytest.fixture(scope="session")
def etcd_binary() -> str:
    """The etcd to test with: `CLUSTERMUTEX_TEST_ETCD` says `embedded` or a path."""
    wanted = os.environ.get("CLUSTERMUTEX_TEST_ETCD")
    binary = embedded_etcd() if wanted == "embedded" else wanted or find_etcd()
    if binary is None:
        pytest.skip("no etcd")
    return binary


@pytest.fixture(scope="session")
def etcd(etcd_binary: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Etcd]:
    """The etcd that all tests share; those that break theirs use `own_etcd`."""
    with _started(etcd_binary, tmp_path_factory.mktemp("etcd")) as server:
        yield server


@pytest.fixture
def own_etcd(etcd_binary: str, tmp_path: Path) -> Iterator[Etcd]:
    """An etcd of the test's own, to stop, freeze and fill."""
    with _started(etcd_binary, tmp_path) as server:
        yield server


def _started(binary: str, folder: Path) -> Etcd:
    return Etcd(binary, folder / "data", folder / "etcd.log")


@pytest.fixture
def root() -> str:
    return f"/t-{uuid4().hex[:12]}"


@pytest.fixture
def settings(etcd: Etcd, root: str) -> Settings:
    return Settings(endpoints=(etcd.endpoint,), root=root)


@pytest.fixture
def store(settings: Settings) -> Iterator[EtcdStore]:
    opened = etcd_store(settings)
    yield opened
    opened.close()


@pytest.fixture
def etcdctl(etcd: Etcd) -> Etcdctl:
    """etcd's own command: `etcdctl("put", key, value)` returns what it printed."""
    return etcdctl_of(etcd)


@pytest.fixture
def own_etcdctl(own_etcd: Etcd) -> Etcdctl:
    return etcdctl_of(own_etcd)


@pytest.fixture
def opened() -> Iterator[Callable[[Settings], EtcdStore]]:
    """A function that opens stores, which are closed with the test."""
    with ExitStack() as exits:
        yield lambda settings: exits.enter_context(closing(etcd_store(settings)))


@pytest.fixture
def own_store(own_etcd: Etcd) -> Iterator[EtcdStore]:
    opened = etcd_store(Settings(endpoints=(own_etcd.endpoint,)))
    yield opened
    opened.close()


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[BucketServer]:
    """A bucket of the test's own, which all that it starts use."""
    from tests.support.bucket_store import bucket_server  # with all of Google's

    with bucket_server(monkeypatch) as running:
        yield running
