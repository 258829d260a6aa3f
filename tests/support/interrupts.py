"""Interrupts at chosen steps: a trace function finds the steps at which CPython handles signals."""

from __future__ import annotations

import contextlib
import ctypes
import sys
import threading
from collections.abc import Iterator
from dis import opname
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import lockclient

TRACED = (str(Path(lockclient.__file__).parent), threading.__file__)
LOOKS = ("RESUME", "CALL", "JUMP_BACKWARD")
"""Instructions after which CPython runs the handlers of signals."""


class Interrupt:
    """Raises `KeyboardInterrupt` at the n-th step of this thread inside the library.

    A step is where CPython itself looks for signals: as a function begins, after a call, as a loop
    goes round. (So not between the lines of a `with` and its block, where it never does.)
    """

    def __init__(self, number: int) -> None:
        self.left = number
        self.where = ""
        self._codes: dict[CodeType, bytes] = {}
        self._looks: dict[FrameType, bool] = {}

    def __call__(self, frame: FrameType, event: str, _: Any) -> Any:
        code = frame.f_code
        if not code.co_filename.startswith(TRACED):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        if event == "return":
            self._looks.pop(frame, None)
        elif event == "opcode":
            if self._looks.get(frame):
                self.step(f"{code.co_name}, line {frame.f_lineno}")
            instructions = self._codes.setdefault(code, code.co_code)
            self._looks[frame] = opname[instructions[frame.f_lasti]].startswith(LOOKS)
        return self

    def step(self, where: str) -> None:
        self.left -= 1
        if self.left == 0:
            self.where = where
            self.interrupt()

    def interrupt(self) -> None:
        raise KeyboardInterrupt


@contextlib.contextmanager
def interrupted(number: int) -> Iterator[Interrupt]:
    """Run the block with an interrupt at its n-th step."""
    interrupt = Interrupt(number)
    before = sys.gettrace()
    sys.settrace(interrupt)
    try:
        yield interrupt
    except KeyboardInterrupt:
        pass
    finally:
        sys.settrace(before)


def raise_in(thread: int, kind: type[BaseException]) -> None:
    """Raise in another thread, at its next step."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(kind))
