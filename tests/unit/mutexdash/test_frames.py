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


def test_frames_of_the_application_are_separated_from_libraries() -> None:
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


def test_an_installed_program_counts_as_the_application() -> None:
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
