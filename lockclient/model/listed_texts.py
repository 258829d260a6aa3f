"""Texts of a lock as lists of very many have them: cut, so that they take little memory."""

from __future__ import annotations

from dataclasses import replace
from operator import attrgetter
from typing import Any, Final

from lockclient.model.fields import cut, pairs
from lockclient.model.holder import CUT_TEXTS, OBJECTS, Holder

MAX_LISTED_TEXT_CHARS: Final = 200
"""Characters of a text that is kept of each of very many locks."""

MAX_LISTED_OBJECT_CHARS: Final = 1000
"""And of an object of texts, all of them together."""

_texts_of: Final = attrgetter(*CUT_TEXTS)


def listed(holder: Holder) -> Holder:
    """Return the holder without long texts. The uuid stays whole: removals compare it."""
    texts = _texts_of(holder)
    short = tuple(text and shortened(text) for text in texts)
    long = any(
        said and len(pairs(said)) > MAX_LISTED_OBJECT_CHARS
        for said in (holder.labels, holder.context)
    )
    if not long and short == texts:
        return holder
    shown: dict[str, Any] = dict(zip(CUT_TEXTS, short, strict=True))
    shown |= {name: cut(getattr(holder, name), MAX_LISTED_OBJECT_CHARS) for name in OBJECTS}
    return replace(holder, **shown)


def shortened(text: str) -> str:
    """Cut a text; to half the length where Python keeps four bytes of each character."""
    if len(text) <= MAX_LISTED_TEXT_CHARS // 2:
        return text
    wide = not text.isascii() and max(text) > "\uffff"
    room = MAX_LISTED_TEXT_CHARS // 2 if wide else MAX_LISTED_TEXT_CHARS
    return text if len(text) <= room else f"{text[: room - 1]}…"
