from dataclasses import replace
from typing import Any

import pytest
from reactivex.testing import ReactiveTest, TestScheduler

from rxloop.errors import InvalidOutput
from rxloop.operators.loop.typed_output import typed_output
from rxloop.pipeline.requests import IterationEnd
from rxloop.protocol.events import ContentCompleteEvent
from rxloop.protocol.messages import Message, ToolCall
from rxloop.state.history import History
from rxloop.state.run_state import RunState
from rxloop.stream.sources import emit
from support.runs import FakeRequestHost, context


def make_state(content: str, *, retries: int = 0, done: bool = True) -> RunState:
    messages = [Message.user("Hi"), Message.assistant(content)] if done else [Message.user("Hi")]
    return RunState(
        messages=History(messages), last=ContentCompleteEvent(content=content), content=content, retries=retries
    )


def collect_signals(current: RunState, parse: Any = int, **options: Any) -> list[Any]:
    end = IterationEnd(1, context(FakeRequestHost(state=current)))
    seen: list[Any] = []
    failures: list[Exception] = []
    typed_output(parse, **options)(emit(end)).subscribe(seen.append, failures.append)
    return [type(signal).__name__ for signal in seen] + [repr(failure) for failure in failures]


def test_answer_that_fits_passes() -> None:
    assert collect_signals(make_state("7")) == ["IterationEnd"]


def test_invalid_answer_is_sent_back_with_its_error() -> None:
    end = IterationEnd(1, context(FakeRequestHost(state=make_state("seven"))))
    seen: list[Any] = []

    typed_output(int)(emit(end)).subscribe(seen.append)

    note, passed_on = seen
    assert passed_on is end
    assert note.cause == "retry"
    assert note.role == "user"
    assert "invalid literal for int() with base 10: 'seven'" in note.content


def test_message_of_a_branch_is_not_checked() -> None:
    end = IterationEnd(1, context(FakeRequestHost(state=make_state("seven")), branch="b"))
    seen: list[Any] = []

    typed_output(int)(emit(end)).subscribe(seen.append)

    assert seen == [end]


def test_unfinished_answer_passes() -> None:
    assert collect_signals(make_state("seven", done=False)) == ["IterationEnd"]


@pytest.mark.parametrize(("retries", "is_retried"), [(0, False), (1, True), (3, True)])
def test_invalid_answer_is_retried_the_given_number_of_times(retries: int, is_retried: bool) -> None:
    first = collect_signals(make_state("seven"), retries=retries)
    last = collect_signals(make_state("seven", retries=retries), retries=retries)

    assert (first == ["MessageAddedEvent", "IterationEnd"]) is is_retried
    assert InvalidOutput.__name__ in last[0]
    assert f"after {retries} retries" in last[0]


def test_iteration_end_waits_for_the_end_of_the_source() -> None:
    scheduler = TestScheduler()
    end = IterationEnd(1, context(FakeRequestHost(state=make_state("7"))))
    source = scheduler.create_hot_observable(ReactiveTest.on_next(210, end), ReactiveTest.on_completed(300))
    operator: Any = typed_output(int)

    seen = scheduler.start(lambda: operator(source))

    assert seen.messages == [ReactiveTest.on_next(300, end), ReactiveTest.on_completed(300)]
    assert source.subscriptions == [ReactiveTest.subscribe(200, 300)]


def test_exception_of_the_parser_becomes_an_error_of_the_stream() -> None:
    def broken(text: str) -> Any:
        raise ZeroDivisionError("broken")

    assert collect_signals(make_state("7"), broken) == ["ZeroDivisionError('broken')"]


def refused_state(*, retries: int) -> RunState:
    """Return the state after an invalid call of the answer tool."""
    tool_call = ToolCall(id="a", name="final_answer")
    history = History(
        [Message.user("Hi"), Message.assistant(tool_calls=[tool_call]), Message.tool("a", "n: too small")]
    )
    return RunState(messages=history, last=ContentCompleteEvent(tool_calls=[tool_call]), retries=retries)


@pytest.mark.parametrize(("retries", "has_failed"), [(2, False), (3, True)])
def test_invalid_call_of_the_answer_tool_is_retried_until_the_limit(retries: int, has_failed: bool) -> None:
    last = collect_signals(refused_state(retries=retries), by_tool=True)

    assert (last == ["IterationEnd"]) is not has_failed
    if has_failed:
        assert "after 2 retries: n: too small" in last[0]
    assert collect_signals(refused_state(retries=retries)) == ["IterationEnd"]


def test_valid_call_of_the_answer_tool_passes() -> None:
    good = replace(refused_state(retries=0), answered=True, content="7")
    assert collect_signals(good, by_tool=True) == ["IterationEnd"]
    assert collect_signals(replace(good, content="x"), by_tool=True)[0] == "MessageAddedEvent"
