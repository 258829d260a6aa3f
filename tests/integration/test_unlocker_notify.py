"""People are told by a webhook what happens to locks: once, by one of three real unlockers."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from lockclient import ClusterMutex, Settings
from lockclient.cli.setup.etcd_server import Etcd
from lockclient.overview.table import Table
from lockclient.stores.etcd.store import EtcdStore
from tests.support.etcd_binary import frozen
from tests.support.locks import following, remove
from tests.support.processes import Service, start_service, wait_until
from tests.support.unlocker_process import ready, unlocker, when_ready
from tests.support.webhook import Webhook

pytest.importorskip("apprise", reason="no apprise: the extra notify")

SOONER = """
import unlocker.notifications.notification_queue as outbox
outbox.GATHER_S, outbox.MIN_KEPT_S, outbox.BLIND_AFTER_S = 0.5, 2.0, 3.0
from unlocker.cli import main
main()
"""
HANGING = """
import threading
from unlocker.unlocker import Unlocker
Unlocker._sweep = lambda self: threading.Event().wait()
"""
TAKING_OVER = (
    "import unlocker.notifications.notification_queue as outbox\noutbox.TAKEOVER_S = 5.0\n"
)
SECRET = "hush-4711"


class Chat(Webhook):
    """Where people are told."""

    @property
    def url(self) -> str:
        """Where it is, with two secrets."""
        return f"json://people:{SECRET}@{self.host}/{SECRET}"

    def lines(self, *words: str) -> list[str]:
        """Return what was said in lines with all of these words."""
        said = [line for message in self.messages for line in message["message"].splitlines()]
        return [line for line in said if all(word in line for word in words)]

    def told(self, *words: str) -> str:
        """Wait until something was said, and return it; more than once is too often."""
        (line,) = wait_until(lambda: self.lines(*words), what=f"a message with {words}", timeout=90)
        return line


@pytest.fixture
def webhook() -> Iterator[Chat]:
    with Chat() as running:
        yield running


@pytest.fixture
def start(settings: Settings, webhook: Chat) -> Iterator[Callable[[], Service]]:
    with ExitStack() as running:

        def begin(*options: str, first: str = "") -> Service:
            words = ["--url", settings.url(), "--listen", "127.0.0.1:0", "--log-level", "debug"]
            env = {"UNLOCKER_NOTIFY": webhook.url}
            command = [sys.executable, "-c", first + SOONER, *words, *options]
            service = running.enter_context(start_service(command, env))
            if first != HANGING:
                wait_until(lambda: ready(service), what="readiness", timeout=90)
            return service

        yield begin


def told_revisions(table: Table) -> list[int]:
    """Return up to what each unlocker says to have nothing left to tell, the oldest first."""
    return [json.loads(value).get("told", 0) for value in table.unlockers().values()]


def test_three_unlockers_tell_once_and_the_next_goes_on_when_one_is_killed(
    store: EtcdStore, webhook: Chat, start: Callable[..., Service]
) -> None:
    first, *_ = services = [start("--log-format", "json"), start(), start()]
    with following(store) as table:
        wait_until(lambda: len(told_revisions(table)) == 3, what="three signs of life")
        mutex = ClusterMutex(
            "a/b", reason="x", expected_runtime=1, auto_unlock_after=4, store=store
        )
        mutex.acquire()
        webhook.told("'a/b'", "past its alert")
        webhook.told("'a/b'", "auto-unlock by unlocker@", "no sign of life")
        # All three have noticed, and left it to the first.
        gone_at = table.revision
        wait_until(lambda: min(told_revisions(table)) > gone_at, what="all to be done", timeout=90)
        first.process.kill()
        wait_until(lambda: len(told_revisions(table)) == 2, what="the end of its sign of life")
        mutex = ClusterMutex("c", store=store)
        mutex.acquire()
        remove(store, mutex.record)
        webhook.told("'c'", "force-unlock by ann", "it hangs")
        gone_at = table.revision
        wait_until(lambda: min(told_revisions(table)) > gone_at, what="all to be done", timeout=90)
    assert [len(webhook.lines(name)) for name in ("'a/b'", "'c'")] == [2, 1]
    assert webhook.messages[0]["type"] == "warning"
    assert webhook.messages[0]["title"].startswith("ClusterMutex /")
    assert not any(SECRET in service.log_text() for service in services)
    fields = [json.loads(line) for line in first.log_text().splitlines()]
    (alert,) = [line for line in fields if line.get("event") == "past-alert"]
    assert alert["lock"] == "a/b"


def test_the_next_one_tells_what_the_oldest_does_not_notice(
    store: EtcdStore, webhook: Chat, start: Callable[..., Service]
) -> None:
    """Its sign of life goes on and its sweep hangs: then it does not say that all is told."""
    with following(store) as table:
        start(first=HANGING)
        wait_until(lambda: len(told_revisions(table)) == 1, what="its sign of life", timeout=90)
        start(first=TAKING_OVER)
        mutex = ClusterMutex("a", expected_runtime=1, auto_unlock_after=None, store=store)
        mutex.acquire()
        webhook.told("'a'", "past its alert")
        mutex.release()


def test_what_a_webhook_refuses_is_told_later_and_its_url_is_not_logged(
    store: EtcdStore, webhook: Chat, start: Callable[..., Service]
) -> None:
    webhook.status = 500
    service = start()
    mutex = ClusterMutex("a", expected_runtime=1, auto_unlock_after=None, store=store)
    mutex.acquire()
    wait_until(lambda: "People can't be told by" in service.log_text(), what="that it is said")
    webhook.status = 200
    webhook.told("'a'", "past its alert")
    wait_until(lambda: "People can be told by" in service.log_text(), what="that it is said")
    assert SECRET not in service.log_text()
    mutex.release()


def test_an_unlocker_that_ends_tells_what_is_left_if_it_is_alone(
    store: EtcdStore, webhook: Chat, start: Callable[..., Service], settings: Settings
) -> None:
    """A redeployment in the second of an alert swallows nothing."""
    service = start()
    mutex = ClusterMutex("a", expected_runtime=1, auto_unlock_after=None, store=store)
    mutex.acquire()
    wait_until(lambda: "is past its alert" in service.log_text(), what="the alert")
    assert service.terminate() == 0
    webhook.told("'a'", "past its alert")
    mutex.release()


def test_it_is_told_that_an_unlocker_is_blind_and_that_it_sees_again(
    own_etcd: Etcd, webhook: Chat
) -> None:
    settings = Settings(endpoints=(own_etcd.endpoint,))
    words = ["--url", settings.url(), "--listen", "127.0.0.1:0", "--notify", webhook.url]
    with when_ready(start_service([sys.executable, "-c", SOONER, *words])):
        with frozen(own_etcd):
            webhook.told("unlocker@", "can't do its work", "does not answer")
        webhook.told("unlocker@", "does its work again")


def test_urls_that_say_nothing_end_it_with_one_line(settings: Settings) -> None:
    env = {"UNLOCKER_NOTIFY": f"json://127.0.0.1/x nonsense://{SECRET}"}
    with unlocker(settings, env=env) as service:
        assert service.process.wait(60) == 2
        assert "URL no. 2 is none that apprise knows" in service.log_text()
        assert SECRET not in service.log_text()


def test_without_the_extra_it_says_what_to_install(settings: Settings) -> None:
    missing = "import sys; sys.modules['apprise'] = None\nfrom unlocker.cli import main\nmain()"
    words = ["--url", settings.url(), "--listen", "127.0.0.1:0", "--notify", "json://127.0.0.1/x"]
    with start_service([sys.executable, "-c", missing, *words]) as service:
        assert service.process.wait(60) == 2
        assert "pip install 'clustermutex[notify]'" in service.log_text()
