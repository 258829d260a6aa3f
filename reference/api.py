"""docs/api.md, made of the docstrings: `make reference` writes it.

What is public (`lockclient.__all__`) and has no docstring, or no place here, is an error.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType
from typing import Any, get_args

import lockclient
from lockclient import stores, testing
from lockclient.model.holder import FACTS

PAGE = Path(__file__).parents[1] / "docs" / "api.md"

SECTIONS = {
    "Locks": ("ClusterMutex", "HeldLock", "AsyncClusterMutex", "AsyncHeldLock"),
    "What is known of a lock": ("Holder", "Ticket", "Removal", "Guard"),
    "Where locks are": ("Settings", "open_store"),
    "In a program's log": ("HeldLockFilter", "held_lock_fields"),
    "Errors": (
        "ClusterMutexError",
        "LockTimeout",
        "LockNotHeld",
        "LockLost",
        "StoreUnavailable",
        "StoreError",
        "StoreFull",
        "StoreClosed",
        "InvalidLockName",
    ),
}
ELSEWHERE = {
    "For tests: lockclient.testing": (testing, ("MemoryLocks", "MemoryStore")),
    "Stores of your own: lockclient.stores": (
        stores,
        (
            *("Capabilities", "MutexStore", "AsyncMutexStore", "ServiceStore"),
            *("Kind", "Deadline"),
        ),
    ),
}
"""What has to be imported from elsewhere, since nobody else is to pay for it."""
_HEAD = """\
# The library, name by name

Generated from the docstrings by `make reference`. Import all of these from `lockclient`, unless \
the section names another module; `lockclient.__version__` is the release. Anything else in the \
package may change with any release. The [README](../README.md) shows how to use locks, \
[choosing the times](guide.md#choosing-the-times) helps to choose their times.
"""
_GIVEN = (
    *(lockclient.Holder, lockclient.Ticket, lockclient.Removal, lockclient.Guard),
    *(lockclient.HeldLock, lockclient.AsyncHeldLock, testing.MemoryLocks),
)
"""What users are given and do not make: of these, what they ask them is told."""
_ASKED = ("alive_at", "state", "facts", "describe")
_TOLD = {
    testing.MemoryLocks: tuple(
        name for name in vars(testing.MemoryLocks) if not name.startswith("_")
    ),
    testing.MemoryStore: ("another",),
    stores.Deadline: ("after", "remaining", "expired"),
}
"""Of these, which members are told: all else is as of every store."""
_TITLE = re.compile(r"^(Args|Returns|Raises|Attributes):$", re.MULTILINE)


def text() -> str:
    """Return what the page should hold.

    Raises:
        ValueError: something public has no docstring, or no section here.
    """
    placed = {name for names in SECTIONS.values() for name in names}
    if missing := set(lockclient.__all__) - placed - {"__version__"}:
        raise ValueError(f"No section of {__file__} has {sorted(missing)}.")
    parts = [_HEAD]
    for section, names in SECTIONS.items():
        parts.append(f"## {section}\n")
        for name in names:
            parts += _one(name, getattr(lockclient, name))
    for section, (module, names) in ELSEWHERE.items():
        if set(module.__all__) != {*names}:
            raise ValueError(f"{module.__name__}.__all__ is not what {section!r} has: {names}.")
        parts.append(f"## {section}\n")
        for name in names:
            parts += _one(name, getattr(module, name))
    return re.sub(r"\n{3,}", "\n\n", "\n".join(parts)).rstrip() + "\n"


def _one(name: str, thing: Any) -> Iterator[str]:
    if values := get_args(thing):
        yield f"### `{name}`\n\nOne of {', '.join(f'`{value}`' for value in values)}.\n"
        return
    if not inspect.isclass(thing):
        yield f"### `{name}{_signature(thing)}`\n"
        yield _documented(name, thing)
        return
    if issubclass(thing, BaseException):
        bases = " and ".join(f"`{base.__name__}`" for base in thing.__bases__)
        yield f"### `{name}`\n\nDerives from {bases}.\n"
        yield _documented(name, thing)
        return
    yield f"### `{name}`\n"
    if (made := _made(thing)) is not None:
        yield f"```python\n{name}{made}\n```\n"
    yield _documented(name, thing)
    if thing is lockclient.Holder:
        yield "| field | what it is |\n| --- | --- |"
        yield from (f"| `{fact.name}` | {fact.description.replace('|', '/')} |" for fact in FACTS)
        yield ""
    elif dataclasses.is_dataclass(thing):
        fields = ", ".join(f"`{field.name}`" for field in dataclasses.fields(thing))
        yield f"Fields: {fields}.\n"
    for member, value in _members(thing):
        if isinstance(value, property):
            yield f"#### `{name}.{member}`\n"
            yield _documented(f"{name}.{member}", value.fget)
        else:
            function = getattr(thing, member)
            returned = str(inspect.signature(function).return_annotation)
            asynchronous = inspect.iscoroutinefunction(function) or returned.startswith("Coroutine")
            word = "await " if asynchronous else ""
            yield f"#### `{word}{name}.{member}{_signature(function)}`\n"
            yield _documented(f"{name}.{member}", function)


def _made(thing: type) -> str | None:
    """Return how it is made, if users make it: a value of ours that they are given is not told."""
    if thing in _GIVEN or getattr(thing, "_is_protocol", False) or thing is stores.Deadline:
        return None
    words = list(inspect.signature(thing).parameters.values())
    lines = [
        str(word.replace(annotation=_plain(word), default=_default(word.default))) for word in words
    ]
    stars = next((n for n, word in enumerate(words) if word.kind is word.KEYWORD_ONLY), None)
    if stars is not None:
        lines.insert(stars, "*")
    return "(\n" + "".join(f"    {line},\n" for line in lines) + ")" if lines else "()"


class _Written(str):
    """A text that is shown without quotes."""

    def __repr__(self) -> str:
        return str(self)


def _plain(parameter: inspect.Parameter) -> Any:
    """Return the annotation as it is written, and not as a text in quotes."""
    note = parameter.annotation
    return _Written(note) if isinstance(note, str) else note


def _default(value: Any) -> Any:
    if value is os.environ:
        return _Written("os.environ")
    return _Written(json.dumps(value)) if isinstance(value, str) else value  # as ruff has quotes


def _signature(function: Any) -> str:
    found = inspect.signature(function)
    words = [
        word.replace(
            annotation=inspect.Parameter.empty,
            default=_default(word.default),
        )
        for word in found.parameters.values()
        if word.name not in ("self", "cls")
    ]
    return str(found.replace(parameters=words, return_annotation=inspect.Signature.empty))


def _members(thing: type) -> Iterator[tuple[str, Any]]:
    """Yield what is public in a class and in what it inherits of ours, each once."""
    seen: set[str] = set()
    others = [base for base in thing.__mro__ if base.__module__.startswith("lockclient")]
    if thing is lockclient.AsyncClusterMutex:
        others = [thing]  # the rest is told of ClusterMutex
    for base in others:
        for name, value in vars(base).items():
            known = (property, staticmethod, classmethod, FunctionType)
            public = name in _ASKED if thing in _GIVEN else not name.startswith("_")
            if thing in _TOLD:
                public = name in _TOLD[thing]
            if isinstance(value, known) and public and name not in seen:
                seen.add(name)
                yield name, value


def _documented(name: str, thing: Any) -> str:
    if not (said := inspect.cleandoc(vars(thing).get("__doc__") or thing.__doc__ or "")):
        raise ValueError(f"{name} is public and has no docstring.")
    before, *parts = _TITLE.split(said)
    out = [_prose(before)]
    for title, body in zip(parts[::2], parts[1::2], strict=True):
        entries, rest = _entries(body)
        out.append(f"{title}:\n\n" + "\n".join(f"- {entry}" for entry in entries) + "\n")
        out.append(_prose(rest))
    return "\n".join(part for part in out if part.strip()) + "\n"


def _prose(said: str) -> str:
    """Return paragraphs in a line each, and what is indented as code."""
    out = []
    for block in re.split(r"\n\s*\n", said.strip("\n")):
        lines = [line for line in block.splitlines() if line.strip()]
        if lines and all(line.startswith("    ") for line in lines):
            code = "\n".join(line[4:] for line in lines)
            out.append(f"```python\n{code}\n```\n")
        elif lines:
            out.append(" ".join(line.strip() for line in lines) + "\n")
    return "\n".join(out)


def _entries(body: str) -> tuple[list[str], str]:
    """Return the entries of a section, a line each, and the prose after it."""
    found: list[str] = []
    lines = body.strip("\n").splitlines()
    for number, line in enumerate(lines):
        if line.strip() and not line.startswith("    "):
            return found, "\n".join(lines[number:])
        if line.startswith("        ") and found:
            found[-1] += f" {line.strip()}"
        elif line.strip():
            names, colon, rest = line.strip().partition(": ")
            named = colon and re.fullmatch(r"[\w, ]+", names)
            found.append(
                ", ".join(f"`{said.strip()}`" for said in names.split(",")) + f": {rest}"
                if named
                else line.strip()
            )
    return found, ""


if __name__ == "__main__":
    PAGE.write_text(text(), encoding="utf-8")
