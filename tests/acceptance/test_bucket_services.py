"""The programs on a bucket: a holder that dies is alerted on and removed, and people can see it."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from click.testing import CliRunner

from lockclient import ClusterMutex, LockLost, Settings
from lockclient.model.clocks import Deadline, Runtime
from lockclient.stores.gcs.store import GcsStore
from lockclient.stores.outcomes import Taken
from lockclient.stores.requests import Take
from mutexdash.cli import main as mutexdash_command
from tests.acceptance.polled import is_alerted_on_and_removed, watch_tells
from tests.support.bucket.server import BucketServer, Fault
from tests.support.bucket_store import die_with, settings_of, store_of
from tests.support.http_requests import read
from tests.support.processes import Service, start_service, wait_until
from tests.support.records import taker
from tests.support.terminal import called, one_line
from tests.support.unlocker_process import REMOVED, fetch, figure, figures, ready, unlocker
from unlocker.cli import main as unlocker_command

POLL = 1.0
_SEEN = 'clustermutex_removals_seen_total{how="auto-unlock"}'


@pytest.fixture
def settings(server: BucketServer) -> Settings:
    return settings_of(server)


@pytest.fixture
def store(settings: Settings) -> Iterator[GcsStore]:
    opened = store_of(settings)
    yield opened
    opened.close()


def start(settings: Settings, *options: str, poll: float = POLL) -> Service:
    return unlocker(settings, "--poll", f"{poll}", *options)


class TestUnlocker:
    def test_a_killed_holder_is_alerted_on_and_removed(
        self, settings: Settings, store: GcsStore
    ) -> None:
        """With a record, which has the code that took the lock."""
        with start(settings) as service:
            wait_until(lambda: ready(service))
            uuid = die_with(settings, "nightly", 1, 4)
            is_alerted_on_and_removed(service, store, "nightly", uuid)
            wait_until(lambda: figure(service, _SEEN))
            with ClusterMutex("nightly", store=store):
                assert read(store, "nightly").holder is not None

    def test_who_gives_signs_of_life_keeps_its_lock(
        self, settings: Settings, store: GcsStore
    ) -> None:
        """Each push is seen by a look, and its time counts from then."""
        mutex = ClusterMutex(
            "kept", expected_runtime=2, auto_unlock_after=4, keepalive=True, store=store
        )
        with start(settings) as service, mutex:
            wait_until(lambda: ready(service))
            other = die_with(settings, "dead", 1, 6)
            wait_until(lambda: read(store, "dead", other).removal)
            assert mutex.healthy
            assert "kept" not in service.log_text()

    def test_due_to_removed(
        self, settings: Settings, store: GcsStore, server: BucketServer, figure: object
    ) -> None:
        """A look later at most, and a sweep; with 50 ms for each answer."""
        late = []
        with start(settings) as service:
            wait_until(lambda: ready(service))
            server.delay = 0.05
            for number in range(3):
                name = f"lock-{number}"
                holder = taker(name, Runtime(1.0, 2.0))
                outcome = store.ask(Take(holder), Deadline.after(60))
                assert isinstance(outcome, Taken)
                due = time.monotonic() + 2.0
                wait_until(lambda name=name: read(store, name).holder is None)  # type: ignore[misc]
                late.append(time.monotonic() - due)
        assert min(late) >= 0
        assert callable(figure)
        figure(
            f"due to removed with a look each {POLL:g} s and 50 ms of delay: "
            f"{min(late):.2f} to {max(late):.2f} s"
        )

    def test_the_brake_counts_what_two_remove(self, settings: Settings, store: GcsStore) -> None:
        """Each looks after a removal of its own, and so counts the other's."""
        for number in range(12):
            name = f"lock-{number:02}"
            store.ask(Take(taker(name, Runtime(1.0, 2.0))), Deadline.after(60))
        one, two = start(settings, "--max-removals", "4"), start(settings, "--max-removals", "4")
        with one, two:
            wait_until(lambda: "The brake is on" in one.log_text() + two.log_text())
            wait_until(lambda: figures(one)["clustermutex_unlockers"] == 2)
            held = store.names("", 100, Deadline.after(60))
            assert 12 - 4 - 1 <= len(held) <= 12 - 4

    def test_removals_do_not_wait_a_look_each(self, settings: Settings, store: GcsStore) -> None:
        """With a minute between looks, ten that are due go one after the other."""
        for number in range(10):
            store.ask(Take(taker(f"lock-{number}", Runtime(1.0, 2.0))), Deadline.after(60))
        with start(settings, poll=60) as service:
            wait_until(lambda: not store.names("", 100, Deadline.after(60)))
            wait_until(lambda: figure(service, REMOVED) == 10)

    def test_a_bucket_that_takes_no_more_is_told(
        self, settings: Settings, store: GcsStore, server: BucketServer
    ) -> None:
        """Nothing is removed until it does; then what has come due is, with its record."""
        with start(settings) as service:
            wait_until(lambda: ready(service))
            holder = taker("due", Runtime(1.0, 2.0))
            store.ask(Take(holder), Deadline.after(60))
            server.trouble = lambda _: Fault("", 429)
            wait_until(lambda: not ready(service))
            wait_until(lambda: "asks us to slow down" in service.log_text())
            server.trouble = lambda _: None
            wait_until(lambda: ready(service))
            wait_until(lambda: read(store, "due", holder.uuid).removal)

    @pytest.mark.usefixtures("logging_as_before")
    def test_poll_is_for_what_is_looked_at(self, settings: Settings) -> None:
        """And has limits."""
        for words, said in (
            (["--url", "etcd://127.0.0.1:1", "--poll", "3"], "etcd tells what happens"),
            (["--url", settings.url(), "--poll", "0.1"], "not from 0.5 to 60 seconds"),
        ):
            for program in (unlocker_command, mutexdash_command):
                done = CliRunner().invoke(program, ["--listen", "127.0.0.1:0", *words])
                assert done.exit_code == 2, done.stderr
                assert said in done.stderr


class TestCommand:
    def test_ls_and_show(self, settings: Settings, store: GcsStore) -> None:
        """No line, so nobody is said to wait or not to; no number that is no fencing token."""
        with ClusterMutex("deploy/prod", reason="release 7", store=store) as mutex:
            said = called(settings, "ls").stdout
            assert "deploy/prod" in said
            (lock,) = json.loads(called(settings, "ls", "--json").stdout)["locks"]
            assert (lock["uuid"], lock["fencing_token"]) == (mutex.uuid, 0)
            assert lock["waiters"] is None
            lock = json.loads(called(settings, "show", "deploy/prod", "--json").stdout)
            assert (lock["waiters"], lock["queue"]) == (None, [])
            said = called(settings, "show", "deploy/prod").stdout
            assert "release 7" in said
            assert "test_ls_and_show" in said  # the backtrace, out of the body
            assert "waiters" not in said
            assert "Fencing" not in said
        assert "Nobody holds" in one_line(called(settings, "show", "deploy/prod", status=1))

    def test_force_unlock_and_removed(self, settings: Settings, store: GcsStore) -> None:
        """The holder is told; the list has it, and `show` names it."""
        mutex = ClusterMutex("deploy/prod", store=store)
        mutex.acquire()
        words = ("--reason", "it hangs", "--yes")
        called(settings, "force-unlock", "deploy/prod", *words)
        with pytest.raises(LockLost):
            mutex.alive(force=True)
        (gone,) = json.loads(called(settings, "removed", "--json").stdout)["removed"]
        assert (gone["name"], gone["uuid"], gone["why"]) == ("deploy/prod", mutex.uuid, "it hangs")
        assert gone["how"] == "force-unlock"
        assert "it hangs" in one_line(called(settings, "show", "deploy/prod", status=1))

    def test_watch(self, settings: Settings, store: GcsStore) -> None:
        """What is held at the begin, what is taken, and what is released."""
        watch_tells(settings, store)

    def test_roles_of_etcd_s_are_not_for_it(self, settings: Settings) -> None:
        """But who runs an etcd beside it gets them by its root."""
        said = one_line(called(settings, "setup-auth", status=1))
        assert "docs/stores.md says which, under Rights" in said
        assert "etcdctl role add" in called(settings, "setup-auth", "--root", "/r").stdout

    def test_restored_need_not_be_told(self, settings: Settings) -> None:
        said = one_line(called(settings, "restored", status=69))
        assert "need not be told" in said


class TestDashboard:
    def test_pages_and_api(self, settings: Settings, store: GcsStore, server: BucketServer) -> None:
        """Each page answers, and says nothing of lines, tokens or etcd."""
        command = ["mutexdash", "--url", settings.url(), "--listen", "127.0.0.1:0", "--poll", "0.5"]
        uuid = _removed(settings, store)
        with ExitStack() as stack:
            stack.enter_context(ClusterMutex("deploy/prod", reason="release 7", store=store))
            # It gets by with what only reads: the bucket's rights, docs/stores.md.
            server.denied = {f"storage.objects.{verb}" for verb in ("create", "update", "delete")}
            stack.callback(server.denied.clear)
            service = stack.enter_context(start_service(command))
            wait_until(lambda: "deploy/prod" in _get(service, "/"))
            for path in (
                *("/", "/lock/deploy%2Fprod", "/removed", "/timeline", "/host?name=host"),
                f"/removal?name=old&uuid={uuid}",
            ):
                page = _get(service, path)
                assert "Google Cloud Storage connected" in page, path
                for word in ("etcd", "Fencing", "waiting</span>", "in line"):
                    assert word not in page, (path, word)
            assert "test_pages_and_api" in _get(service, "/lock/deploy%2Fprod")
            assert "no line" in _get(service, "/lock/deploy%2Fprod")
            assert "it was old" in _get(service, "/removed")
            assert "File old" in _get(service, f"/removal?name=old&uuid={uuid}")
            lock = json.loads(_get(service, "/api/locks/deploy%2Fprod"))
            assert (lock["fencing_token"], lock["waiters"], lock["queue"]) == (0, None, [])
            (lock,) = json.loads(_get(service, "/api/locks"))["locks"]
            assert lock["waiters"] is None
            assert "The dashboard is ready." in _get(service, "/readyz")

    def test_a_bucket_that_is_away_is_said_to_be(
        self, settings: Settings, store: GcsStore, server: BucketServer
    ) -> None:
        """And never to be there and silent: each look is a question of its own."""
        command = ["mutexdash", "--url", settings.url(), "--listen", "127.0.0.1:0", "--poll", "0.5"]
        with ClusterMutex("a", store=store), start_service(command) as service:
            wait_until(lambda: "Google Cloud Storage connected" in _get(service, "/"))
            server.trouble = lambda _: Fault("", 503)
            wait_until(lambda: "Google Cloud Storage is away." in _get(service, "/"))
            assert "/lock/a" in _get(service, "/")
            server.trouble = lambda _: None
            wait_until(lambda: "Google Cloud Storage connected" in _get(service, "/"))


def _removed(settings: Settings, store: GcsStore) -> str:
    holder = taker("old", Runtime(1.0, 2.0), backtrace="File old\n" * 200)
    store.ask(Take(holder), Deadline.after(60))
    words = ("--reason", "it was old", "--yes")
    called(settings, "force-unlock", "old", *words)
    return holder.uuid or ""


def _get(service: Service, path: str) -> str:
    return fetch(service, path)[1]
