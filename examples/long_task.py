"""This example measures how a workspace reduces the token usage and cost of a run with 60 iterations."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from rxloop import Agent, Limits, Message, ModelRequest, Operator, SlidingWindowCompressor, op, tool
from rxloop.context import TextWorkspace, TokenEstimator
from rxloop.testing import ScriptedModel, call

CYCLES = 60
CACHED_PRICE = 0.2
"""Cost of a cached token relative to an uncached token."""
PLAN = TextWorkspace("Hall seven, shelf B: crates 1000 to 1999, by weight. " * 400, title="The plan of the halls")


@tool
def look(place: int) -> str:
    """Look at a place."""
    return f"At place {place} stands the crate CR-{1000 + place}-X, {place * 7 % 40} kg, from Oslo to Bergen. " * 8


@tool
def look_with_plan(place: int) -> str:
    """Look at a place. The result repeats the plan."""
    return f"{PLAN.text}\n{look(place)}"


@dataclass
class Bill:
    """Number of sent and cached tokens of each request."""

    sent: list[int]
    cached: list[int]

    @property
    def cost(self) -> float:
        """Cost of all requests, in uncached tokens."""
        return sum(self.sent) - (1 - CACHED_PRICE) * sum(self.cached)


def make_bill(requests: Sequence[ModelRequest]) -> Bill:
    """Count the tokens of requests. The prefix shared with the previous request counts as cached."""
    counter = TokenEstimator()
    bill = Bill([], [])
    previous: list[Message] = []
    for request in requests:
        messages = [*request.system, *request.messages, *request.tail]
        change = next((at for at, pair in enumerate(zip(previous, messages, strict=False)) if pair[0] != pair[1]), None)
        shared = min(len(previous), len(messages)) if change is None else change
        bill.sent.append(counter.count(messages))
        bill.cached.append(counter.count(messages[:shared]))
        previous = messages
    return bill


async def work(*operators: Operator, plan_in_history: bool = False) -> Bill:
    """Run the task with a scripted model, and return the number of tokens in all requests."""
    look_tool = look_with_plan if plan_in_history else look
    model = ScriptedModel(*(call(look_tool.definition.name, place=place) for place in range(CYCLES)), "CR-1042-X")
    agent = Agent(model, tools=[look_tool], loop=op.standard(before_model=operators), limits=Limits(iterations=None))
    result = await agent.run("Which crate weighs 14 kg and goes to Bergen?")
    assert result.output == "CR-1042-X"
    assert plan_in_history or not any(PLAN.text in message.text for message in result.messages)
    return make_bill(model.requests)


def plot(name: str, sent: Sequence[int], max_tokens: int) -> str:
    """Return a bar chart with one bar per request."""
    bars = " ▁▂▃▄▅▆▇█"
    return f"{name:>26} {''.join(bars[max(1, round(8 * tokens / max_tokens))] for tokens in sent)}"


async def main() -> None:
    """Compare three configurations, and print a table and bar charts."""
    window = SlidingWindowCompressor(max_tokens=12_000)
    bills = {
        "plan in the history": await work(plan_in_history=True),
        "plan as a workspace": await work(op.workspace(PLAN)),
        "and with a thinking phase": await work(op.workspace(PLAN), op.thinking_phase(window)),
    }
    print(f"{'':>26} {'tokens sent':>12} {'cached':>7} {'cost':>12} {'largest':>8}")
    for name, bill in bills.items():
        share = sum(bill.cached) / sum(bill.sent)
        print(f"{name:>26} {sum(bill.sent):>12,} {share:>7.0%} {bill.cost:>12,.0f} {max(bill.sent):>8,}")
    print("\nTokens of each request, scaled to the largest request of the line:")
    for name, bill in bills.items():
        print(plot(name, bill.sent, max(bill.sent)))


if __name__ == "__main__":
    asyncio.run(main())
