"""Compressors that fail, tear conversations apart or hang: the run goes on without them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from typing import Any

import pytest

from rxloop import (
    Agent,
    ConfigurationError,
    MemoryEventLog,
    Message,
    SlidingWindowCompressor,
    ThinkingFailedEvent,
    op,
)
from rxloop.context.layout import problems_of
from rxloop.pipeline.interfaces import Budget
from rxloop.testing import ScriptedModel, virtual_time
from support.long_runs import collect_run, compressions, look, look_calls, request_messages


class Broken:
    """A compressor of somebody who had no time."""

    max_tokens = 1_000

    def __init__(self, result: Any) -> None:
        self._result = result

    def compress(self, messages: Sequence[Message], budget: Budget) -> Any:
        if isinstance(self._result, Exception):
            raise self._result
        return self._result(messages)


@pytest.mark.parametrize(
    ("result", "reason"),
    [
        (RuntimeError("no"), "RuntimeError: no"),
        (lambda messages: "nonsense", "return a list of messages"),
        (lambda messages: [*messages, *(Message.user("more " * 200),)], "more than"),
        (lambda messages: list(reversed(messages)), "keep the order"),
    ],
)
async def test_a_broken_compressor_does_not_touch_the_run(result: Any, reason: str) -> None:
    # T105, T106, T115
    plain, model = (ScriptedModel(*look_calls(8), "Done.") for _ in range(2))
    await collect_run(plain)
    events = await collect_run(model, op.compress(Broken(result)))
    failures = [event for event in events if isinstance(event, ThinkingFailedEvent)]
    assert len(failures) == 3
    assert all(reason in event.reason for event in failures)
    assert [request_messages(each) for each in model.requests] == [request_messages(each) for each in plain.requests]


async def test_what_a_compressor_tears_apart_is_repaired_and_told() -> None:
    # T93, T95
    model = ScriptedModel(*look_calls(8), "Done.")
    events = await collect_run(model, op.compress(Broken(lambda messages: list(messages)[-3:])))
    told = compressions(events)
    assert told
    assert all(event.problems for event in told)
    assert all(problems_of(request.messages) == [] for request in model.requests)
    assert all(request.messages[0].text == "Find the crate." for request in model.requests)


class Making:
    """A compressor of one's own, asked before each call."""

    max_tokens = 1

    def __init__(self, make: Any) -> None:
        self._make = make

    def compress(self, messages: Sequence[Message], budget: Budget) -> Any:
        return self._make(messages)


async def test_a_compressor_that_drops_results_leaves_no_call_without_one() -> None:
    # T115
    model = ScriptedModel(*look_calls(7), "Done.")
    events = await collect_run(model, op.compress(Making(lambda m: [each for each in m if each.role != "tool"])))
    for request in model.requests:
        assert problems_of(request.messages, open_tail=False) == []
        assert len(request.messages) == 1 or request.messages[-1].role == "tool"
    assert any("must stay" in problem for event in compressions(events) for problem in event.problems)


async def test_the_question_of_the_newest_turn_outlives_any_compressor() -> None:
    model = ScriptedModel("One.", *look_calls(3), "Two.")
    loop = op.standard(before_model=[op.compress(Making(lambda messages: messages[:1]))])
    agent = Agent(model, tools=[look], loop=loop, log=MemoryEventLog())
    await agent.run("First?", context_id="c")
    await agent.run("Second?", context_id="c")
    for request in model.requests[1:]:
        assert "Second?" in [message.text for message in request.messages]


async def test_the_compressor_at_fault_is_named_once_a_run(caplog: pytest.LogCaptureFixture) -> None:
    model = ScriptedModel(*look_calls(5), "Done.")
    await collect_run(model, op.compress(Making(lambda messages: messages[2:])))
    warnings = [each.getMessage() for each in caplog.records if "had to be repaired" in each.getMessage()]
    assert len(warnings) == 1
    assert "Making" in warnings[0]


async def test_a_result_of_which_nothing_is_left_after_its_repair_is_told() -> None:
    model = ScriptedModel("Done.")
    events = await collect_run(model, op.compress(Making(lambda messages: [])))
    assert [event.reason for event in events if isinstance(event, ThinkingFailedEvent)] == [
        "nothing of the result was left after its repair: message 0 of the history must stay"
    ]


def test_what_is_no_compressor_is_refused_when_the_operator_is_made() -> None:
    for wrong in (5, None, "window", SlidingWindowCompressor, object()):
        for make in (op.compress, op.thinking_phase):
            with pytest.raises(ConfigurationError, match="is not a compressor"):
                make(wrong)  # pyright: ignore[reportArgumentType]
    window: Any = SlidingWindowCompressor(1_000)
    odd: list[dict[str, Any]] = [{"counter": 5}, {"every": 0}, {"every": "2"}, {"timeout": 0}, {"timeout": "1"}]
    for options in odd:
        for make in (op.compress, op.thinking_phase):
            with pytest.raises(ConfigurationError, match=next(iter(options))):
                make(window, **options)


@pytest.mark.parametrize("kind", ["async", "sync"])
def test_a_compressor_that_hangs_is_left_after_its_time_and_the_run_goes_on(kind: str) -> None:
    # T105
    go = threading.Event()

    class HangsLater:
        max_tokens = 1

        async def compress(self, messages: Sequence[Message], budget: Budget) -> Sequence[Message]:
            return await asyncio.Event().wait() and messages

    class HangsAtOnce:
        max_tokens = 1

        def compress(self, messages: Sequence[Message], budget: Budget) -> Sequence[Message]:
            go.wait(30)
            return messages

    hanging = HangsLater() if kind == "async" else HangsAtOnce()
    model = ScriptedModel(*look_calls(4), "Done.")
    try:
        with virtual_time(patience=0.05) as time:
            events = time.run(collect_run(model, op.compress(hanging, timeout=2)))
            # After three failures the run goes without.
            assert 6 <= time.now < 7
    finally:
        go.set()
    reasons = [event.reason for event in events if isinstance(event, ThinkingFailedEvent)]
    assert len(reasons) == 3
    assert all("took more than 2 s" in reason for reason in reasons)
    assert events[-1].kind == "status-update"
    assert [len(request.messages) for request in model.requests] == [1, 3, 5, 7, 9]
