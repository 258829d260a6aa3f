"""Docstrings begin with a noun or a verb, and no call packs its arguments."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PRODUCT = sorted(
    path
    for folder in ("lockclient", "unlocker", "mutexdash")
    for path in (ROOT / folder).rglob("*.py")
    if not path.name.endswith("_pb2.py")
)
TESTS = sorted(path for folder in ("tests", "benchmarks") for path in (ROOT / folder).rglob("*.py"))
begins_with_a_clause = re.compile(
    r"(As|How|Of|That|What|Whatever|Whether|Which|Who|Whoever|Whose)\b"
).match
RETIRED = {"brake", "picture", "crowd", "twin", "doubts", "ambiguous", "abandon"}
"""Words that no file, class or function has in its name: see the glossary of the architecture."""
CLAUSES = {"who", "whoever", "whatever", "told", "somebody", "stranger"}
"""Words that no test has in its name besides: they stand for a noun that is missing."""


def words_of(name: str) -> set[str]:
    return {*re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower().split("_")}


@pytest.mark.parametrize("path", PRODUCT, ids=lambda path: str(path.relative_to(ROOT)))
def test_names_and_docstrings_use_plain_words(path: Path) -> None:
    source = path.read_text()
    assert not re.search(r"^\s*\*\(", source, re.MULTILINE), "a call packs its arguments"
    assert not RETIRED & words_of(path.stem)
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            text = ast.get_docstring(node) or ""
            assert not begins_with_a_clause(text), text.splitlines()[0]
        if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            assert not RETIRED & words_of(node.name), node.name


@pytest.mark.parametrize("path", TESTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_names_and_docstrings_of_tests_use_plain_words(path: Path) -> None:
    assert not RETIRED & words_of(path.stem)
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            text = ast.get_docstring(node) or ""
            assert not begins_with_a_clause(text), text.splitlines()[0]
        if isinstance(node, (ast.ClassDef, ast.FunctionDef)) and node.name.lower().startswith(
            "test"
        ):
            assert not (RETIRED | CLAUSES) & words_of(node.name), node.name
