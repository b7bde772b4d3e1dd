"""A queue may deliver jobs wrongly: each run is still executed once, because its log decides."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from rxloop import Agent, ToolStartEvent, tool
from rxloop.testing import ScriptedModel, call, virtual_time
from support.processes.machines import Machine, two_machines
from support.run_checks import assert_no_tasks, final_events

COPIES = 3
RUNS = 6


class UnreliableQueue:
    """Queue that duplicates jobs and loses acknowledgements.

    Sometimes it considers a live worker dead. It passes the job to another worker, and either accepts the
    acknowledgement of the first worker later or cancels that worker. So an acknowledgement proves nothing.
    """

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._jobs: asyncio.Queue[str] = asyncio.Queue()
        self.delivered = 0
        self.acknowledged: dict[str, int] = {}

    def enqueue(self, task_id: str) -> None:
        """Add a job three times."""
        for _ in range(COPIES):
            self._jobs.put_nowait(task_id)

    async def serve(self, agent: Agent[None, str]) -> None:
        """Deliver jobs sequentially until canceled."""
        while True:
            task_id = await self._jobs.get()
            self.delivered += 1
            fault = self._random.choice(("good", "lost", "zombie", "cut"))
            job = asyncio.ensure_future(agent.get_run(task_id).execute())
            if fault == "cut":
                await asyncio.wait([job], timeout=self._random.random() * 90)
                job.cancel()
                await asyncio.wait([job])
            if fault in ("zombie", "cut"):
                # Redeliver this job while its worker may still be running.
                self._jobs.put_nowait(task_id)
            if fault == "cut" and job.cancelled():
                continue
            assert (await job).state in ("completed", "input-required")
            self.acknowledged[task_id] = self.acknowledged.get(task_id, 0) + 1
            if fault == "lost" and self.delivered < 200:
                self._jobs.put_nowait(task_id)


def add_payment_tool(machine: Machine, paid: list[str]) -> Machine:
    """Add the payment tool to a machine."""

    @tool
    async def pay(number: int) -> str:
        """Pay slowly."""
        paid.append(str(number))
        await asyncio.sleep(20)
        return f"paid {number}"

    machine.tools = [pay]
    return machine


def answer_request(request: Any) -> Any:
    """Derive answers from messages, so that any worker can continue."""
    last_prompt = max(index for index, message in enumerate(request.messages) if message.role == "user")
    number = request.messages[last_prompt].text
    answers = [message for message in request.messages[last_prompt:] if message.role == "assistant"]
    return [call("pay", number=int(number)), call("pay", number=int(number) + 100), "done"][len(answers)]


@pytest.mark.parametrize("seed", range(5))
def test_each_run_is_executed_once_by_unreliable_queue(seed: int) -> None:
    paid: list[str] = []
    workers = [add_payment_tool(worker, paid) for worker in two_machines()]
    queue = UnreliableQueue(seed)
    with virtual_time() as time:

        async def main() -> None:
            records = []
            for number in range(RUNS):
                agent = workers[0].agent()
                records.append(await agent.submit(str(number), context_id=f"c{number % 3}"))
                queue.enqueue(records[-1].task_id)
            agents = [
                Agent(ScriptedModel(*[answer_request] * 500), tools=worker.tools, log=worker.log)
                for worker in workers
                for _ in range(RUNS)
            ]
            servers = [asyncio.ensure_future(queue.serve(agent)) for agent in agents]
            await asyncio.sleep(5_000)
            for worker in servers:
                assert not worker.done(), worker
                worker.cancel()
            await asyncio.wait(servers)

            for record in records:
                events = await workers[0].log.read(record.task_id)
                assert [event.state for event in final_events(events)] == ["completed"]
                assert [event.seq for event in events] == list(range(1, len(events) + 1))
                assert len([event for event in events if isinstance(event, ToolStartEvent)]) == 2
            await assert_no_tasks()

        time.run(main())
    # Every job arrived at least three times.
    assert len(paid) == len(set(paid)) == 2 * RUNS
    assert queue.delivered >= COPIES * RUNS
    assert set(queue.acknowledged.values()) != {1}
    assert workers[0].log.shared.leases == {}
