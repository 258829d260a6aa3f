"""docs/api.md is made of the docstrings, and of all that is public."""

from __future__ import annotations

import pytest

import lockclient
from tests.support import api_reference


def test_the_page_is_up_to_date() -> None:
    assert api_reference.PAGE.read_text(encoding="utf-8") == api_reference.text(), "make reference"


def test_what_has_no_section_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lockclient, "__all__", [*lockclient.__all__, "drive"])
    with pytest.raises(ValueError, match=r"\['drive'\]"):
        api_reference.text()


def test_what_has_no_docstring_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lockclient.ClusterMutex.locked, "__doc__", None)
    with pytest.raises(ValueError, match=r"ClusterMutex\.locked is public"):
        api_reference.text()
