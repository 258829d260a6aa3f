"""Each planted bug can be planted; `make mutants` checks that it is found."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.proof.mutate import CHECKOUT, Mutant, all_mutants


@pytest.mark.parametrize("mutant", all_mutants(), ids=lambda mutant: mutant.name)
def test_the_patch_applies_and_the_result_is_python(mutant: Mutant) -> None:
    texts: dict[str, str] = {}
    for hunk in mutant.hunks:
        text = texts.get(hunk.file) or Path(CHECKOUT / hunk.file).read_text()
        texts[hunk.file] = hunk.planted(text)
    assert texts
    for file, text in texts.items():
        compile(text, file, "exec")


def test_the_number_of_planted_bugs() -> None:
    assert len(all_mutants()) >= 20
