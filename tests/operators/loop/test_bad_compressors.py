"""Compressors that fail, separate calls from results, or hang."""

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
from rxloop.context.layout import find_problems
from rxloop.pipeline.interfaces import Budget
from rxloop.testing import ScriptedModel, virtual_time
from support.long_runs import collect_run, compressions, look, look_calls, request_messages


class BrokenCompressor:
    """Compressor that raises an exception, or returns the result of a function."""

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
async def test_run_ignores_a_compressor_that_fails(result: Any, reason: str) -> None:
    # T105, T106, T115
    plain, model = (ScriptedModel(*look_calls(8), "Done.") for _ in range(2))
    await collect_run(plain)
    events = await collect_run(model, op.compress(BrokenCompressor(result)))
    failures = [event for event in events if isinstance(event, ThinkingFailedEvent)]
    assert len(failures) == 3
    assert all(reason in event.reason for event in failures)
    assert [request_messages(each) for each in model.requests] == [request_messages(each) for each in plain.requests]


async def test_broken_compression_is_repaired_and_reported() -> None:
    # T93, T95
    model = ScriptedModel(*look_calls(8), "Done.")
    events = await collect_run(model, op.compress(BrokenCompressor(lambda messages: list(messages)[-3:])))
    events_of_compression = compressions(events)
    assert events_of_compression
    assert all(event.problems for event in events_of_compression)
    assert all(find_problems(request.messages) == [] for request in model.requests)
    assert all(request.messages[0].text == "Find the crate." for request in model.requests)


class CallbackCompressor:
    """Compressor with a callback before each model call."""

    max_tokens = 1

    def __init__(self, make: Any) -> None:
        self._make = make

    def compress(self, messages: Sequence[Message], budget: Budget) -> Any:
        return self._make(messages)


async def test_no_call_lacks_its_result_when_a_compressor_drops_results() -> None:
    # T115
    model = ScriptedModel(*look_calls(7), "Done.")
    events = await collect_run(
        model, op.compress(CallbackCompressor(lambda m: [each for each in m if each.role != "tool"]))
    )
    for request in model.requests:
        assert find_problems(request.messages, open_tail=False) == []
        assert len(request.messages) == 1 or request.messages[-1].role == "tool"
    assert any("must stay" in problem for event in compressions(events) for problem in event.problems)


async def test_newest_question_is_sent_whatever_the_compressor_drops() -> None:
    model = ScriptedModel("One.", *look_calls(3), "Two.")
    loop = op.standard(before_model=[op.compress(CallbackCompressor(lambda messages: messages[:1]))])
    agent = Agent(model, tools=[look], loop=loop, log=MemoryEventLog())
    await agent.run("First?", context_id="c")
    await agent.run("Second?", context_id="c")
    for request in model.requests[1:]:
        assert "Second?" in [message.text for message in request.messages]


async def test_faulty_compressor_is_logged_once_per_run(caplog: pytest.LogCaptureFixture) -> None:
    model = ScriptedModel(*look_calls(5), "Done.")
    await collect_run(model, op.compress(CallbackCompressor(lambda messages: messages[2:])))
    warnings = [each.getMessage() for each in caplog.records if "repaired or discarded" in each.getMessage()]
    assert len(warnings) == 1
    assert "CallbackCompressor" in warnings[0]


async def test_thinking_failure_is_reported_when_repair_leaves_no_messages() -> None:
    model = ScriptedModel("Done.")
    events = await collect_run(model, op.compress(CallbackCompressor(lambda messages: [])))
    assert [event.reason for event in events if isinstance(event, ThinkingFailedEvent)] == [
        "nothing of the result was left after its repair: message 0 of the history must stay"
    ]


def test_compression_operators_reject_invalid_compressors_and_options() -> None:
    for wrong in (5, None, "window", SlidingWindowCompressor, object()):
        for make in (op.compress, op.thinking_phase):
            with pytest.raises(ConfigurationError, match="must be a compressor"):
                make(wrong)  # pyright: ignore[reportArgumentType]
    window: Any = SlidingWindowCompressor(1_000)
    odd: list[dict[str, Any]] = [{"counter": 5}, {"every": 0}, {"every": "2"}, {"timeout": 0}, {"timeout": "1"}]
    for options in odd:
        for make in (op.compress, op.thinking_phase):
            with pytest.raises(ConfigurationError, match=next(iter(options))):
                make(window, **options)


@pytest.mark.parametrize("kind", ["async", "sync"])
def test_run_continues_without_a_compressor_that_exceeds_its_timeout(kind: str) -> None:
    # T105
    go = threading.Event()

    class AsyncHang:
        max_tokens = 1

        async def compress(self, messages: Sequence[Message], budget: Budget) -> Sequence[Message]:
            return await asyncio.Event().wait() and messages

    class SyncHang:
        max_tokens = 1

        def compress(self, messages: Sequence[Message], budget: Budget) -> Sequence[Message]:
            go.wait(30)
            return messages

    hanging = AsyncHang() if kind == "async" else SyncHang()
    model = ScriptedModel(*look_calls(4), "Done.")
    try:
        with virtual_time(real_timeout=0.05) as time:
            events = time.run(collect_run(model, op.compress(hanging, timeout=2)))
            # After three failures the run stops calling the compressor.
            assert 6 <= time.now < 7
    finally:
        go.set()
    reasons = [event.reason for event in events if isinstance(event, ThinkingFailedEvent)]
    assert len(reasons) == 3
    assert all("took more than 2 s" in reason for reason in reasons)
    assert events[-1].kind == "status-update"
    assert [len(request.messages) for request in model.requests] == [1, 3, 5, 7, 9]
