from typing import Any

from reactivex import Observable

from rxloop.operators.loop.compose import describe
from rxloop.operators.loop.standard import standard


def custom_operator(source: Observable[Any]) -> Observable[Any]:
    return source


def operator_names(*operators: Any, **slots: Any) -> list[str]:
    return [describe(operator) for operator in standard(*operators, **slots)]


def test_standard_loop_calls_the_model_runs_tools_and_writes_checkpoints() -> None:
    assert operator_names() == ["call_model", "run_tools", "checkpoint"]


def test_operators_are_inserted_where_their_parameter_says() -> None:
    assert operator_names(before_model=[custom_operator]) == [
        "custom_operator",
        "call_model",
        "run_tools",
        "checkpoint",
    ]
    assert operator_names(before_tools=[custom_operator]) == [
        "call_model",
        "custom_operator",
        "run_tools",
        "checkpoint",
    ]
    assert operator_names(at_end=[custom_operator, custom_operator]) == [
        "call_model",
        "run_tools",
        "custom_operator",
        "custom_operator",
        "checkpoint",
    ]


def test_standard_returns_a_new_list_each_time() -> None:
    standard().clear()

    assert len(standard()) == 3
