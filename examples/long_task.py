"""Sixty cycles with a workspace of 5,000 tokens: what is sent, what a provider's cache holds, and what it costs."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from rxloop import Agent, Limits, Message, ModelRequest, Operator, SlidingWindowCompressor, op, tool
from rxloop.context import TextWorkspace, TokenEstimator
from rxloop.testing import ScriptedModel, call

CYCLES = 60
CACHED_PRICE = 0.2
"""The price of a cached token, relative to one that is not cached."""
PLAN = TextWorkspace("Hall seven, shelf B: crates 1000 to 1999, by weight. " * 400, title="The plan of the halls")


@tool
def look(place: int) -> str:
    """Look at a place."""
    return f"At place {place} stands the crate CR-{1000 + place}-X, {place * 7 % 40} kg, from Oslo to Bergen. " * 8


@tool
def look_with_plan(place: int) -> str:
    """Look at a place; the result carries the plan, for want of a better place to show it."""
    return f"{PLAN.text}\n{look(place)}"


@dataclass
class Bill:
    """What some requests cost."""

    sent: list[int]
    cached: list[int]

    @property
    def cost(self) -> float:
        """The cost in tokens at full price."""
        return sum(self.sent) - (1 - CACHED_PRICE) * sum(self.cached)


def bill_of(requests: Sequence[ModelRequest]) -> Bill:
    """Count the tokens of each request, and of the prefix that it shares with the one before."""
    counter = TokenEstimator()
    bill = Bill([], [])
    before: list[Message] = []
    for request in requests:
        messages = [*request.system, *request.messages, *request.tail]
        same = next((at for at, pair in enumerate(zip(before, messages, strict=False)) if pair[0] != pair[1]), None)
        shared = min(len(before), len(messages)) if same is None else same
        bill.sent.append(counter.count(messages))
        bill.cached.append(counter.count(messages[:shared]))
        before = messages
    return bill


async def work(*operators: Operator, plan_in_history: bool = False) -> Bill:
    """Do the task with a scripted model, and count what it was sent."""
    used = look_with_plan if plan_in_history else look
    model = ScriptedModel(*(call(used.definition.name, place=place) for place in range(CYCLES)), "CR-1042-X")
    agent = Agent(model, tools=[used], loop=op.standard(before_model=operators), limits=Limits(iterations=None))
    result = await agent.run("Which crate weighs 14 kg and goes to Bergen?")
    assert result.output == "CR-1042-X"
    assert plan_in_history or not any(PLAN.text in message.text for message in result.messages)
    return bill_of(model.requests)


def plot(name: str, sent: Sequence[int], most: int) -> str:
    """Return one line of bars, one per cycle."""
    bars = " ▁▂▃▄▅▆▇█"
    return f"{name:>24} {''.join(bars[max(1, round(8 * each / most))] for each in sent)}"


async def main() -> None:
    """Compare three ways to work, and print a table and a plot."""
    window = SlidingWindowCompressor(max_tokens=12_000)
    ways = {
        "plan in the history": await work(plan_in_history=True),
        "plan as a workspace": await work(op.workspace(PLAN)),
        "and a thinking phase": await work(op.workspace(PLAN), op.thinking_phase(window)),
    }
    print(f"{'':>24} {'tokens sent':>12} {'cached':>7} {'cost':>12} {'largest':>8}")
    for name, bill in ways.items():
        share = sum(bill.cached) / sum(bill.sent)
        print(f"{name:>24} {sum(bill.sent):>12,} {share:>7.0%} {bill.cost:>12,.0f} {max(bill.sent):>8,}")
    print("\nTokens of each request, each line to its own largest:")
    for name, bill in ways.items():
        print(plot(name, bill.sent, max(bill.sent)))


if __name__ == "__main__":
    asyncio.run(main())
