"""Strategies executed with the offline model."""

from contextlib import aclosing

import pytest

from rxloop import Agent, Limits
from rxloop.demo.question_parser import evaluate
from rxloop.strategies import STRATEGIES, tree_of_thoughts
from rxloop.strategies.catalog import StrategyName, load_strategy
from rxloop.testing import OfflineModel
from support.runs import collect
from support.strategy_cases import is_legal, stage_path


async def calculate(expression: str) -> float:
    """Evaluate an expression."""
    return evaluate(expression)


@pytest.mark.parametrize("name", STRATEGIES)
@pytest.mark.parametrize(
    ("question", "result"),
    [("What is 17 * 24 + 5?", "413"), ("What is 3 + 4?", "7"), ("What is (2 - 8) * (7 - 3) / 2?", "-12")],
)
async def test_expression_is_evaluated_with_every_strategy(name: StrategyName, question: str, result: str) -> None:
    async with aclosing(OfflineModel().provider()) as model:
        agent = Agent(model, tools=[calculate], strategy=name)
        run = agent.run(question, limits=Limits(iterations=50))
        events = await collect(run)
        assert result in (await run).output
    assert is_legal(stage_path(events), name)


@pytest.mark.parametrize(
    "strategy", [tree_of_thoughts(evaluate="vote"), load_strategy("react"), load_strategy("self_ask")]
)
async def test_expression_is_evaluated_without_tools_and_with_votes(strategy: object) -> None:
    async with aclosing(OfflineModel().provider()) as model:
        result = await Agent(model, strategy=strategy).run("What is 17 * 24 + 5?")  # pyright: ignore[reportArgumentType]
    assert "413" in result.output


async def test_other_questions_are_answered_by_other_rules() -> None:
    async with aclosing(OfflineModel().provider()) as model:
        for question in ("Who are you?", "What is 1 / 0?"):
            result = await Agent(model, strategy="chain_of_thought").run(question)
            assert "offline model" in result.output
