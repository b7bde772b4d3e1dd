"""Reasoning strategies, and a tool that guides the model through their stages.

    result = await agent.run("Make 24 from 4 9 10 13.", strategy=tree_of_thoughts(keep=2, depth=3))

A strategy calls the model on branches next to the main branch, publishes its stages and thoughts as events, and returns
one answer. The decorator `strategy` makes a strategy from an async function.
"""

from typing import TYPE_CHECKING

from rxloop._lazy import import_later

__all__: list[str]
import_later(__name__)

# Public names of the package, read by type checkers and by `import_later`.
if TYPE_CHECKING:
    from rxloop.strategies.catalog import STRATEGIES as STRATEGIES
    from rxloop.strategies.catalog import get_stages as get_stages
    from rxloop.strategies.chain_of_thought import chain_of_thought as chain_of_thought
    from rxloop.strategies.engine import strategy as strategy
    from rxloop.strategies.linear import linear as linear
    from rxloop.strategies.plan import Plan as Plan
    from rxloop.strategies.react import react as react
    from rxloop.strategies.rewoo import rewoo as rewoo
    from rxloop.strategies.scratchpad import scratchpad as scratchpad
    from rxloop.strategies.self_ask import self_ask as self_ask
    from rxloop.strategies.self_consistency import normalise as normalise
    from rxloop.strategies.self_consistency import self_consistency as self_consistency
    from rxloop.strategies.step_back import step_back as step_back
    from rxloop.strategies.strategic_thinking import StrategicThinking as StrategicThinking
    from rxloop.strategies.strategic_thinking import strategic_thinking as strategic_thinking
    from rxloop.strategies.strategy_run import Reply as Reply
    from rxloop.strategies.strategy_run import StrategyRun as StrategyRun
    from rxloop.strategies.tree_of_thoughts import tree_of_thoughts as tree_of_thoughts
