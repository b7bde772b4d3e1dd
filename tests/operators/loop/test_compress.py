"""`op.compress` and `op.workspace` in runs: what is sent, what is said of it, and what a resumed run sends."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Sequence
from typing import Any

import pytest

from long_runs import MANY, compressions, look, looks, run_of, sent
from runs import shape
from rxloop import (
    Agent,
    ConfigurationError,
    ContextLengthExceeded,
    LLMCallEvent,
    MemoryEventLog,
    Message,
    ModelRequest,
    Signal,
    ThinkingFailedEvent,
    Usage,
    op,
)
from rxloop.context import (
    CompositeWorkspace,
    LastCut,
    Scratchpad,
    SlidingWindowCompressor,
    TextWorkspace,
    TokenEstimator,
    problems_of,
)
from rxloop.pipeline.seams import Budget
from rxloop.pipeline.values import Rendered, WorkspacePart
from rxloop.testing import ScriptedModel, turn, virtual_time


async def test_a_request_that_fits_is_left_alone() -> None:
    # T88, T99
    plain, fitted = (ScriptedModel(*looks(3), "Done.") for _ in range(2))
    await run_of(plain)
    events = await run_of(fitted, op.compress(SlidingWindowCompressor(100_000)))
    assert [sent(each) for each in fitted.requests] == [sent(each) for each in plain.requests]
    assert compressions(events) == []


async def test_the_untouched_history_is_the_very_same_object() -> None:
    # T99
    before: list[Any] = []

    @op.on(ModelRequest)
    async def remember(request: ModelRequest, ctx: Any) -> AsyncIterator[Signal]:
        before.append(request.messages)
        yield request

    model = ScriptedModel(*looks(3), "Done.")
    await run_of(model, remember, op.compress(SlidingWindowCompressor(100_000)))
    assert all(one.messages is other for one, other in zip(model.requests, before, strict=True))


async def test_an_overflow_is_cut_and_told() -> None:
    # T100, T109, T113
    model = ScriptedModel(*looks(20), "Done.")
    events = await run_of(model, op.compress(SlidingWindowCompressor(3_000)))
    told = compressions(events)
    assert len(told) >= 2
    for event in told:
        assert event.tokens_after <= 0.6 * 3_000 < event.tokens_before
        assert event.folded
        assert event.dropped
        assert event.reason == "overflow"
        assert "CR-1000-X" in event.summary
    counter = TokenEstimator()
    for request in model.requests:
        assert counter.count(sent(request), request.tools) <= 3_000
        assert problems_of(request.messages) == []
        assert request.messages[0].text == "Find the crate."


async def test_between_two_cuts_a_request_only_grows_at_its_end() -> None:
    # T101
    model = ScriptedModel(*looks(20), "Done.")
    events = await run_of(model, op.compress(SlidingWindowCompressor(3_000)))
    cuts = {event.step for event in compressions(events)}
    for before, request in zip(model.requests, model.requests[1:], strict=False):
        if request.step not in cuts:
            assert sent(request)[: len(sent(before))] == sent(before)


async def test_the_log_keeps_every_message_and_the_result_has_the_sums() -> None:
    # T109, T113
    model = ScriptedModel(*looks(20), "Done.")
    agent = Agent(
        model, tools=[look], limits=MANY, loop=op.standard(before_model=[op.compress(SlidingWindowCompressor(3_000))])
    )
    run = agent.run("Find the crate.")
    told = compressions([event async for event in run])
    result = await run
    assert len(result.messages) == 1 + 2 * 20 + 1
    totals = result.compression
    assert totals.count == len(told)
    assert totals.tokens_before == sum(event.tokens_before for event in told)
    assert totals.tokens_after == sum(event.tokens_after for event in told)
    assert totals.dropped == sum(event.dropped for event in told)
    assert 0 < totals.ratio < 1


async def test_a_resumed_run_sends_what_it_would_have_sent() -> None:
    # T109
    log = MemoryEventLog()
    loop = op.standard(before_model=[op.compress(SlidingWindowCompressor(3_000))])
    whole = ScriptedModel(*looks(12), "Done.")
    first = await Agent(whole, tools=[look], limits=MANY, loop=loop, log=log).run("Find the crate.")
    events = list(await log.read(first.task_id))
    cut_at = [at for at, event in enumerate(events) if event.kind == "context-compressed"][-1]
    for cut in (cut_at, cut_at + 1, cut_at + 2):
        copy = MemoryEventLog()
        await copy.append(first.task_id, events[:cut], expected_seq=0)
        step = int(events[cut_at].step or 0)
        rest = ScriptedModel(*looks(12)[step - 1 :], "Done.")
        again = await Agent(rest, tools=[look], limits=MANY, loop=loop, log=copy).resume(first.task_id)
        assert sent(rest.requests[0]) == sent(whole.requests[step - 1])
        assert again.messages == first.messages
        assert len(compressions(await copy.read(first.task_id))) == len(compressions(events))


async def test_a_conversation_goes_on_with_what_was_compressed() -> None:
    log = MemoryEventLog()
    model = ScriptedModel(*looks(12), "Done.", "Again.")
    loop = op.standard(before_model=[op.compress(SlidingWindowCompressor(3_000))])
    agent = Agent(model, tools=[look], limits=MANY, loop=loop, log=log)
    await agent.run("Find the crate.", context_id="c")
    last = sent(model.requests[-1])
    await agent.run("And now?", context_id="c")
    assert sent(model.requests[-1])[: len(last)] == last


async def test_a_refused_request_is_cut_further() -> None:
    # T100
    model = ScriptedModel(*looks(4), ContextLengthExceeded("too long"), "Done.")
    events = await run_of(model, op.compress(SlidingWindowCompressor(100_000)))
    (told,) = compressions(events)
    assert told.reason == "refused"
    assert told.tokens_after < told.tokens_before
    assert len(model.requests[-1].messages) < len(model.requests[-2].messages)


async def test_the_estimate_learns_from_what_the_provider_reports() -> None:
    reports = [
        turn(calls=[each], usage=Usage(input_tokens=3_000 + 300 * at, output_tokens=5))
        for at, each in enumerate(looks(8))
    ]
    model = ScriptedModel(*reports, "Done.")
    await run_of(model, op.compress(SlidingWindowCompressor(100_000)))
    estimates = [request.estimate or 0 for request in model.requests]
    assert estimates[0] < 1_000
    assert estimates[-1] == pytest.approx(3_000 + 300 * 8, rel=0.1)


async def test_pinned_messages_and_the_task_stay() -> None:
    # T98
    model = ScriptedModel(*looks(20), "Done.")
    prompt = [Message.user("Find the crate."), Message.user("Never open it.", pinned=True), Message.user("Begin.")]
    await run_of(model, op.compress(SlidingWindowCompressor(3_000)), prompt=prompt, instructions="Be brief.")
    for request in model.requests:
        texts = [message.text for message in sent(request)]
        assert texts[:2] == ["Be brief.", "Find the crate."]
        assert "Never open it." in texts


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
    plain, model = (ScriptedModel(*looks(8), "Done.") for _ in range(2))
    await run_of(plain)
    events = await run_of(model, op.compress(Broken(result)))
    failures = [event for event in events if isinstance(event, ThinkingFailedEvent)]
    assert len(failures) == 3
    assert all(reason in event.reason for event in failures)
    assert [sent(each) for each in model.requests] == [sent(each) for each in plain.requests]


async def test_what_a_compressor_tears_apart_is_repaired_and_told() -> None:
    # T93, T95
    model = ScriptedModel(*looks(8), "Done.")
    events = await run_of(model, op.compress(Broken(lambda messages: list(messages)[-3:])))
    told = compressions(events)
    assert told
    assert all(event.problems for event in told)
    assert all(problems_of(request.messages) == [] for request in model.requests)
    assert all(request.messages[0].text == "Find the crate." for request in model.requests)


async def test_a_compressor_may_wait() -> None:
    class Later(SlidingWindowCompressor):
        def compress(self, messages: Sequence[Message], budget: Budget) -> Awaitable[Sequence[Message]]:  # pyright: ignore[reportIncompatibleMethodOverride]
            async def later() -> Sequence[Message]:
                return super(Later, self).compress(messages, budget)

            return later()

    model = ScriptedModel(*looks(12), "Done.")
    assert compressions(await run_of(model, op.compress(Later(3_000))))


async def test_the_view_that_is_kept_is_what_is_sent() -> None:
    # T109
    model = ScriptedModel(*looks(12), "Done.")
    events = await run_of(model, op.compress(SlidingWindowCompressor(3_000)))
    told = compressions(events)[-1]
    request = next(each for each in model.requests if each.step == told.step)
    history = list(model.requests[0].messages)
    assert LastCut.load(told.view).summary == told.summary
    assert any(message.text == told.summary for message in request.messages)
    assert history[0] in request.messages


BIG = "The shelf plan of hall seven. " * 900


@pytest.mark.parametrize("phase", [None, op.compress(SlidingWindowCompressor(12_000))])
async def test_a_workspace_is_in_each_request_once_and_never_in_the_history(phase: Any) -> None:
    # T89, T90, T91
    pad = Scratchpad(title="Notes")
    model = ScriptedModel(*looks(9), "Done.")

    @op.on(ModelRequest)
    async def write(request: ModelRequest, ctx: Any) -> AsyncIterator[Signal]:
        pad["count"] = f"<<{request.iteration}>>"
        yield request

    shown = op.workspace(CompositeWorkspace(TextWorkspace(BIG, title="Plan"), pad))
    operators = [write, shown, *([phase] if phase is not None else [])]
    agent = Agent(model, tools=[look], limits=MANY, loop=op.standard(before_model=operators))
    result = await agent.run("Find the crate.")
    tokens = TokenEstimator().count([Message.system(BIG)])
    assert tokens > 5_000
    assert len(model.requests) == 10
    for number, request in enumerate(model.requests, start=1):
        assert [message.text.count("hall seven") for message in sent(request)].count(900) == 1
        assert "hall seven" in request.system[-1].text
        assert f"<<{number}>>" in request.tail[-1].text
        assert f"<<{number - 1}>>" not in "".join(message.text for message in sent(request))
    for message in result.messages:
        assert "hall seven" not in message.text
        assert "<<" not in message.text


async def test_a_workspace_may_be_a_text_or_wait() -> None:
    class Clock:
        def render(self) -> Rendered:
            return "It is noon."

    class Slow:
        async def render(self) -> Rendered:
            return [WorkspacePart("Rules.", "House", "static"), WorkspacePart("  ")]

    model = ScriptedModel("Done.")
    await run_of(model, op.workspace(Clock()), op.workspace(Slow()), instructions="Be brief.")
    assert [message.text for message in sent(model.requests[0])] == [
        "Be brief.",
        "## House\nRules.",
        "Find the crate.",
        "[Workspace, as it is now]\nIt is noon.",
    ]


async def test_an_empty_workspace_leaves_the_request_alone() -> None:
    model = ScriptedModel("Done.")
    await run_of(model, op.workspace(CompositeWorkspace(TextWorkspace(), Scratchpad())))
    assert [message.text for message in sent(model.requests[0])] == ["Find the crate."]


class Making:
    """A compressor of one's own, asked before each call."""

    max_tokens = 1

    def __init__(self, make: Any) -> None:
        self._make = make

    def compress(self, messages: Sequence[Message], budget: Budget) -> Any:
        return self._make(messages)


async def test_a_compressor_that_drops_results_leaves_no_call_without_one() -> None:
    # T115
    model = ScriptedModel(*looks(7), "Done.")
    events = await run_of(model, op.compress(Making(lambda m: [each for each in m if each.role != "tool"])))
    for request in model.requests:
        assert problems_of(request.messages, open_tail=False) == []
        assert len(request.messages) == 1 or request.messages[-1].role == "tool"
    assert any("must stay" in problem for event in compressions(events) for problem in event.problems)


async def test_the_question_of_the_newest_turn_outlives_any_compressor() -> None:
    model = ScriptedModel("One.", *looks(3), "Two.")
    loop = op.standard(before_model=[op.compress(Making(lambda messages: messages[:1]))])
    agent = Agent(model, tools=[look], loop=loop, log=MemoryEventLog())
    await agent.run("First?", context_id="c")
    await agent.run("Second?", context_id="c")
    for request in model.requests[1:]:
        assert "Second?" in [message.text for message in request.messages]


async def test_the_compressor_at_fault_is_named_once_a_run(caplog: pytest.LogCaptureFixture) -> None:
    model = ScriptedModel(*looks(5), "Done.")
    await run_of(model, op.compress(Making(lambda messages: messages[2:])))
    warnings = [each.getMessage() for each in caplog.records if "had to be repaired" in each.getMessage()]
    assert len(warnings) == 1
    assert "Making" in warnings[0]


async def test_a_result_of_which_nothing_is_left_after_its_repair_is_told() -> None:
    model = ScriptedModel("Done.")
    events = await run_of(model, op.compress(Making(lambda messages: [])))
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
    model = ScriptedModel(*looks(4), "Done.")
    try:
        with virtual_time(patience=0.05) as time:
            events = time.run(run_of(model, op.compress(hanging, timeout=2)))
            # After three failures the run goes without.
            assert 6 <= time.now < 7
    finally:
        go.set()
    reasons = [event.reason for event in events if isinstance(event, ThinkingFailedEvent)]
    assert len(reasons) == 3
    assert all("took more than 2 s" in reason for reason in reasons)
    assert events[-1].kind == "status-update"
    assert [len(request.messages) for request in model.requests] == [1, 3, 5, 7, 9]


async def test_a_compressor_of_ones_own_does_not_hold_the_event_loop() -> None:
    threads: list[threading.Thread] = []

    class Noting(Making):
        def compress(self, messages: Sequence[Message], budget: Budget) -> Any:
            threads.append(threading.current_thread())
            return list(messages)

    await run_of(ScriptedModel("Done."), op.compress(Noting(None)))
    assert threads
    assert threading.main_thread() not in threads


async def test_a_window_counts_messages() -> None:
    # L124
    model = ScriptedModel(*looks(30), "Done.")
    events = await run_of(model, op.compress(SlidingWindowCompressor(max_messages=11)))
    lengths = [len(request.messages) for request in model.requests]
    assert max(lengths) == 11
    cuts = compressions(events)
    assert len(cuts) >= 3
    assert {event.reason for event in cuts} == {"overflow"}
    for request in model.requests:
        assert problems_of(request.messages, open_tail=False) == []
        assert request.messages[0].text == "Find the crate."
    # Down to 60 % of it, and in between it only grows.
    at_a_cut = [lengths[int(event.step or 0) - 1] for event in cuts]
    assert all(length <= 6 for length in at_a_cut)
    assert not [event for event in events if isinstance(event, LLMCallEvent) and event.problems]


def test_a_window_needs_a_limit() -> None:
    with pytest.raises(ConfigurationError, match="needs a limit"):
        SlidingWindowCompressor()
    with pytest.raises(ConfigurationError, match="max_messages is -1"):
        SlidingWindowCompressor(max_messages=-1)
    assert repr(SlidingWindowCompressor(max_messages=5)) == "SlidingWindowCompressor(max_messages=5, high=1.0, low=0.6)"


@pytest.mark.parametrize("make", [op.compress, op.thinking_phase])
async def test_a_history_is_cut_every_few_model_calls_though_there_is_room(make: Any) -> None:
    model = ScriptedModel(*looks(20), "Done.")
    operator = make(SlidingWindowCompressor(100_000), every=5)
    events = await run_of(model, operator)
    cuts = compressions(events)
    assert [event.step for event in cuts] == ["6", "11", "16", "21"]
    assert {event.reason for event in cuts} == {"steps"}
    for before, request in zip(model.requests, model.requests[1:], strict=False):
        if request.step not in {event.step for event in cuts}:
            assert request.messages[: len(before.messages)] == before.messages[:]
    for event in cuts:
        assert event.tokens_after <= 0.62 * event.tokens_before


async def test_a_resumed_run_is_cut_at_the_same_steps() -> None:
    log = MemoryEventLog()
    loop = op.standard(before_model=[op.compress(SlidingWindowCompressor(100_000), every=4)])
    whole = ScriptedModel(*looks(9), "Done.")
    first = await Agent(whole, tools=[look], limits=MANY, loop=loop, log=log).run("Find the crate.")
    events = list(await log.read(first.task_id))
    cut = next(at for at, event in enumerate(events) if event.kind == "llm-call" and event.step == "7")
    copy = MemoryEventLog()
    await copy.append(first.task_id, events[:cut], expected_seq=0)
    rest = ScriptedModel(*looks(9)[6:], "Done.")
    await Agent(rest, tools=[look], limits=MANY, loop=loop, log=copy).resume(first.task_id)
    assert [shape(request.messages) for request in rest.requests] == [
        shape(request.messages) for request in whole.requests[6:]
    ]
