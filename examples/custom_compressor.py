"""Custom compressor that removes old search results and keeps all other messages."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from rxloop import Agent, ContextCompressedEvent, Message, op, tool
from rxloop.context.layout import split_blocks
from rxloop.pipeline import Budget
from rxloop.testing import ScriptedModel, call


class ToolCallRemover:
    """Compressor that removes the oldest calls of a tool until the request is small enough."""

    def __init__(self, tool: str, max_tokens: int) -> None:
        self.tool = tool
        self.max_tokens = max_tokens

    def compress(self, messages: Sequence[Message], budget: Budget) -> list[Message]:
        """Return the compressed messages. Blocks are removed as a whole, so that calls keep their results."""
        blocks = split_blocks(messages)
        while budget.count(*(message for block in blocks for message in block.messages)) > budget.target:
            calls = [block for block in blocks[:-1] if {c.name for c in block.messages[0].tool_calls} == {self.tool}]
            if not calls:
                break
            blocks.remove(calls[0])
        return [message for block in blocks for message in block.messages]


@tool
def search(words: str) -> str:
    """Search the archive."""
    return f"Forty pages about {words}. " * 40


@tool
def decide(what: str) -> str:
    """Record a decision."""
    return f"Decided: {what}."


def offline_model() -> ScriptedModel:
    """Create a scripted model. To use a real model, pass a model string such as "zai:glm-4.7" to the agent."""
    steps = [step for n in range(6) for step in (call("search", words=f"topic {n}"), call("decide", what=f"point {n}"))]
    return ScriptedModel(*steps, "All six points are decided.")


async def main() -> None:
    """Work on six topics with a token limit that only fits two."""
    model = offline_model()
    loop = op.standard(before_model=[op.compress(ToolCallRemover("search", max_tokens=1_800))])
    async with Agent(model, tools=[search, decide], loop=loop) as agent:
        run = agent.run("Decide the six points.")
        async for event in run.pipe(op.of_type(ContextCompressedEvent)):
            print(
                f"step {event.step}: {event.tokens_before} -> {event.tokens_after} tokens,",
                event.dropped,
                "messages removed",
            )
        result = await run
    sent = [message.text for message in model.requests[-1].messages]
    print(result.output)
    print(f"{len(result.messages)} messages in the history, {len(sent)} in the last request;", end=" ")
    print(f"includes all six decisions: {all(any(f'point {n}' in text for text in sent) for n in range(6))}")


if __name__ == "__main__":
    asyncio.run(main())
