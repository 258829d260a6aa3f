"""Counts the calls of Python functions that one lock and unlock makes: `calls_program.py URL`.

In all threads, but none below a function of gRPC's: how many those are is its own affair. With
`thread` another thread than the main one locks. With `acquire` it prints which functions of the
project one uncontended `acquire()` runs, how many they are, and in how many files.
"""

from __future__ import annotations

import sys
import threading
from collections import Counter
from types import FrameType

from lockclient import ClusterMutex, Settings, open_store

CYCLES = 20
BATCHES = 10


def below_grpc(frame: FrameType | None) -> bool:
    """Tell whether a function of gRPC's is running this frame, or is it itself."""
    while frame is not None:
        if "/grpc/" in frame.f_code.co_filename:
            return True
        frame = frame.f_back
    return False


def main() -> None:
    """Print the calls of a cycle, a line for each function, and at last their sum.

    Of several batches the one with the fewest counts: in another one a thread may have started.
    """
    calls: Counter[str] = Counter()
    batches: list[Counter[str]] = []
    counting = False

    def count(frame: FrameType, event: str, _: object) -> None:
        if counting and event == "call" and not below_grpc(frame):
            calls[f"{frame.f_code.co_filename}:{frame.f_code.co_name}"] += 1

    threading.setprofile(count)  # of each thread that begins after this
    mutex = ClusterMutex("counted", store=open_store(Settings.load(sys.argv[1])))

    def cycles(number: int) -> None:
        for _ in range(number):
            with mutex:
                pass

    def acquire() -> None:
        nonlocal counting
        counting = True
        held = mutex.acquire()
        counting = False
        assert held is not None
        held.release()

    def path() -> None:
        sys.setprofile(count)
        passed: list[set[str]] = []
        for _ in range(CYCLES):
            calls.clear()
            acquire()
            passed.append({name for name in calls if "/lockclient/" in name})
        sys.setprofile(None)
        # What other threads do meanwhile, and what happens for the first time, is not in all.
        found = sorted(set.intersection(*passed))
        print(*(name.rpartition("/lockclient/")[2] for name in found), sep="\n")
        print(f"{len(found)} functions in {len({name.split(':')[0] for name in found})} files")

    def counted() -> None:
        nonlocal counting
        sys.setprofile(count)
        for number in range(BATCHES):
            counting = number > 0  # at first until nothing happens for the first time any more
            cycles(CYCLES)
            counting = False
            if calls:
                batches.append(calls.copy())
                calls.clear()
        sys.setprofile(None)

    if sys.argv[2:] == ["acquire"]:
        path()
        return
    where = threading.Thread(target=counted) if sys.argv[2:] == ["thread"] else None
    if where is None:
        counted()
    else:
        where.start()
        where.join()
    fewest = min(batches, key=Counter.total)
    del fewest[f"{__file__}:cycles"]
    for name, number in fewest.most_common():
        print(f"{number / CYCLES:6.1f}  {name}")
    print(fewest.total() / CYCLES)


if __name__ == "__main__":
    main()
