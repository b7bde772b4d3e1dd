"""Tests that runs do not import modules, which would block the event loop."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import asyncio
import sys

from rxloop import Agent, MemoryEventLog, RunContext, Runtime, tool
from rxloop.testing import ScriptedModel, call


@tool
async def ask(ctx: RunContext) -> str:
    "Ask."
    return str(await ctx.ask("Really?"))


async def main() -> None:
    clerk = Agent(ScriptedModel(call("ask"), "Done.", "Done."), name="clerk", tools=[ask])
    async with Runtime({"clerk": clerk}, log=MemoryEventLog()) as runtime:
        before = set(sys.modules)
        record = await runtime.start("clerk", "Go.")
        await runtime.follow(record.task_id, until="attempt")
        [pending] = await runtime.list_pending()
        await runtime.answer(record.task_id, {pending.inputs[0].input_id: True})
        await runtime.follow(record.task_id)
        fork = await runtime.fork(record.task_id, at=3)
        await runtime.follow(fork.task_id)
        print(sorted(name for name in set(sys.modules) - before if name.startswith("rxloop")))


asyncio.run(main())
"""


def test_runs_of_a_runtime_import_no_modules() -> None:
    finished = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert finished.stdout.strip() == "[]"
