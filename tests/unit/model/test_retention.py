"""Documents and texts state the retention of removal records."""

from __future__ import annotations

import re
from pathlib import Path

from lockclient.model.retention import RECORD_RETENTION, RECORD_RETENTION_S

DOCS = Path(__file__).parents[3]


def test_documents_state_the_retention() -> None:
    said = [
        (page.name, f"{count} days")
        for page in [*(DOCS / "docs").glob("*.md"), DOCS / "README.md"]
        for line in page.read_text(encoding="utf-8").splitlines()
        if re.search("record|[Rr]emov|--reason", line)
        for count in re.findall(r"\b(\w+)[ -]days?\b(?! of soft)(?! \(soft)", line)
        if count.isdecimal() or count in ("seven", "thirty")
    ]
    assert len(said) >= 8
    assert {text for _, text in said} <= {RECORD_RETENTION, "7 days"}, said
    assert (RECORD_RETENTION_S, RECORD_RETENTION) == (7 * 86400, "seven days")
