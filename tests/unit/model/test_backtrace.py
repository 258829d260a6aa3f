"""The backtrace of a lock: the user's own frames, bounded in bytes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path
from types import CodeType
from typing import Any

import pytest

import lockclient
from lockclient import ClusterMutex
from lockclient.model.backtrace import LIMIT, capture, innermost_frame
from lockclient.model.clocks import Now
from lockclient.model.fields import size_of
from lockclient.model.holder import MAX_VALUE_BYTES
from tests.support.memory_store import MemoryStore


def backtrace_of(acquire: Callable[[ClusterMutex], object]) -> str:
    """Return the backtrace in the lock's record."""
    mutex = ClusterMutex("x", store=MemoryStore())
    acquire(mutex)
    text = mutex.record.backtrace
    mutex.release()
    assert text is not None
    return text


def test_the_backtrace_ends_with_the_calling_line() -> None:
    text = backtrace_of(lambda mutex: mutex.acquire())  # this line
    *_, head, line = text.splitlines()
    assert head.startswith(f'  File "{__file__}", line ')
    assert head.endswith(", in <lambda>")
    assert line.strip() == "text = backtrace_of(lambda mutex: mutex.acquire())  # this line"


def test_the_backtrace_has_no_frame_of_the_library() -> None:
    def enter(mutex: ClusterMutex) -> None:
        with contextlib.ExitStack() as stack:
            stack.enter_context(mutex)  # here
            stack.pop_all()

    library = str(Path(lockclient.__file__).parent)
    assert library not in backtrace_of(ClusterMutex.acquire)
    assert library not in backtrace_of(enter)
    assert "stack.enter_context(mutex)  # here" in backtrace_of(enter)


def test_a_frame_of_asyncio_is_not_the_line_that_took_the_lock() -> None:
    """`await asyncio.wait_for(mutex.acquire(), 5)` in `main`."""
    head = '  File "/srv/report.py", line 7, in main\n'
    text = f'{head}  File "{asyncio.tasks.__file__}", line 520, in wait_for\n'
    assert innermost_frame(text) == "/srv/report.py:7 in main"


def test_a_neighbour_with_a_similar_name_is_the_user_s() -> None:
    """A file beside the package whose name begins like it is none of ours."""
    path = f"{Path(lockclient.__file__).parent}_jobs.py"
    scope: dict[str, object] = {"capture": capture}
    code: CodeType = compile("def job():\n    return capture()\n", path, "exec")
    exec(code, scope)
    assert f'File "{path}", line 2, in job' in scope["job"]()  # type: ignore[operator]


def test_the_backtrace_has_no_values_of_variables() -> None:
    def secretive(mutex: ClusterMutex, password: str) -> None:
        mutex.acquire()

    password = "hunter" + str(len("ab"))
    assert password not in backtrace_of(lambda mutex: secretive(mutex, password))


def test_a_deep_stack_is_cut_at_its_outer_end() -> None:
    """16 KiB as it is written; the innermost frames are kept, and that some are missing is said."""

    def deep(mutex: ClusterMutex, levels: int) -> None:
        if levels:
            deep(mutex, levels - 1)
        else:
            mutex.acquire()  # the bottom

    text = backtrace_of(lambda mutex: deep(mutex, 400))
    assert LIMIT - 1000 < size_of(text) <= LIMIT == 16 * 1024
    assert text.startswith("  [outer frames left out]\n  File ")
    assert text.rstrip().endswith("mutex.acquire()  # the bottom")


@pytest.mark.parametrize("odd", ["\x01", '"', "\n", "🙂", "é", "\udcff", "x"], ids=ascii)
def test_long_texts_of_a_holder_do_not_break_its_lock(odd: str) -> None:
    lines = "def deep(levels):\n    return deep(levels - 1) if levels else acquire()\n"
    said = odd * (4096 // size_of(odd.encode(errors="replace").decode()))
    store = MemoryStore()
    mutex = ClusterMutex("x", store=store, reason=said, identity=said)
    scope: dict[str, Any] = {"acquire": mutex.acquire}
    exec(compile(lines, odd * 100, "exec"), scope)
    assert scope["deep"](800)
    holder = mutex.holder()
    assert holder is not None
    assert holder.faults() == ()
    assert (holder.backtrace, holder.reason) == (mutex.record.backtrace, mutex.record.reason)
    assert LIMIT - 2000 < size_of(holder.backtrace or "") <= LIMIT
    about = holder.subkeys()["about"].encode()
    assert 3 * 4000 < len(about) < MAX_VALUE_BYTES / 2
    with pytest.raises(ValueError, match="reason must have 0 to 4096 bytes in JSON"):
        ClusterMutex("x", store=store, reason=said + odd)


def test_code_without_a_file_and_odd_names_are_shown() -> None:
    """`exec`, and a path that is no UTF-8: whatever it is, it can be written down."""
    scope: dict[str, object] = {"capture": capture}
    exec(compile("text = capture()", "<odd \udcff>", "exec"), scope)
    text = scope["text"]
    assert isinstance(text, str)
    assert '  File "<odd ?>", line 1, in <module>\n' in text
    text.encode()


def test_the_backtrace_can_be_left_out() -> None:
    with ClusterMutex("x", capture_backtrace=False, store=MemoryStore()) as mutex:
        assert mutex.record.backtrace is None
        assert mutex.record.locked_at is not None
        assert mutex.record.locked_at <= Now.read().wall + 0.001  # written in milliseconds
