"""The runbook as the dashboard serves it: as new as its source, and nothing but text."""

from __future__ import annotations

import re

from mutexdash.markup.remedies import _SECTIONS
from tests.support import rendered_runbook
from tests.support.dashboard_fakes import Board


def test_it_is_as_new_as_its_source() -> None:
    """Else: make runbook."""
    assert rendered_runbook.RENDERED.read_text(encoding="utf-8") == rendered_runbook.text()


def test_each_alert_is_a_section_of_it_and_each_link_inside_leads_to_one() -> None:
    source = rendered_runbook.SOURCE.read_text(encoding="utf-8")
    html = rendered_runbook.RENDERED.read_text(encoding="utf-8")
    sections = re.findall(r'<h2 id="(\w+)">', html)
    assert sections == [name.lower() for name in re.findall(r"^## (\w+)$", source, re.MULTILINE)]
    assert {name.lower() for name in _SECTIONS.values()} < set(sections)
    links = set(re.findall(r'href="([^"]*)"', html))
    assert {link for link in links if not link.startswith("https://")} <= {
        f"#{section}" for section in sections
    }


def test_it_has_no_html_of_its_own() -> None:
    """What the source says is text: no tag, no handler, nothing that needs another CSP."""
    html = rendered_runbook.RENDERED.read_text(encoding="utf-8")
    tags = {tag.lower() for tag in re.findall(r"</?([a-zA-Z0-9]+)", html)}
    plain = {"h1", "h2", "h3", "p", "strong", "em", "code", "pre", "ul", "ol", "li", "a", "hr"}
    assert tags <= plain | {"table", "thead", "tbody", "tr", "th", "td"}
    names = {name for tag in re.findall(r"<([^>]*)>", html) for name in re.findall(r" (\w+)=", tag)}
    assert names <= {"id", "href", "class", "tabindex", "start"}


def test_a_lock_s_page_leads_there_unless_the_operator_has_another_one() -> None:
    with Board() as board, Board(runbook_url="https://ops.example/runbook") as theirs:
        for asked, link in ((board, "/runbook"), (theirs, "https://ops.example/runbook")):
            asked.store.take("late", held_for=400)
            assert f'href="{link}#lockpastalert"' in asked.html("/lock/late")
        board.shows("/runbook", "LockPastAlert", "It means:", "LockHeldTooLong")
        csp = board.get("/runbook").headers["Content-Security-Policy"]
        assert csp == board.get("/").headers["Content-Security-Policy"]


def test_it_is_served_also_while_nothing_is_known_of_the_locks() -> None:
    board = Board()  # not started: the store has not answered yet
    answer = board.client.get("/runbook")
    assert answer.status_code == 200
    assert b'id="lockoverdue"' in answer.data
