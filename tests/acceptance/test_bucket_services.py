"""The programs on a bucket: a dead holder is alerted on, removed and shown."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from click.testing import CliRunner

from lockclient import ClusterMutex, Settings
from lockclient.model.clocks import Runtime
from lockclient.stores.service_store import ServiceStore
from mutexdash.cli import main as mutexdash_command
from tests.support.bucket.server import BucketServer, Fault
from tests.support.bucket_store import settings_of, store_of
from tests.support.locks import read, soon, take
from tests.support.processes import Service, wait_until
from tests.support.records import taker
from tests.support.terminal import called, one_line
from tests.support.unlocker_process import (
    REMOVED,
    fetch,
    figure,
    figures,
    mutexdash,
    ready,
    unlocker,
    when_ready,
)
from unlocker.cli import main as unlocker_command

POLL = 1.0


@pytest.fixture
def settings(server: BucketServer) -> Settings:
    return settings_of(server)


@pytest.fixture
def store(settings: Settings) -> Iterator[ServiceStore]:
    opened = store_of(settings)
    yield opened
    opened.close()


def start(settings: Settings, *options: str, poll: float = POLL) -> Service:
    return unlocker(settings, "--poll", f"{poll}", *options)


class TestUnlocker:
    def test_a_lock_pushed_more_often_than_polled_is_never_past_its_alert(
        self, settings: Settings, store: ServiceStore, server: BucketServer
    ) -> None:
        pushing, lists = threading.Event(), "/o?"
        mutex = ClusterMutex("busy", store=store, expected_runtime=2.5, auto_unlock_after=4)
        held = mutex.acquire()
        assert held is not None

        def push() -> None:
            while not pushing.wait(0.2):
                held.alive()

        thread = threading.Thread(target=push)
        thread.start()
        try:
            with when_ready(start(settings, poll=5)) as service:
                seen, lock = server.counted("GET", lists), 'clustermutex_locks{state="%s"}'

                def polled_twice() -> bool:
                    found = figures(service)
                    assert not found["clustermutex_alerts_total"]
                    assert not found[lock % "alert"] + found[lock % "overdue"]
                    return server.counted("GET", lists) >= seen + 6

                wait_until(polled_twice, what="polls of a busy lock")
                pushing.set()
                wait_until(lambda: figures(service)["clustermutex_alerts_total"], what="the alert")
                wait_until(lambda: read(store, "busy").holder is None, what="its removal")
        finally:
            pushing.set()
            thread.join(60)

    def test_several_removals_need_one_poll(self, settings: Settings, store: ServiceStore) -> None:
        for number in range(10):
            take(store, taker(f"lock-{number}", Runtime(1.0, 2.0)))
        with start(settings, poll=60) as service:
            wait_until(lambda: not store.names("", 100, soon()))
            wait_until(lambda: figure(service, REMOVED) == 10)

    def test_a_busy_bucket_is_reported_and_removals_follow(
        self, settings: Settings, store: ServiceStore, server: BucketServer
    ) -> None:
        with when_ready(start(settings)) as service:
            holder = taker("due", Runtime(1.0, 2.0))
            take(store, holder)
            server.trouble = lambda _: Fault("", 429)
            wait_until(lambda: not ready(service))
            wait_until(lambda: "asks us to slow down" in service.log_text())
            server.trouble = lambda _: None
            wait_until(lambda: ready(service))
            wait_until(lambda: read(store, "due", holder.uuid).removal)

    @pytest.mark.usefixtures("logging_as_before")
    def test_the_option_poll_is_for_polled_stores(self, settings: Settings) -> None:
        for words, said in (
            (["--url", "etcd://127.0.0.1:1", "--poll", "3"], "etcd tells what happens"),
            (["--url", settings.url(), "--poll", "0.1"], "not from 0.5 to 60 seconds"),
        ):
            for program in (unlocker_command, mutexdash_command):
                done = CliRunner().invoke(program, ["--listen", "127.0.0.1:0", *words])
                assert done.exit_code == 2, done.stderr
                assert said in done.stderr


def test_setup_auth_refers_to_the_page_on_buckets(settings: Settings) -> None:
    said = one_line(called(settings, "setup-auth", status=1))
    assert "docs/stores.md says which, under Rights" in said
    assert "etcdctl role add" in called(settings, "setup-auth", "--root", "/r").stdout


class TestDashboard:
    def test_pages_and_api(
        self, settings: Settings, store: ServiceStore, server: BucketServer
    ) -> None:
        """Each page says nothing of queues, tokens or etcd, and shows a bucket that is away."""
        uuid = _removed(settings, store)
        with ExitStack() as stack:
            stack.enter_context(ClusterMutex("deploy/prod", reason="release 7", store=store))
            # It gets by with what only reads: the bucket's rights, docs/stores.md.
            server.denied = {f"storage.objects.{verb}" for verb in ("create", "update", "delete")}
            stack.callback(server.denied.clear)
            service = stack.enter_context(mutexdash(settings, "--poll", "0.5"))
            wait_until(lambda: "deploy/prod" in _get(service, "/"))
            for path in (
                *("/", "/lock/deploy%2Fprod", "/removed", "/timeline", "/host?name=host"),
                f"/removal?name=old&uuid={uuid}",
            ):
                page = _get(service, path)
                assert "Google Cloud Storage connected" in page, path
                assert "last poll" in page, path
                assert ">Waiting</a>" not in page, path
                for word in ("etcd", "Fencing", "waiting</span>", "in line"):
                    assert word not in page, (path, word)
            assert "test_pages_and_api" in _get(service, "/lock/deploy%2Fprod")
            assert "no queue" in _get(service, "/lock/deploy%2Fprod")
            assert "it was old" in _get(service, "/removed")
            assert "File old" in _get(service, f"/removal?name=old&uuid={uuid}")
            lock = json.loads(_get(service, "/api/locks/deploy%2Fprod"))
            assert (lock["fencing_token"], lock["waiters"], lock["queue"]) == (0, None, [])
            (lock,) = json.loads(_get(service, "/api/locks"))["locks"]
            assert lock["waiters"] is None
            assert "The dashboard is ready." in _get(service, "/readyz")
            # The bucket goes away: it is never called connected and silent, as each poll asks it.
            server.trouble = lambda _: Fault("", 503)
            wait_until(lambda: "Google Cloud Storage is unreachable." in _get(service, "/"))
            assert "/lock/deploy%2Fprod" in _get(service, "/")
            server.trouble = lambda _: None
            wait_until(lambda: "Google Cloud Storage connected" in _get(service, "/"))


def _removed(settings: Settings, store: ServiceStore) -> str:
    holder = taker("old", Runtime(1.0, 2.0), backtrace="File old\n" * 200)
    take(store, holder)
    called(settings, "force-unlock", "old", "--reason", "it was old", "--yes")
    return holder.uuid or ""


def _get(service: Service, path: str) -> str:
    return fetch(service, path)[1]
