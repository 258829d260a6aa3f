"""`clustermutex demo`: a story of locks with real processes, printed on the terminal."""

from __future__ import annotations

import json
import os
import re
import subprocess
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import click

from lockclient.cli.output import wrapped
from lockclient.cli.setup.stack import Stack
from lockclient.cli.setup.store_server import fetch
from lockclient.cli.setup.up import end_on_signals, introduce, stay

_INDENT = 11
"""Characters before each sentence, where the first line has its time."""


@click.command()
@click.option(
    "--exit-after-story",
    is_flag=True,
    help="End after the story: status 0 if all happened as promised, 1 with what did not.",
)
def demo(exit_after_story: bool) -> None:
    """Watch locks being taken, held, alerted on, removed and shown."""
    end_on_signals()
    with (
        tempfile.TemporaryDirectory(prefix="clustermutex-demo-") as folder,
        Stack(Path(folder)) as stack,
    ):
        introduce(stack)
        click.echo()
        Story(stack).play()
        if not exit_after_story:
            click.echo(f"\nThe dashboard: {click.style(stack.dashboard, bold=True)}")
            held = "Two locks are still held, one of them past its alert. Ctrl-C ends it all."
            click.echo(wrapped(held, 0))
            stay(stack)
    click.echo("Everything has ended.")


class Story:
    """The workers, and what the dashboard and the unlocker show of them."""

    def __init__(self, stack: Stack) -> None:
        self._stack = stack
        self._began = time.monotonic()

    def play(self) -> None:
        """Run the workers and print what happens.

        Raises:
            click.ClickException: something did not happen, or happened too early.
        """
        steady = self._start_worker("steady")
        self._start_worker("forgetful")
        doomed = self._start_worker("doomed")
        for name in ("steady", "forgetful", "doomed"):
            self._wait_for_log(name, "took", f"{name} to take its lock")
        self._print("Three processes have taken a lock each. The dashboard shows by which line:")
        self._show_lines("nightly-report", "invoice run", "deploy/prod")
        self._waiters()
        self._kill(doomed)
        self._alert()
        self._auto_unlock()
        self._hand_over()
        self._finish(steady)

    # ------------------------------------------------------------ chapters

    def _show_lines(self, *names: str) -> None:
        for name in names:
            lock = self._stack.wait_for(partial(self._lock, name), f"{name} on the dashboard")
            self._continue(f"{name}, pid {lock['pid']}: {_where(lock['backtrace'])}")

    def _waiters(self) -> None:
        for number in ("1", "2", "3"):
            self._start_worker(number)
            self._stack.wait_for(
                partial(self._queued, int(number)), f"waiter {number} in the queue"
            )
        self._print("Three more want deploy/prod and queue for it, first come, first served.")

    def _kill(self, doomed: subprocess.Popen[bytes]) -> None:
        lock = self._lock("deploy/prod")
        if lock is None:
            raise click.ClickException(
                "deploy/prod is not held any more before its holder was killed."
            )
        pid = lock["pid"]
        os.kill(pid, 9)
        doomed.wait()
        self._print(f"kill -9 {pid}: the holder of deploy/prod is dead. Nothing is unlocked yet:")
        self._continue("a lock has no lease, and only silence up to its time frees it.")

    def _alert(self) -> None:
        def alerted() -> bool:
            lock = self._lock("invoice run")
            return lock is not None and lock["state"] == "alert"

        self._stack.wait_for(alerted, "the alert of the lock whose holder forgets alive()")
        self._stack.wait_for(
            lambda: b'name="invoice run"' in fetch(self._stack.unlocker, "/metrics")[1],
            "the unlocker's metric of that alert",
        )
        self._print("“invoice run” is past its alert: its holder called no alive() for 4 s.")
        self._continue("People are alerted; the lock stays. Prometheus sees it at /metrics.")

    def _auto_unlock(self) -> None:
        removal = self._stack.wait_for(self._removal, "the auto-unlock of the dead holder's lock")
        after = removal["removed_at"] - removal["auto_unlock_at"]
        if after < 0:
            raise click.ClickException(f"deploy/prod was removed {-after:.1f} s before its time.")
        self._print(f"The unlocker removed deploy/prod, {after:.1f} s after its time was up:")
        self._continue(removal["why"])

    def _hand_over(self) -> None:
        tokens = []
        for number in ("1", "2", "3"):
            self._wait_for_log(number, "took", f"waiter {number}")
            tokens.append(int(self._log_text(number).partition("took ")[2].split()[0]))
            self._print(f"Waiter {number} has deploy/prod now, with fencing token {tokens[-1]}.")
        if tokens != sorted(set(tokens)):
            raise click.ClickException(
                f"The fencing tokens {tokens} do not rise in the order of the queue."
            )

    def _finish(self, steady: subprocess.Popen[bytes]) -> None:
        self._stack.wait_for(
            lambda: steady.poll() is not None, "the worker that calls alive() to finish"
        )
        if steady.returncode or "released" not in self._log_text("steady"):
            log = self._log_text("steady")
            raise click.ClickException(f"The worker that calls alive() ended badly: {log}")
        self._print("The worker of nightly-report called alive() all along, finished and released:")
        self._continue("it ran for 8 s, far beyond its alert of 3 s, and nobody was alerted.")

    # ------------------------------------------------------------ the dashboard

    def _lock(self, name: str) -> dict[str, Any] | None:
        return self._get(f"/api/locks/{quote(name, safe='')}")

    def _queued(self, count: int) -> bool:
        lock = self._lock("deploy/prod")
        return lock is not None and len(lock["queue"]) == count

    def _removal(self) -> dict[str, Any] | None:
        removals = (self._get("/api/removed") or {"removed": []})["removed"]
        return next((found for found in removals if found["name"] == "deploy/prod"), None)

    def _get(self, path: str) -> dict[str, Any] | None:
        status, body = fetch(self._stack.dashboard, path)
        found: dict[str, Any] | None = json.loads(body) if status == 200 else None
        return found

    # ------------------------------------------------------------ the workers

    def _start_worker(self, role: str) -> subprocess.Popen[bytes]:
        module = "lockclient.cli.setup.demo_worker"
        return self._stack.start_module(module, f"worker-{role}", role)

    def _wait_for_log(self, role: str, word: str, what: str) -> None:
        self._stack.wait_for(lambda: word in self._log_text(role), what)

    def _log_text(self, role: str) -> str:
        return self._stack.log_of(f"worker-{role}").read_text(errors="replace")

    # ------------------------------------------------------------ output

    def _print(self, sentence: str) -> None:
        at = time.monotonic() - self._began
        click.echo(f"{click.style(f'[{at:5.1f} s]', fg='cyan')}  {wrapped(sentence, _INDENT)}")

    def _continue(self, sentence: str) -> None:
        click.echo(" " * _INDENT + wrapped(sentence, _INDENT))


def _where(backtrace: str) -> str:
    """Return file, line, function and source line of the innermost frame."""
    frame = re.findall(r'File "(?:.*/)?(.*?)", line (\d+), in (.*)\n +(.*)', backtrace)[-1]
    return "{}:{} {}: {}".format(*frame)
