"""The description of a fact about a lock: its kind, where it is written, how JSON is read.

The facts are the fields of `holder.Holder`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from inspect import iscoroutinefunction
from typing import Any, Final, TypeVar

from lockclient.model.clocks import MAX_DURATION_S, MAX_STAMP, parse_stamp

TEXT: Final = "a text"
COUNT: Final = "a whole number"
TIME: Final = "Unix seconds"
SECONDS: Final = "seconds"
NAMES: Final = "a list of names"
TEXTS: Final = "an object of texts"
FLAG: Final = "true or false"

_UNITS: Final = (TIME, SECONDS, NAMES, TEXTS)

MAX_COUNT: Final = (1 << 53) - 1
"""The largest whole number that all readers of JSON represent exactly."""
UNKNOWN: Final = "unknown"
NEVER: Final = "never"

KEY: Final = "key"
ABOUT: Final = "about"
KNOWN: Final = "known"


@dataclass(frozen=True, slots=True)
class Fact:
    """One fact about a lock, wherever it is written, read or shown.

    Attributes:
        place: `KEY`: a subkey of its own; `ABOUT`: in the subkey `about`; `KNOWN`: not written, but
            known for every lock.
        title: its label on pages; empty: it is shown elsewhere, or not at all.
        says: its description in the API.
        optional: whether it may be missing; then it is null in JSON.
        absent: the text for people if it is missing.
        in_json: whether it is in JSON.
        listed: whether lists of locks have it.
    """

    name: str
    kind: str
    place: str
    title: str
    says: str
    optional: bool = True
    absent: str = ""
    in_json: bool = True
    listed: bool = True

    @property
    def description(self) -> str:
        return self.says + (f" ({self.kind})" if self.kind in _UNITS else "")


def fact(kind: str, place: str, title: str, says: str, default: Any = None, **how: Any) -> Any:
    made = Fact("", kind, place, title, says, optional=default is None, **how)
    return field(default=default, repr=made.listed, metadata={"fact": made})


to_json: Final = json.JSONEncoder(ensure_ascii=False).encode


def size_of(text: str) -> int:
    """Return the bytes of a text in JSON without quotes: up to six for a character."""
    return len(to_json(text).encode()) - 2


def pairs(texts: Mapping[str, str]) -> str:
    """Return an object of texts as people read it: `env=prod, team=billing`."""
    return ", ".join(f"{name}={text}" for name, text in texts.items())


MAX_OWNER_BYTES: Final = 255
MAX_LABELS: Final = 16
MAX_LABELS_BYTES: Final = 1024
"""Bytes in JSON of all labels of a lock, and of all its context."""
_LABEL_NAME: Final = re.compile("[A-Za-z_][A-Za-z0-9_.-]{0,62}")


def require_text(what: str, value: object, shortest: int = 0, longest: int = 4096) -> str:
    """Return an exact, writable `str` of so many bytes in JSON, or raise ValueError."""
    if not isinstance(value, str):
        raise ValueError(f"{what} must be a text, not {value!r}.")
    text = writable(str.__str__(value))
    if not shortest <= (size := size_of(text)) <= longest:
        raise ValueError(f"{what} must have {shortest} to {longest} bytes in JSON; it has {size}.")
    return text


def require_callable(what: str, function: object, *, may_be_async: bool = False) -> None:
    """Raise ValueError for a value that can't be called, and for an `async def` if not allowed."""
    if not callable(function):
        raise ValueError(f"{what} must be callable, not {function!r}.")
    parts = function, type(function).__call__
    if not may_be_async and any(iscoroutinefunction(part) for part in parts):
        raise ValueError(f"{what} must not be an `async def`, as nothing awaits it: {function!r}.")


def require_labels(what: str, given: object) -> dict[str, str]:
    """Return labels that may be written (None: none), or raise ValueError about `what`."""
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise ValueError(f"{what} must be a mapping of names to texts, not {given!r}.")
    if len(given) > MAX_LABELS:
        raise ValueError(f"{what} may have at most {MAX_LABELS} entries; there are {len(given)}.")
    for name in given:
        if not isinstance(name, str) or not _LABEL_NAME.fullmatch(name):
            raise ValueError(
                f"{what}: {name!r} must be 1 to 63 letters, digits, '_', '.' and '-', the first a "
                "letter or '_'."
            )
    labels = {
        str.__str__(name): require_text(f"{what}[{name!r}]", text, longest=MAX_LABELS_BYTES)
        for name, text in given.items()
    }
    if (size := len(to_json(labels).encode())) > MAX_LABELS_BYTES:
        raise ValueError(
            f"{what} may have at most {MAX_LABELS_BYTES} bytes in JSON; there are {size}."
        )
    return labels


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("an object has two members of one name")
    return found


_from_json: Final = json.JSONDecoder(parse_constant=_refuse, object_pairs_hook=_unique).decode


def json_object(value: bytes) -> dict[str, Any] | None:
    """Return a JSON object, or None if the value is not one.

    It must be strict UTF-8, and no object in it may have two members of one name.
    """
    try:
        found = _from_json(value.decode())
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def json_facts(value: bytes, kinds: Mapping[str, str]) -> dict[str, Any]:
    """Return the named fields of a JSON object; one that is missing or of another kind is None."""
    found = json_object(value) or {}
    return {name: of_kind(kind, found.get(name)) for name, kind in kinds.items()}


def of_kind(kind: str, item: Any) -> Any:
    if kind == TEXT:
        return writable(item) if isinstance(item, str) else None
    if kind == TEXTS:
        texts = isinstance(item, dict) and all(isinstance(text, str) for text in item.values())
        return {writable(name): writable(text) for name, text in item.items()} if texts else None
    if kind == FLAG or isinstance(item, bool):
        return item if kind == FLAG and isinstance(item, bool) else None
    if not isinstance(item, (int, float)):
        return None
    if kind == SECONDS:
        return item if 0 < item <= MAX_DURATION_S else None
    if kind == COUNT:  # some languages write every number as a float
        return int(item) if 0 <= item <= MAX_COUNT and item == int(item) else None
    return item if 0 <= item <= MAX_STAMP else None


def writable(text: str) -> str:
    """Return a text without lone surrogates, which JSON or a command line may contain."""
    return text if text.isascii() else text.encode(errors="replace").decode()


_Item = TypeVar("_Item", str, float)

MAX_INTERNED_CHARS: Final = 200
"""Characters of an interned text; this bounds the cache to 10 MB."""


@lru_cache(maxsize=10_000, typed=True)
def interned(item: _Item) -> _Item:
    """Return the shared copy of an item. (`sys.intern` of Python 3.12.0 to 3.12.6 frees none.)"""
    return item


def interned_text(text: str) -> str:
    return interned(text) if len(text) <= MAX_INTERNED_CHARS else text


# ---------------------------------------------------------------- values of subkeys


def read_text(value: bytes) -> tuple[str, str | None]:
    """Return a text, and its fault or None."""
    try:
        return value.decode(), None
    except UnicodeDecodeError:
        return value.decode(errors="replace"), "is not UTF-8"


def read_stamp(value: bytes) -> tuple[float | None, str | None]:
    """Return a stamp, or None and its fault."""
    text, problem = read_text(value)
    if problem:
        return None, problem
    try:
        return parse_stamp(text), None
    except ValueError as error:
        return None, str(error)


def read_about(value: bytes, kinds: Mapping[str, str]) -> tuple[dict[str, Any], str | None]:
    """Return the facts of an `about`, and the faults of some or all of it, or None."""
    parsed = json_object(value)
    if parsed is None:
        return {}, "is no JSON object"
    facts, wrong = {}, []
    for name, item in parsed.items():
        kind = kinds.get(name)
        if kind is None or item is None:
            continue
        read = of_kind(kind, item)
        if read is None:
            wrong.append(f"{name} is not {kind}")
        elif kind == TEXT:  # many locks have the same texts
            read = interned_text(read)
        elif kind in (COUNT, SECONDS):
            read = interned(read)
        facts[name] = read
    return facts, "; ".join(wrong) or None
