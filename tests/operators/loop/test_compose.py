from typing import Any

import reactivex as rx
from reactivex import Observable
from reactivex import operators as ops

from rxloop.operators.loop.call_model import call_model
from rxloop.operators.loop.compose import compose, describe
from rxloop.operators.loop.run_tools import run_tools
from rxloop.operators.loop.standard import standard


def append(letter: str) -> Any:
    def operator(source: Observable[Any]) -> Observable[Any]:
        return source.pipe(ops.map(lambda text: text + letter))

    return operator


def test_first_operator_is_nearest_to_the_source() -> None:
    seen: list[Any] = []
    operator: Any = compose(append("a"), append("b"), append("c"))

    operator(rx.of("")).subscribe(seen.append)

    assert seen == ["abc"]


def test_empty_composition_returns_its_source() -> None:
    source: Any = rx.of(1, 2)

    assert compose()(source) is source


def test_composition_accepts_more_operators_than_a_pipe() -> None:
    seen: list[Any] = []
    operator: Any = compose(*(append(letter) for letter in "abcdefghijkl"))

    operator(rx.of("")).subscribe(seen.append)

    assert seen == ["abcdefghijkl"]


def test_composition_is_described_by_the_names_of_its_parts() -> None:
    assert describe(compose(call_model(), run_tools())) == "call_model, run_tools"
    assert describe(compose()) == "nothing"
    assert describe(append("a")) == "append"

    def custom_operator(source: Observable[Any]) -> Observable[Any]:
        return source

    assert describe(custom_operator) == "custom_operator"
    assert describe(compose(*standard())) == "call_model, run_tools, checkpoint"
