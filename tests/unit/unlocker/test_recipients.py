"""Whom URLs mean: what they are called, and how long they have to answer."""

from __future__ import annotations

import time

import pytest

from unlocker.notifications.events import Message
from unlocker.notifications.note import REFUSED, TOLD, UNANSWERED
from unlocker.notifications.recipients import BadUrl, Recipient, recipients_of

pytest.importorskip("apprise", reason="no apprise: the extra notify")
pytestmark = pytest.mark.filterwarnings("ignore:'imghdr':DeprecationWarning")  # apprise's import

MESSAGE = Message("t", "b", good=False)


def test_a_url_is_called_by_its_name_or_by_its_kind_and_place() -> None:
    urls = ["ops=json://127.0.0.1/x?a=b=c", "jsons://user:hush@127.0.0.1/hush", "json://127.0.0.1"]
    assert [found.name for found in recipients_of(urls)] == ["ops", "jsons-2", "json-3"]


@pytest.mark.parametrize("name", ["", " ", "a b", "ü", "a" * 33])
def test_a_name_that_can_not_stand_in_the_note_is_refused_and_no_secret_is_quoted(
    name: str,
) -> None:
    with pytest.raises(BadUrl, match=r"URL no\. 1") as caught:
        recipients_of([f"{name}=json://user:hush@127.0.0.1/x"])
    assert "hush" not in str(caught.value)


@pytest.mark.parametrize(("query", "answer_s"), [("", 32.0), ("?rto=60", 60.0), ("?rto=3", 3.0)])
def test_it_has_half_a_minute_to_answer_unless_the_url_says_otherwise(
    query: str, answer_s: float
) -> None:
    (found,) = recipients_of([f"json://127.0.0.1/x{query}"])
    assert found.answer_timeout_s == answer_s


@pytest.mark.parametrize(("done", "how"), [(True, TOLD), (False, REFUSED)])
def test_a_quick_failure_is_a_refusal(done: bool, how: str) -> None:
    assert Recipient("x", lambda _: done, 0.2).deliver(MESSAGE) == how


def test_a_failure_after_all_of_its_time_is_no_answer() -> None:
    def wait(_message: Message) -> bool:
        time.sleep(0.25)
        return False

    assert Recipient("x", wait, 0.2).deliver(MESSAGE) == UNANSWERED
