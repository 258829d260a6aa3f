"""The dashboard of locks in a bucket, in a browser."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe  # type: ignore[import-untyped]

from lockclient import ClusterMutex, LockLost, Settings
from lockclient.stores.service_store import ServiceStore
from tests.support.bucket.server import BucketServer
from tests.support.bucket_store import settings_of, store_of
from tests.support.processes import Service
from tests.support.unlocker_process import mutexdash


@pytest.fixture
def settings(server: BucketServer) -> Settings:
    return settings_of(server)


@pytest.fixture
def store(settings: Settings) -> Iterator[ServiceStore]:
    opened = store_of(settings)
    yield opened
    opened.close()


@pytest.fixture
def dash(settings: Settings) -> Iterator[Service]:
    with mutexdash(settings, "--poll", "0.5", "--allow-force-unlock") as service:
        yield service


def test_a_lock_in_a_bucket_appears_and_is_force_unlocked(
    dash: Service, store: ServiceStore, viewer: Callable[..., Any]
) -> None:
    with viewer(f"{dash.url}/") as page:
        page.get_by_text("Google Cloud Storage connected").wait_for()
        assert page.get_by_text("last poll").is_visible()
        assert page.get_by_role("link", name="Waiting", exact=True).count() == 0
        mutex = ClusterMutex("deploy/prod", reason="release 7", store=store)
        mutex.acquire()
        page.get_by_role("link", name="deploy/prod").first.click()
        page.get_by_text("acquired here").wait_for()
        page.get_by_text("Google Cloud Storage has no queue").wait_for()
        assert page.get_by_text("Fencing").count() == 0
        found = Axe().run(page).response["violations"]
        assert not [
            violation["id"] for violation in found if violation["impact"] in ("serious", "critical")
        ]
        page.get_by_role("link", name="Force-unlock…").click()
        page.get_by_label("Type the lock's name").fill("deploy/prod")
        page.get_by_label("Reason, for the former holder").fill("it hangs")
        page.get_by_role("button", name="Force-unlock now").click()
        page.get_by_text("Nobody holds the lock now.").wait_for()
        page.get_by_role("link", name="Removed", exact=True).click()
        page.get_by_text("it hangs").first.wait_for()
    with pytest.raises(LockLost):
        mutex.alive(force=True)
