"""Messages: what people read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import islice

from lockclient.model.removal import AUTO_UNLOCK, FORCE_UNLOCK, Removal
from lockclient.overview.rows import Row
from lockclient.text.escaping import one_line, shown_name
from unlocker.notifications.conditions import (
    KINDS,
    OF_UNLOCKER,
    Condition,
    described,
    holder_hash,
    holder_of,
    safe_name,
)
from unlocker.notifications.sent_document import FEW, Change, SentDocument
from unlocker.notifications.truth import Truth

MAX_LINES = 20
"""Conditions and removals that a message spells out; it counts the others by kind."""
UNKNOWN_LINE = "What was sent before is unknown; some of it may have ended."


class Form(Enum):
    """The texts of holders that a message has: a recipient may refuse one of them."""

    FULL, SAFE_NAMES, COUNTS = range(3)


@dataclass(frozen=True, slots=True)
class Message:
    """A message as people get it.

    Attributes:
        good: none of it is bad news.
        named: names of locks and unlockers that it spells out, by the conditions' ids.
    """

    title: str
    body: str
    good: bool = False
    named: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Writer:
    """Writes messages. `where` names the store; `link` is the dashboard's URL, or ""."""

    where: str = ""
    link: str = ""

    def message(
        self,
        change: Change,
        known: SentDocument,
        truth: Truth,
        form: Form = Form.FULL,
        marks: Sequence[str] = (),
    ) -> Message:
        """Return the message of a change.

        Args:
            known: what the recipient knows before it.
            marks: remarks behind the title.
        """
        removed = [truth.removals[each] for each in change.removals if each in truth.removals]
        down = {code: number for code, number in change.many.items() if number < FEW}
        news = Counter(each[0] for each in change.begun if each[0] not in change.many)
        news.update({code: n for code, n in change.many.items() if code not in down})
        ends = _counted(Counter(each[0] for each in change.ended))
        counts = [*_counted(news), *_counted_removals(removed)]
        counts += (f"down to {KINDS[code].counted(number)}" for code, number in down.items())
        counts += [f"over: {', '.join(ends)}"] if ends else []
        counts = counts or ["nothing is wrong now"]
        spelled: list[tuple[str, str, str]] = []
        if form is not Form.COUNTS:
            texts = _texts(change, removed, known, truth, escape=form is not Form.FULL)
            spelled = [*islice(texts, MAX_LINES)]
        lines = [UNKNOWN_LINE] if known.is_unknown else []
        lines += [line for *_, line in spelled]
        if rest := news.total() + len(removed) + len(change.ended) - len(spelled):
            lines.append(f"{'And ' if spelled else ''}{rest:,} more: the dashboard shows all.")
        lines = lines or [f"{', '.join(counts)}."]  # apprise refuses an empty text
        lines += [self.link] if self.link else []
        return Message(
            f"ClusterMutex {self.where}: {', '.join(counts)}{_in_parentheses(marks)}",
            "\n".join(lines),
            good=not (news or removed),
            named={each: name for each, name, _ in spelled if each},
        )


def _begun(change: Change, truth: Truth) -> Iterator[Condition]:
    """Yield the conditions to spell out, the most severe first."""
    for code in KINDS:
        found = truth.found.get(code, {})
        if change.many.get(code, 0) >= FEW:
            yield from found.values()
        elif code not in change.many:
            yield from (found[each] for each in change.begun if each in found)


def _texts(
    change: Change,
    removed: Iterable[Removal],
    known: SentDocument,
    truth: Truth,
    *,
    escape: bool,
) -> Iterator[tuple[str, str, str]]:
    """Yield lines, each with the id and the name of the condition that begins, if one does."""
    for each in _begun(change, truth):
        yield each.id, each.name, each.line(escape=escape)
    for removal in removed:
        yield "", "", _removal_line(removal, escape=escape)
    named = [(each, name) for each in change.ended if (name := known.name_of(each))]
    rows = truth.rows() if named else {}
    for over, name in named:
        kind = KINDS[over[0]]
        why = "" if kind.of is OF_UNLOCKER else _why_over(over, rows.get(name))
        lock = described(kind, name, escape=escape)
        yield "", "", f"{lock} is no longer {kind.is_now}{why}."


def _why_over(condition_id: str, row: Row | None) -> str:
    if row is None or not row.held:
        return ": it is no longer held"
    same = holder_hash(row.holder.name, row.holder.uuid) == holder_of(condition_id)
    return ": its holder sent a heartbeat" if same else ": somebody else holds it by now"


def _removal_line(removal: Removal, *, escape: bool) -> str:
    if escape:
        how = FORCE_UNLOCK if removal.how == FORCE_UNLOCK else AUTO_UNLOCK
        return f"Lock {safe_name(removal.holder.name)} is gone by {how}."
    lock, how = shown_name(removal.holder.name), one_line(removal.describe())
    return f"Lock '{lock}' is gone by {how}. It was held by {one_line(removal.holder.describe())}."


def _counted(numbers: Mapping[str, int]) -> list[str]:
    return [kind.counted(n) for code, kind in KINDS.items() if (n := numbers.get(code, 0))]


def _counted_removals(removed: Sequence[Removal]) -> list[str]:
    forced = sum(each.how == FORCE_UNLOCK for each in removed)
    numbers = (len(removed) - forced, "auto-unlocked"), (forced, "force-unlocked")
    return [f"{n:,} {'locks' if n > 1 else 'lock'} {how}" for n, how in numbers if n]


def _in_parentheses(marks: Sequence[str]) -> str:
    return f" ({', '.join(marks)})" if marks else ""
