"""Requests of a mutex as plans (`Rounds.call`), and why they are safe in any order of arrival.

The algorithm is Redlock's. Each server gives a lock to the first uuid that asks for it, and to no
other uuid until that lock's key is deleted or expires. A uuid that has a majority of the servers
holds the lock. Two holders at once would both need the vote of one server. A push and a removal
have more to prove: see `voting.push` and `voting.remove`.

| step | what a server does | only if |
| --- | --- | --- |
| take | writes the lock, with an expiry | no uuid has it, and no tombstone names this try |
| push | writes the stamps, and the expiry again | own uuid; no push since the last known one |
| release | deletes it | own uuid |
| reclaim | writes it over the dead holder's | its uuid, and no later push than was read |
| removal | deletes it, with record and tombstone | its uuid, and no later push than was read |
| force-unlock | as a removal | its uuid |

**1. Time.** A holder starts its timer before it sends the take or the push. A server starts its own
timer when it executes the command, and that timer is 1 % longer. (The key stays for one more day,
`LATE_REQUEST_S`; with `expire=1` it does not count on that day.) So the lock exists on the server
at least until the holder's timer ends, if the server's clock is at most 1 % fast. A majority that
answers after the lock's time has given nothing.

**2. A failed try is withdrawn** on each server that was sent it. Each try of a uuid has a number,
and the command that withdraws the try names it. So that command may arrive late: it does not delete
a later try of the same acquisition. A server that did not answer gets a tombstone as well: tries up
to its number do nothing there, however late they arrive.

**3. A process that is killed** between take and answer leaves a lock as if it had been killed a
moment later. If it is killed in the middle of a take, it leaves some keys, which expire, because
*each* take has an expiry. For a lock that is never auto-unlocked a second round clears the expiry,
and the lock counts as taken only after a majority has cleared it. A process that is killed in this
round had a majority. The keys whose expiry it had cleared stay; once only a minority has one, the
next taker deletes it (`Taking._purge_stale`). So a cleared key need not expire, and a silent holder
keeps its lock.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import inf
from typing import Any, Final

from lockclient.errors import ClusterMutexError
from lockclient.model.clocks import Deadline
from lockclient.stores import request_types
from lockclient.stores.outcomes import Done, Outcome, Position, ReadResult
from lockclient.stores.request_types import Delivery
from lockclient.stores.valkey.keys import holder_of, push_of, revision_of, token_of
from lockclient.stores.valkey.lua_scripts import Answers
from lockclient.stores.valkey.voting.push import push_plan
from lockclient.stores.valkey.voting.quorum import count, record_of
from lockclient.stores.valkey.voting.remove import remove_plan
from lockclient.stores.valkey.voting.rounds import SETTLED_ROUNDS, Plan, Rounds, memory_of
from lockclient.stores.valkey.voting.take import Replaceable, Taking


def do(rounds: Rounds, request: request_types.Request, deadline: Deadline) -> Outcome:
    """Do a request. Errors: see `Rounds.call`."""
    if not isinstance(request, request_types.Take | request_types.Reclaim):
        plan: Plan[Outcome] = PLANS[type(request)](rounds, request)
        return rounds.call(plan, deadline)
    delivery = request.delivery or Delivery()
    replaceable = Replaceable("", "")
    if isinstance(request, request_types.Reclaim):
        replaceable = _reclaimed(request)
    try:
        return Taking(rounds, request.holder, replaceable, delivery).run(deadline)
    except ClusterMutexError:
        delivery.in_flight = False
        raise


def _reclaimed(request: request_types.Reclaim) -> Replaceable:
    """Return the holder whose lock may be taken over."""
    previous = request.previous
    uuid, seen = previous.uuid or "", max(previous.stamp_revisions)
    if previous.fencing_token != token_of(uuid):  # of another store: match no holder here
        uuid = "another store's"
    # A later push wins: the holder is not dead.
    return Replaceable(uuid, str(push_of(seen)) if seen else "")


# ---------------------------------------------------------------- holding


def _unlock(rounds: Rounds, request: request_types.Unlock) -> Plan[Outcome]:
    delete = _deletion(rounds, request, with_tombstone=False)

    def read(answers: Answers, resent: bool) -> Outcome:
        delete.read(answers, resent)  # for its clean-up
        # Done unless a majority did not have it.
        if len(answers) - count(answers, "dropped") < rounds.quorum.majority:
            return Done(0)
        return rounds.quorum.not_holder(request.name, request.uuid, answers, resent)

    return Plan(delete.command, delete.enough, read)


def _withdraw(rounds: Rounds, request: request_types.Withdraw) -> Plan[Outcome]:
    return _deletion(rounds, request, with_tombstone=request.tombstone)


def _deletion(
    rounds: Rounds, request: request_types.Unlock | request_types.Withdraw, *, with_tombstone: bool
) -> Plan[Outcome]:
    """Return the plan: a majority deletes a uuid's lock, the other servers later."""
    name, uuid, own = request.name, request.uuid, memory_of(request.delivery)
    tombstone = rounds.drop(name, uuid, "all", tombstone=True)
    drop = tombstone if with_tombstone else rounds.drop(name, uuid, "all")
    sent_to = own.sent
    # A take that was answered can't arrive any more.
    arrived = {
        one
        for requests in list((sent_to or {}).values())  # a push may add some meanwhile
        for one in requests
        if one.answer and not one.unanswered
    }

    def read(answers: Answers, _resent: bool) -> Outcome:
        own.sent = None
        if with_tombstone or sent_to is None:  # another process took it, on any servers
            rounds.retry_queue.add({*rounds.all} - answers.keys(), tombstone)
        else:
            for i in rounds.all:
                sent = sent_to.get(i, ())
                # After this answer a take may arrive, or a push restore the vote.
                pending = [one for one in sent if one not in arrived] if i in answers else sent
                rounds.retry_queue.add_when_answered(i, pending, drop, tombstone)
        rounds.publish_release(name, uuid, answers)
        return Done(0)

    return Plan(drop, rounds.is_majority, read)


# ---------------------------------------------------------------- others' locks


def _get_position(rounds: Rounds, request: request_types.GetPosition) -> Plan[Outcome]:
    quorum = rounds.quorum

    def read(answers: Answers, _resent: bool) -> Outcome:
        uuid, push = quorum.holder_and_push(answers)
        return Position(False, None, uuid, 0 if uuid is None else revision_of(uuid, push))

    # A holder's poll passes no uuid. Its answer may end the held lock for good, so
    # it never settles for answers that decide nothing (`Plan.settled`).
    settled = SETTLED_ROUNDS if request.uuid else inf
    return Plan(rounds.reading(request.name), quorum.is_known, read, settled=settled)


def _read(rounds: Rounds, request: request_types.Read) -> Plan[Outcome]:
    name, uuid, quorum = request.name, request.uuid, rounds.quorum

    def read(answers: Answers, _resent: bool) -> Outcome:
        holder = holder_of(name, quorum.latest_fields(answers, uuid or ""))
        removal = None if uuid is None else record_of(name, uuid, answers)
        revision = 0 if holder is None else max(holder.stamp_revisions)
        return ReadResult(holder, (), removal, revision, quorum.votes_text(name, answers))

    command = rounds.reading(name, uuid or "", whole=True)
    return Plan(command, quorum.is_known, read, settled=SETTLED_ROUNDS)


PLANS: Final[Mapping[type[request_types.Request], Callable[[Rounds, Any], Plan[Outcome]]]] = {
    request_types.Push: push_plan,
    request_types.Unlock: _unlock,
    request_types.Withdraw: _withdraw,
    request_types.GetPosition: _get_position,
    request_types.Read: _read,
    request_types.Remove: remove_plan,
}
"""Plans by requests; a take or reclaim makes a new command for each try: `Taking`."""
