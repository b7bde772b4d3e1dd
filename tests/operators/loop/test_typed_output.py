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


def state(content: str, *, retries: int = 0, done: bool = True) -> RunState:
    messages = [Message.user("Hi"), Message.assistant(content)] if done else [Message.user("Hi")]
    return RunState(
        messages=History(messages), last=ContentCompleteEvent(content=content), content=content, retries=retries
    )


def passed(current: RunState, parse: Any = int, **options: Any) -> list[Any]:
    end = IterationEnd(1, context(FakeRequestHost(state=current)))
    seen: list[Any] = []
    failures: list[Exception] = []
    typed_output(parse, **options)(emit(end)).subscribe(seen.append, failures.append)
    return [type(signal).__name__ for signal in seen] + [repr(failure) for failure in failures]


def test_an_answer_that_fits_passes() -> None:
    assert passed(state("7")) == ["IterationEnd"]


def test_an_answer_that_does_not_fit_is_sent_back_with_what_is_wrong() -> None:
    end = IterationEnd(1, context(FakeRequestHost(state=state("seven"))))
    seen: list[Any] = []

    typed_output(int)(emit(end)).subscribe(seen.append)

    note, passed_on = seen
    assert passed_on is end
    assert (note.cause, note.role) == ("retry", "user")
    assert "invalid literal for int() with base 10: 'seven'" in note.content


def test_what_is_said_on_a_line_of_a_strategy_is_no_answer() -> None:
    end = IterationEnd(1, context(FakeRequestHost(state=state("seven")), branch="b"))
    seen: list[Any] = []

    typed_output(int)(emit(end)).subscribe(seen.append)

    assert seen == [end]


def test_what_is_no_answer_yet_passes() -> None:
    assert passed(state("seven", done=False)) == ["IterationEnd"]


@pytest.mark.parametrize(("retries", "sent_back"), [(0, False), (1, True), (3, True)])
def test_so_many_retries_and_no_more(retries: int, sent_back: bool) -> None:
    first = passed(state("seven"), retries=retries)
    last = passed(state("seven", retries=retries), retries=retries)

    assert (first == ["MessageAddedEvent", "IterationEnd"]) is sent_back
    assert InvalidOutput.__name__ in last[0]
    assert f"after {retries} retries" in last[0]


def test_it_waits_for_the_end_of_what_is_before_it() -> None:
    scheduler = TestScheduler()
    end = IterationEnd(1, context(FakeRequestHost(state=state("7"))))
    source = scheduler.create_hot_observable(ReactiveTest.on_next(210, end), ReactiveTest.on_completed(300))
    operator: Any = typed_output(int)

    seen = scheduler.start(lambda: operator(source))

    assert seen.messages == [ReactiveTest.on_next(300, end), ReactiveTest.on_completed(300)]
    assert source.subscriptions == [ReactiveTest.subscribe(200, 300)]


def test_a_parser_that_fails_in_another_way_is_an_error_of_the_stream() -> None:
    def broken(text: str) -> Any:
        raise ZeroDivisionError("broken")

    assert passed(state("7"), broken) == ["ZeroDivisionError('broken')"]


def refused(*, retries: int) -> RunState:
    """After a call for the answer that did not fit."""
    asked = ToolCall(id="a", name="final_answer")
    history = History([Message.user("Hi"), Message.assistant(tool_calls=[asked]), Message.tool("a", "n: too small")])
    return RunState(messages=history, last=ContentCompleteEvent(tool_calls=[asked]), retries=retries)


@pytest.mark.parametrize(("retries", "given_up"), [(2, False), (3, True)])
def test_a_refused_call_for_the_answer_is_tried_again_and_then_given_up(retries: int, given_up: bool) -> None:
    last = passed(refused(retries=retries), by_tool=True)

    assert (last == ["IterationEnd"]) is not given_up
    if given_up:
        assert "after 2 retries: n: too small" in last[0]
    assert passed(refused(retries=retries)) == ["IterationEnd"]


def test_an_answer_by_a_tool_call_passes_when_it_fits() -> None:
    good = replace(refused(retries=0), answered=True, content="7")
    assert passed(good, by_tool=True) == ["IterationEnd"]
    assert passed(replace(good, content="x"), by_tool=True)[0] == "MessageAddedEvent"
