"""The OpenAPI description: `static/openapi.yaml`, and schemas from the tables of facts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from textwrap import indent
from typing import Any, Final

from lockclient.model.fields import COUNT, FLAG, NAMES, SECONDS, TEXT, TEXTS, TIME, Fact
from lockclient.model.holder import STATES
from lockclient.overview.columns_and_order import SORTS
from lockclient.overview.lock_json import LOCK_FACTS, REMOVED_FACTS, UNLISTED

_TYPES: Final[Mapping[str, Mapping[str, Any]]] = {
    TEXT: {"type": "string"},
    COUNT: {"type": "integer", "minimum": 0},
    TIME: {"type": "number"},
    SECONDS: {"type": "number"},
    NAMES: {"type": "array", "items": {"type": "string"}},
    TEXTS: {"type": "object", "additionalProperties": {"type": "string"}},
    FLAG: {"type": "boolean"},
}
_QUEUE: Final = {
    "type": "array",
    "description": "The next waiter first.",
    "items": {"$ref": "#/components/schemas/Ticket"},
}


def description(static: Path) -> str:
    """Return the description as YAML: the file in `static`, then the other schemas."""
    text = (static / "openapi.yaml").read_text(encoding="utf-8")
    return text + "".join(  # JSON is YAML
        f"    {name}:\n{indent(json.dumps(schema, indent=2), ' ' * 6)}\n"
        for name, schema in _schemas().items()
    )


def _schemas() -> dict[str, Any]:
    lock = {fact.name: _schema(fact) for fact in LOCK_FACTS} | {"state": {"enum": [*STATES]}}
    removal = {fact.name: _schema(fact) for fact in REMOVED_FACTS}
    rest = {fact.name: _schema(fact) for fact in UNLISTED}
    return {
        "Sort": {"enum": ["", *[f"{way}{key}" for key in SORTS for way in ("", "-")]]},
        "Lock": _object(lock),
        "LockWhole": _object(lock | rest | {"queue": _QUEUE}),
        "Removal": _object(removal),
        "RemovalWhole": _object(removal | rest),
    }


def _object(properties: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": [*properties],
        "additionalProperties": False,
    }


def _schema(fact: Fact) -> dict[str, Any]:
    schema = dict(_TYPES[fact.kind])
    if fact.optional:
        schema["type"] = [schema["type"], "null"]
    return schema | {"description": fact.description}
