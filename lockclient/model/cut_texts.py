"""Truncates a lock's texts: to save memory in lists, and to fit a removal record into a request."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from operator import attrgetter
from typing import Any, Final

from lockclient.model.fields import ABOUT, TEXT, TEXTS, pairs
from lockclient.model.holder import FACTS, Holder

MAX_LISTED_TEXT_CHARS, MAX_LISTED_OBJECT_CHARS = 200, 1000
"""Characters kept of a text in a list of locks; and of all texts of an object together."""
MAX_RECORDED_CHARS, MAX_RECORDED_BACKTRACE_CHARS = 4 * 1024, 16 * 1024
"""Characters kept of a text or an object, and of a backtrace, in a removal record."""

_LISTED_FACTS: Final = tuple(fact for fact in FACTS if fact.place == ABOUT and fact.listed)
_TEXTS: Final = ("hostname", *(fact.name for fact in _LISTED_FACTS if fact.kind == TEXT))
_OBJECTS: Final = tuple(fact.name for fact in _LISTED_FACTS if fact.kind == TEXTS)
_texts_of: Final = attrgetter(*_TEXTS)
_objects_of: Final = attrgetter(*_OBJECTS)


def listed(holder: Holder) -> Holder:
    """Return the holder with long texts truncated, but not the uuid, which removals compare."""
    long_text = any(text and shortened(text) is not text for text in _texts_of(holder))
    if long_text or any(
        texts and len(pairs(texts)) > MAX_LISTED_OBJECT_CHARS for texts in _objects_of(holder)
    ):
        return _cut(holder, shortened, MAX_LISTED_OBJECT_CHARS)
    return holder


def bounded(holder: Holder) -> Holder:
    """Return the holder with texts truncated so that its removal record fits a request."""
    # The end of a backtrace has the innermost frames.
    backtrace = holder.backtrace and holder.backtrace[-MAX_RECORDED_BACKTRACE_CHARS:]
    short = _cut(holder, lambda text: text[:MAX_RECORDED_CHARS], MAX_RECORDED_CHARS)
    return replace(short, backtrace=backtrace)


def shortened(text: str) -> str:
    is_short = len(text) <= MAX_LISTED_TEXT_CHARS
    return text if is_short else f"{text[: MAX_LISTED_TEXT_CHARS - 1]}…"


def _cut(holder: Holder, cut: Callable[[str], str], most: int) -> Holder:
    texts = {name: text and cut(text) for name, text in zip(_TEXTS, _texts_of(holder), strict=True)}
    objects = {name: _first(getattr(holder, name), most) for name in _OBJECTS}
    short: dict[str, Any] = {**texts, **objects}
    return replace(holder, **short)


def _first(texts: Mapping[str, str] | None, most: int) -> Mapping[str, str] | None:
    """Return the first of these texts, as many as fit into `most` characters with their names."""
    kept: dict[str, str] = {}
    for name, text in (texts or {}).items():
        most -= len(name) + len(text)
        if most < 0:
            break
        kept[name] = text
    return texts and kept
