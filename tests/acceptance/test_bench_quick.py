"""`make bench` runs: the quick way, with whatever peers this machine has."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from lockclient.cli.setup.etcd_server import embedded_etcd
from tests.support.soak import soaking

CHECKOUT = Path(__file__).parents[2]
KINDS = ("png", "svg")
SECTIONS = {
    *("cycle", "handover", "throughput", "alive", "costs", "table", "cluster"),
    *("unlocker", "dashboard", "bucket", "valkey"),
}
PEERS = {
    "etcd3 Lock",
    "redis-py Lock, in memory",
    "redis-py Lock, appendfsync always",
    "kazoo Lock, ZooKeeper",
    "pottery Redlock, five Redis",
}


@pytest.fixture
def _path(etcd_binary: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the benchmark find the etcd that is being tested with.

    With the embedded one it finds nothing else, so that all peers with a server are missing.
    """
    if etcd_binary == embedded_etcd():
        monkeypatch.setenv("PATH", "/nowhere")
    else:
        monkeypatch.setenv("PATH", f"{Path(etcd_binary).parent}:{os.environ['PATH']}")


@pytest.mark.usefixtures("_path")
@pytest.mark.parametrize("only", [("cycle",), *soaking(((),))], ids=["cycle", "all"])
def test_a_quick_run_measures_every_section(tmp_path: Path, only: tuple[str, ...]) -> None:
    """All sections are in results.json, each peer is measured or named as missing, none both."""
    words = [word for section in only for word in ("--only", section)]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", "--quick", "--output", str(tmp_path), *words],
        cwd=CHECKOUT,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    results = json.loads((tmp_path / "results.json").read_text(encoding="utf-8"))
    sections, missing = results["sections"], set(results["missing"])
    assert set(sections) == (set(only) or SECTIONS)

    measured = set(sections["cycle"])
    assert {"ClusterMutex", "bare floor"} <= measured
    assert measured.isdisjoint(missing)
    assert measured | missing >= PEERS
    for name in missing:
        assert f"{name}: {results['missing'][name]}" in done.stdout
    for row in sections["cycle"].values():
        assert 0 < row["median"] <= row["p99"]

    named = {"cycle", "handover", "throughput"} & set(sections)
    drawn = {f"{name}.{kind}" for name in named for kind in KINDS}
    assert {file.name for file in tmp_path.iterdir()} == {"results.json"} | (
        set() if "pictures" in missing else drawn
    ), "servers have left something behind"

    figures = {row["what"]: row for row in results["figures"]}
    assert figures["cycle / bare floor"]["reached"] > 0
    titles = {"cycle": "Lock and unlock", "handover": "Hand-over"}
    for title in (*(titles[name] for name in titles if name in sections), "The figures to reach"):
        assert title in done.stdout
