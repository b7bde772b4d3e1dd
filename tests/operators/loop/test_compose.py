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


def test_the_first_operator_is_nearest_to_the_source() -> None:
    seen: list[Any] = []
    operator: Any = compose(append("a"), append("b"), append("c"))

    operator(rx.of("")).subscribe(seen.append)

    assert seen == ["abc"]


def test_none_at_all_pass_everything_on() -> None:
    source: Any = rx.of(1, 2)

    assert compose()(source) is source


def test_it_takes_more_operators_than_a_pipe_does() -> None:
    seen: list[Any] = []
    operator: Any = compose(*(append(letter) for letter in "abcdefghijkl"))

    operator(rx.of("")).subscribe(seen.append)

    assert seen == ["abcdefghijkl"]


def test_a_composition_is_called_by_the_names_of_its_parts() -> None:
    assert describe(compose(call_model(), run_tools())) == "call_model, run_tools"
    assert describe(compose()) == "nothing"
    assert describe(append("a")) == "append"

    def mine(source: Observable[Any]) -> Observable[Any]:
        return source

    assert describe(mine) == "mine"
    assert describe(compose(*standard())) == "call_model, run_tools, checkpoint"
