"""The normal end of a process: the hooks of `atexit`, and what the log says is left."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from lockclient.stores.common import background
from lockclient.threads import ending
from tests.proof.history import Line
from tests.simulation.hub import Hub, Process

KINDS = {"still holds": "held", "could not release": "unreleased", "could not withdraw": "granted"}
"""By a part of the log line, what may be left: see `named` in `tests.proof.history`."""


class EndLog(logging.Handler):
    """Writes a line of the history for each lock that the log names as left.

    Args:
        hub: the clock, and the name of the process.
        write: takes the lines of the history.
    """

    def __init__(self, hub: Any, write: Callable[[Line], object]) -> None:
        super().__init__(logging.WARNING)
        self._hub, self._write = hub, write

    def emit(self, record: logging.LogRecord) -> None:
        """See `logging.Handler`."""
        lock, uuid = vars(record).get("lock"), vars(record).get("uuid")
        said = record.getMessage()
        kind = next((kind for words, kind in KINDS.items() if words in said), "")
        if kind:
            at, process = self._hub.now, self._hub.process.name
            self._write(Line(at, process, "named", lock=str(lock), uuid=str(uuid), key=kind))


@contextmanager
def end_log(handler: EndLog) -> Iterator[None]:
    """Log what an end leaves, and nothing else."""
    silent = [logging.getLogger(name) for name in ("lockclient", "unlocker")]
    for logger in silent:
        logger.setLevel(logging.CRITICAL + 1)
    log = logging.getLogger(ending.__name__)
    log.setLevel(logging.WARNING)
    log.addHandler(handler)
    log.propagate = False
    logging.disable(logging.NOTSET)
    try:
        yield
    finally:
        logging.disable(logging.CRITICAL)
        log.propagate = True
        log.removeHandler(handler)
        for logger in (log, *silent):
            logger.setLevel(logging.NOTSET)


def end(process: Process, program: Callable[[], object], *, starts_threads: bool) -> float:
    """End the process in the calling thread, as `atexit` does; return the seconds of the hooks.

    Args:
        program: called between the hooks, as what was registered before the first acquisition.
        starts_threads: False: as Python 3.12, which starts no thread then.
    """
    hub = Hub.current
    thread = hub.this_thread()
    assert thread is not None
    process.is_ending, process.starts_no_thread = True, not starts_threads
    process.globals[background, "_main_thread"] = thread.ident
    process.enter()
    began = hub.monotonic()
    ending.begin()
    ran = hub.monotonic()
    program()
    ended = hub.monotonic()
    ending.finish()
    return ran - began + hub.monotonic() - ended
