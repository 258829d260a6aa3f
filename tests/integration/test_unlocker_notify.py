"""People are told by webhooks what happens to locks, by real unlockers that are killed."""

from __future__ import annotations

import json
import re
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from lockclient import ClusterMutex, Settings
from lockclient.cli.setup.etcd_server import Etcd
from lockclient.stores.etcd.store import EtcdStore
from tests.support.dashboard import dashboard
from tests.support.etcd_binary import Etcdctl, etcdctl_of, frozen
from tests.support.etcd_store import etcd_store
from tests.support.locks import has, remove
from tests.support.pages import request
from tests.support.processes import Service, start_service, wait_until
from tests.support.terminal import called
from tests.support.unlocker_process import figure, figures, ready, unlocker, when_ready
from tests.support.webhook import Webhook

pytest.importorskip("apprise", reason="no apprise: the extra notify")

SOONER = """
from unlocker.notifications import note, notifier, teller
notifier.GATHER_S = teller.MIN_PAUSE_S = teller.NEXT_RANK_S = teller.MIN_RETRY_S = 0.5
notifier.LOOK_INTERVAL_S, notifier.IDLE_LOOK_INTERVAL_S = 0.5, 2.0
notifier.BLIND_AFTER_S = teller.TAKEOVER_S = 3.0
teller.NO_CLAIM_S = teller.MAX_RETRY_S = 1.0
{more}
from unlocker.cli import main
main()
"""
OLD_SOON = "note.MAX_AGE_S = 3.0"
HANGING = """
import threading
from unlocker.unlocker import Unlocker
Unlocker._sweep = lambda self: threading.Event().wait()
"""
SECRET = "hush-4711"
ALERT, END = "is past its alert, held by", "is no longer past its alert"


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
def away() -> Chat:
    """A webhook that listens when it is entered, and refuses connections until then."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    chat = Chat(port)
    chat.host = f"127.0.0.1:{port}"
    return chat


Start = Callable[..., Service]


@pytest.fixture
def start(settings: Settings, webhook: Chat) -> Iterator[Start]:
    with ExitStack() as running:

        def begin(
            *options: str,
            more: str = "",
            first: str = "",
            urls: str = "",
            settings: Settings = settings,
        ) -> Service:
            words = ["--url", settings.url(), "--listen", "127.0.0.1:0", *options]
            env = {"UNLOCKER_NOTIFY": urls or webhook.url}
            command = [sys.executable, "-c", first + SOONER.format(more=more), *words]
            service = running.enter_context(start_service(command, env))
            if first != HANGING:
                wait_until(lambda: ready(service), what="readiness", timeout=90)
            return service

        yield begin


class Note:
    """The note of the unlockers, as etcdctl has it."""

    def __init__(self, store: EtcdStore, etcdctl: Etcdctl) -> None:
        self._key = f"{store.location.root}/notifications/note"
        self._etcdctl = etcdctl

    def read(self) -> dict[str, dict[str, dict[str, str]]]:
        text = self._etcdctl("get", "--print-value-only", self._key)
        return dict(json.loads(text or '{"urls": {}}'))

    def claimed(self) -> str:
        """Return who tells somebody now; empty: nobody."""
        return next((url["by"] for url in self.read()["urls"].values() if url["by"]), "")

    def version(self) -> int:
        """Return how often it was written."""
        return int(json.loads(self._etcdctl("get", "-w", "json", self._key))["kvs"][0]["version"])

    def tells(self, *services: Service) -> Service:
        """Wait until somebody tells; return which of these it is."""
        who = wait_until(self.claimed, what="a claim")
        (found,) = (one for one in services if f":{one.process.pid}-" in who)
        return found


@pytest.fixture
def note(store: EtcdStore, etcdctl: Etcdctl) -> Note:
    return Note(store, etcdctl)


_kept: list[ClusterMutex] = []
"""So that none is dropped, which would be logged."""


def overdue(store: EtcdStore, name: str, **how: float) -> ClusterMutex:
    """A lock that is past its alert in a second, and never auto-unlocked unless `how` says so."""
    times = {"expected_runtime": 1.0, "auto_unlock_after": None, **how}
    mutex = ClusterMutex(name, reason="x", store=store, **times)  # type: ignore[arg-type]  # any of its durations
    mutex.acquire()
    _kept.append(mutex)
    return mutex


# ---------------------------------------------------------------- who tells


def test_three_unlockers_tell_once_with_who_and_why(
    store: EtcdStore, webhook: Chat, start: Start
) -> None:
    services = [start("--log-format", "json"), start(), start()]
    overdue(store, "a/b", auto_unlock_after=4)
    webhook.told("'a/b'", ALERT)
    webhook.told("'a/b'", "auto-unlock by unlocker@", "no heartbeat")
    mutex = ClusterMutex("c", store=store)
    mutex.acquire()
    remove(store, mutex.record)
    webhook.told("'c'", "force-unlock by ann", "it hangs")
    assert not webhook.lines("'a/b'", END)  # the removal says so
    assert webhook.messages[0]["type"] == "warning"
    assert webhook.messages[0]["title"].startswith("ClusterMutex /")
    assert not any(SECRET in service.log_text() for service in services)


@pytest.mark.parametrize("moment", ["before", "while", "after"])
def test_of_a_teller_that_is_killed_each_alert_comes_once_and_once_more_at_most(
    store: EtcdStore, webhook: Chat, start: Start, note: Note, moment: str
) -> None:
    """It has noticed the alert; it is telling it, and not answered yet; it was answered."""
    services = [start(), start(), start()]
    webhook.answers.clear()
    mutex = overdue(store, "a")
    if moment == "before":
        wait_until(lambda: ALERT in services[0].log_text(), what="that it is noticed")
        services[0].process.kill()
        webhook.answers.set()
    else:
        teller = note.tells(*services)
        wait_until(lambda: webhook.lines("'a'"), what="the message")
        if moment == "after":
            webhook.answers.set()
            wait_until(lambda: not note.claimed(), what="that it is noted")
        teller.process.kill()
        if moment == "while":
            wait_until(lambda: len(webhook.messages) == 2, what="the message again")
            webhook.answers.set()
    wait_until(lambda: webhook.lines("'a'", ALERT), what="the alert")
    overdue(store, "b")
    webhook.told("'b'", ALERT)
    assert len(webhook.lines("'a'", ALERT)) == (2 if moment == "while" else 1)
    assert [m["title"].endswith("(again)") for m in webhook.messages[:2]] == [
        False,
        moment == "while",
    ]
    mutex.release()


def test_one_that_lives_and_notices_nothing_or_can_not_reach_it_keeps_nobody_from_telling(
    store: EtcdStore, webhook: Chat, start: Start, away: Chat
) -> None:
    """The oldest hangs; the next one's URL leads nowhere; the third tells."""
    hangs = start(first=HANGING, urls=f"ops={webhook.url}")
    wait_until(lambda: hangs.url, what="its start")
    start(urls=f"ops={away.url}")
    start(urls=f"ops={webhook.url}")
    overdue(store, "a")
    webhook.told("'a'", ALERT)


def test_restarted_one_by_one_and_together_they_tell_nothing_again(
    store: EtcdStore, webhook: Chat, start: Start, note: Note
) -> None:
    services = [start(), start()]
    overdue(store, "a")
    mutex = ClusterMutex("c", store=store)
    mutex.acquire()
    remove(store, mutex.record)
    webhook.told("'a'", ALERT)
    webhook.told("'c'", "force-unlock")
    wait_until(lambda: not note.claimed(), what="that it is noted")
    for service in services:
        assert service.terminate() == 0
        services = [*services[1:], start()]
    for service in services:
        service.process.kill()
    start()
    start()
    overdue(store, "b")
    webhook.told("'b'", ALERT)
    assert len(webhook.lines("'a'")) == len(webhook.lines("'c'")) == 1


# ---------------------------------------------------------------- webhooks


def test_a_url_that_was_down_gets_all_that_it_missed_in_order_with_its_age(
    store: EtcdStore, webhook: Chat, away: Chat, start: Start, note: Note
) -> None:
    """A connection refused, then an error for an answer; the services are restarted meanwhile."""
    urls = f"ops={webhook.url} team={away.url}"
    older = "from unlocker.notifications import events\nevents.MARKED_AGE_S = 3.0"
    first = start(urls=urls, more=older)
    mutex = overdue(store, "a")
    webhook.told("'a'", ALERT)
    assert first.terminate() == 0
    start(urls=urls, more=older)
    mutex.release()
    webhook.told("'a'", END)
    overdue(store, "b")
    webhook.told("'b'", ALERT)
    away.status = 500
    with away:
        wait_until(lambda: "team" in note.claimed() or note.version() > 8, what="another try")
        away.status = 200
        wait_until(lambda: away.lines("'b'"), what="what it missed")
        lines = away.lines("Lock")
        assert [line.split(" ", 2)[1] for line in lines] == ["'a'", "'a'", "'b'"]
        assert END in lines[1]
        assert all(re.search(r"\(\d+ s ago\)$", line) for line in lines[:2])
    assert [len(webhook.lines(name)) for name in ("'a'", "'b'")] == [2, 1]


def test_what_is_older_than_a_day_is_summed_up_in_one_line(
    store: EtcdStore, webhook: Chat, away: Chat, start: Start
) -> None:
    """Days of three seconds; and a URL that is new gets nothing older than itself."""
    urls = f"ops={webhook.url} team={away.url}"
    start(urls=urls, more=OLD_SOON)
    for name in ("a", "b"):
        overdue(store, name)
        webhook.told(f"'{name}'", ALERT)
    noted = time.monotonic()
    wait_until(lambda: time.monotonic() > noted + 4, what="more than a day")
    with Chat() as new:
        start(urls=f"{urls} new={new.url}", more=OLD_SOON)
        wait_until(lambda: new.host in new.url)
        with away:
            said = wait_until(lambda: away.lines("Also, too old"), what="the sum")
            assert said == ["Also, too old or too many to list: 2 locks past their alert."]
            overdue(store, "c")
            new.told("'c'", ALERT)
            away.told("'c'", ALERT)
        assert not new.lines("'a'")
        assert not away.lines("'a'")


def test_a_webhook_that_answers_after_six_seconds_is_told_once(
    store: EtcdStore, webhook: Chat, start: Start, note: Note
) -> None:
    service = start()
    webhook.answers.clear()
    overdue(store, "a")
    wait_until(lambda: webhook.messages, what="the message")
    claimed = note.read()
    overdue(store, "b")  # owed, noted, and noticed for longer than apprise waits by itself
    wait_until(lambda: "'b'" in service.log_text(), what="the other alert")
    wait_until(lambda: "fail; retrying" in service.log_text() or note.read() != claimed)
    with pytest.raises(AssertionError):
        wait_until(lambda: len(webhook.messages) > 1, timeout=6)
    webhook.answers.set()
    webhook.told("'b'", ALERT)
    assert len(webhook.lines("'a'")) == 1
    assert not [message for message in webhook.messages if "(again)" in message["title"]]


def test_one_that_never_answers_is_told_three_times_and_keeps_nobody_waiting(
    store: EtcdStore, webhook: Chat, start: Start
) -> None:
    with Chat() as silent:
        silent.answers.clear()
        service = start(urls=f"silent={silent.url}?rto=4 ops={webhook.url}")
        overdue(store, "a")
        webhook.told("'a'", ALERT)
        assert len(silent.lines("'a'")) < 3
        sample = 'clustermutex_unlocker_notifications_total{result="unanswered"}'
        wait_until(lambda: figures(service)[sample] == 1, what="that it is counted", timeout=300)
        assert "took a message and never answered" in service.log_text()
        assert [m["title"].endswith("(again)") for m in silent.messages] == [False, True, True]
        silent.answers.set()
        overdue(store, "b")
        silent.told("'b'", ALERT)
        assert len(silent.lines("'a'")) == 3


def test_what_a_webhook_refuses_is_told_later_and_its_url_is_not_logged(
    store: EtcdStore, webhook: Chat, start: Start
) -> None:
    webhook.status = 500
    service = start()
    overdue(store, "a")
    wait_until(lambda: "Notifications by json-1 fail" in service.log_text(), what="that")
    webhook.status = 200
    webhook.told("'a'", ALERT)
    wait_until(
        lambda: "Notifications by json-1 work again" in service.log_text(), what="that it is said"
    )
    assert SECRET not in service.log_text()


def test_a_recipient_that_fails_for_long_is_named_everywhere_and_its_url_nowhere(
    settings: Settings, store: EtcdStore, webhook: Chat, start: Start, etcdctl: Etcdctl
) -> None:
    """A revoked token: in metrics, announcement, doctor, dashboard; until it works again."""
    webhook.status = 401
    service = start(urls=f"ops={webhook.url}", more="notifier.FAILING_AFTER_S = 2.0")
    failing = 'clustermutex_unlocker_notifications_failing{recipient="ops"}'
    announcement = ("get", "--prefix", f"{settings.root}/unlockers/")
    overdue(store, "a")
    wait_until(lambda: figure(service, failing) == 1, what="the metric")
    wait_until(lambda: '"failing": ["ops"]' in etcdctl(*announcement), what="the announcement")
    with dashboard(settings) as pages:
        banner = 'has failed to notify <bdi class="text">ops</bdi>'
        wait_until(lambda: banner in request(pages.url, "/").text, what="the banner")
        wait_until(lambda: banner in request(pages.url, "/lock?name=a").text, what="the lock's")
        said = called(settings, "doctor", "--listen", "1s", status=None).stdout
        assert "Notifications by ops have failed for ten minutes" in " ".join(said.split())
        assert SECRET not in etcdctl(*announcement)
        webhook.status = 200
        webhook.told("'a'", ALERT)
        wait_until(lambda: figure(service, failing) is None, what="the end of the metric")
        wait_until(lambda: banner not in request(pages.url, "/").text, what="no banner")


# ---------------------------------------------------------------- ends, crowds


@pytest.mark.parametrize("running", [True, False])
def test_who_was_told_of_an_alert_is_told_of_its_end(
    store: EtcdStore, webhook: Chat, start: Start, note: Note, running: bool
) -> None:
    """Also of one that ended while no unlocker ran; of two ends each is told as what it is."""
    service = start()
    first, second = overdue(store, "a"), overdue(store, "b")
    wait_until(lambda: webhook.lines("'a'", ALERT) and webhook.lines("'b'", ALERT))
    wait_until(lambda: not note.claimed(), what="that it is noted")
    if not running:
        service.process.kill()
        service.process.wait()
    first.alive(force=True)
    second.release()
    if not running:
        start()
    assert "its holder sent a heartbeat" in webhook.told("'a'", END)
    assert "no longer held" in webhook.told("'b'", END)
    wait_until(lambda: not note.read().get("events") or len(webhook.lines("'a'", ALERT)) == 2)


def test_five_hundred_locks_are_one_message_and_twenty_writes_at_most(
    store: EtcdStore, webhook: Chat, start: Start, note: Note
) -> None:
    start(more="notifier.GATHER_S = 8.0")
    start(more="notifier.GATHER_S = 8.0")
    wait_until(lambda: note.read()["urls"], what="the first note")
    before = note.version()
    due = time.monotonic() + 30  # all at one moment, however long it takes to acquire them
    holders = []
    for number in range(500):
        left = due - time.monotonic()
        holders.append(ClusterMutex(f"lock-{number}", expected_runtime=left, store=store))
        holders[-1].acquire()
    (line,) = wait_until(lambda: webhook.lines("And", "more"), what="the message")
    assert line == "And 480 more: the dashboard shows all."
    assert "500 locks past their alert" in webhook.messages[0]["title"]
    wait_until(lambda: not note.claimed(), what="that it is noted")
    assert note.version() - before <= 20
    for mutex in holders:
        mutex.release()
    assert len(webhook.messages) == 1


def test_an_unlocker_that_ends_tells_what_is_left_if_it_is_alone(
    store: EtcdStore, webhook: Chat, start: Start
) -> None:
    """A redeployment in the second of an alert swallows nothing."""
    service = start()
    overdue(store, "a")
    wait_until(lambda: "is past its alert" in service.log_text(), what="the alert")
    assert service.terminate() == 0
    start()
    webhook.told("'a'", ALERT)


# ---------------------------------------------------------------- without a note


def test_it_is_told_that_an_unlocker_is_blind_and_that_it_sees_again(
    own_etcd: Etcd, webhook: Chat, start: Start
) -> None:
    """Without a claim, as the store takes none; and once, though it is noted afterwards."""
    start(settings=Settings(endpoints=(own_etcd.endpoint,)))
    with frozen(own_etcd):
        webhook.told("unlocker@", "can't do its work")
    webhook.told("unlocker@", "is working again")
    assert len(webhook.lines("can't do its work")) == 1


def test_with_the_rights_of_yesterday_people_are_told_all_the_same(
    own_etcd: Etcd, webhook: Chat, start: Start
) -> None:
    """By each unlocker, once, and it says what to do; when they may, nothing is told again."""
    etcdctl = etcdctl_of(own_etcd)
    etcdctl("user", "add", "root:x")
    etcdctl("user", "add", "old:x")
    etcdctl("role", "add", "old")
    etcdctl("role", "grant-permission", "old", "read", "/clustermutex/", "--prefix")
    for folder in ("code", "locks", "removed", "unlockers", "withdrawn"):
        etcdctl(
            "role", "grant-permission", "old", "readwrite", f"/clustermutex/{folder}/", "--prefix"
        )
    etcdctl("user", "grant-role", "old", "old")
    etcdctl("auth", "enable")
    place = Settings(endpoints=(own_etcd.endpoint,), user="root", password="x")
    words = ["--url", place.url(), "--listen", "127.0.0.1:0", "--notify", webhook.url]
    env = {"ETCDCTL_USER": "old", "ETCDCTL_PASSWORD": "x"}
    command = [sys.executable, "-c", SOONER.format(more=""), *words]
    store = etcd_store(place)
    with when_ready(start_service(command, env)) as service:
        overdue(store, "a")
        webhook.told("'a'", ALERT)
        assert "can't be written" in service.log_text()
        assert "setup-auth" in service.log_text()
        etcdctl(
            *("--user=root:x", "role", "grant-permission", "old", "readwrite"),
            *("/clustermutex/notifications/", "--prefix"),
        )
        overdue(store, "b")
        webhook.told("'b'", ALERT)
        assert len(webhook.lines("'a'")) == 1
    store.close()


# ---------------------------------------------------------------- at the start

OFF = "clustermutex_unlocker_notifications_off"


def test_a_url_that_is_bad_is_said_and_the_others_are_told_and_locks_watched(
    settings: Settings, store: EtcdStore, webhook: Chat
) -> None:
    """Nobody would watch them in a crash loop. It rings by a metric."""
    env = {"UNLOCKER_NOTIFY": f"nonsense://{SECRET} {webhook.url} json://[{SECRET}"}
    with when_ready(unlocker(settings, env=env)) as service:
        assert "URL no. 1 is not a URL that apprise knows" in service.log_text()
        assert "URL no. 3" in service.log_text()
        assert "1 of 3 URLs work, and locks are watched" in service.log_text()
        assert figure(service, OFF) == 1
        overdue(store, "a", auto_unlock_after=3)
        wait_until(lambda: has(store, "a") is None, what="the removal")
        webhook.told("'a'", "auto-unlock")
        assert SECRET not in service.log_text()


def test_two_urls_of_one_name_are_said(settings: Settings) -> None:
    env = {"UNLOCKER_NOTIFY": "ops=json://127.0.0.1/x ops=json://127.0.0.1/y"}
    with when_ready(unlocker(settings, env=env)) as service:
        assert "URL no. 2 must have a unique name" in service.log_text()
        assert figure(service, OFF) == 1


def test_without_the_extra_it_says_what_to_install(settings: Settings) -> None:
    missing = "import sys; sys.modules['apprise'] = None\nfrom unlocker.cli import main\nmain()"
    words = ["--url", settings.url(), "--listen", "127.0.0.1:0", "--notify", "json://127.0.0.1/x"]
    with when_ready(start_service([sys.executable, "-c", missing, *words])) as service:
        assert "pip install 'clustermutex[notify]'" in service.log_text()
        assert figure(service, OFF) == 1
