"""Messages and pickling of errors."""

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


def list_classes(of: type[RxloopError] = RxloopError) -> Iterator[type[RxloopError]]:
    yield of
    for each in of.__subclasses__():
        if each.__module__.startswith("rxloop."):
            yield from list_classes(each)


def make_error(cls: type[RxloopError]) -> RxloopError:
    """Create an error with arguments for its constructor."""
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


def test_document_contains_the_class_tree() -> None:
    page = (Path(__file__).parents[1] / "docs/errors.md").read_text(encoding="utf-8")
    shown: set[tuple[str, str]] = set()
    above: list[str] = ["RxloopError"]
    for margin, name in re.findall(r"^([ │├└─]+)(\w+)", page.partition("RxloopWarning\n")[0], re.MULTILINE):
        depth = len(margin) // 5
        shown.add((above[depth - 1], name))
        above[depth:] = [name]
    own = [cls for cls in list_classes() if cls is not RxloopError and cls.__module__ == "rxloop.errors"]
    assert shown == {(cls.__bases__[0].__name__, cls.__name__) for cls in own}


def _name(cls: type[RxloopError]) -> str:
    return cls.__qualname__


@pytest.mark.parametrize("cls", sorted({*list_classes()}, key=_name), ids=_name)
def test_errors_keep_their_data_when_pickled(cls: type[RxloopError]) -> None:
    error = make_error(cls)
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is cls
    assert (str(again), again.args, vars(again)) == (str(error), error.args, vars(error))


def test_notes_and_provider_fields_are_pickled() -> None:
    error = RateLimited("slow down", status=429, retry_after=2.5)
    error.add_note("seen in the night")
    again = pickle.loads(pickle.dumps(error))
    assert (again.status, again.retry_after, again.__notes__) == (429, 2.5, ["seen in the night"])


async def run_failing_agent(**options: Any) -> RunError:
    @tool
    async def f(rows: list[int]) -> list[int]:
        """Give."""
        return rows

    agent = Agent(ScriptedModel(call("f", rows=[1]), ProviderError("503")), tools=[f], **options)
    with pytest.raises(RunError) as raised:
        await agent.run("q")
    return raised.value


async def test_run_error_keeps_its_partial_result() -> None:
    error = await run_failing_agent()
    again = pickle.loads(pickle.dumps(error))
    assert again.code == "provider"
    assert again.result.messages == error.result.messages
    assert again.result.task_id == error.result.task_id
    assert list(again.result.thoughts) == list(error.result.thoughts)
    with pytest.raises(TypeError, match="events are immutable"):
        again.result.messages[1].tool_calls[0].arguments["rows"] = 1


async def test_result_that_cannot_be_pickled_is_dropped_from_the_error() -> None:
    error = RunError("503", code="overloaded", result=lambda: None)
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.code, again.result) == ("503", "overloaded", None)


async def test_repr_of_a_run_error_contains_the_code_and_the_run() -> None:
    error = await run_failing_agent()
    assert repr(error) == f"RunError('503', code='provider', task_id='{error.result.task_id}')"
    limited = Agent(ScriptedModel(call("f")), limits=Limits(iterations=1)).run("q")
    await outcome(limited)
    with pytest.raises(errors.LimitReached) as raised:
        await limited
    assert "code='max_iterations'" in repr(raised.value)


def _fails() -> None:
    raise RunError("503", code="overloaded", result=None)


def test_process_pool_transfers_an_error() -> None:
    with ProcessPoolExecutor(1) as pool:
        for _ in range(2):
            with pytest.raises(RunError, match="503"):
                pool.submit(_fails).result()
