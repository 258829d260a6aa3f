"""Waits that a signal interrupts end on time.

That is what a process meets that was stopped (Ctrl-Z, a container's pause) and goes on. Here it
comes in no other way: the main thread leaves the signal to the one that waits, and keeps the
interpreter to itself until the wait's time is up.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

_INTERRUPTED = """
import os, signal, sys, threading, time
from lockclient.threads import scheduler
from lockclient.acquisition.thread_driver import ThreadInbox

def go_on_after(seconds):
    sys.setswitchinterval(10)
    try:
        os.kill(os.getpid(), signal.SIGUSR1)
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            pass
    finally:
        sys.setswitchinterval(0.005)

signal.signal(signal.SIGUSR1, lambda *_: None)
begun, ended = threading.Event(), threading.Event()
"""
_LEAVE_IT = """
begun.wait(60)
time.sleep(0.1)
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
go_on_after(1.0)
sys.exit(0 if ended.wait(30) else "It waits for ever.")
"""
_TIMERS = """
def job():
    if begun.is_set():
        ended.set()
    begun.set()
    return 0.6

scheduler.shared.after(0, job)
"""
_INBOX = """
def wait():
    inbox = ThreadInbox()
    begun.set()
    assert inbox.get(0.6) is None
    ended.set()

threading.Thread(target=wait, daemon=True).start()
"""


@pytest.mark.parametrize("wait", [_TIMERS, _INBOX], ids=["timers", "a waiter"])
def test_an_interrupted_wait_ends_on_time(wait: str) -> None:
    program = [sys.executable, "-c", _INTERRUPTED + wait + _LEAVE_IT]
    done = subprocess.run(program, capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_program_started_by_a_library_thread_receives_signals() -> None:
    program = """
import subprocess, sys
from lockclient.threads.pool import WorkerPool
import threading

over = threading.Event()

def start():
    words = [sys.executable, "-c", "import signal; print(signal.pthread_sigmask(0, set()))"]
    print(subprocess.run(words, capture_output=True, text=True).stdout)
    over.set()

WorkerPool("test", 1).submit(start)
over.wait(60)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.stdout.strip(), done.stderr) == ("set()", "")
