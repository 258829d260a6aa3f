"""Unlockers are killed at random moments: what is told is counted at two webhooks.

One of them answers late, the other one at times with an error. Half of the kills are aimed at who
has a claim, at a random moment of its try; one in ten takes all unlockers at once.
"""

from __future__ import annotations

import json
import random
import re
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import pytest

from lockclient import ClusterMutex, Settings
from lockclient.stores.etcd.store import EtcdStore
from tests.support.etcd_binary import Etcdctl
from tests.support.locks import remove
from tests.support.processes import Figure, Service, wait_until
from tests.support.soak import soaking
from tests.support.unlocker_process import ready, unlocker
from tests.support.webhook import Webhook

pytest.importorskip("apprise", reason="no apprise: the extra notify")

ALERT, END, GONE = "alert", "end", "gone"
_line = re.compile(
    r"^Lock '(\w+)' is (past its alert, held|no longer past its alert|gone by)"
).match
_KINDS = {"past its alert, held": ALERT, "no longer past its alert": END, "gone by": GONE}
EXPECTED_S = 1.0
SETTLE_S = 300.0
STOOD_S = 60.0
"""Seconds for which a lock was past its alert that people must know of, also when it ended."""
MAX_STANDING = 12


class Counting(Webhook):
    """Remembers when what came; `status` and `delay_s` change as it runs."""

    def __init__(self) -> None:
        super().__init__()
        self.delay_s = 0.0
        self.told: list[tuple[float, set[tuple[str, str]]]] = []

    def _answer(self, body: bytes) -> tuple[int, str]:
        status, at = self.status, time.monotonic()
        if status == 200:
            lines = json.loads(body)["message"].splitlines()
            found = {(m[1], _KINDS[m[2]]) for line in lines if (m := _line(line))}
            self.told.append((at, found))
            time.sleep(self.delay_s)  # it has the message by now, and has not answered
        return status, ""

    def times(self) -> dict[tuple[str, str], list[float]]:
        """Return when what was told."""
        found = defaultdict(list)
        for at, facts in [*self.told]:
            for fact in facts:
                found[fact].append(at)
        return found


@dataclass
class Life:
    """A lock of the test's, and what people must get to know of it."""

    mutex: ClusterMutex
    due: float
    until: float
    how: str
    ended: float = 0.0


class Locks:
    """Locks that go past their alert, and end by themselves or by a person's hand."""

    def __init__(self, store: EtcdStore, dice: random.Random) -> None:
        self._store, self._dice = store, dice
        self.lives: dict[str, Life] = {}

    def step(self, *, ending: bool = False) -> None:
        """Let a lock begin, and those end whose time it is."""
        now = time.monotonic()
        standing = [life for life in self.lives.values() if not life.ended]
        for life in standing:
            if now >= life.until or ending:
                if life.how == GONE:
                    remove(self._store, life.mutex.record)
                else:
                    life.mutex.release()
                life.ended = time.monotonic()
        if len(standing) < MAX_STANDING and not ending:
            name = f"k{len(self.lives)}"
            how = self._dice.choice([END, GONE])
            until = now + self._dice.choice([self._dice.uniform(1, 10), self._dice.uniform(20, 90)])
            mutex = ClusterMutex(
                name, expected_runtime=EXPECTED_S, auto_unlock_after=None, store=self._store
            )
            mutex.acquire()
            self.lives[name] = Life(mutex, time.monotonic() + EXPECTED_S, until, how)


class Fleet:
    """Three unlockers, each of which is started anew when it was killed."""

    def __init__(self, settings: Settings, urls: str, stack: ExitStack, etcdctl: Etcdctl) -> None:
        self._settings, self._urls, self._stack = settings, urls, stack
        self._etcdctl, self._key = etcdctl, f"{settings.root}/notifications/note"
        self.started = 0
        self.services = [self._start() for _ in range(3)]
        self.kills = 0

    def _start(self) -> Service:
        self.started += 1
        env = {"UNLOCKER_NOTIFY": self._urls}
        return self._stack.enter_context(unlocker(self._settings, env=env))

    def note(self) -> dict[str, dict[str, dict[str, str]]]:
        text = self._etcdctl("get", "--print-value-only", self._key)
        return dict(json.loads(text or "{}"))

    def claimants(self) -> list[Service]:
        """Return who tells somebody now."""
        by = {url["by"] for url in self.note().get("urls", {}).values() if url["by"]}
        return [s for s in self.services if any(f":{s.process.pid}-" in who for who in by)]

    def kill(self, dice: random.Random) -> None:
        """Kill some of them, and start as many."""
        chance, victims = dice.random(), [dice.choice(self.services)]
        if chance < 0.1:
            victims = [*self.services]
        elif chance < 0.6:
            until = time.monotonic() + 2.0
            while not (aimed := self.claimants()) and time.monotonic() < until:
                time.sleep(0.02)
            time.sleep(dice.choice([0.0, dice.uniform(0, 1.0)]))
            victims = aimed[:1] or victims
        for victim in victims:
            assert victim.process.poll() is None, victim.log_text()
            victim.process.kill()
            self.check(victim)
        self.kills += len(victims)
        if dice.random() < 0.2:
            time.sleep(dice.uniform(0, 3))
        left = [service for service in self.services if service not in victims]
        self.services = left + [self._start() for _ in victims]

    def check(self, victim: Service) -> None:
        assert "Traceback" not in victim.log_text(), victim.log_text()


def _lost(locks: Locks, hook: Counting) -> Iterator[str]:
    """Say what a URL has not been told that it must have been: of ends, those whose alert was."""
    times = hook.times()
    for name, life in locks.lives.items():
        stood = not life.ended or life.ended - life.due > STOOD_S
        if stood and life.how == END and (name, ALERT) not in times:
            yield f"{name}: {ALERT}"
        if life.ended and life.how == GONE and (name, GONE) not in times:
            yield f"{name}: {GONE}"
        if life.ended and (name, ALERT) in times and not {(name, END), (name, GONE)} & {*times}:
            yield f"{name}: {END}"


@pytest.mark.parametrize("kills", [6, *soaking(1000)])
def test_nothing_is_lost_and_each_death_repeats_one_message_at_most(
    settings: Settings, store: EtcdStore, etcdctl: Etcdctl, figure: Figure, kills: int
) -> None:
    dice = random.Random(kills)
    with ExitStack() as stack:
        ops, team = stack.enter_context(Counting()), stack.enter_context(Counting())
        hooks, shown = {"ops": ops, "team": team}, 50
        urls = f"ops=json://{ops.host}/ team=json://{team.host}/"
        fleet, locks = Fleet(settings, urls, stack, etcdctl), Locks(store, dice)
        wait_until(lambda: all(map(ready, fleet.services)), what="readiness", timeout=180)
        away_until = back_until = time.monotonic() + 20
        while fleet.kills < kills:
            until = time.monotonic() + dice.uniform(0.5, 6)
            while time.monotonic() < until:
                locks.step()
                time.sleep(dice.uniform(0.1, 1.0))
            ops.delay_s = dice.choice([0.0, 0.0, 0.5, 2.0])
            now = time.monotonic()
            if now > away_until and now > back_until:  # away for some seconds, then back for some
                away_until = now + dice.uniform(5, 30)
                back_until = away_until + dice.uniform(20, 60)
            team.status = 500 if now < away_until and back_until > away_until else 200
            fleet.kill(dice)
            if len(locks.lives) > shown:  # what is under way counts as lost here
                shown = len(locks.lives) + 50
                for name, hook in hooks.items():
                    print(_figures(name, hook, locks, fleet.kills), flush=True)
        team.status, ops.delay_s = 200, 0.0
        wait_until(lambda: all(map(ready, fleet.services)), what="readiness", timeout=180)
        standing = [*locks.lives]
        wait_until(
            lambda: all(
                (name, ALERT) in hook.times() or locks.lives[name].ended
                for name in standing
                for hook in hooks.values()
            ),
            what="alerts of what stands",
            timeout=SETTLE_S,
        )
        locks.step(ending=True)
        for hook in hooks.values():
            wait_until(
                lambda: not [*_lost(locks, hook)],  # noqa: B023 - called at once
                what=f"what is lost: {[*_lost(locks, hook)][:9]}",
                timeout=SETTLE_S,
            )
        for service in fleet.services:
            fleet.check(service)
        for name, hook in hooks.items():
            figure(_figures(name, hook, locks, fleet.kills))
            assert _repeated(hook) <= fleet.kills
            assert not [*_out_of_order(hook)]


def _out_of_order(hook: Counting) -> Iterator[str]:
    """Say whose end was told before its alert."""
    times = hook.times()
    for (name, kind), found in times.items():
        if kind != ALERT and (name, ALERT) in times and times[name, ALERT][0] > found[0]:
            yield name


def _repeated(hook: Counting) -> int:
    """Return how many messages said something again."""
    seen: set[tuple[str, str]] = set()
    repeated = 0
    for _, facts in hook.told:
        repeated += bool(facts & seen)
        seen |= facts
    return repeated


def _figures(name: str, hook: Counting, locks: Locks, kills: int) -> str:
    times = hook.times()
    lost = [*_lost(locks, hook)]
    most = Counter(len(found) - 1 for found in times.values())
    late = sorted(
        min(found) - (life.due if kind == ALERT else life.ended)
        for (lock, kind), found in times.items()
        if (life := locks.lives[lock]) and (kind == ALERT or life.ended)
    )
    middle, high = late[len(late) // 2], late[int(len(late) * 0.99)]
    return (
        f"{name}: {kills} kills, {len(locks.lives)} locks, {len(times)} events in "
        f"{len(hook.told)} messages; lost {lost}; {_repeated(hook)} messages repeated, times by "
        f"event {dict(most)}; late: median {middle:.0f} s, 99 % {high:.0f} s, most {late[-1]:.0f} s"
    )
