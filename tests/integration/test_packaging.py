"""What is installed: the library by two names, the command as a module, what comes along."""

from __future__ import annotations

import sys
import tarfile
from pathlib import Path

import pytest

import clustermutex
import lockclient
from tests.support import man_page
from tests.support.processes import BIN, run_to_end
from tests.support.wheel import build

CHECKOUT = Path(__file__).parents[2]
COMPLETIONS = CHECKOUT / "packaging" / "completions"


def test_the_library_is_had_by_the_package_s_name() -> None:
    for name in lockclient.__all__:
        assert getattr(clustermutex, name) is getattr(lockclient, name)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completions_are_those_that_the_command_prints(shell: str) -> None:
    """`python -m lockclient` is the command, by its name."""
    done = run_to_end(sys.executable, "-m", "lockclient", "completion", shell)
    assert (COMPLETIONS / f"clustermutex.{shell}").read_text() == done.stdout


def test_the_man_page_says_what_help_says() -> None:
    """`make reference` writes it."""
    assert man_page.PAGE.read_text(encoding="utf-8") == man_page.text()


def test_both_distributions_are_built_without_a_warning(tmp_path: Path) -> None:
    """Of setuptools; that bytes are not compiled is said of our environment. The page is theirs."""
    done = build(tmp_path)
    said = [
        line
        for line in (done.stdout + done.stderr).splitlines()
        if ("warning" in line.lower() or "deprecat" in line.lower())
        and "warning_log.py" not in line
        and "byte-compiling is disabled" not in line
    ]
    assert not said
    run_to_end(BIN / "twine", "check", "--strict", *tmp_path.glob("clustermutex-*"))
    (archive,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(archive) as sources:
        names = {name.partition("/")[2] for name in sources.getnames()}
    assert {
        *("packaging/completions/clustermutex.bash", "packaging/clustermutex.1"),
        *("docs/testing.md", "CHANGELOG.md"),
    } <= names
