from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rxloop import Agent, RunContext, op, tool
from rxloop.providers import openai_chat
from rxloop.storage import MemoryEventLog
from rxloop.testing import ScriptedModel, call
from support.cancellation import assert_canceled
from support.http_server import list_connections, start_server, text_reply
from support.run_checks import (
    Recorder,
    kinds,
    other_tasks,
    run_ready_tasks,
    wait_until,
)

UNFINISHED_RUNS = {
    "in the model": "run = Agent(ScriptedModel(frames('-a-', frame=0.001))).run('Go.')",
    "in a tool": "run = Agent(ScriptedModel(call('waits')), tools=[waits]).run('Go.')",
    "in a slow log": "run = Agent(ScriptedModel(call('waits')), tools=[waits], log=SlowLog()).run('Go.')",
    "in the instructions": "run = Agent(ScriptedModel('x'), instructions=slow).run('Go.')",
    "by a subscription alone": "run = Agent(ScriptedModel(frames('-a-'))).run('Go.')",
    "by an iterator": "run = Agent(ScriptedModel(frames('-a-'))).run('Go.'); it = aiter(run); await anext(it)",
    "by server-sent events": "run = Agent(ScriptedModel(frames('-a-'))).run('Go.'); it = run.sse(); await anext(it)",
}
PROGRAM = """
import asyncio, gc, logging, sys
logging.basicConfig(level=logging.WARNING)
from rxloop import Agent, tool
from rxloop.storage import MemoryEventLog
from rxloop.testing import ScriptedModel, call, frames

class SlowLog(MemoryEventLog):
    async def append(self, *args, **options):
        await asyncio.sleep(0.004)
        await super().append(*args, **options)

@tool
async def waits() -> str:
    '''Wait.'''
    await asyncio.Event().wait()

async def slow(ctx):
    await asyncio.Event().wait()

async def main(name):
    # A machine that has other work is not what is looked for.
    asyncio.get_running_loop().slow_callback_duration = 10
    {leaving}
    seen = []
    run.events.subscribe(seen.append)
    await asyncio.sleep(0.02)
    return seen

seen = asyncio.run(main({name!r}))
gc.collect()
print({name!r}, seen[-1].kind, seen[-1].state, sum(getattr(event, "final", False) for event in seen))
"""


def test_closing_loop_cancels_its_runs_without_output() -> None:
    source = str(Path(__file__).parents[2] / "src")
    programs = [f"import sys; sys.path[:0] = [{source!r}]"]
    programs += [PROGRAM.format(name=name, leaving=leaving) for name, leaving in UNFINISHED_RUNS.items()]
    process = subprocess.run(
        [
            sys.executable,
            "-X",
            "dev",
            "-W",
            "error",
            "-c",
            "\n".join(programs),
        ],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert process.stderr == ""
    assert process.stdout.splitlines() == [f"{name} status-update canceled 1" for name in UNFINISHED_RUNS]
    assert process.returncode == 0


async def cancel_all_tasks(run: Any, log: MemoryEventLog) -> None:
    recorder = Recorder(run.events)
    await wait_until(lambda: "tool-start" in kinds(recorder.events))
    for task in other_tasks():
        task.cancel()
    await asyncio.wait(other_tasks())


def test_run_canceled_by_a_closing_loop_can_be_resumed() -> None:
    log = MemoryEventLog()

    @tool(idempotent=True)
    async def wait_once(ctx: RunContext) -> str:
        """Wait the first time."""
        if ctx.attempt == 1:
            await asyncio.Event().wait()
        return "done"

    agent = Agent(ScriptedModel(call("wait_once"), "Hi."), tools=[wait_once], log=log)
    run = agent.run("Go.")
    asyncio.run(cancel_all_tasks(run, log))
    [record] = asyncio.run(log.list_runs())
    assert record.state == "canceled"
    assert asyncio.run(agent.resume(run.task_id).result()).output == "Hi."


@pytest.mark.parametrize("has_log", [False, True])
async def test_run_ends_when_the_loop_closes_during_its_cleanup(has_log: bool) -> None:
    stopping: list[int] = []

    @tool
    async def slow_to_stop() -> str:
        """Stop slowly."""
        stopping.append(0)
        try:
            await asyncio.Event().wait()
        finally:
            stopping.append(1)
            await run_ready_tasks(20)
            stopping.append(2)
        return ""

    log = MemoryEventLog() if has_log else None
    run = Agent(ScriptedModel(call("slow_to_stop"), "never"), tools=[slow_to_stop], log=log).run("Go.")
    recorder = Recorder(run.events)
    await wait_until(lambda: stopping)
    run.cancel()
    await wait_until(lambda: 1 in stopping)
    driver = run.hold.task
    assert driver is not None
    for _ in range(3):
        driver.cancel()
        await run_ready_tasks(3)
    await assert_canceled(run, recorder)
    assert stopping == [0, 1, 2]


async def test_blocked_reader_applies_backpressure_to_the_socket_of_the_model() -> None:  # L13
    async with start_server() as server:
        words = [f"{'x' * 2_000} " for _ in range(3_000)]
        server.answer(text_reply(*words))
        async with Agent(openai_chat("m", base_url=server.base_url, api_key="k")) as agent:
            run = agent.run("Go.")
            recorder = Recorder(run.events)
            iterator = aiter(run.stream(overflow="block", buffer=4).pipe(op.text()))
            await anext(iterator)
            counts: list[int] = []
            for _ in range(3):
                await asyncio.sleep(0.05)
                counts.append(len(recorder.events))
            assert counts[0] == counts[1] == counts[2] < 2_000, "events arrived while the reader was blocked"
            text = words[0] + "".join([piece async for piece in iterator])
            assert text == "".join(words)
            assert (await run).output == text
            await agent.model.aclose()


@pytest.mark.parametrize("cause", ["cancel", "abandon", "awaiter", "async with"])
async def test_cancel_closes_the_socket_of_the_model(cause: str) -> None:
    async with start_server() as server:
        server.answer(text_reply("Hi", end="hang", finished=False))
        provider = openai_chat("m", base_url=server.base_url, api_key="k", transport="httpx")
        run = Agent(provider).run("Go.")
        iterator = aiter(run.text())
        awaiter = asyncio.ensure_future(run.result()) if cause == "awaiter" else None
        assert await anext(iterator) == "Hi"
        assert server.open == 1
        if cause == "cancel":
            run.cancel()
        elif cause == "async with":
            async with run:
                pass
        elif awaiter is not None:
            awaiter.cancel()
        del iterator, run
        gc.collect()
        async with asyncio.timeout(3):
            await server.all_closed.wait()
        for client in provider._pool.clients:
            assert list_connections(client) == []
        await provider.aclose()
