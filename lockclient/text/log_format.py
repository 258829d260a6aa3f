"""Log lines and tracebacks that no text of others can forge or steer."""

from __future__ import annotations

import copy
import logging
import sys
import threading
from typing import Any

from lockclient.text.escaping import as_trace, plain, trace_of, without_secrets


class PlainFormatter(logging.Formatter):
    """One line for each message, in plain text; an indented traceback follows."""

    def format(self, record: logging.LogRecord) -> str:
        record = copy.copy(record)  # another handler may keep its own text of the error
        record.exc_text = None
        return super().format(record)

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        record.message = plain(without_secrets(record.message))
        return super().formatMessage(record)

    def formatException(self, ei: Any) -> str:  # noqa: N802 - logging's name
        return as_trace(super().formatException(ei))

    def formatStack(self, stack_info: str) -> str:  # noqa: N802 - logging's name
        return as_trace(stack_info)


def log_uncaught() -> None:
    """Write the error that ends a thread or the program to stderr, in plain text."""

    def of_thread(hook_args: threading.ExceptHookArgs) -> None:
        if hook_args.exc_value is not None and hook_args.exc_type is not SystemExit:
            name = hook_args.thread.name if hook_args.thread is not None else "unknown"
            sys.stderr.write(f"The thread {name} has ended: {trace_of(hook_args.exc_value)}\n")

    threading.excepthook = of_thread
    sys.excepthook = lambda _kind, error, _trace: sys.stderr.write(f"{trace_of(error)}\n")
