"""A queue with bad manners changes nothing: the log says what a job has to do, whoever the queue gives it to."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from rxloop import Agent, ToolStartEvent, tool
from rxloop.testing import ScriptedModel, call, virtual_time
from support.processes.machines import Machine, two_machines
from support.run_checks import finals, nothing_left

COPIES = 3
RUNS = 6


class BadQueue:
    """Delivers each job three times, and once more while its acknowledgement is lost.

    Now and then it takes a worker for dead that is not: it gives the job to another one, and believes the first one's
    word later, or cancels it in the middle. So an acknowledgement says nothing but that a worker thought so.
    """

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._jobs: asyncio.Queue[str] = asyncio.Queue()
        self.delivered = 0
        self.acknowledged: dict[str, int] = {}

    def enqueue(self, task_id: str) -> None:
        """Put a job in, three times."""
        for _ in range(COPIES):
            self._jobs.put_nowait(task_id)

    async def serve(self, agent: Agent[None, str]) -> None:
        """Give jobs to one worker, one after another, until it is cancelled."""
        while True:
            task_id = await self._jobs.get()
            self.delivered += 1
            manner = self._random.choice(("good", "lost", "zombie", "cut"))
            job = asyncio.ensure_future(agent.get_run(task_id).execute())
            if manner == "cut":
                await asyncio.wait([job], timeout=self._random.random() * 90)
                job.cancel()
                await asyncio.wait([job])
            if manner in ("zombie", "cut"):
                # Somebody else gets it, while this worker still may be at it.
                self._jobs.put_nowait(task_id)
            if manner == "cut" and job.cancelled():
                continue
            assert (await job).state in ("completed", "input-required")
            self.acknowledged[task_id] = self.acknowledged.get(task_id, 0) + 1
            if manner == "lost" and self.delivered < 200:
                self._jobs.put_nowait(task_id)


def machine(shared_with: Machine, paid: list[str]) -> Machine:
    """A worker on the log of another one."""

    @tool
    async def pay(number: int) -> str:
        """Pays, and takes its time."""
        paid.append(str(number))
        await asyncio.sleep(20)
        return f"paid {number}"

    shared_with.tools = [pay]
    return shared_with


def script(request: Any) -> Any:
    """What the model says follows from the messages alone: any worker may ask it."""
    asked = max(place for place, message in enumerate(request.messages) if message.role == "user")
    number = request.messages[asked].text
    said = [message for message in request.messages[asked:] if message.role == "assistant"]
    return [call("pay", number=int(number)), call("pay", number=int(number) + 100), "done"][len(said)]


@pytest.mark.parametrize("seed", range(5))
def test_a_queue_with_bad_manners_changes_nothing(seed: int) -> None:
    paid: list[str] = []
    workers = [machine(each, paid) for each in two_machines()]
    queue = BadQueue(seed)
    with virtual_time() as time:

        async def main() -> None:
            records = []
            for number in range(RUNS):
                agent = workers[0].agent()
                records.append(await agent.submit(str(number), context_id=f"c{number % 3}"))
                queue.enqueue(records[-1].task_id)
            agents = [
                Agent(ScriptedModel(*[script] * 500), tools=worker.tools, log=worker.log)
                for worker in workers
                for _ in range(RUNS)
            ]
            serving = [asyncio.ensure_future(queue.serve(agent)) for agent in agents]
            await asyncio.sleep(5_000)
            for worker in serving:
                assert not worker.done(), worker
                worker.cancel()
            await asyncio.wait(serving)

            for record in records:
                events = await workers[0].log.read(record.task_id)
                assert [event.state for event in finals(events)] == ["completed"]
                assert [event.seq for event in events] == list(range(1, len(events) + 1))
                assert len([event for event in events if isinstance(event, ToolStartEvent)]) == 2
            await nothing_left()

        time.run(main())
    # Nothing was paid twice, though each job came at least three times.
    assert len(paid) == len(set(paid)) == 2 * RUNS
    assert queue.delivered >= COPIES * RUNS
    assert set(queue.acknowledged.values()) != {1}
    assert workers[0].log.shared.turns == {}
