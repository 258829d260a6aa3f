"""Breaks Python around real clients: `python -m tests.breaking.process --cases 200 --seed 1`.

Each case is a process of its own, which a seed gives work and one or two faults. Looked at is, from
outside: that it ends, by a status that is explained; that each error is, too; that nobody works
under a lock when a later token is at work already; and that in the end no lock and no ticket is
left, by an unlocker's help where the process had no chance. Status 0: all of it held.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from itertools import chain
from pathlib import Path
from typing import Any

from lockclient import Settings
from lockclient.cli.setup.etcd_server import Etcd, find_etcd
from lockclient.cli.setup.spawn import end
from tests.support.etcd_binary import etcdctl_of

CHECKOUT = Path(__file__).parents[3]
ENDS_WITHIN_S = 60.0
LEFT_S = 45.0
"""Seconds within which nothing is left, on a slow machine: promised are a lock's time and 4 s."""
_STATUSES = (0, 1, 7)
"""The end, an error that went through, and what faults exit with."""
_ABORTED, _NOT_LOADED, _ALARM = -signal.SIGABRT, 127, -signal.SIGALRM
_EXPLAINED = {"no_files": (_ABORTED, _NOT_LOADED), "execs": (_NOT_LOADED, _ALARM)}
"""How a process may end with a fault: glibc and gRPC abort one that has no descriptor left, a new
program finds none to load its libraries, and is not ready for the signals of the one before it."""


def run_case(seed: int, url: str, folder: Path) -> tuple[str, list[str]]:
    """Return what a case is, and what was broken in it."""
    notes, log = folder / f"{seed}.notes", folder / f"{seed}.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.breaking.process.child", str(seed), url, str(notes)],
            cwd=CHECKOUT,
            stdout=output,
            stderr=output,
            stdin=subprocess.DEVNULL,
            env={**os.environ, "CLUSTERMUTEX_URL": url},
        )
        try:
            status = process.wait(ENDS_WITHIN_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            said = log.read_text(errors="replace")[-4000:]
            return _read(notes)[0]["text"], [f"it did not end:\n{said}"]
    lines = _read(notes)
    broken = [line["text"] for line in lines if line["what"] == "odd"] + list(overlaps(lines))
    allowed = [_EXPLAINED.get(fault, ()) for fault in lines[0]["text"].split()]
    if status not in chain(_STATUSES, *allowed):
        broken.append(f"it ended with {status}")
    if broken:
        broken.append(f"it said:\n{log.read_text(errors='replace')[:6000]}")
    return (lines[0]["text"] if lines else "nothing"), broken


def _read(notes: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in notes.read_text().splitlines()] if notes.exists() else []


def overlaps(lines: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Say whose push was begun after a later holder had entered, and succeeded all the same.

    Only written lines count: an interrupted client that writes no more does not work.
    """
    entered: dict[str, tuple[int, int]] = {}  # by lock: the highest token, and its line
    begun: dict[tuple[str, int], int] = {}
    for number, line in enumerate(lines):
        if "token" not in line:
            continue
        lock, token = line["lock"], line["token"]
        last, since = entered.get(lock, (0, 0))
        if line["what"] == "enter" and token > last:
            entered[lock] = (token, number)
        elif line["what"] == "pushes":
            begun[lock, token] = number
        elif line["what"] == "pushed" and token < last and begun[lock, token] > since:
            yield f"{lock}: token {token} was pushed when {last} had entered"


def _left(etcd: Etcd, prefix: str) -> list[str]:
    found = etcdctl_of(etcd)("get", "--prefix", "--keys-only", "/clustermutex/").splitlines()
    return [
        key for key in found
        if prefix in key and ("/queue/" in key or (key.endswith("/uuid") and "/locks/" in key))
    ]  # fmt: skip


@contextmanager
def _servers(folder: Path) -> Iterator[tuple[Etcd, Settings]]:
    binary = os.environ.get("CLUSTERMUTEX_TEST_ETCD") or find_etcd()
    assert binary, "no etcd"
    with ExitStack() as stack:
        etcd = stack.enter_context(Etcd(binary, folder / "data", folder / "etcd.log"))
        settings = Settings(endpoints=(etcd.endpoint,))
        words = ["-m", "unlocker", "--url", settings.url(), "--listen", "127.0.0.1:0"]
        words += ["--max-removals", "1000"]
        with (folder / "unlocker.log").open("wb") as log:
            unlocker = subprocess.Popen(
                [sys.executable, *words], stdout=log, stderr=log, cwd=CHECKOUT
            )
        stack.callback(end, unlocker)
        yield etcd, settings


def main(words: Sequence[str] | None = None) -> int:
    """Do what the command line says."""
    parser = argparse.ArgumentParser(prog="python -m tests.breaking.process", description=__doc__)
    parser.add_argument("--cases", type=int, default=100)
    parser.add_argument(
        "--seed", type=int, default=1, help="of the first case; the next has 1 more"
    )
    parser.add_argument("--at-once", type=int, default=8)
    said = parser.parse_args(words)
    began, kinds, failed = time.monotonic(), Counter[str](), 0
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        with _servers(folder) as (etcd, settings):
            seeds = range(said.seed, said.seed + said.cases)
            with ThreadPoolExecutor(said.at_once) as pool:
                ran = pool.map(lambda seed: run_case(seed, settings.url(), folder), seeds)
                for seed, (what, broken) in zip(seeds, ran, strict=True):
                    kinds.update(what.split()[1:])
                    failed += bool(broken)
                    for text in broken:
                        print(f"--seed {seed} --cases 1: {what}: {text}", flush=True)
            limit = time.monotonic() + LEFT_S
            while (left := _left(etcd, "case-")) and time.monotonic() < limit:
                time.sleep(0.5)
    for key in left:
        print("left behind:", key)
    took = time.monotonic() - began
    faults = ", ".join(f"{number} {name}" for name, number in sorted(kinds.items()))
    print(f"{said.cases} cases in {took:.0f} s, {failed} broken; faults: {faults}")
    return int(bool(failed or left))


if __name__ == "__main__":
    sys.exit(main())
