"""Force-unlock through the real program, against a real etcd."""

from __future__ import annotations

import base64
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import bcrypt
import pytest

from lockclient import ClusterMutex
from lockclient.errors import LockLost
from lockclient.stores.service_store import ServiceStore
from lockclient.stores.settings import Settings
from tests.support.locks import queue_up
from tests.support.pages import request
from tests.support.processes import Service, wait_until
from tests.support.unlocker_process import fetch, figure, mutexdash

ANN = {"Authorization": f"Basic {base64.b64encode(b'ann:secret').decode()}"}


@pytest.fixture
def dash(settings: Settings, tmp_path: Path) -> Iterator[Service]:
    users = tmp_path / "htpasswd"
    users.write_text(f"ann:{bcrypt.hashpw(b'secret', bcrypt.gensalt(4)).decode()}\n")
    login = ("--auth", "basic", "--htpasswd", str(users))
    with mutexdash(settings, "--allow-force-unlock", *login) as service:
        # Not only ready: until its watch stands, nothing is unlocked.
        ready = (200, "The dashboard is ready.\n")
        wait_until(lambda: fetch(service, "/readyz") == ready, what="the dashboard")
        yield service


def unlock(service: Service, name: str, uuid: str | None, **headers: str) -> tuple[int, Any]:
    body = {"name": name, "uuid": uuid, "reason": "  it hangs,\n says bob "}
    answer = request(service.url, f"/api/locks/{name}/force-unlock", body, **headers)
    return answer.status, answer.json if answer.status != 401 else answer.text


def test_force_unlock_removes_only_the_shown_holder(dash: Service, store: ServiceStore) -> None:
    first, second = (ClusterMutex("a", store=store) for _ in range(2))
    first.acquire()
    waiting = queue_up(second)
    uuid = first.uuid
    time.sleep(1.1)  # as long as a lock is held before its loss is watched for
    assert unlock(dash, "a", uuid)[0] == 401

    code, said = unlock(dash, "a", uuid, **ANN)
    assert code == 200, said
    removed = said["removed"]
    assert (removed["removed_by"], removed["why"]) == ("ann", "it hangs, says bob")
    assert "test_dash_unlock.py" in removed["backtrace"]
    waiting.join(30)
    assert second.healthy
    wait_until(lambda: not first.healthy, what="the loss")
    with pytest.raises(LockLost, match="ann"):
        first.release()

    code, said = unlock(dash, "a", uuid, **ANN)
    assert code == 409
    assert "force-unlock by ann" in said["error"]
    assert f"pid {removed['pid']}" in said["error"], "it says who has it now"
    second.check_health()
    assert second.holder() is not None
    late = second.uuid
    second.release()
    assert unlock(dash, "a", late, **ANN)[0] == 409

    def recorded() -> Any:
        return request(dash.url, "/api/removed", **ANN).json["removed"]

    (record,) = wait_until(recorded)
    assert (record["uuid"], record["how"]) == (uuid, "force-unlock")
    assert request(dash.url, f"/api/removed/a?uuid={uuid}", **ANN).json == removed
    assert figure(dash, 'mutexdash_force_unlocks_total{result="done"}') == 1
    log = dash.log_text()
    assert "ann force-unlocked 'a': 'it hangs, says bob'." in log
    assert "secret" not in log
