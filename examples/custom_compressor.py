"""Your own compressor: it leaves out old lookups and keeps everything else word for word."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from rxloop import Agent, ContextCompressedEvent, Message, op, tool
from rxloop.context.layout import split_blocks
from rxloop.pipeline import Budget
from rxloop.testing import ScriptedModel, call


class ForgetLookups:
    """Leaves out the oldest calls of one tool, with their results, until the rest fits."""

    def __init__(self, tool: str, max_tokens: int) -> None:
        self.tool = tool
        self.max_tokens = max_tokens

    def compress(self, messages: Sequence[Message], budget: Budget) -> list[Message]:
        """Return the messages to send instead. They are checked and repaired: a call never loses its result."""
        kept = split_blocks(messages)
        while budget.count(*(each for block in kept for each in block.messages)) > budget.target:
            lookups = [block for block in kept[:-1] if {c.name for c in block.messages[0].tool_calls} == {self.tool}]
            if not lookups:
                break
            kept.remove(lookups[0])
        return [message for block in kept for message in block.messages]


@tool
def search(words: str) -> str:
    """Search the archive."""
    return f"Forty pages about {words}. " * 40


@tool
def decide(what: str) -> str:
    """Note a decision."""
    return f"Decided: {what}."


def offline_model() -> ScriptedModel:
    """Make a model that searches and decides; replace it with a model string such as "zai:glm-4.7"."""
    steps = [step for n in range(6) for step in (call("search", words=f"topic {n}"), call("decide", what=f"point {n}"))]
    return ScriptedModel(*steps, "All six points are decided.")


async def main() -> None:
    """Work through six topics in a window that holds two of them."""
    model = offline_model()
    loop = op.standard(before_model=[op.compress(ForgetLookups("search", max_tokens=1_800))])
    async with Agent(model, tools=[search, decide], loop=loop) as agent:
        run = agent.run("Decide the six points.")
        async for event in run.pipe(op.of_type(ContextCompressedEvent)):
            print(
                f"step {event.step}: {event.tokens_before} -> {event.tokens_after} tokens,",
                event.dropped,
                "messages left out",
            )
        result = await run
    sent = [message.text for message in model.requests[-1].messages]
    print(result.output)
    print(f"{len(result.messages)} messages in the history, {len(sent)} in the last request;", end=" ")
    print(f"all six decisions are in it: {all(any(f'point {n}' in text for text in sent) for n in range(6))}")


if __name__ == "__main__":
    asyncio.run(main())
