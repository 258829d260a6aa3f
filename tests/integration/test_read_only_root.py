"""A read-only root without a folder for temporary files: large answers are given in whole."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from urllib.request import urlopen

from tests.support.processes import line_from

PROGRAM = Path(__file__).with_name("large_answer_program.py")


def test_a_large_answer_needs_no_temporary_folder() -> None:
    program = subprocess.Popen(
        [sys.executable, PROGRAM],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        with urlopen(line_from(program), timeout=60) as answer:
            assert len(answer.read()) == 16 << 20
    finally:
        _, errors = program.communicate(timeout=60)
    assert (program.returncode, errors) == (0, "")
