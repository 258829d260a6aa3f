"""The `unlocker` program, as an operator runs it."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import pytest
from click.testing import CliRunner

from lockclient import ClusterMutex, Settings
from lockclient.cli.setup.etcd_server import Etcd
from lockclient.model.clocks import Deadline, Runtime
from lockclient.model.holder import STAMPS, Holder
from lockclient.stores.etcd.store import EtcdStore
from lockclient.stores.outcomes import ReadResult, Taken
from lockclient.stores.requests import Read, Take
from tests.support.etcd_binary import Etcdctl
from tests.support.etcd_store import etcd_store
from tests.support.processes import BIN, start_service, wait_until
from tests.support.records import taker
from tests.support.unlocker_process import UNLOCKER, fetch, figure, ready, unlocker
from unlocker.cli import main

IN_TIME = 20
"""Seconds in which it is gone: its own patience is four, the rest is a busy machine's."""

HOLDER = """
import sys, time
from lockclient import ClusterMutex, Settings, open_store

store = open_store(Settings.load(sys.argv[1]))
after = float(sys.argv[2])
mutex = ClusterMutex("nightly", expected_runtime=1, auto_unlock_after=after, store=store)
mutex.acquire()
print(mutex.uuid, flush=True)
time.sleep(600)
"""


@pytest.fixture
def killed(settings: Settings) -> Iterator[Callable[[float], str]]:
    """A function that has a process take the lock `nightly`, kills it, and returns the uuid."""
    processes: list[subprocess.Popen[str]] = []

    def take_and_die(auto_unlock_after: float) -> str:
        words = [sys.executable, "-c", HOLDER, settings.url(), f"{auto_unlock_after}"]
        process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
        processes.append(process)
        assert process.stdout is not None
        uuid = process.stdout.readline().strip()
        process.kill()
        return uuid

    yield take_and_die
    for process in processes:
        process.kill()
        process.communicate()


def take(store: EtcdStore, name: str, runtime: Runtime, wall: float | None = None) -> Holder:
    """Take a lock, and fall silent."""
    holder = taker(name, runtime, wall)
    assert isinstance(store.ask(Take(holder), Deadline.after(30)), Taken)
    return holder


def removal_of(settings: Settings, name: str, uuid: str) -> ReadResult | None:
    """Return what is left of a lock; None as long as it is held."""
    store = etcd_store(settings)
    try:
        seen = store.ask(Read(name, uuid), Deadline.after(10))
        assert isinstance(seen, ReadResult)
        return seen if seen.holder is None else None
    finally:
        store.close()


def test_a_killed_holder_is_alerted_on_and_its_lock_removed(
    settings: Settings, killed: Callable[[float], str]
) -> None:
    with unlocker(settings) as service:
        wait_until(lambda: ready(service), what="readiness")
        uuid = killed(3)
        sample = 'clustermutex_lock_alert_timestamp_seconds{name="nightly"}'
        wait_until(lambda: figure(service, sample), what="the alert in the metrics")
        assert removal_of(settings, "nightly", uuid) is None
        seen = wait_until(lambda: removal_of(settings, "nightly", uuid), what="the removal")
        assert seen.removal is not None
        assert seen.removal.how == "auto-unlock"
        assert 'File "<string>", line' in (seen.removal.holder.backtrace or "")
        wait_until(lambda: figure(service, sample) is None, what="the end of the alert")
        assert figure(service, 'clustermutex_auto_unlocks_total{result="removed"}') == 1
        log = service.log_text()
        assert log.count("'nightly' is past its alert, held by ") == 1
        assert log.count("Removed lock 'nightly': no sign of life for ") == 1


@pytest.mark.parametrize("stamp", STAMPS)
def test_a_foreign_client_that_pushes_one_stamp_alone_keeps_its_lock(
    settings: Settings, store: EtcdStore, etcdctl: Etcdctl, stamp: str
) -> None:
    """Nobody knows from which of them to count: it is never removed, and it is told."""
    undecided = 'clustermutex_locks{state="undecided"}'
    with unlocker(settings) as service:
        wait_until(lambda: ready(service), what="readiness")
        take(store, "foreign", Runtime(1, 3))
        began = time.monotonic()
        for number in range(3):
            after = (1 if stamp == "alert_at" else 3) + 0.5 * (number + 1)
            key = f"{settings.root}/locks/foreign/{stamp}"
            etcdctl("put", key, f"{time.time() + after:.3f}")
        wait_until(lambda: figure(service, undecided) == 1, what="the state")
        past = 'clustermutex_lock_alert_timestamp_seconds{name="foreign"}'
        wait_until(lambda: figure(service, past), what="the alert")
        # Whatever it was counted from, its time is over before that of one that is taken now.
        other = take(store, "silent since", Runtime(2, 3.5))
        wait_until(lambda: removal_of(settings, other.name, other.uuid or ""), what="the other")
        assert time.monotonic() - began > 3
        assert removal_of(settings, "foreign", "") is None
        assert figure(service, undecided) == 1
        overdue = 'clustermutex_lock_auto_unlock_timestamp_seconds{name="foreign"}'
        assert figure(service, overdue) is None


def test_one_that_is_killed_and_started_again_counts_what_it_keeps(
    settings: Settings, store: EtcdStore
) -> None:
    """Else nobody would know of an unlocker that never lives long enough to remove anything."""
    take(store, "a", Runtime(60, 3600), time.time() - 3700)

    def started_at() -> float | None:
        with unlocker(settings) as service:
            kept = "clustermutex_unlocker_locks_kept"
            wait_until(lambda: figure(service, kept) == 1, what="the lock to be counted")
            started = figure(service, "process_start_time_seconds")
            service.process.kill()
            return started

    assert started_at() != started_at(), "which the alert UnlockerRestarting goes by"
    assert removal_of(settings, "a", "") is None


def test_the_first_line_names_the_address_and_the_store(settings: Settings) -> None:
    with unlocker(settings) as service:
        wait_until(lambda: service.log_text().count("\n") > 0)
        first = service.log_text().splitlines()[0]
        assert service.url in first
        assert settings.url() in first


def test_every_option_is_a_variable_too_and_a_flag_comes_first(settings: Settings) -> None:
    variables = {
        "UNLOCKER_URL": settings.url(),
        "UNLOCKER_LISTEN": "127.0.0.1:0",
        "UNLOCKER_MAX_REMOVALS": "7",
        "UNLOCKER_LOG_FORMAT": "json",
        "UNLOCKER_LOG_LEVEL": "info",
    }
    with start_service([*UNLOCKER, "--max-removals", "25"], env=variables) as service:
        wait_until(lambda: ready(service), what="readiness")
        first = json.loads(service.log_text().splitlines()[0])
        assert settings.url() in first["message"]
        assert "25 removals a minute" in first["message"]


def test_pages(settings: Settings) -> None:
    with unlocker(settings) as service:
        wait_until(lambda: ready(service), what="readiness")
        assert fetch(service, "/healthz") == (200, "alive\n")
        assert fetch(service, "/readyz") == (200, "ready\n")
        assert fetch(service, "/")[0] == 200
        assert fetch(service, "/nothing")[0] == 404
        assert "clustermutex_unlocker_info{" in fetch(service, "/metrics")[1]


class TestTheEnd:
    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
    def test_it_ends_at_once_with_status_0_and_leaves_no_sign_of_life(
        self, settings: Settings, etcdctl: Callable[..., str], number: int
    ) -> None:
        path = f"{settings.root}/unlockers/"
        with unlocker(settings) as service:
            wait_until(lambda: etcdctl("get", "--prefix", path), what="the sign of life")
            service.process.send_signal(number)
            assert service.process.wait(IN_TIME) == 0
            assert etcdctl("get", "--prefix", path) == ""
            assert "Traceback" not in service.log_text()

    def test_it_ends_in_time_as_it_starts(self, settings: Settings) -> None:
        with unlocker(settings) as service:
            assert service.url
            service.process.terminate()
            assert service.process.wait(IN_TIME) == 0

    @pytest.mark.parametrize("how", ["stopped", "frozen"])
    def test_it_ends_in_time_without_etcd(self, own_etcd: Etcd, root: str, how: str) -> None:
        with unlocker(Settings(endpoints=(own_etcd.endpoint,), root=root)) as service:
            wait_until(lambda: ready(service), what="readiness")
            assert own_etcd.process is not None
            if how == "stopped":
                own_etcd.stop()
            else:
                os.kill(own_etcd.process.pid, signal.SIGSTOP)
            wait_until(lambda: not ready(service), what="unreadiness")
            service.process.terminate()
            assert service.process.wait(IN_TIME) == 0
            assert "Traceback" not in service.log_text()

    def test_it_ends_in_time_if_there_never_was_an_etcd(self) -> None:
        nowhere = Settings(endpoints=("127.0.0.1:9",))
        with unlocker(nowhere) as service:
            assert fetch(service, "/readyz")[0] == 503
            service.process.terminate()
            assert service.process.wait(IN_TIME) == 0


class TestWithoutEtcd:
    def test_it_goes_on_when_etcd_is_back(self, own_etcd: Etcd, root: str) -> None:
        settings = Settings(endpoints=(own_etcd.endpoint,), root=root)
        store = etcd_store(settings)
        lock = ClusterMutex("a", expected_runtime=10, auto_unlock_after=12, store=store)
        with unlocker(settings) as service:
            wait_until(lambda: ready(service), what="readiness")
            assert lock.acquire()
            uuid, taken = lock.uuid, time.monotonic()
            store.close()
            # Asked to end, it waits for its streams, and answers for longer than the lock has.
            assert own_etcd.process is not None
            own_etcd.process.kill()
            own_etcd.process.wait()
            status, sentence = wait_until(
                lambda: fetch(service, "/readyz") if not ready(service) else None,
                what="unreadiness",
            )
            assert status == 503
            assert own_etcd.endpoint in sentence
            assert figure(service, "clustermutex_unlocker_store_up") == 0
            assert fetch(service, "/healthz")[0] == 200

            # Both moments pass. What is not known to be so is not told.
            wait_until(lambda: time.monotonic() - taken > 20)
            assert "past its alert" not in service.log_text()

            own_etcd.start()
            wait_until(lambda: ready(service), what="readiness again")
            assert figure(service, "clustermutex_unlocker_store_up") == 1
            seen = wait_until(lambda: removal_of(settings, "a", uuid or ""), what="the removal")
            assert seen.removal is not None
            log = service.log_text()
            assert log.count("does not answer") == 1
            assert log.count("answers again") == 1
            assert "Traceback" not in log

    def test_it_may_start_first(self, etcd_binary: str, own_etcd: Etcd, root: str) -> None:
        own_etcd.stop()
        with unlocker(Settings(endpoints=(own_etcd.endpoint,), root=root)) as service:
            status, sentence = fetch(service, "/readyz")
            assert status == 503
            assert own_etcd.endpoint in sentence
            own_etcd.start()
            wait_until(lambda: ready(service), what="readiness")

    def test_a_scrape_asks_etcd_nothing(self, own_etcd: Etcd, root: str) -> None:
        with unlocker(Settings(endpoints=(own_etcd.endpoint,), root=root)) as service:
            wait_until(lambda: ready(service), what="readiness")
            assert own_etcd.process is not None
            os.kill(own_etcd.process.pid, signal.SIGSTOP)
            for _ in range(5):
                assert fetch(service, "/metrics")[0] == 200


class TestBadFlags:
    @pytest.mark.parametrize(
        ("options", "word"),
        [
            (["--grace", "10"], "--grace"),  # up to 0.1.0: no wall clock is judged by any more
            (["--listen", "9722"], "--listen"),
            (["--url", "consul://localhost"], "--url"),
            (["--url", "etcd://nowhere"], "nowhere"),
            (["--no-such-thing"], "--no-such-thing"),
        ],
    )
    @pytest.mark.usefixtures("logging_as_before")
    def test_say_what_is_wrong(self, options: list[str], word: str) -> None:
        done = CliRunner().invoke(main, ["--listen", "127.0.0.1:0", *options])
        assert done.exit_code == 2
        assert word in done.stderr.splitlines()[-1]
        assert "Traceback" not in done.stderr

    def test_a_port_in_use_is_named(self) -> None:
        with socket.socket() as other:
            other.bind(("127.0.0.1", 0))
            other.listen()
            address = f"127.0.0.1:{other.getsockname()[1]}"
            done = subprocess.run(
                [*UNLOCKER, "--listen", address], capture_output=True, text=True, timeout=30
            )
        assert done.returncode == 1
        assert address in done.stderr
        assert len(done.stderr.splitlines()) == 1


def test_the_console_script_is_the_same(tmp_path_factory: pytest.TempPathFactory) -> None:
    done = subprocess.run([BIN / "unlocker", "--help"], capture_output=True, text=True, timeout=30)
    assert done.returncode == 0
    assert "--max-removals" in done.stdout
