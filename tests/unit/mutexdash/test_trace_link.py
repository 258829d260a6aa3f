"""From a lock's page to the trace in which it was taken."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from lockclient.model.holder import Holder
from mutexdash.cli import main
from mutexdash.web.trace_link import trace_link

URL = "https://traces.example.org/trace/{trace_id}?span={span_id}"


def test_it_has_what_the_lock_says() -> None:
    holder = Holder("x", labels={"span_id": "old"}, context={"trace_id": "4bf9", "span_id": "00"})
    assert trace_link(URL, holder) == "https://traces.example.org/trace/4bf9?span=00"


def test_what_others_wrote_can_lead_nowhere_else() -> None:
    holder = Holder("x", context={"trace_id": "../../?a=b#c", "span_id": "//evil.example.org"})
    link = trace_link(URL, holder)
    assert link == (
        "https://traces.example.org/trace/..%2F..%2F%3Fa%3Db%23c?span=%2F%2Fevil.example.org"
    )


@pytest.mark.parametrize(
    "context",
    [
        None,
        {},
        {"trace_id": "4bf9"},
        {"trace_id": "", "span_id": "1"},
        {"trace_id": "4" * 201, "span_id": "1"},
        {"trace_id": "..", "span_id": "1"},
    ],
)
def test_there_is_none_where_something_is_missing(context: dict[str, str] | None) -> None:
    assert trace_link(URL, Holder("x", context=context)) == ""
    assert trace_link("", Holder("x", context={"trace_id": "4bf9"})) == ""


@pytest.mark.parametrize(
    "url",
    [
        "traces.example.org/{trace_id}",
        "https://traces.example.org/",
        "https://{trace_id}/x",
        "javascript:{trace_id}",
        "https://ann:secret@traces.example.org/{trace_id}",
    ],
)
def test_what_is_no_address_with_a_place_is_refused(url: str) -> None:
    done = CliRunner().invoke(main, ["--trace-url", url])
    assert done.exit_code == 2
    assert "--trace-url" in done.output
