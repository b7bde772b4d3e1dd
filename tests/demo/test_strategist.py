"""The offline model plays the strategies."""

from contextlib import aclosing

import pytest

from rxloop import Agent, Limits
from rxloop.demo.question_parser import evaluate
from rxloop.strategies import STRATEGIES, tree_of_thoughts
from rxloop.strategies.catalog import load_strategy
from rxloop.testing import OfflineModel
from support.runs import collect
from support.strategy_cases import is_legal, stage_path


async def calculate(expression: str) -> float:
    """Works out a sum."""
    return evaluate(expression)


@pytest.mark.parametrize("name", STRATEGIES)
@pytest.mark.parametrize(
    ("question", "result"),
    [("What is 17 * 24 + 5?", "413"), ("What is 3 + 4?", "7"), ("What is (2 - 8) * (7 - 3) / 2?", "-12")],
)
async def test_it_works_out_a_sum_by_each_of_them(name: str, question: str, result: str) -> None:
    async with aclosing(OfflineModel().provider()) as model:
        agent = Agent(model, tools=[calculate], strategy=name)
        run = agent.run(question, limits=Limits(iterations=50))
        events = await collect(run)
        assert result in (await run).output
    assert is_legal(stage_path(events), name)


@pytest.mark.parametrize(
    "strategy", [tree_of_thoughts(evaluate="vote"), load_strategy("react"), load_strategy("self_ask")]
)
async def test_it_does_so_without_tools_too_and_when_it_has_to_vote(strategy: object) -> None:
    async with aclosing(OfflineModel().provider()) as model:
        result = await Agent(model, strategy=strategy).run("What is 17 * 24 + 5?")  # pyright: ignore[reportArgumentType]
    assert "413" in result.output


async def test_what_is_no_sum_is_left_to_the_other_rules() -> None:
    async with aclosing(OfflineModel().provider()) as model:
        for question in ("Who are you?", "What is 1 / 0?"):
            result = await Agent(model, strategy="chain_of_thought").run(question)
            assert "offline model" in result.output
