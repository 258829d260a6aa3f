"""The program `unlocker` notifies people by a real webhook, and is killed as it does.

Who of several notifies, and how often, is in `tests/unit/unlocker/test_notifications.py`.
"""

from __future__ import annotations

import json

import pytest

from lockclient import ClusterMutex, Settings
from lockclient.model.clocks import Deadline
from lockclient.stores.service_store import ServiceStore
from tests.support.processes import start_service, wait_until
from tests.support.unlocker_process import UNLOCKER, figure, hurried_unlocker, when_ready
from tests.support.webhook import Webhook

pytest.importorskip("apprise", reason="no apprise: the extra notify")

SECRET = "hush-4711"
OFF = "clustermutex_unlocker_notifications_off"


def test_a_killed_sender_repeats_one_message_and_bad_urls_are_logged(
    settings: Settings, store: ServiceStore
) -> None:
    with Webhook() as webhook:
        good = f"ops=json://people:{SECRET}@{webhook.host}/{SECRET}"
        bad = (f"nonsense://{SECRET}", f"json://[{SECRET}", f"ops=json://127.0.0.1/{SECRET}")
        env = {"UNLOCKER_NOTIFY": " ".join((good, *bad))}
        with (
            when_ready(hurried_unlocker(settings, env=env)) as one,
            when_ready(hurried_unlocker(settings, env=env)) as other,
        ):
            assert "URL no. 2 is not a URL that apprise knows" in one.log_text()
            assert "URL no. 3" in one.log_text()
            assert "URL no. 4 must have a unique name" in one.log_text()
            assert "1 of 4 URLs work, and locks are watched" in one.log_text()
            assert figure(one, OFF) == 1
            webhook.answers.clear()
            mutex = ClusterMutex("late", expected_runtime=1, auto_unlock_after=None, store=store)
            mutex.acquire()
            wait_until(lambda: webhook.messages, what="the message")
            sent = json.loads(store.read_document("sent/ops", Deadline.after(10)).value or b"")
            killed = one if f":{one.process.pid}-" in sent["writer"] else other
            killed.process.kill()
            wait_until(lambda: len(webhook.messages) > 1, what="the message again")
            webhook.answers.set()
            mutex.release()
            wait_until(lambda: len(webhook.messages) > 2, what="the end of the alert")
            assert SECRET not in one.log_text() + other.log_text()
    assert webhook.messages[0]["type"] == "warning"
    assert [message["title"].partition(": ")[2] for message in webhook.messages] == [
        "1 lock past its alert",
        "1 lock past its alert (may be a repeat)",
        "over: 1 lock past its alert",
    ]


def test_a_missing_extra_is_named(settings: Settings) -> None:
    missing = "import sys; sys.modules['apprise'] = None\nfrom unlocker.cli import main\nmain()"
    words = ["--url", settings.url(), "--listen", "127.0.0.1:0", "--notify", "json://127.0.0.1/x"]
    with when_ready(start_service([UNLOCKER[0], "-c", missing, *words])) as service:
        assert "pip install 'clustermutex[notify]'" in service.log_text()
        assert figure(service, OFF) == 1
