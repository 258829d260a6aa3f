"""That the store was restored from a backup: how everybody is told, or notices.

A restore loses what was written after the backup, pushes too. An unlocker that was cut off since
before such a push has an old row; it looks unchanged after the restore, its revisions included, so
that its time would be counted from long before the holder's last push. So whoever hears of a
restore counts all locks from that moment on (`table`). Three things tell of one by themselves:

- A revision lower than one that was seen. No other event puts a store back.
- A lock that stands at a lower revision than before.
- A raft term lower than one that was seen. A restored cluster begins its terms anew. (Taken from
  answers that went through the leader: those of a member that was late may be older.)

None has to happen: terms are low in a young cluster, and revisions may have been raised, or have
grown past the old ones, before anybody looked. Where they were raised and the old ones marked as
compacted, as etcd advises, a watch that goes on ends by compaction: that, too, counts all locks
anew, though it need not come from a restore. So a restore ends with `clustermutex restored`,
which writes a key that all see.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from lockclient.model.fields import TEXT, TIME, json_facts, to_json

LONGEST = 1000
"""Bytes of the key's value that are read."""
_FACTS = {"id": TEXT, "time": TIME, "who": TEXT}


@dataclass(frozen=True, slots=True)
class Restored:
    """A restore that somebody told of, or, without `who`, that was noticed.

    Attributes:
        id: tells one restore from another, together with `revision`, at which it was written.
        time: when it was told or noticed, Unix seconds; never later than it was read.
        who: who told of it.
    """

    id: str
    time: float = field(compare=False)
    who: str = field(default="", compare=False)
    revision: int = 0

    @classmethod
    def read(cls, value: bytes, revision: int, wall: float) -> Restored:
        """Build it from the key's value; one that can't be read tells of a restore all the same."""
        said = json_facts(value if len(value) <= LONGEST else b"", _FACTS)
        at = wall if said["time"] is None else min(said["time"], wall)
        return cls(said["id"] or "", at, said["who"] or "unknown", revision)

    def value(self) -> str:
        """Return the key's value, JSON."""
        return to_json({key: getattr(self, key) for key in _FACTS})
