"""Turns at the connection of an event loop: a limited number of tasks, in order."""

from __future__ import annotations

import asyncio

from lockclient.model.clocks import Deadline
from lockclient.stores.etcd.wire.async_channels import _Turns


def test_turns_are_limited_and_in_order() -> None:
    async def main() -> None:
        turns, inside, order = _Turns(2), set[int](), list[int]()

        async def take(number: int, seconds: float) -> None:
            async with turns.turn(Deadline.after(seconds)):
                order.append(number)
                inside.add(number)
                await asyncio.sleep(0 if number > 1 else 0.05)
                inside.discard(number)

        tasks = [asyncio.create_task(take(each, 60)) for each in range(6)]
        left = take(6, 60)
        await asyncio.sleep(0)
        assert inside == {0, 1}
        left.send(None)
        left.close()
        tasks[2].cancel()
        late = asyncio.create_task(take(7, 0.001))
        await asyncio.gather(*tasks, late, return_exceptions=True)
        assert order == [0, 1, 7, 3, 4, 5]  # the late one had waited long enough
        await asyncio.wait_for(asyncio.gather(take(8, 60), take(9, 60)), 10)

    asyncio.run(main())


def test_a_turn_given_to_a_cancelled_task_is_passed_on() -> None:
    async def main() -> None:
        turns = _Turns(1)

        async def take() -> None:
            async with turns.turn(Deadline.after(60)):
                await asyncio.sleep(0)

        async with turns.turn(Deadline.after(60)):
            tasks = [asyncio.create_task(take()) for _ in range(2)]
            await asyncio.sleep(0)
        tasks[0].cancel()
        await asyncio.wait_for(tasks[1], 10)
        await asyncio.wait_for(take(), 10)

    asyncio.run(main())
