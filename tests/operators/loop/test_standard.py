from typing import Any

from reactivex import Observable

from rxloop.operators.loop.compose import describe
from rxloop.operators.loop.standard import standard


def mine(source: Observable[Any]) -> Observable[Any]:
    return source


def names(*places: Any, **named: Any) -> list[str]:
    return [describe(operator) for operator in standard(*places, **named)]


def test_the_usual_loop_calls_the_model_runs_the_tools_and_makes_it_durable() -> None:
    assert names() == ["call_model", "run_tools", "checkpoint"]


def test_each_place_is_where_its_name_says() -> None:
    assert names(before_model=[mine]) == ["mine", "call_model", "run_tools", "checkpoint"]
    assert names(before_tools=[mine]) == ["call_model", "mine", "run_tools", "checkpoint"]
    assert names(at_end=[mine, mine]) == ["call_model", "run_tools", "mine", "mine", "checkpoint"]


def test_what_it_gives_is_a_list_of_ones_own() -> None:
    standard().clear()

    assert len(standard()) == 3
