"""Errors say what they are, and go from one process to another."""

from __future__ import annotations

import pickle
import re
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from rxloop import Agent, Limits, RxloopError, errors, tool
from rxloop.errors import ProviderError, RateLimited, RunError
from rxloop.protocol.events import CustomEvent
from rxloop.testing import ScriptedModel, call
from support.runs import outcome

EVENT = CustomEvent(name="x", data={"a": [1]})
FIELDS: dict[str, Any] = {
    "code": "a_code",
    "result": None,
    "strategy": "s",
    "stage": "one",
    "target": None,
    "allowed": ("two",),
    "rule": "seq",
    "event": EVENT,
    "other": None,
    "position": 3,
    "expected": EVENT,
    "actual": None,
}


def classes(of: type[RxloopError] = RxloopError) -> Iterator[type[RxloopError]]:
    yield of
    for each in of.__subclasses__():
        if each.__module__.startswith("rxloop."):
            yield from classes(each)


def made(cls: type[RxloopError]) -> RxloopError:
    """An error of that class, with whatever its constructor wants."""
    while True:
        fields: dict[str, Any] = {}
        for _ in range(len(FIELDS) + 1):
            try:
                return cls("what happened", **fields)
            except TypeError as error:
                missing = [name for name in FIELDS if repr(name) in str(error) and name not in fields]
                if not missing:
                    return cls("a_reason", "what happened")  # type: ignore[call-arg]
                fields |= {name: FIELDS[name] for name in missing}


def test_the_document_shows_the_tree_of_the_classes() -> None:
    page = (Path(__file__).parents[1] / "docs/errors.md").read_text(encoding="utf-8")
    shown: set[tuple[str, str]] = set()
    above: list[str] = ["RxloopError"]
    for margin, name in re.findall(r"^([ │├└─]+)(\w+)", page.partition("RxloopWarning\n")[0], re.MULTILINE):
        depth = len(margin) // 5
        shown.add((above[depth - 1], name))
        above[depth:] = [name]
    own = [cls for cls in classes() if cls is not RxloopError and cls.__module__ == "rxloop.errors"]
    assert shown == {(cls.__bases__[0].__name__, cls.__name__) for cls in own}


def _name(cls: type[RxloopError]) -> str:
    return cls.__qualname__


@pytest.mark.parametrize("cls", sorted({*classes()}, key=_name), ids=_name)
def test_every_error_of_the_tree_goes_through_pickle_with_all_that_it_holds(cls: type[RxloopError]) -> None:
    error = made(cls)
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is cls
    assert (str(again), again.args, vars(again)) == (str(error), error.args, vars(error))


def test_a_note_and_the_fields_of_a_provider_stay() -> None:
    error = RateLimited("slow down", status=429, retry_after=2.5)
    error.add_note("seen in the night")
    again = pickle.loads(pickle.dumps(error))
    assert (again.status, again.retry_after, again.__notes__) == (429, 2.5, ["seen in the night"])


async def failed(**options: Any) -> RunError:
    @tool
    async def f(rows: list[int]) -> list[int]:
        """Give."""
        return rows

    agent = Agent(ScriptedModel(call("f", rows=[1]), ProviderError("503")), tools=[f], **options)
    with pytest.raises(RunError) as raised:
        await agent.run("q")
    return raised.value


async def test_the_error_of_a_run_keeps_its_partial_result() -> None:
    error = await failed()
    again = pickle.loads(pickle.dumps(error))
    assert again.code == "provider"
    assert again.result.messages == error.result.messages
    assert again.result.task_id == error.result.task_id
    assert list(again.result.thoughts) == list(error.result.thoughts)
    with pytest.raises(TypeError, match="events are immutable"):
        again.result.messages[1].tool_calls[0].arguments["rows"] = 1


async def test_an_error_whose_result_cannot_be_pickled_goes_without_it() -> None:
    error = RunError("503", code="overloaded", result=lambda: None)
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.code, again.result) == ("503", "overloaded", None)


async def test_the_repr_of_a_runs_error_has_its_code_and_the_run() -> None:
    error = await failed()
    assert repr(error) == f"RunError('503', code='provider', task_id='{error.result.task_id}')"
    limited = Agent(ScriptedModel(call("f")), limits=Limits(iterations=1)).run("q")
    await outcome(limited)
    with pytest.raises(errors.LimitReached) as raised:
        await limited
    assert "code='max_iterations'" in repr(raised.value)


def _fails() -> None:
    raise RunError("503", code="overloaded", result=None)


def test_a_pool_of_processes_survives_an_error() -> None:
    with ProcessPoolExecutor(1) as pool:
        for _ in range(2):
            with pytest.raises(RunError, match="503"):
                pool.submit(_fails).result()
