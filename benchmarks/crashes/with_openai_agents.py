"""Agent of openai-agents with a SQLite session.

Modes: `` and `key` (the bank also receives a key). Resumed as in
https://openai.github.io/openai-agents-python/running_agents/#choose-a-memory-strategy: another session object for the
same store. The new input is empty, so that the user's message is not repeated. A `RunState` does not help, because the
SDK only creates it when a run ends or asks for an approval.
"""

# Measured in a separate environment, which is unknown to the type checker.
# pyright: reportMissingImports=false, reportUnknownParameterType=false, reportUnknownArgumentType=false
# pyright: reportUntypedFunctionDecorator=false

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from openai import AsyncOpenAI
from worker import PROMPT, Job, call_bank

from agents import (
    Agent,
    OpenAIChatCompletionsModel,
    RunConfig,
    Runner,
    SQLiteSession,
    function_tool,
    set_tracing_disabled,
)

set_tracing_disabled(True)


async def run(job: Job, ready: Callable[[], None]) -> str:
    key = job.run if job.mode == "key" else None

    @function_tool
    async def lookup_order(order: str) -> str:
        """Look up an order."""
        return await call_bank(job, "lookup_order")

    @function_tool
    async def refund(order: str, amount: int) -> str:
        """Refund an order."""
        return await call_bank(job, "refund", key)

    @function_tool
    async def write_note(order: str, text: str) -> str:
        """Write a note about an order."""
        return await call_bank(job, "write_note", key)

    client = AsyncOpenAI(base_url=job.url, api_key="none", max_retries=0)
    model = OpenAIChatCompletionsModel(model="bench", openai_client=client)
    agent: Any = Agent(name="clerk", model=model, tools=[lookup_order, refund, write_note])
    session = SQLiteSession(job.run, Path(job.folder) / "sessions.db")
    items: list[Any] = await session.get_items()
    ready()
    if items and items[-1].get("role") == "assistant":
        return str(items[-1]["content"])
    result = await Runner.run(
        agent, [] if items else PROMPT, session=session, run_config=RunConfig(tracing_disabled=True)
    )
    return str(result.final_output)
