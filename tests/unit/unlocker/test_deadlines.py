"""When people are alerted on a lock, and when it is removed, in virtual time."""

from __future__ import annotations

import json
import re
from collections import Counter
from typing import Any

import pytest

from tests.simulation.site import Site

KEPT = "clustermutex_unlocker_locks_kept"

PUSH: dict[str, Any] = {"alert": 30, "unlock": 60}
FOUR_KEYS: dict[str, Any] = {"alert": 30, "unlock": 80, "about": None}
BEHIND, RIGHT = {"offset": None, "ahead": -3600.0}, {"offset": None, "ahead": 0.0}
SAME_ALERT = {"alert": -3, "unlock": 27, "uuid": "other"}
QUIET, ALERT, AGAIN, GONE = (0, False), (1, False), (2, False), (1, True)
"""How many alerts there were, and whether the lock was removed."""
STORIES: dict[str, dict[float, dict[str, Any] | tuple[int, bool]]] = {
    # By seconds: what a client writes, or what has happened.
    "silent": {0: PUSH, 29: QUIET, 32: ALERT, 59: ALERT, 63: GONE},
    "pushed": {0: PUSH, 28: PUSH, 57: QUIET, 60: ALERT, 87: ALERT, 91: GONE},
    "pushed for a shorter time": {0: PUSH, 1: {"alert": 1, "unlock": 2}, 5: GONE},
    "pushed after its alert": {0: PUSH, 33: PUSH, 61: ALERT, 66: AGAIN},
    "written and not pushed": {0: PUSH, 33: {"hostname": "other"}, 59: ALERT, 63: GONE},
    "taken by another one": {0: PUSH, 33: SAME_ALERT, 36: AGAIN},
    "alert after the removal": {0: {"alert": 90, "unlock": 60}, 63: GONE},
    "four keys": {0: FOUR_KEYS, 29: QUIET, 32: ALERT, 79: ALERT, 83: GONE},
    "four keys, soon": {0: FOUR_KEYS | {"alert": 2}, 5: ALERT},
    "four keys, no clock": {0: {"offset": None}, 1: FOUR_KEYS, 49: QUIET, 54: ALERT, 99: ALERT},
    "four keys, wrong clock": {0: {"offset": 999.0}, 15: FOUR_KEYS, 63: QUIET, 68: ALERT},
    "four keys, clock set right": {0: BEHIND, 12: FOUR_KEYS, 70: QUIET, 71: RIGHT, 85: ALERT},
    "four keys, clock unknown later": {0: FOUR_KEYS, 12: {"offset": None}, 29: QUIET, 33: ALERT},
}


@pytest.mark.parametrize("story", STORIES.values(), ids=STORIES)
def test_the_next_alert_and_removal(site: Site, story: dict[float, Any]) -> None:
    service = site.unlocker()
    started = site.wall
    for second, step in story.items():
        site.run(started + second - site.wall)
        if isinstance(step, tuple):
            assert (site.log.count("'a' is past its alert"), "a" in site.removed()) == step
        elif "offset" in step:
            offsets = [] if step["offset"] is None else [step["offset"]]
            site.hub.clock_offsets = offsets.copy
            service.process.wall_ahead = step.get("ahead", 0.0)
        elif "alert" in step:
            facts = {key: step[key] for key in ("about", "uuid") if key in step}
            site.foreign("a", site.wall + step["alert"], site.wall + step["unlock"], **facts)
        else:
            site.write({f"locks/a/{part}": value for part, value in step.items()})


def test_a_lock_pushed_while_its_removal_is_refused_is_removed_later(site: Site) -> None:
    site.unlocker()
    site.foreign("a", site.wall + 1, site.wall + 3)
    with site.refusing("/removed/a/"):
        site.run(6)
        site.write({"locks/a/hostname": "other"})
        site.run(2)
    site.run(5)
    assert "a" in site.removed()


def test_a_wall_clock_put_forward_causes_no_alert(site: Site) -> None:
    site.foreign("a", site.wall + 30, site.wall + 60)
    service = site.unlocker()
    site.run(12)
    service.process.wall_ahead = 3600.0
    site.run(15)
    assert not site.log.count("past its alert")
    site.run(6)
    assert site.log.count("past its alert") == 1


def test_locks_kept_by_a_restart_are_counted(site: Site) -> None:
    at = site.wall - 120
    site.foreign("found", at - 60, at)
    site.foreign("found-then-pushed", at - 60, at)
    site.foreign("found-then-released", at - 60, at)
    site.foreign("never", at - 60, None)
    undecided = json.dumps({"auto_unlock_after": 60, "format": 2})
    site.foreign("undecided", at - 60, at, about=undecided)
    site.foreign("in-time", site.wall + 200, site.wall + 260)
    service = site.unlocker()
    site.foreign("seen", site.wall - 100, site.wall - 90)
    site.run(2)
    assert service.figures()[KEPT] == 3
    site.foreign("found-then-pushed", site.wall + 300, site.wall + 600)
    site.clear("found-then-released")
    site.run(2)
    assert service.figures()[KEPT] == 1
    with site.refusing("/removed/found/"):
        site.run(120)
        assert service.figures()[KEPT] == 0, "it is to be removed now"


def test_the_most_urgent_locks_past_their_alert_are_listed(site: Site) -> None:
    service = site.unlocker(max_removals=1)

    def listed() -> Counter[str]:
        names = [name for name in service.figures() if name.startswith("clustermutex_lock_info{")]
        return Counter(re.findall(r'[{,]name="(\w+)', " ".join(names)))

    for number in range(160):
        site.foreign(f"due-{number}", site.wall + 1, site.wall + 15)
    site.run(3)
    for number in range(40):
        site.foreign(f"never-{number}", site.wall + 1, None)
    site.foreign("refused-0", site.wall + 1, site.wall + 2)
    with site.refusing("/removed/refused-0/"):
        site.run(6)
        assert listed() == {"refused": 1, "never": 40, "due": 59}
        site.run(10)
        assert len(site.removed()) < 60
        assert listed() == {"refused": 1, "due": 99}
