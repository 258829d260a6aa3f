"""A worker process of the demo: `python -m lockclient.cli.setup.demo_worker ROLE`.

It prints a line for each event; the story reads them.
"""

from __future__ import annotations

import sys
import time

from lockclient import ClusterMutex, HeldLock


def _print_taken(held: HeldLock) -> None:
    print(f"took {held.fencing_token}", flush=True)


def rebuild_nightly_report() -> None:
    """Take the lock, work in steps, call `alive()` after each."""
    with ClusterMutex(
        "nightly-report", reason="rebuild totals", expected_runtime=3, auto_unlock_after=9
    ) as held:
        _print_taken(held)
        for _ in range(40):
            time.sleep(0.2)
            held.alive()
    print("released", flush=True)


def run_invoices_and_forget() -> None:
    """Take the lock and forget to call `alive()`: people are alerted."""
    with ClusterMutex(
        "invoice run",
        reason="month end, customer 4711 (calls no alive())",
        expected_runtime=4,
        auto_unlock_after=3600,
    ) as held:
        _print_taken(held)
        time.sleep(3600)


def deploy_and_die() -> None:
    """Take the lock and be killed while holding it; until then it gets heartbeats."""
    with ClusterMutex(
        "deploy/prod",
        reason="roll out 2.4.1",
        expected_runtime=4,
        auto_unlock_after=8,
        keepalive=True,
    ) as held:
        _print_taken(held)
        time.sleep(3600)


def deploy_after(number: str) -> None:
    """Queue for the lock of the killed worker; the last one keeps it."""
    mutex = ClusterMutex(
        "deploy/prod",
        reason=f"roll out 2.4.{int(number) + 1}",
        expected_runtime=60,
        auto_unlock_after=3600,
        keepalive=True,
    )
    print("waits", flush=True)
    with mutex as held:
        _print_taken(held)
        time.sleep(1 if number != "3" else 3600)
    print("released", flush=True)


ROLES = {
    "steady": rebuild_nightly_report,
    "forgetful": run_invoices_and_forget,
    "doomed": deploy_and_die,
}

if __name__ == "__main__":
    if sys.argv[1] in ROLES:
        ROLES[sys.argv[1]]()
    else:
        deploy_after(sys.argv[1])
