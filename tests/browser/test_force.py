"""Force-unlock as a person does it: the name, the reason, and the shown holder."""

from __future__ import annotations

import re
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from lockclient import ClusterMutex
from lockclient.cli.setup.etcd_server import Etcd
from lockclient.errors import LockLost
from lockclient.stores.settings import Settings
from tests.browser.conftest import FORCING, Story, Viewer
from tests.support.processes import wait_until
from tests.support.unlocker_process import mutexdash

pytestmark = pytest.mark.browser

SOON = 60_000


@pytest.fixture
def dash(forcing: str) -> str:
    return forcing


def confirm(page: Page, name: str, reason: str = "it hangs") -> None:
    typed = page.get_by_label("Type the lock's name")
    typed.wait_for()
    page.wait_for_load_state()  # its script compares what is typed from then on
    typed.fill(name)
    page.get_by_label("Reason, for the former holder").fill(reason)
    page.get_by_role("button", name="Force-unlock now").click()


def test_a_stuck_lock_is_found_read_and_released(dash: str, store: Any, viewer: Viewer) -> None:
    """From the list to the line of code to the removal; the holder learns of it, it is recorded."""
    stuck = ClusterMutex("deploy/prod", store=store, reason="release", expected_runtime=600)
    stuck.acquire()
    with viewer(dash) as page:
        page.get_by_role("link", name="deploy/prod").click()
        expect(page.locator(".innermost")).to_contain_text("test_force.py")
        expect(page.locator(".innermost")).to_contain_text("stuck.acquire()")
        page.get_by_role("link", name="Force-unlock…").click()
        confirm(page, "deploy/prod", "its host burns")
        expect(page.get_by_text("Force-unlocked.")).to_be_visible()
        expect(page.get_by_text("its host burns")).to_be_visible()
        expect(page.get_by_text("somebody at 127.0.0.1")).to_be_visible()
        expect(page.get_by_text("Not held")).to_be_visible()
        wait_until(lambda: not stuck.healthy, what="the holder to be told")
        page.goto(f"{dash}/removed")
        page.get_by_role("link", name="Where it was acquired").click()
        expect(page.locator(".innermost")).to_contain_text("stuck.acquire()")
    with pytest.raises(LockLost):
        stuck.release()


def test_the_name_must_be_typed_and_a_reason_given(dash: str, story: Story, viewer: Viewer) -> None:
    story.hold("deploy/prod")
    with viewer(f"{dash}/lock/deploy%2Fprod") as page:
        page.get_by_role("link", name="Force-unlock…").click()
        page.wait_for_url("**/force-unlock?*")
        address = page.url
        for name, reason in (("deploy", "why"), ("deploy/prod", "")):
            confirm(page, name, reason)
            expect(page.locator(".force :invalid")).to_have_count(1)
        assert page.url == address
        page.get_by_role("link", name="Cancel").click()
        expect(page.locator(".heading .badge")).to_have_text("OK")


def test_a_second_force_unlock_does_not_remove_the_next_holder(
    dash: str, story: Story, viewer: Viewer
) -> None:
    first = story.hold("deploy/prod", hostname="old-host")
    path = f"{dash}/locks/deploy%2Fprod/force-unlock?uuid={first.uuid}"
    with viewer(path) as ann, viewer(path) as ben:
        # Ben's page does not hear of it in time, as if he were quicker than its next question.
        ben.route(re.compile("uuid="), lambda route: route.fulfill(status=304))
        confirm(ann, "deploy/prod")
        expect(ann.get_by_text("Force-unlocked.")).to_be_visible()
        story.hold("deploy/prod", hostname="new-host")
        confirm(ben, "deploy/prod")
        expect(ben.get_by_role("heading", name="Nothing was unlocked")).to_be_visible()
        expect(ben.locator("main")).to_contain_text("new-host")
        ben.wait_for_timeout(3000)  # longer than a page goes between two questions
        expect(ben.get_by_role("heading", name="Nothing was unlocked")).to_be_visible()
        ben.get_by_role("link", name="Back to the lock").click()
        expect(ben.locator(".heading .badge")).to_have_text("OK")


def test_a_changed_holder_closes_an_open_form(dash: str, story: Story, viewer: Viewer) -> None:
    first = story.hold("a", hostname="old-host")
    with viewer(f"{dash}/locks/a/force-unlock?uuid={first.uuid}") as page:
        page.get_by_label("Reason, for the former holder").fill("half a sen")
        story.wait(first, hostname="next-host", pid=7)
        expect(page.get_by_text("The next waiter gets it at once")).to_be_visible(timeout=SOON)
        expect(page.get_by_label("Reason, for the former holder")).to_have_value("half a sen")
        story.remove(first, removed_at=1.0, removed_by="dog", how="auto-unlock", why="overdue")
        expect(page.get_by_text("no longer has the lock")).to_be_visible(timeout=SOON)
        expect(page.locator("form.force")).to_have_count(0)


def test_without_javascript(dash: str, story: Story, viewer: Viewer) -> None:
    story.hold("deploy/prod")
    with viewer(f"{dash}/lock/deploy%2Fprod", java_script_enabled=False) as page:
        page.get_by_role("link", name="Force-unlock…").click()
        confirm(page, "deploy/prod")
        expect(page.get_by_text("Force-unlocked.")).to_be_visible()
        expect(page.get_by_text("Not held")).to_be_visible()


def test_force_unlock_is_disabled_while_the_state_is_unknown(
    own_etcd: Etcd, own_store: Any, viewer: Viewer
) -> None:
    held = Story(own_store).hold("a")
    with mutexdash(Settings(endpoints=(own_etcd.endpoint,)), *FORCING) as dash:
        form = f"{dash.url}/locks/a/force-unlock?uuid={held.uuid}"
        with viewer(f"{dash.url}/lock/a") as page, viewer(form) as open_form:
            button = open_form.get_by_role("button", name="Force-unlock now")
            expect(button).to_be_enabled()
            own_etcd.stop()
            expect(button).to_be_disabled(timeout=60_000)
            expect(page.get_by_text("Force-unlock is disabled")).to_be_visible(timeout=60_000)
            expect(page.get_by_role("link", name="Force-unlock…")).to_have_count(0)
            own_etcd.start()
            expect(button).to_be_enabled(timeout=60_000)
            dash.terminate()
            expect(open_form.get_by_text("The dashboard does not respond.")).to_be_visible(
                timeout=60_000
            )
            expect(button).to_be_disabled()
