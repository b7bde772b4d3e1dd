"""The same work with openai-agents: its chat completions model, streamed, without tracing."""

# Measured in an environment of its own, which the type checker does not see.
# pyright: reportMissingImports=false, reportUnknownParameterType=false, reportUnknownArgumentType=false
# pyright: reportUntypedFunctionDecorator=false

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from agents import Agent, OpenAIChatCompletionsModel, RunConfig, Runner, function_tool, set_tracing_disabled
from openai import AsyncOpenAI

set_tracing_disabled(True)
QUIET = RunConfig(tracing_disabled=True)


@function_tool
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


class Client:
    """An agent with one tool."""

    def __init__(self, url: str) -> None:
        self._openai = AsyncOpenAI(base_url=url, api_key="none")
        model = OpenAIChatCompletionsModel(model="bench", openai_client=self._openai)
        self._agent: Any = Agent(name="agent", model=model, tools=[add])

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._openai.close()

    async def stream(self) -> dict[str, int]:
        """One answer, its text seen as it comes."""
        return await self._run("Tell me a story.", lambda text: None)

    async def tools(self) -> dict[str, int]:
        """A run of tool calls, until there is a text."""
        return await self._run("Count.", lambda text: None)

    async def hold(self, count: int, reached: Callable[[], None]) -> None:
        """An answer without an end; tells when that many pieces are there."""
        seen = 0

        def see(text: str) -> None:
            nonlocal seen
            seen += 1
            if seen == count:
                reached()

        await self._run("Tell me a story.", see)

    async def _run(self, prompt: str, see: Callable[[str], None]) -> dict[str, int]:
        characters = 0
        run = Runner.run_streamed(self._agent, prompt, max_turns=10_000, run_config=QUIET)
        async for event in run.stream_events():
            if event.type == "raw_response_event" and event.data.type == "response.output_text.delta":
                see(event.data.delta)
                characters += len(event.data.delta)
        return {"characters": characters}
