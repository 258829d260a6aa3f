"""An unlocker or dashboard of which a part died, hangs or is blind never looks healthy.

By real programs, of which a part breaks while they run (`tests/support/faulty_store.py`),
and by a proxy that swallows what a watch brings.
"""

from __future__ import annotations

import json
import re
import signal
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from lockclient import ClusterMutex, Settings
from lockclient.cli.setup.etcd_server import Etcd
from lockclient.stores.etcd.store import EtcdStore
from tests.support.etcd_binary import frozen
from tests.support.etcd_cluster import Cluster
from tests.support.etcd_store import etcd_store
from tests.support.locks import soon
from tests.support.pages import request
from tests.support.processes import Figure, Service, start_service, wait_until
from tests.support.tcp_proxy import Proxy
from tests.support.unlocker_process import fetch, ready, unready, when_ready
from tests.support.unlocker_process import figure as metric

BROKEN = [sys.executable, str(Path(__file__).parents[1] / "support" / "faulty_store.py")]
HELD = 'clustermutex_locks{state="ok"}'
PROVEN = "clustermutex_unlocker_snapshot_age_seconds"
LOADS = "clustermutex_unlocker_table_loads_total"


@contextmanager
def program(
    name: str, settings: Settings, fault: str = "", env: dict[str, str] | None = None
) -> Iterator[Service]:
    """Start a program of which a part can be broken, and wait until it is ready."""
    words = [*BROKEN, fault, name, "--url", settings.url(), "--listen", "127.0.0.1:0"]
    env = {"PYTHONPATH": str(Path(__file__).parents[2]), **(env or {})}
    with when_ready(start_service(words, env)) as service:
        yield service


def mutex(store: EtcdStore, name: str, after: float = 600) -> ClusterMutex:
    """Take a lock that is due when it is silent for so many seconds."""
    found = ClusterMutex(name, expected_runtime=after / 2, auto_unlock_after=after, store=store)
    assert found.acquire(timeout=20)
    return found


def ends(service: Service) -> str:
    """Wait until it ends by itself, as it should, and return its log."""
    wait_until(lambda: service.process.poll() is not None, what="the end of the process")
    assert service.process.returncode == 1
    log = service.log_text()
    assert log.count("Ending, to be restarted.") == 1
    return log


def reading(service: Service) -> float:
    return metric(service, LOADS) or 0


# ---------------------------------------------------------------- the picture (row 5)


class TestBlindUnlocker:
    def test_a_failing_table_is_retried(self, store: EtcdStore) -> None:
        with program("unlocker", Settings(location=store.location), "table fails") as service:
            service.process.send_signal(signal.SIGUSR1)
            wait_until(lambda: "KeyError" in unready(service), what="unreadiness")
            mutex(store, "later")
            wait_until(lambda: metric(service, HELD) == 1, what="the lock")
            seen = reading(service)
            wait_until(lambda: reading(service) >= seen + 2, what="two more readings")
            assert unready(service)
            assert service.log_text().count("Following the locks failed") == 1

    def test_a_failed_watch_is_reopened(self, store: EtcdStore) -> None:
        with program("unlocker", Settings(location=store.location), "watch fails") as service:
            service.process.send_signal(signal.SIGUSR1)
            unready(service)
            assert fetch(service, "/healthz")[0] == 200
            assert "The watch on etcd broke ('a bug')" in service.log_text()

    def test_a_watch_that_stays_silent_ends_the_process(
        self, store: EtcdStore, figure: Figure
    ) -> None:
        with program("unlocker", Settings(location=store.location), "watch is silent") as service:
            silent_at = time.monotonic()
            service.process.send_signal(signal.SIGUSR1)
            wait_until(lambda: "late or silent" in unready(service), what="unreadiness")
            figure(f"a silent watch showed in /readyz after {time.monotonic() - silent_at:.1f} s")
            mutex(store, "later")
            stale_since = time.monotonic() - (metric(service, PROVEN) or 0)
            wait_until(lambda: metric(service, HELD) == 1, what="the lock, by a reading")
            assert unready(service), "the watch has shown nothing yet"
            age = time.monotonic() - stale_since
            assert metric(service, PROVEN) == pytest.approx(age, abs=0.5)
            # It is down for the moment in which the silent stream is opened anew.
            wait_until(lambda: metric(service, "clustermutex_unlocker_store_up") == 1)
            log = ends(service)
            assert "the watch has shown none of the heartbeats" in log
            assert log.count("confirmed: reopening it") == 3
            assert log.count("everything is read again") == 2

    def test_a_silent_stream_is_reopened(
        self, own_etcd: Etcd, own_store: EtcdStore, figure: Figure
    ) -> None:
        with (
            Proxy(own_etcd.endpoint) as proxy,
            program("unlocker", Settings((proxy.endpoint,))) as service,
        ):
            silent_at = time.monotonic()
            proxy.silence()
            mutex(own_store, "later")
            wait_until(lambda: "late or silent" in unready(service), what="unreadiness")
            shown = time.monotonic() - silent_at
            proxy.speak()
            wait_until(lambda: ready(service), what="readiness again")
            figure(f"shown after {shown:.1f} s, over after {time.monotonic() - silent_at:.1f} s")
            wait_until(lambda: metric(service, HELD) == 1, what="the lock, by the watch")
            log = service.log_text()
            # The stream itself notices first, as a rule.
            assert "is opened again" in log or "has confirmed: reopening it.\n" in log
            assert reading(service) <= 1 + log.count("everything is read again")

    def test_a_frozen_member_is_replaced_by_another(
        self, cluster: Cluster, root: str, figure: Figure
    ) -> None:
        victim, other = cluster.followers()
        settings = Settings(endpoints=cluster.endpoints(victim), root=root)
        with program("unlocker", settings) as service:
            with (
                frozen(victim),
                closing(etcd_store(Settings((other.endpoint,), root))) as store,
            ):
                frozen_at = time.monotonic()
                mutex(store, "later")
                wait_until(lambda: metric(service, HELD) == 1, what="the lock")
                wait_until(lambda: ready(service), what="readiness")
                figure(f"over after {time.monotonic() - frozen_at:.1f} s")
            assert reading(service) == 1

    def test_a_frozen_etcd_does_not_clear_the_table(
        self, own_etcd: Etcd, own_store: EtcdStore
    ) -> None:
        with program("unlocker", Settings(location=own_store.location)) as service:
            mutex(own_store, "a")
            wait_until(lambda: metric(service, HELD) == 1, what="the lock")
            with frozen(own_etcd):
                unready(service)
                time.sleep(6)  # longer than a silent watch is given here
                assert fetch(service, "/healthz")[0] == 200
            wait_until(lambda: ready(service), what="readiness again")
            assert service.process.poll() is None


# ---------------------------------------------------------------- threads (row 6)


class TestHangingParts:
    @pytest.mark.parametrize(
        ("fault", "words"),
        [
            ("sweep hangs", "The look for locks that are due hangs"),
            ("scheduler dies", "hangs, or its thread has ended"),
            ("heartbeat hangs", "The heartbeat hangs"),
        ],
    )
    def test_a_hanging_part_ends_the_unlocker(
        self, store: EtcdStore, tmp_path: Path, fault: str, words: str
    ) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
            systemd.bind(str(tmp_path / "notify"))
            systemd.settimeout(30)
            env = {"NOTIFY_SOCKET": str(tmp_path / "notify")}
            with program("unlocker", Settings(location=store.location), fault, env) as service:
                assert [systemd.recv(99) for _ in range(2)] == [b"READY=1", b"WATCHDOG=1"]
                assert fetch(service, "/healthz") == (200, "alive\n")
                service.process.send_signal(signal.SIGUSR1)
                wait_until(lambda: "last one ended" in health(service), what="a word in /healthz")
                assert words in ends(service)
            told = iter(lambda: systemd.recv(99), b"STOPPING=1")
            assert set(told) <= {b"WATCHDOG=1"}

    def test_a_dashboard_with_hanging_requests_ends(self, store: EtcdStore) -> None:
        with program("mutexdash", Settings(location=store.location), "reading hangs") as dash:
            dash.process.send_signal(signal.SIGUSR1)
            wait_until(lambda: "last one ended" in health(dash), what="a word in /healthz")
            assert "reading of the newest announcement hangs" in ends(dash)

    def test_a_stopped_process_does_not_end_when_it_continues(self, store: EtcdStore) -> None:
        with program("unlocker", Settings(location=store.location)) as service:
            with frozen(service):
                time.sleep(5)  # longer than a part may be late here
            wait_until(lambda: ready(service), what="readiness again")
            wait_until(lambda: health(service) == "alive\n", what="health")
            assert "Ending" not in service.log_text()


def health(service: Service) -> str:
    """Return what /healthz says; that it ends in the middle of that is no answer."""
    try:
        return fetch(service, "/healthz")[1]
    except OSError:
        return "last one ended"


# ---------------------------------------------------------------- one removal (row 7)


def test_a_raising_removal_does_not_delay_the_others(store: EtcdStore) -> None:
    failed = 'clustermutex_auto_unlocks_total{result="failed"}'
    success = 'clustermutex_unlocker_last_success_age_seconds{task="sweep"}'
    with program("unlocker", Settings(location=store.location), "removal fails") as service:
        service.process.send_signal(signal.SIGUSR1)
        mutex(store, "poison", 1)
        for number in range(3):
            mutex(store, f"good {number}", 1.5)
        wait_until(lambda: store.names("good", 9, soon()) == [], what="the removals")
        wait_until(lambda: (metric(service, failed) or 0) >= 3, what="three failures")
        failed_at = time.monotonic()
        wait_until(
            lambda: time.monotonic() - (metric(service, success) or 0) > failed_at,
            what="a sweep that succeeds",
        )
        assert ready(service)
        assert store.names("", 9, soon()) == ["poison"]
        log = service.log_text()
        assert log.count("Lock 'poison' is due and can't be removed; retrying: a bug") == 1
        assert log.count("ValueError: a bug") == 1


# ---------------------------------------------------------------- the dashboard (row 5)


def said(dash: Service) -> Any:
    return json.loads(fetch(dash, "/api/locks")[1])


def age(dash: Service) -> float:
    page = fetch(dash, "/")[1]
    updated = re.search(r'last update <time [^>]*data-since="([\d.]+)"', page)
    now = re.search(r'data-now="([\d.]+)"', page)
    assert updated
    assert now
    return float(now[1]) - float(updated[1])


class TestBlindDashboard:
    def test_a_frozen_etcd_is_not_called_connected(
        self, own_etcd: Etcd, own_store: EtcdStore, figure: Figure
    ) -> None:
        with program("mutexdash", Settings(location=own_store.location)) as dash:
            wait_until(lambda: said(dash)["connected"], what="the watch")
            assert "etcd connected" in fetch(dash, "/")[1]
            wait_until(lambda: age(dash) < 5, what="a young picture")
            with frozen(own_etcd):
                frozen_at = time.monotonic()
                wait_until(lambda: not said(dash)["connected"], what="it to be missed")
                figure(f"a frozen etcd showed after {time.monotonic() - frozen_at:.1f} s")
                page = fetch(dash, "/")[1]
                assert "etcd unreachable" in page
                assert "etcd connected" not in page
                assert "mutexdash_store_connected 0.0" in fetch(dash, "/metrics")[1]
                wait_until(lambda: age(dash) >= 5, what="an old snapshot")
            wait_until(lambda: said(dash)["connected"], what="it to be back")
            wait_until(lambda: age(dash) < 5, what="a young picture")

    def test_the_dashboard_notices_a_silent_watch_by_announcements(
        self, own_etcd: Etcd, own_store: EtcdStore, figure: Figure
    ) -> None:
        with (
            program("unlocker", Settings(location=own_store.location)),
            Proxy(own_etcd.endpoint) as proxy,
            program("mutexdash", Settings((proxy.endpoint,))) as dash,
        ):
            wait_until(lambda: said(dash)["unlockers"] == 1, what="the unlocker")
            silent_at = time.monotonic()
            proxy.silence()
            mutex(own_store, "later")
            assert "The watch on etcd is silent" in unready(dash)
            shown = time.monotonic() - silent_at
            proxy.speak()
            wait_until(lambda: said(dash)["total"] == 1, what="the lock")
            wait_until(lambda: ready(dash), what="readiness again")
            figure(f"shown after {shown:.1f} s, over after {time.monotonic() - silent_at:.1f} s")

    def test_a_dashboard_with_a_silent_watch_says_so_and_ends(self, store: EtcdStore) -> None:
        with (
            program("unlocker", Settings(location=store.location)),
            program("mutexdash", Settings(location=store.location), "watch is silent") as dash,
        ):
            wait_until(lambda: said(dash)["unlockers"] == 1, what="the unlocker")
            dash.process.send_signal(signal.SIGUSR1)
            wait_until(lambda: not said(dash)["connected"], what="it to be noticed")
            # Not at once: the page may be one that was made a moment before.
            wait_until(
                lambda: "This page is out of date." in fetch(dash, "/")[1], what="the banner"
            )
            wait_until(lambda: "etcd silent" in fetch(dash, "/")[1], what="why")
            mutex(store, "later")
            wait_until(lambda: said(dash)["total"] == 1, what="the lock, by a reading")
            assert not said(dash)["connected"]
            assert "the watch has not shown changes" in ends(dash)

    def test_a_304_has_the_age_of_the_snapshot(self, store: EtcdStore) -> None:
        with program("mutexdash", Settings(location=store.location)) as dash:
            wait_until(lambda: said(dash)["connected"], what="the watch")

            tag, at = "", 0.0

            def later() -> bool:
                nonlocal tag, at
                answer = request(dash.url, "/", **{"If-None-Match": tag})
                told = float(answer.headers["X-Updated-At"])
                if answer.status == 200:  # at first, and whenever the machine was busy
                    tag, at = answer.headers["ETag"], told
                    return False
                assert answer.status == 304
                return told > at + 1

            wait_until(later, what="a newer time")
