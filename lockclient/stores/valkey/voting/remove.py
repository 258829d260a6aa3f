"""A removal by the unlocker or by force: when it has happened, and whose record remains.

Each server that removes the lock writes the record and a tombstone in the same step.

1. If only a minority executes a removal and a majority still names the holder, the removal has
   failed, and its records are deleted again.
2. Once no majority names the holder, the lock has ended. The records say who removed it: each
   server has the record of the remover that it served. If a majority has neither lock nor record,
   the holder released the lock.
3. Of two records the one on more servers wins; on equally many, the smaller one. Two removers that
   reach the same servers agree on the winner.
4. The remover whose record lost replaces its own record by the winning one. No remover changes the
   winning record. So each later count has the same winner, and at least one record remains even if
   a remover crashes in between.
5. Exception: if each of two removers reached servers that the other did not reach, both may report
   success, or each may report that the other one removed the lock.
"""

from __future__ import annotations

from typing import Final

from lockclient.model.removal import Removal
from lockclient.model.retention import RECORD_RETENTION_S
from lockclient.stores import request_types
from lockclient.stores.outcomes import Done, NotHolder, Outcome
from lockclient.stores.valkey import lua_scripts
from lockclient.stores.valkey.keys import LATE_REQUEST_S, milliseconds, push_of
from lockclient.stores.valkey.lua_scripts import Answers, Command
from lockclient.stores.valkey.voting.quorum import count, with_record
from lockclient.stores.valkey.voting.rounds import Plan, Rounds

_RETENTION_MS: Final = milliseconds(RECORD_RETENTION_S)


def remove_plan(rounds: Rounds, request: request_types.Remove) -> Plan[Outcome]:
    """Return the plan of a removal."""
    holder, quorum, keys = request.removal.holder, rounds.quorum, rounds.keys
    name, uuid, seen = holder.name, holder.uuid or "", request.stamp_revisions
    record = request.removal.without_token().value() if request.recorded else ""
    push = "" if seen is None else str(push_of(max(seen)))
    command = Command(
        lua_scripts.REMOVE,
        (keys.server, keys.lock(name), keys.record(name, uuid), keys.tombstone(name, uuid)),
        (uuid, push, keys.channel(name), record, _RETENTION_MS, milliseconds(LATE_REQUEST_S)),
    )

    def enough(answers: Answers) -> bool:
        """Return whether the outcome is decided.

        Either no server removed the lock, and no majority can still do so. Or it is known whether a
        majority still names a holder.
        """
        can_remove = count(answers, "dropped") or quorum.can_agree(answers, "dropped")
        return not can_remove or quorum.holder_named(uuid, answers)[0]

    def early(answers: Answers) -> bool:
        """Return whether a round may end before all servers answer."""
        return quorum.agrees(answers, "dropped") or quorum.agrees(answers, "moved")

    def read(answers: Answers, resent: bool) -> Outcome:
        current = quorum.holder_named(uuid, answers)[1]
        winner = b"" if current == uuid else quorum.winning_record(answers, record.encode())
        if quorum.agrees(answers, "dropped") or (record and winner == record.encode()):
            # On the other servers a push may restore the vote: a tombstone prevents that.
            dropped = {i for i, reply in answers.items() if reply.kind == "dropped"}
            drop = rounds.drop(name, uuid, "all", tombstone=True)
            rounds.retry_queue.add({*rounds.all} - dropped, drop)
            rounds.publish_release(name, uuid, answers)
            return Done(0)
        if record:
            # Without a winner the record is deleted.
            args = (record, winner.decode(errors="replace"), _RETENTION_MS)
            replace = Command(lua_scripts.REPLACE_RECORD, (keys.record(name, uuid),), args)
            rounds.retry_queue.add(with_record(answers, record.encode()), replace)
        removal = Removal.read(name, uuid, winner) if winner else None
        return NotHolder(current, removal, resent)

    return Plan(command, enough, read, early=early)
