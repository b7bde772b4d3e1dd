"""Workloads with openai-agents and its chat completions model, without tracing."""

# Measured in a separate environment, which is unknown to the type checker.
# pyright: reportMissingImports=false, reportUnknownParameterType=false, reportUnknownArgumentType=false
# pyright: reportUntypedFunctionDecorator=false

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from contenders.contender import Contender
from openai import AsyncOpenAI

from agents import Agent, OpenAIChatCompletionsModel, RunConfig, Runner, function_tool, set_tracing_disabled

set_tracing_disabled(True)
QUIET = RunConfig(tracing_disabled=True)


@function_tool
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


class Client(Contender):
    """Agent with one tool."""

    def __init__(self, url: str) -> None:
        self._openai = AsyncOpenAI(base_url=url, api_key="none")
        model = OpenAIChatCompletionsModel(model="bench", openai_client=self._openai)
        self._agent: Any = Agent(name="agent", model=model, tools=[add])

    async def aclose(self) -> None:
        await self._openai.close()

    async def run(self, prompt: str, see: Callable[[str], None]) -> dict[str, int]:
        characters = 0
        run = Runner.run_streamed(self._agent, prompt, max_turns=10_000, run_config=QUIET)
        async for event in run.stream_events():
            if event.type == "raw_response_event" and event.data.type == "response.output_text.delta":
                see(event.data.delta)
                characters += len(event.data.delta)
        return {"characters": characters}
