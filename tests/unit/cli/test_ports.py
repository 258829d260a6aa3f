"""`up` keeps its ports."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest

from lockclient.cli.setup import ports
from lockclient.cli.setup.ports import free_port


@pytest.fixture
def usual(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Ports that nobody else on this machine cares for."""
    found = {name: free_port() for name in ports.DEFAULT_PORTS}
    monkeypatch.setattr(ports, "DEFAULT_PORTS", found)
    return found


def test_the_usual_ones_if_they_are_free(tmp_path: Path, usual: dict[str, int]) -> None:
    assert ports.kept_ports(tmp_path) == usual


def test_they_stay_the_same(tmp_path: Path, usual: dict[str, int]) -> None:
    with socket.socket() as somebody:
        somebody.bind(("127.0.0.1", usual["etcd"]))
        first = ports.kept_ports(tmp_path)
    assert first["etcd"] != usual["etcd"]
    assert first["mutexdash"] == usual["mutexdash"]
    assert ports.kept_ports(tmp_path) == first, "though the usual one is free now"


def test_one_that_is_taken_is_replaced_and_the_others_stay(
    tmp_path: Path, usual: dict[str, int]
) -> None:
    first = ports.kept_ports(tmp_path)
    with socket.socket() as somebody:
        somebody.bind(("127.0.0.1", first["mutexdash"]))
        somebody.listen()
        second = ports.kept_ports(tmp_path)
    assert second["mutexdash"] != first["mutexdash"]
    assert {**second, "mutexdash": 0} == {**first, "mutexdash": 0}


@pytest.mark.parametrize("said", ["", "[]", "{", '{"etcd": "x"}', '{"etcd": 99999999}', "null"])
def test_a_file_that_says_nothing_is_written_anew(
    tmp_path: Path, usual: dict[str, int], said: str
) -> None:
    (tmp_path / "ports.json").write_text(said)
    found = ports.kept_ports(tmp_path)
    assert all(0 < port < 65536 for port in found.values())
    assert json.loads((tmp_path / "ports.json").read_text()) == found
