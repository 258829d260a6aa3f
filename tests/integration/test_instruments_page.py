"""docs/programs.md, Instruments and Frameworks: examples that need no framework run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from lockclient import ClusterMutex, Settings
from lockclient.cli.setup.spawn import end
from lockclient.stores.service_store import ServiceStore
from tests.acceptance.shells import environment, remove
from tests.support.documents import codes
from tests.support.processes import run_to_end, wait_until

USE = """
with ClusterMutex("x") as held:
    logging.getLogger("app").warning("inside")
    print(held.record.owner, held.record.labels, held.record.context, held.record.fencing_token)
from lockclient import instruments
instruments.flush(30)
"""


@pytest.mark.parametrize("block", codes("programs.md#instruments", "python"))
def test_the_example_runs(block: str, settings: Settings) -> None:
    program = f"import logging\nfrom lockclient import ClusterMutex\n{block}{USE}"
    done = run_to_end(
        *(sys.executable, "-W", "error", "-c", program), env={"CLUSTERMUTEX_URL": settings.url()}
    )
    said = f"{done.stdout}{done.stderr}"
    assert "Traceback" not in said
    assert ("team-billing {'env': 'prod'}" in said) == ("team-billing" in block)
    assert ("r-17" in said) == ("r-17" in block)
    assert ("WARNING x inside" in said) == ("HeldLockFilter" in block)


def test_the_leader_example(settings: Settings, store: ServiceStore, tmp_path: Path) -> None:
    program = tmp_path / "leader.py"
    program.write_text(codes("programs.md#frameworks", "python")[0])
    logs = [tmp_path / "a.log", tmp_path / "b.log"]
    pods = []
    try:
        for log in logs:
            with log.open("w") as out:
                pods.append(
                    subprocess.Popen(
                        [sys.executable, program],
                        env={**environment(settings), "POD_NAME": log.stem},
                        stdout=out,
                        stderr=subprocess.STDOUT,
                    )
                )
            if log is logs[0]:
                wait_until(lambda: "I am the leader" in logs[0].read_text(), what="a leader")
        wait_until(ClusterMutex("leader", store=store).waiters, what="the other one in the queue")
        remove(store, "leader")
        wait_until(lambda: "not the leader any more" in logs[0].read_text(), what="its word")
        wait_until(lambda: "I am the leader" in logs[1].read_text(), what="the other one")
    finally:
        for pod in pods:
            end(pod)
