"""The installed package: the library by two names, the command as a module, its files."""

from __future__ import annotations

import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

import clustermutex
import lockclient
from lockclient.cli.root_command import group
from lockclient.cli.setup.completion import SHELLS
from reference import packaging
from tests.support.processes import BIN, run_to_end
from tests.support.wheel import build, build_wheel
from tests.unit.house.test_requirements import EXTRAS

CHECKOUT = Path(__file__).parents[2]
CONSTRAINTS = CHECKOUT / "constraints.txt"


def test_the_library_is_had_by_the_package_s_name() -> None:
    for name in lockclient.__all__:
        assert getattr(clustermutex, name) is getattr(lockclient, name)


def test_completion_files_and_man_page_match_the_command(tmp_path: Path) -> None:
    packaging.write(tmp_path)
    for shell in SHELLS:
        printed = run_to_end(sys.executable, "-m", "lockclient", "completion", shell).stdout
        assert (tmp_path / f"clustermutex.{shell}").read_text() == printed
    page = (tmp_path / "clustermutex.1").read_text(encoding="utf-8")
    assert all(f'.SS "clustermutex {name}"'.replace("-", "\\-") in page for name in group.commands)


def test_both_distributions_are_built_without_a_warning(tmp_path: Path) -> None:
    """A warning of setuptools; that bytes are not compiled is due to our environment."""
    done = build(tmp_path)
    said = [
        line
        for line in (done.stdout + done.stderr).splitlines()
        if ("warning" in line.lower() or "deprecat" in line.lower())
        and "byte-compiling is disabled" not in line
    ]
    assert not said
    run_to_end(BIN / "twine", "check", "--strict", *tmp_path.glob("clustermutex-*"))
    (archive,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(archive) as sources:
        names = {name.partition("/")[2] for name in sources.getnames()}
    assert {
        *("packaging/clustermutex.bash", "packaging/clustermutex.1"),
        *("docs/guide.md", "CHANGELOG.md"),
    } <= names
    (archive,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(archive) as wheel:
        scripts = {str(path.relative_to(CHECKOUT)) for path in CHECKOUT.glob("lockclient/**/*.sh")}
        assert scripts
        assert scripts <= {*wheel.namelist()}


ALONE = {
    "": "import clustermutex, lockclient.aio",
    "command": "import runpy, sys; sys.argv = ['clustermutex', 'ls', '--help']; "
    "runpy.run_module('lockclient', run_name='__main__')",
    "services": "import unlocker.__main__, mutexdash.__main__",
    "gcs": "import lockclient.stores.gcs.store",
    "notify": "import apprise, unlocker.__main__",
    "opentelemetry": "import lockclient.instruments.opentelemetry",
    "prometheus": "import lockclient.instruments.prometheus",
    "valkey": "import lockclient.stores.valkey.store",
    "embedded": "from lockclient.cli.setup.etcd_server import find_etcd; assert find_etcd()",
    "testing": "import sys, pytest; sys.exit(pytest.main(['test_it.py']))",
}
"""Of each extra, what it is wanted for."""
TEST = """
from lockclient import ClusterMutex
pytest_plugins = ["lockclient.testing.plugin"]
def test_it(clustermutex):
    with ClusterMutex("x"):
        assert clustermutex.held() == ["x"]
"""


@pytest.mark.soak
@pytest.mark.parametrize("extra", ALONE)
def test_each_extra_installs_its_feature(extra: str, tmp_path: Path) -> None:
    python = tmp_path / "venv" / "bin" / "python"
    run_to_end(sys.executable, "-m", "venv", tmp_path / "venv")
    wanted = f"{build_wheel(tmp_path)}[{extra}]"
    run_to_end(python, "-m", "pip", "install", "-q", "-c", CONSTRAINTS, wanted, timeout=900)
    (tmp_path / "test_it.py").write_text(TEST)
    path = {"PATH": f"{python.parent}:/usr/bin:/bin", "PYTHONPATH": ""}
    run_to_end(python, "-W", "error", "-c", ALONE[extra], folder=tmp_path, env=path)


def test_each_extra_is_tried_alone() -> None:
    assert {*ALONE} - {""} == {*EXTRAS} - {"dev", "docs", "bench"}
