"""Backtraces as frames: the application's own first, whatever the text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mutexdash.markup.frames import Frame, read_backtrace

STACK = """\
  File "/usr/lib/python3.11/threading.py", line 975, in run
    self._target(*self._args)
  File "/srv/billing/run.py", line 71, in main
    invoices.create(month)
  File "/srv/.venv/lib/python3.11/site-packages/celery/app.py", line 9, in call
  File "/srv/billing/invoices.py", line 214, in create
    stack.enter_context(ClusterMutex("billing"))
  File "/usr/lib/python3.11/contextlib.py", line 502, in enter_context
    result = _enter(cm)
"""


def test_own_frames_are_told_from_those_of_libraries_the_innermost_first() -> None:
    read = read_backtrace(STACK)
    assert [frame.place for frame in read.own] == [
        *("/srv/billing/invoices.py:214", "/srv/billing/run.py:71"),
    ]
    assert read.own[0] == Frame(
        *("/srv/billing/invoices.py", 214, "create"),
        *('stack.enter_context(ClusterMutex("billing"))', False),
    )
    assert [frame.line for frame in read.library] == [502, 9, 975]
    assert read.library[1].code == "", "a source line that was not to be had takes none of the next"
    assert read.within == 1
    assert read.text == STACK


def test_a_program_that_is_installed_as_a_library_is_an_application_all_the_same() -> None:
    inner = 'File "/opt/v/lib/python3/site-packages/shop/cli.py", line 3, in main'
    read = read_backtrace(inner)
    assert [frame.line for frame in read.own] == [3]
    assert (list(read.library), read.within) == ([], 0)


@pytest.mark.parametrize("text", ["", "goroutine 1 [running]:\nmain.main()", "<" * 16_000])
def test_any_other_text_has_no_frames_and_stays(text: str) -> None:
    read = read_backtrace(text)
    assert not read.own
    assert not read.library
    assert read.text == text


@given(st.text(alphabet='  File",linein<>/0123\n', max_size=200))
def test_no_text_is_too_odd_to_be_read(text: str) -> None:
    read = read_backtrace(text)
    assert len(read.own) + len(read.library) <= text.count("\n") + 1


# ---------------------------------------------------------------- calls that repeat


def repeated(*calls: str) -> str:
    return "".join(f'  File "/srv/{name}.py", line 1, in {name}\n' for name in calls)


def told(text: str) -> list[tuple[str, int, int]]:
    return [(frame.function, frame.calls, frame.repeated) for frame in read_backtrace(text).own]


def test_a_call_that_calls_itself_over_and_over_is_one() -> None:
    assert told(repeated("main", *["walk"] * 57, "take")) == [
        *(("take", 1, 1), ("walk", 1, 57), ("main", 1, 1))
    ]


def test_calls_that_take_turns_are_one_round() -> None:
    assert told(repeated("main", *["even", "odd"] * 20)) == [
        *(("odd", 1, 1), ("even", 2, 20), ("main", 1, 1))
    ]


def test_what_comes_twice_is_left_as_it_is() -> None:
    assert told(repeated("a", "a", "b", "c", "b", "c")) == [
        (name, 1, 1) for name in ("c", "b", "c", "b", "a", "a")
    ]
