"""Custom thinking between the compressor and the request: rules for most cycles, and a critic after errors.

    python examples/custom_thinking.py

The models are scripted, so the example runs offline. The agent searches a warehouse, and writes what it has seen to a
scratchpad. After each call, `think` sees the scratchpad and the newest results. It only pays for a model if a call has
failed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from rxloop import Agent, Message, ModelRequest, Scratchpad, SlidingWindowCompressor, Usage, op, tool
from rxloop.errors import ToolError
from rxloop.pipeline import Budget, ThinkingResult
from rxloop.protocol import ThinkingNotedEvent
from rxloop.testing import ScriptedCall, ScriptedModel, call, turn

pad = Scratchpad(title="Seen so far")
critic = Agent(
    ScriptedModel(turn("Hall 3 is locked. Ask for the key before you go on.", usage=Usage(input_tokens=80))),
    instructions="You review the work of another agent. Answer in one sentence.",
    name="critic",
)


@tool
async def search(hall: int) -> str:
    """Search a hall."""
    if hall == 3 and "key" not in pad:
        raise ToolError("hall 3 is locked")
    pad[f"hall {hall}"] = f"crate CR-{hall}00"
    return f"There is a crate with the number CR-{hall}00. " * 60


@tool
async def ask_for_key() -> str:
    """Request the key of hall 3."""
    pad["key"] = "for hall 3"
    return "Here it is."


async def think(
    history: Sequence[Message], workspace: str, results: Sequence[Message], budget: Budget
) -> ThinkingResult:
    """Return a note. After an error, it contains advice from the critic."""
    state = f"{workspace.count('crate')} halls are done."
    if not any("locked" in result.text for result in results):
        return ThinkingResult(current_state=state)
    review = await critic.run(f"{workspace}\n\nThe last call failed: {results[-1].text}")
    return ThinkingResult(current_state=state, next_actions=(review.output,), thinking_tokens=review.usage)


def decide(request: ModelRequest) -> ScriptedCall:
    """Follow the advice in the note of the request."""
    return call("ask_for_key") if "Ask for the key" in request.tail[-1].text else call("search", hall=4)


async def main() -> None:
    halls = (call("search", hall=hall) for hall in (1, 2, 3))
    model = ScriptedModel(*halls, decide, call("search", hall=3), "The crates are CR-100, CR-200 and CR-300.")
    phase = op.thinking_phase(SlidingWindowCompressor(max_tokens=3_000), think=think, publish=True)
    loop = op.standard(before_model=[op.workspace(pad), phase])
    async with Agent(model, tools=[search, ask_for_key], loop=loop) as agent:
        run = agent.run("Which crates are in the halls?")
        async for event in run.pipe(op.of_type(ThinkingNotedEvent)):
            print(f"Step {event.step}: {' '.join(event.note.splitlines())}")
        print((await run).output)
        stats = await run.pipe(op.context_stats())
    total = stats.compression
    print(f"\n{stats.notes} notes with {total.thinking.total_tokens} tokens, {total.count} compressions,")
    print(f"{stats.recovered_errors} of {stats.errors} errors recovered, {stats.retained:.0%} of the values retained")


if __name__ == "__main__":
    asyncio.run(main())
