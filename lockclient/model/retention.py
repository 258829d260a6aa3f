"""For how long the record of a removal is kept; a test compares docs/."""

from __future__ import annotations

from typing import Final

RECORD_RETENTION_S: Final = 7 * 86400
RECORD_RETENTION: Final = "seven days"
