"""Each thing that `clustermutex doctor` finds fault with, on a cluster without and with it."""

from __future__ import annotations

import ast
import inspect
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import ModuleType

import pytest

from lockclient import Settings
from lockclient.cli.operate import doctor, doctor_checks
from lockclient.cli.setup.etcd_server import Etcd
from lockclient.stores.etcd import diagnosis as etcd
from lockclient.stores.gcs import diagnosis as gcs
from lockclient.stores.valkey import diagnosis as valkey
from tests.acceptance.test_command_doctor import examine
from tests.support.doctor_bench import Bench
from tests.support.doctor_cases import CASES


@pytest.fixture
def bench(
    etcd: Etcd,
    settings: Settings,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Bench]:
    with ExitStack() as exits:
        yield Bench(etcd, settings, tmp_path, request, monkeypatch, exits)


@pytest.mark.parametrize("said", CASES)
def test_a_finding_is_told_of_what_has_it_alone(bench: Bench, said: str) -> None:
    def faults(settings: Settings) -> str:
        found = [finding for finding in examine(settings) if finding["level"] != "ok"]
        return "\n".join(f"{finding['text']} {finding['advice']}" for finding in found)

    case = CASES[said][1](bench)
    assert said not in faults(next(case))
    assert said in faults(next(case))
    case.close()  # type: ignore[attr-defined]  # a generator


def _found_in(module: ModuleType) -> Counter[str]:
    """Count what each function of a module finds fault with: rows of a table are as many."""
    found: Counter[str] = Counter()
    for function in ast.walk(ast.parse(inspect.getsource(module))):
        if not isinstance(function, ast.FunctionDef):
            continue
        rows = sum(
            len(loop.iter.elts)
            for loop in ast.walk(function)
            if isinstance(loop, ast.For) and isinstance(loop.iter, ast.Tuple)
        )
        sites = [call for call in ast.walk(function) if _finds_fault(call)]
        if sites:
            found[f"{module.__name__}.{function.name}"] = rows or len(sites)
    return found


def _finds_fault(node: ast.AST) -> bool:
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name)):
        return False
    made = {"Finding", "_version_warning", "_harm", "_cost"}
    return node.func.id in made and not any(ast.unparse(word) == "FINE" for word in node.args)


def test_no_finding_is_without_a_case() -> None:
    """One that is added needs a case above, with and without."""
    told = sum(map(_found_in, (doctor, doctor_checks, etcd, valkey, gcs)), Counter())
    assert told == Counter(where for where, _ in CASES.values())
