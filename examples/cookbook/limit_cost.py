"""Stop a run when it becomes too expensive.

Use limits for tokens and model calls, and the view `op.cost` for budgets in dollars.
"""

import asyncio

from rxloop import Agent, LimitReached, Limits, RunCancelled, Usage, op, tool
from rxloop.providers import Price
from rxloop.testing import ScriptedModel, call, turn


@tool
async def search(query: str) -> str:
    """Search the web."""
    return "Nothing found."


def make_agent() -> Agent[None, str]:
    step = turn(calls=[call("search", query="cheap flights")], usage=Usage(input_tokens=30_000, output_tokens=2_000))
    model = ScriptedModel(*[step] * 20, name="travel")  # or "openai:gpt-5"
    return Agent(model, tools=[search], limits=Limits(tokens=100_000, iterations=10))


async def limit_tokens() -> None:
    try:
        await make_agent().run("Find a cheap flight.")
    except LimitReached as end:
        print(end)


async def limit_dollars(budget: float) -> None:
    run = make_agent().run("Find a cheap flight.")
    prices = {"travel": Price(input=1.25, output=10)}  # dollars per million tokens

    def check(dollars: float) -> None:
        if dollars > budget:
            run.cancel(f"${dollars:.3f} exceed the budget of ${budget:g}.")

    run.pipe(op.cost(prices)).subscribe(check)
    try:
        await run
    except RunCancelled as end:
        print(f"{end} {end.result.usage.total_tokens:,} tokens")


asyncio.run(limit_tokens())
asyncio.run(limit_dollars(0.1))

# Output:
# 128000 of 100000 tokens are spent (limits.tokens)
# $0.115 exceed the budget of $0.1. 64,000 tokens
