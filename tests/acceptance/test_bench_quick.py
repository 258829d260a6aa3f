"""`make bench` runs: the quick variant, with the peers that this machine has."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from benchmarks import __main__ as benchmark
from tests.support.processes import run_to_end
from tests.support.soak import soaking

CHECKOUT = Path(__file__).parents[2]
PEERS = {
    *("etcd3 Lock", "redis-py Lock, in memory", "redis-py Lock, appendfsync always"),
    *("kazoo Lock, ZooKeeper", "pottery Redlock, five Redis"),
}


@pytest.mark.usefixtures("_path")
@pytest.mark.parametrize("only", [("cycle", "cluster"), *soaking(((),))], ids=["some", "all"])
def test_a_quick_run_measures_every_section(tmp_path: Path, only: tuple[str, ...]) -> None:
    """All sections are in results.json, each peer is measured or named as missing, none both."""
    words = [word for section in only for word in ("--only", section)]
    program = [sys.executable, "-m", "benchmarks", "--quick", "--output", str(tmp_path), *words]
    done = run_to_end(*program, env={"TMPDIR": str(tmp_path)}, folder=CHECKOUT)
    results = json.loads((tmp_path / "results.json").read_text(encoding="utf-8"))
    sections, missing = results["sections"], set(results["missing"])
    assert results["failed"] == {}
    assert set(sections) == (set(only) or set(benchmark.SECTIONS))

    measured = set(sections["cycle"])
    assert {"ClusterMutex", "bare floor"} <= measured
    assert measured.isdisjoint(missing)
    assert measured | missing >= PEERS
    for name in missing:
        assert f"{name}: {results['missing'][name]}" in done.stdout
    for row in sections["cycle"].values():
        assert 0 < row["median"] <= row["p99"]

    drawn = {file.name for file in tmp_path.iterdir()} - {"results.json"}
    names = {name for name in ("cycle", "handover", "throughput") if name in sections}
    expected = {f"{name}.{kind}" for name in names for kind in ("png", "svg")}
    assert drawn == (set() if "pictures" in missing else expected), "servers have left something"

    figures = {row["what"]: row for row in results["figures"]}
    assert figures["cycle / bare floor"]["reached"] > 0


def test_a_failed_section_is_named_and_the_others_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object, **__: object) -> None:
        raise AssertionError("no leader")

    monkeypatch.setitem(benchmark.SECTIONS, "cluster", fails)
    for name in ("alive", "costs"):
        monkeypatch.setitem(benchmark.SECTIONS, name, lambda *_, **__: {"measured": 1})
    results = benchmark.measure(["alive", "cluster", "costs"], quick=True)
    assert results["failed"] == {"cluster": "AssertionError: no leader"}
    assert results["sections"] == {"alive": {"measured": 1}, "costs": {"measured": 1}}
