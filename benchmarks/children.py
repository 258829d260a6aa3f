"""Processes of the benchmark's own, with a pipe to each; they end when it does, however it ends."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from multiprocessing.connection import Connection
from typing import Any

CONTEXT = multiprocessing.get_context("spawn")  # gRPC does not survive a fork


@contextmanager
def children(target: Callable[..., None], arguments: list[tuple[Any, ...]]) -> Iterator[list[Any]]:
    """Run `target(*arguments, pipe)` in a process for each; yield the pipes when all have sent
    `ready`. They are killed at the end, whatever they do."""
    pipes = []
    with ExitStack() as stack:
        for own in arguments:
            pipe, theirs = CONTEXT.Pipe()
            process = CONTEXT.Process(target=_run, args=(target, own, theirs), daemon=True)
            process.start()
            stack.callback(process.join)
            stack.callback(process.kill)
            theirs.close()  # so that its end is the end of the pipe, and not silence
            pipes.append(pipe)
        for pipe in pipes:
            pipe.recv()
        yield pipes


def _run(target: Callable[..., None], arguments: tuple[Any, ...], pipe: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's, who ends us
    threading.Thread(target=_end_with_parent, daemon=True).start()
    target(*arguments, pipe)


def _end_with_parent() -> None:
    if (parent := multiprocessing.parent_process()) is not None:
        parent.join()
        os._exit(1)
