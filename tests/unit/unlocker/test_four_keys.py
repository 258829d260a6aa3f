"""Locks of four plain keys: removed when their distance is over, and never sooner.

A model of holder, unlocker, members and person, each with a clock that may be wrong or jump. What
the unlocker keeps in memory, and how it decides, is the real code.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random

import pytest

from lockclient.model.auto_unlock import ClockCheck
from lockclient.model.clocks import Now, format_stamp
from lockclient.model.holder import Found, Holder
from lockclient.overview.rows import Row, Transition, updated
from tests.support.soak import soaking
from unlocker.deadlines import Deadlines

NAME, HOUR = "nightly", 3600.0
WALL = 1_800_000_000.0
DISTANCE_S, ALERT_S = 20.0, 30.0
WRONG_CLOCKS = (0.0, 0.0, 0.0, HOUR, -HOUR, -WALL + 100, 5.0, -5.0, 1.0, -1.0)
"""Seconds by which a clock may be ahead: now and then an hour, or back in 1970."""


class World:
    """A store with one lock, and all who have to do with it; `now` is the true time."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.now = 1000.0
        self.revision = 1
        self.keys: dict[str, Found] = {}
        self.unseen: list[dict[str, Found]] = []
        self.late: list[dict[str, str]] = []
        self.ahead = {"holder": 0.0, "unlocker": 0.0, "members": 0.0}
        self.answered_push_at = self.now
        self.early: list[float] = []
        self.write({"uuid": "me", "hostname": "host", **self.stamps()})
        self.restart()

    # ------------------------------------------------------------ store, holder, person

    def wall(self, who: str) -> float:
        return WALL + self.now + self.ahead[who]

    def stamps(self) -> dict[str, str]:
        pushed_at = self.wall("holder")
        return {
            "alert_at": format_stamp(max(0, pushed_at + ALERT_S)),
            "auto_unlock_at": format_stamp(max(0, pushed_at + ALERT_S + DISTANCE_S)),
        }

    def write(self, values: Mapping[str, str]) -> None:
        self.revision += 1
        written: dict[str, Found] = {
            key: (value.encode(), self.revision) for key, value in values.items()
        }
        self.keys.update(written)
        self.unseen.append(written)

    def push(self) -> None:
        sent_at, stamps = self.now, self.stamps()
        self.now += self.random.choice((0, 0.01, 3))
        if self.keys and self.random.random() < 0.8:
            self.write(stamps)
            if self.random.random() < 0.8:
                self.answered_push_at = sent_at
        else:
            self.late.append(stamps)

    def push_in_two_puts(self) -> None:
        sent_at = self.now
        for key in ("alert_at", "auto_unlock_at"):
            if self.keys:
                self.write({key: self.stamps()[key]})
                self.now += self.random.choice((0, 0.01, 3))
                self.unlockers_turn()
        if self.keys:
            self.answered_push_at = sent_at

    def deliver_late(self) -> None:
        if self.late and self.keys:
            self.write(self.late.pop())

    def move_one_stamp(self) -> None:
        key = self.random.choice(("alert_at", "auto_unlock_at"))
        if self.keys:
            stamp = float(self.keys[key][0] or 0) + self.random.uniform(-HOUR, HOUR)
            self.write({key: format_stamp(max(0, stamp))})

    def set_a_clock(self) -> None:
        who = self.random.choice(tuple(self.ahead))
        self.ahead[who] = self.random.choice(WRONG_CLOCKS)

    # ------------------------------------------------------------ the unlocker

    def restart(self) -> None:
        self.deadlines, self.unseen = Deadlines(), []
        self.monotonic_from = self.now - self.random.uniform(0, 1e5)
        self.row = updated(None, NAME, self.keys, self.monotonic, found=True)
        self.tell(None)

    @property
    def monotonic(self) -> float:
        return self.now - self.monotonic_from

    def tell(self, before: Row | None) -> None:
        self.deadlines.update([Transition(NAME, before, self.row, live=True)])

    def follow(self) -> None:
        for values in self.unseen:
            before = self.row
            self.row = updated(before, NAME, values, self.monotonic, found=False)
            self.tell(before)
        self.unseen = []

    def check_clock(self) -> None:
        offset = self.ahead["members"] - self.ahead["unlocker"]
        now = Now(self.monotonic, self.wall("unlocker"))
        self.deadlines.reconsider(ClockCheck.of(now, [offset], now))

    def sweep(self) -> None:
        for item in self.deadlines.pop_due(self.monotonic).due:
            seen = Holder.read(NAME, self.keys)
            unpushed = seen.stamp_revisions == item.row.holder.stamp_revisions
            if self.keys and self.deadlines.is_current(item) and unpushed and not seen.undecided():
                spare = self.now - (self.answered_push_at + DISTANCE_S)
                if spare < 0:
                    self.early.append(spare)
                self.keys = {}

    def unlockers_turn(self) -> None:
        for step in (self.follow, self.check_clock, self.sweep):
            if self.random.random() < 0.7:
                step()


def live(seed: int) -> World:
    """Let a lock have a random life."""
    world = World(Random(seed))
    for _ in range(world.random.randint(5, 40)):
        if not world.keys:
            break
        actions: tuple[Callable[[], None], ...] = (
            *(world.push, world.push, world.push_in_two_puts, world.deliver_late),
            *(world.move_one_stamp, world.set_a_clock, world.restart),
        )
        world.random.choice(actions)()
        for _ in range(world.random.randint(0, 3)):
            world.now += world.random.choice((0.1, 1, 5, 21))
            world.unlockers_turn()
    return world


LIVES = [1_000, *soaking(30_000)]


@pytest.mark.promise(number=2)
@pytest.mark.parametrize("lives", LIVES)
def test_no_lock_is_removed_before_its_distance_after_the_last_push(lives: int) -> None:
    removed = 0
    for seed in range(lives):
        world = live(seed)
        removed += not world.keys
        assert not world.early, f"life {seed}"
        if world.keys:
            world.ahead = dict.fromkeys(world.ahead, 0.0)
            world.write(world.stamps())
            world.follow()
            whole = Holder.read(NAME, world.keys)
            assert not whole.undecided()
            for _ in range(8):
                world.now += 10
                world.check_clock()
                world.sweep()
            assert not world.keys, f"life {seed} is kept"
    assert removed > lives / 20
