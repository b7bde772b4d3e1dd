"""Workloads with pydantic-ai and its chat model, without instrumentation."""

# Measured in a separate environment, which is unknown to the type checker.
# pyright: reportMissingImports=false, reportUnknownParameterType=false, reportUnknownArgumentType=false
# pyright: reportUntypedFunctionDecorator=false

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from contenders.contender import Contender
from openai import AsyncOpenAI
from pydantic_ai import Agent, PartDeltaEvent, PartStartEvent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.usage import UsageLimits

UNLIMITED = UsageLimits(request_limit=None)


async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


class Client(Contender):
    """Agent with one tool."""

    def __init__(self, url: str) -> None:
        self._openai = AsyncOpenAI(base_url=url, api_key="none")
        model = OpenAIChatModel("bench", provider=OpenAIProvider(openai_client=self._openai))
        self._agent: Any = Agent(model, tools=[add])

    async def aclose(self) -> None:
        await self._openai.close()

    async def run(self, prompt: str, see: Callable[[str], None]) -> dict[str, int]:
        characters = 0
        async with self._agent.iter(prompt, usage_limits=UNLIMITED) as run:
            async for node in run:
                if not Agent.is_model_request_node(node):
                    continue
                async with node.stream(run.ctx) as events:
                    async for event in events:
                        if isinstance(event, PartStartEvent) and event.part.part_kind == "text":
                            text = event.part.content
                        elif isinstance(event, PartDeltaEvent) and event.delta.part_delta_kind == "text":
                            text = event.delta.content_delta
                        else:
                            continue
                        if text:
                            see(text)
                            characters += len(text)
        return {"characters": characters}
