"""Fixtures for tests of the command."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from lockclient import Settings
from lockclient.cli.setup.etcd_server import embedded_etcd
from tests.acceptance.shells import Running, Start, environment


@pytest.fixture
def env(settings: Settings) -> dict[str, str]:
    """The environment of a shell in which the command is installed."""
    return environment(settings)


@pytest.fixture
def _path(etcd_binary: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a program find the etcd that is being tested with.

    With the embedded one it finds nothing else.
    """
    if etcd_binary == embedded_etcd():
        monkeypatch.setenv("PATH", "/nowhere")
    else:
        monkeypatch.setenv("PATH", f"{Path(etcd_binary).parent}:{os.environ['PATH']}")


@pytest.fixture
def start(env: dict[str, str], tmp_path: Path) -> Start:
    """Start `clustermutex` with these words in the test's folder."""
    return lambda *words: Running(words, env, tmp_path)
