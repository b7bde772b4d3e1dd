"""Comparison of all nine reasoning strategies: steps, tokens and answers for the same problem.

Usage: python examples/strategies.py ["What is (3 + 4) * 6 - 2?"]
"""

from __future__ import annotations

import asyncio
import re
import sys
from collections import Counter
from time import perf_counter

from rxloop import Agent, Limits, tool
from rxloop.strategies import (
    chain_of_thought,
    linear,
    react,
    rewoo,
    scratchpad,
    self_ask,
    self_consistency,
    step_back,
    tree_of_thoughts,
)
from rxloop.testing import demo_model

STRATEGIES = [
    linear(max_thoughts=4),
    chain_of_thought(),
    react(max_cycles=5),
    rewoo(),
    scratchpad(),
    self_ask(),
    self_consistency(samples=5),
    step_back(),
    tree_of_thoughts(propose=3, keep=1, depth=2),
]
ROW = "{:<17}{:>7}{:>10}{:>7}{:>7}{:>9}  {}"


@tool(idempotent=True)
async def calculate(expression: str) -> float:
    """Evaluate an arithmetic expression, such as "2 * (3 + 4)"."""
    if not re.fullmatch(r"[\d\s.()+*/%-]{1,100}", expression) or "**" in expression:
        raise ValueError(f"{expression!r} is not an arithmetic expression")
    # `eval` is safe here, because the expression only contains digits and operators.
    return eval(expression)


async def main(problem: str) -> None:
    """Run the strategies and print a table."""
    print(f"{problem}\n")
    print(ROW.format("strategy", "stages", "thoughts", "calls", "tokens", "seconds", "answer"))
    async with Agent(demo_model(delay=0.005), tools=[calculate], limits=Limits(iterations=40)) as agent:
        for strategy in STRATEGIES:
            start = perf_counter()
            run = agent.run(problem, strategy=strategy)
            count = Counter([event.kind async for event in run])
            result = await run
            print(
                ROW.format(
                    getattr(strategy, "__name__", ""),
                    count["stage"],
                    count["thought-stream"],
                    count["llm-call"],
                    result.usage.total_tokens,
                    f"{perf_counter() - start:.2f}",
                    " ".join(result.output.split())[:60],
                )
            )


if __name__ == "__main__":
    asyncio.run(main(" ".join(sys.argv[1:]) or "What is 17 * 24 + 5?"))
