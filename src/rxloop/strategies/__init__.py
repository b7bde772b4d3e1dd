"""Other ways from a question to an answer than the usual loop: nine reasoning strategies, and what to write one with.

    result = await agent.run("Make 24 from 4 9 10 13.", strategy=tree_of_thoughts(keep=2, depth=3))

They ask the model beside the main line, put their stages and thoughts on the stream, and give one answer. `strategy`
makes one of an async function.
"""

from __future__ import annotations

from collections.abc import Callable

from rxloop.pipeline.requests import Strategy
from rxloop.strategies.chain_of_thought import chain_of_thought
from rxloop.strategies.engine import strategy
from rxloop.strategies.linear import linear
from rxloop.strategies.react import react
from rxloop.strategies.rewoo import rewoo
from rxloop.strategies.scratchpad import scratchpad
from rxloop.strategies.self_ask import self_ask
from rxloop.strategies.self_consistency import self_consistency
from rxloop.strategies.step_back import step_back
from rxloop.strategies.strategy_run import Reply, StrategyRun
from rxloop.strategies.tree_of_thoughts import tree_of_thoughts
from rxloop.thinking.stages import table_of

_MAKERS: tuple[Callable[[], Strategy], ...] = (
    linear, chain_of_thought, react, rewoo, scratchpad, self_ask, self_consistency, step_back, tree_of_thoughts
)  # fmt: skip
_BY_NAME = {make.__name__: make for make in _MAKERS}

Reasoning = StrategyRun
"""The same under the name that it had first."""


def by_name(name: str) -> Strategy:
    """Make the strategy of that name or alias, with its default arguments.

    Raises:
        ConfigurationError: There is none; the message lists the nine.
    """
    return _BY_NAME[table_of(name).name]()


__all__ = [
    "Reasoning",
    "Reply",
    "StrategyRun",
    "by_name",
    "chain_of_thought",
    "linear",
    "react",
    "rewoo",
    "scratchpad",
    "self_ask",
    "self_consistency",
    "step_back",
    "strategy",
    "tree_of_thoughts",
]
