"""The time for which removal records are kept; a test compares the documents."""

from __future__ import annotations

from typing import Final

RECORD_RETENTION_S: Final = 7 * 86400
RECORD_RETENTION: Final = "seven days"
