"""Agent of pydantic-ai with the step persistence of pydantic-ai-harness and its SQLite store.

Resumed as in https://github.com/pydantic/pydantic-ai-harness/tree/main/pydantic_ai_harness/step_persistence. Modes:

* `settled`, `key`: sections "Continuing a delegate's investigation" and "What safe to continue from means".
  `continue_run` loads the latest complete snapshot. With `key`, the bank also receives a key.
* `inspected`: sections "Failure recovery" and "Earlier checkpoints and notifications". `capture_frontier` also stores
  the calls that the model has requested, and the ledger of tool effects decides how they are resumed. A call that was
  not started is executed. A call that was started is closed by `repair_messages`, as the error message of a new prompt
  for open calls recommends, and the prompt describes it.
"""

# Measured in a separate environment, which is unknown to the type checker.
# pyright: reportMissingImports=false, reportUnknownParameterType=false, reportUnknownArgumentType=false
# pyright: reportUntypedFunctionDecorator=false

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from openai import AsyncOpenAI
from pydantic_ai import Agent
from pydantic_ai.messages import ModelResponse, ToolCallPart, repair_messages
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai_harness import StepPersistence
from pydantic_ai_harness.step_persistence import SqliteStepStore
from pydantic_ai_harness.step_persistence.recovery import inspect_recovery
from worker import PROMPT, Job, call_bank

UNKNOWN = (
    "The process was killed. It is unknown whether the call of {tool} had its effect. Find out before you repeat it."
)


async def run(job: Job, ready: Callable[[], None]) -> str:
    key = job.run if job.mode == "key" else None

    async def lookup_order(order: str) -> str:
        """Look up an order."""
        return await call_bank(job, "lookup_order")

    async def refund(order: str, amount: int) -> str:
        """Refund an order."""
        return await call_bank(job, "refund", key)

    async def write_note(order: str, text: str) -> str:
        """Write a note about an order."""
        return await call_bank(job, "write_note", key)

    client = AsyncOpenAI(base_url=job.url, api_key="none", max_retries=0)
    store = SqliteStepStore(database=str(Path(job.folder) / "steps.db"))
    frontier = job.mode == "inspected"
    agent: Any = Agent(
        OpenAIChatModel("bench", provider=OpenAIProvider(openai_client=client)),
        tools=[lookup_order, refund, write_note],
        capabilities=[StepPersistence(store=store, agent_name="clerk", capture_frontier=frontier)],
    )
    prompt, history = await load(store, job, frontier) if job.resume else (PROMPT, None)
    ready()
    if prompt is None and history and is_answer(history[-1]):
        return str(history[-1].text)
    result = await agent.run(prompt, message_history=history, conversation_id=job.run)
    return result.output


async def load(store: Any, job: Job, frontier: bool) -> tuple[str | None, list[Any] | None]:
    """Return the prompt and the history of the resumed run."""
    # Each `Agent.run` call creates a separate record. The latest process may have died before storing a snapshot.
    for record in reversed(await store.list_runs(conversation_id=job.run)):
        found = await inspect_recovery(store=store, run_id=record.run_id)
        snapshot = found.latest if frontier else found.settled
        if snapshot is not None:
            history = list(snapshot.messages)
            prompt = await prompt_for_open_calls(store, record.run_id, history) if frontier else None
            return prompt, history if prompt is None else repair_messages(history)
    return PROMPT, None


async def prompt_for_open_calls(store: Any, run_id: str, history: list[Any]) -> str | None:
    """Return None if all open calls can be executed."""
    if not isinstance(history[-1], ModelResponse):
        return None
    for part in history[-1].parts:
        if not isinstance(part, ToolCallPart) or part.tool_name == "lookup_order":
            continue
        # Completed calls are unknown too if their result is missing in the snapshot.
        if await store.get_tool_effect(run_id=run_id, tool_call_id=part.tool_call_id) is not None:
            return UNKNOWN.format(tool=part.tool_name)
    return None


def is_answer(message: Any) -> bool:
    """Return True if the run has ended with this message."""
    return isinstance(message, ModelResponse) and not any(isinstance(part, ToolCallPart) for part in message.parts)
