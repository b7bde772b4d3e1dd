"""Requests and events of runs that use `op.compress` and `op.workspace`."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Awaitable, Sequence
from typing import Any

import pytest

from rxloop import (
    Agent,
    ConfigurationError,
    LLMCallEvent,
    MemoryEventLog,
    Message,
    ModelRequest,
    Signal,
    SlidingWindowCompressor,
    Usage,
    op,
)
from rxloop.context import TokenEstimator
from rxloop.context.compression import CompressionState
from rxloop.context.layout import find_problems
from rxloop.errors import ContextLengthExceeded
from rxloop.pipeline.interfaces import Budget
from rxloop.testing import ScriptedModel, turn
from support.long_runs import UNLIMITED, collect_run, compressions, look, look_calls, request_messages
from support.runs import shape


async def test_request_that_fits_is_sent_unchanged() -> None:
    # T88, T99
    plain, fitted = (ScriptedModel(*look_calls(3), "Done.") for _ in range(2))
    await collect_run(plain)
    events = await collect_run(fitted, op.compress(SlidingWindowCompressor(100_000)))
    assert [request_messages(each) for each in fitted.requests] == [request_messages(each) for each in plain.requests]
    assert compressions(events) == []


async def test_uncompressed_history_is_the_same_object() -> None:
    # T99
    before: list[Any] = []

    @op.on(ModelRequest)
    async def remember(request: ModelRequest, ctx: Any) -> AsyncIterator[Signal]:
        before.append(request.messages)
        yield request

    model = ScriptedModel(*look_calls(3), "Done.")
    await collect_run(model, remember, op.compress(SlidingWindowCompressor(100_000)))
    assert all(one.messages is other for one, other in zip(model.requests, before, strict=True))


async def test_history_over_the_limit_is_compressed_and_reported() -> None:
    # T100, T109, T113
    model = ScriptedModel(*look_calls(20), "Done.")
    events = await collect_run(model, op.compress(SlidingWindowCompressor(2_700)))
    reported = compressions(events)
    assert len(reported) >= 2
    for event in reported:
        assert event.tokens_after <= 0.6 * 2_700 < event.tokens_before
        assert event.folded
        assert event.dropped
        assert event.reason == "overflow"
        assert "CR-1000-X" in event.summary
    counter = TokenEstimator()
    for request in model.requests:
        assert counter.count(request_messages(request), request.tools) <= 2_700
        assert find_problems(request.messages) == []
        assert request.messages[0].text == "Find the crate."


async def test_request_only_grows_at_its_end_between_compressions() -> None:
    # T101
    model = ScriptedModel(*look_calls(20), "Done.")
    events = await collect_run(model, op.compress(SlidingWindowCompressor(2_700)))
    cuts = {event.step for event in compressions(events)}
    for before, request in zip(model.requests, model.requests[1:], strict=False):
        if request.step not in cuts:
            assert request_messages(request)[: len(request_messages(before))] == request_messages(before)


async def test_log_keeps_every_message_and_result_sums_the_compressions() -> None:
    # T109, T113
    model = ScriptedModel(*look_calls(20), "Done.")
    agent = Agent(
        model,
        tools=[look],
        limits=UNLIMITED,
        loop=op.standard(before_model=[op.compress(SlidingWindowCompressor(2_700))]),
    )
    run = agent.run("Find the crate.")
    reported = compressions([event async for event in run])
    result = await run
    assert len(result.messages) == 1 + 2 * 20 + 1
    totals = result.compression
    assert totals.count == len(reported)
    assert totals.tokens_before == sum(event.tokens_before for event in reported)
    assert totals.tokens_after == sum(event.tokens_after for event in reported)
    assert totals.dropped == sum(event.dropped for event in reported)
    assert 0 < totals.ratio < 1


async def test_resumed_run_sends_the_same_requests() -> None:
    # T109
    log = MemoryEventLog()
    loop = op.standard(before_model=[op.compress(SlidingWindowCompressor(2_700))])
    whole = ScriptedModel(*look_calls(12), "Done.")
    first = await Agent(whole, tools=[look], limits=UNLIMITED, loop=loop, log=log).run("Find the crate.")
    events = list(await log.read(first.task_id))
    cut_at = [at for at, event in enumerate(events) if event.kind == "context-compressed"][-1]
    for cut in (cut_at, cut_at + 1, cut_at + 2):
        copy = MemoryEventLog()
        await copy.append(first.task_id, events[:cut], expected_seq=0)
        step = int(events[cut_at].step or 0)
        remaining = ScriptedModel(*look_calls(12)[step - 1 :], "Done.")
        again = await Agent(remaining, tools=[look], limits=UNLIMITED, loop=loop, log=copy).resume(first.task_id)
        assert request_messages(remaining.requests[0]) == request_messages(whole.requests[step - 1])
        assert again.messages == first.messages
        assert len(compressions(await copy.read(first.task_id))) == len(compressions(events))


async def test_conversation_continues_with_the_compressed_history() -> None:
    log = MemoryEventLog()
    model = ScriptedModel(*look_calls(12), "Done.", "Again.")
    loop = op.standard(before_model=[op.compress(SlidingWindowCompressor(2_700))])
    agent = Agent(model, tools=[look], limits=UNLIMITED, loop=loop, log=log)
    await agent.run("Find the crate.", context_id="c")
    last = request_messages(model.requests[-1])
    await agent.run("And now?", context_id="c")
    assert request_messages(model.requests[-1])[: len(last)] == last


async def test_refused_request_is_compressed_further() -> None:
    # T100
    model = ScriptedModel(*look_calls(4), ContextLengthExceeded("too long"), "Done.")
    events = await collect_run(model, op.compress(SlidingWindowCompressor(100_000)))
    (reported,) = compressions(events)
    assert reported.reason == "refused"
    assert reported.tokens_after < reported.tokens_before
    assert len(model.requests[-1].messages) < len(model.requests[-2].messages)


async def test_estimate_learns_from_the_usage_that_the_provider_reports() -> None:
    reports = [
        turn(calls=[each], usage=Usage(input_tokens=3_000 + 300 * at, output_tokens=5))
        for at, each in enumerate(look_calls(8))
    ]
    model = ScriptedModel(*reports, "Done.")
    await collect_run(model, op.compress(SlidingWindowCompressor(100_000)))
    estimates = [request.estimate or 0 for request in model.requests]
    assert estimates[0] < 1_000
    assert estimates[-1] == pytest.approx(3_000 + 300 * 8, rel=0.1)


async def test_pinned_messages_and_the_task_are_kept() -> None:
    # T98
    model = ScriptedModel(*look_calls(20), "Done.")
    prompt = [Message.user("Find the crate."), Message.user("Never open it.", pinned=True), Message.user("Begin.")]
    await collect_run(model, op.compress(SlidingWindowCompressor(2_700)), prompt=prompt, instructions="Be brief.")
    for request in model.requests:
        texts = [message.text for message in request_messages(request)]
        assert texts[:2] == ["Be brief.", "Find the crate."]
        assert "Never open it." in texts


async def test_compressor_may_be_asynchronous() -> None:
    class Later(SlidingWindowCompressor):
        def compress(self, messages: Sequence[Message], budget: Budget) -> Awaitable[Sequence[Message]]:  # pyright: ignore[reportIncompatibleMethodOverride]
            async def compress_later() -> Sequence[Message]:
                return super(Later, self).compress(messages, budget)

            return compress_later()

    model = ScriptedModel(*look_calls(12), "Done.")
    assert compressions(await collect_run(model, op.compress(Later(2_700))))


async def test_recorded_view_is_the_view_that_is_sent() -> None:
    # T109
    model = ScriptedModel(*look_calls(12), "Done.")
    events = await collect_run(model, op.compress(SlidingWindowCompressor(2_700)))
    event = compressions(events)[-1]
    request = next(each for each in model.requests if each.step == event.step)
    history = list(model.requests[0].messages)
    assert CompressionState.load(event.view).summary == event.summary
    assert any(message.text == event.summary for message in request.messages)
    assert history[0] in request.messages


async def test_custom_compressor_runs_outside_the_event_loop_thread() -> None:
    threads: list[threading.Thread] = []

    class RecordingCompressor:
        max_tokens = 1

        def compress(self, messages: Sequence[Message], budget: Budget) -> Any:
            threads.append(threading.current_thread())
            return list(messages)

    await collect_run(ScriptedModel("Done."), op.compress(RecordingCompressor()))
    assert threads
    assert threading.main_thread() not in threads


async def test_window_limits_the_number_of_messages() -> None:
    # L124
    model = ScriptedModel(*look_calls(30), "Done.")
    events = await collect_run(model, op.compress(SlidingWindowCompressor(max_messages=11)))
    lengths = [len(request.messages) for request in model.requests]
    assert max(lengths) == 11
    cuts = compressions(events)
    assert len(cuts) >= 3
    assert {event.reason for event in cuts} == {"overflow"}
    for request in model.requests:
        assert find_problems(request.messages, open_tail=False) == []
        assert request.messages[0].text == "Find the crate."
    # A compression leaves at most 60 % of the limit, and requests only grow until the next one.
    at_a_cut = [lengths[int(event.step or 0) - 1] for event in cuts]
    assert all(length <= 6 for length in at_a_cut)
    assert not [event for event in events if isinstance(event, LLMCallEvent) and event.problems]


def test_window_without_a_limit_is_rejected() -> None:
    with pytest.raises(ConfigurationError, match="requires max_tokens, max_messages or both"):
        SlidingWindowCompressor()
    with pytest.raises(ConfigurationError, match="max_messages must be an integer of at least 0 or None, got -1"):
        SlidingWindowCompressor(max_messages=-1)
    assert repr(SlidingWindowCompressor(max_messages=5)) == "SlidingWindowCompressor(max_messages=5, high=1.0, low=0.6)"


@pytest.mark.parametrize("make", [op.compress, op.thinking_phase])
async def test_history_is_compressed_every_n_model_calls_when_it_still_fits(make: Any) -> None:
    model = ScriptedModel(*look_calls(20), "Done.")
    operator = make(SlidingWindowCompressor(100_000), every=5)
    events = await collect_run(model, operator)
    cuts = compressions(events)
    assert [event.step for event in cuts] == ["6", "11", "16", "21"]
    assert {event.reason for event in cuts} == {"steps"}
    for before, request in zip(model.requests, model.requests[1:], strict=False):
        if request.step not in {event.step for event in cuts}:
            assert request.messages[: len(before.messages)] == before.messages[:]
    for event in cuts:
        assert event.tokens_after <= 0.62 * event.tokens_before


async def test_resumed_run_is_compressed_at_the_same_steps() -> None:
    log = MemoryEventLog()
    loop = op.standard(before_model=[op.compress(SlidingWindowCompressor(100_000), every=4)])
    whole = ScriptedModel(*look_calls(9), "Done.")
    first = await Agent(whole, tools=[look], limits=UNLIMITED, loop=loop, log=log).run("Find the crate.")
    events = list(await log.read(first.task_id))
    cut = next(at for at, event in enumerate(events) if event.kind == "llm-call" and event.step == "7")
    copy = MemoryEventLog()
    await copy.append(first.task_id, events[:cut], expected_seq=0)
    remaining = ScriptedModel(*look_calls(9)[6:], "Done.")
    await Agent(remaining, tools=[look], limits=UNLIMITED, loop=loop, log=copy).resume(first.task_id)
    assert [shape(request.messages) for request in remaining.requests] == [
        shape(request.messages) for request in whole.requests[6:]
    ]
