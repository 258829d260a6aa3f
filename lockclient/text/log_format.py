"""Log lines and tracebacks that no text of others can forge or steer."""

from __future__ import annotations

import copy
import logging
import sys
import threading
from types import TracebackType
from typing import Any

from lockclient.text.escaping import as_trace, plain, trace_of, without_secrets


class PlainFormatter(logging.Formatter):
    """A line for each message, with all in it shown; what follows, a traceback, is indented."""

    def format(self, record: logging.LogRecord) -> str:
        record = copy.copy(record)  # of which another handler may keep its own text of the error
        record.exc_text = None
        return super().format(record)

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        record.message = plain(without_secrets(record.message))
        return super().formatMessage(record)

    def formatException(self, ei: Any) -> str:  # noqa: N802 - logging's name
        return as_trace(super().formatException(ei))

    def formatStack(self, stack_info: str) -> str:  # noqa: N802 - logging's name
        return as_trace(stack_info)


def tell_uncaught() -> None:
    """See to it that what ends a thread, or the program, is told like everything else."""

    def of_thread(said: threading.ExceptHookArgs) -> None:
        if said.exc_value is not None and said.exc_type is not SystemExit:
            name = said.thread.name if said.thread is not None else "unknown"
            sys.stderr.write(f"The thread {name} has ended: {trace_of(said.exc_value)}\n")

    def of_program(
        _kind: type[BaseException], error: BaseException, _trace: TracebackType | None
    ) -> None:
        sys.stderr.write(f"{trace_of(error)}\n")

    threading.excepthook = of_thread
    sys.excepthook = of_program
