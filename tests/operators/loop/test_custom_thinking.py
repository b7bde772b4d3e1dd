"""Custom functions for `op.thinking_phase(think=...)`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rxloop import (
    Agent,
    ConfigurationError,
    Event,
    LLMCallEvent,
    MemoryEventLog,
    Message,
    RunCancelled,
    RunError,
    SlidingWindowCompressor,
    ThinkingFailedEvent,
    Usage,
    op,
)
from rxloop.context import TextWorkspace
from rxloop.context.layout import find_problems
from rxloop.errors import ContextLengthExceeded
from rxloop.pipeline import Budget, Growth, ThinkingResult
from rxloop.protocol import ThinkingNotedEvent
from rxloop.testing import ScriptedModel, call, turn, virtual_time
from support.long_runs import UNLIMITED, collect_run, compressions, look, look_calls

LARGE = SlidingWindowCompressor(100_000)
SMALL = SlidingWindowCompressor(3_500)


@dataclass
class Cycle:
    history: Sequence[Message]
    workspace: str
    results: Sequence[Message]
    budget: Budget


class Thinker:
    """Thinking that records its arguments, and returns notes with the number of the cycle."""

    def __init__(self, result: Callable[[Cycle], Any] | None = None) -> None:
        self.cycles: list[Cycle] = []
        self._result = result

    def think(self, history: Sequence[Message], workspace: str, results: Sequence[Message], budget: Budget) -> Any:
        self.cycles.append(Cycle(history, workspace, results, budget))
        if self._result is not None:
            return self._result(self.cycles[-1])
        return ThinkingResult(current_state=f"Cycle {len(self.cycles)}.")


def notes(model: ScriptedModel) -> list[str]:
    """Return the last line of each request's note."""
    return [request.tail[-1].text.splitlines()[-1] if request.tail else "" for request in model.requests]


def noted(events: Sequence[Event]) -> list[ThinkingNotedEvent]:
    return [event for event in events if isinstance(event, ThinkingNotedEvent)]


def failures(events: Sequence[Event]) -> list[str]:
    return [event.reason for event in events if isinstance(event, ThinkingFailedEvent) and event.thinking]


async def test_think_receives_history_workspace_results_and_budget() -> None:
    thinker, model = Thinker(), ScriptedModel([call("look", place=1), call("look", place=2)], *look_calls(1), "Done.")
    goal: Any = {"id": "crate", "title": "Find the crate"}
    workspace = op.workspace(TextWorkspace("House rules."))
    phase = op.thinking_phase(LARGE, think=thinker.think)
    await collect_run(model, workspace, op.goals(goal), phase, instructions="Be brief.")
    first = thinker.cycles[0]
    assert [message.role for message in first.history] == ["user", "assistant", "tool", "tool"]
    assert first.workspace == "House rules.\n\n[Goals, as they are now]\n- crate (pending): Find the crate"
    assert [message.text[:10] for message in first.results] == ["At 1 stand", "At 2 stand"]
    assert (first.budget.tokens, list(first.budget.sent), list(first.budget.dropped)) == (400, list(first.history), [])
    assert len(thinker.cycles[1].results) == 1


@pytest.mark.parametrize("is_async", [False, True])
async def test_note_is_sent_at_the_end_of_the_next_request_only(is_async: bool) -> None:
    thinker = Thinker()

    async def think(*arguments: Any) -> ThinkingResult:
        await asyncio.sleep(0)
        return thinker.think(*arguments)

    model = ScriptedModel(*look_calls(3), "Done.")
    events = await collect_run(model, op.thinking_phase(LARGE, think=think if is_async else thinker.think))
    assert notes(model) == ["", "Cycle 1.", "Cycle 2.", "Cycle 3."]
    assert all(len(request.tail) <= 1 for request in model.requests)
    assert [event.note for event in noted(events)] == ["Cycle 1.", "Cycle 2.", "Cycle 3."]
    assert [event.position for event in noted(events)] == [3, 5, 7]
    assert not any("Cycle" in message.text for request in model.requests for message in request.messages)
    assert model.requests[-1].thinking is not None
    assert model.requests[-1].thinking.current_state == "Cycle 3."


async def test_note_is_repeated_until_the_next_cycle() -> None:
    model = ScriptedModel(*look_calls(7), "Done.")
    await collect_run(model, op.thinking_phase(LARGE, think=Thinker().think, think_every=3))
    assert notes(model) == ["", "", "", *["Cycle 1."] * 3, *["Cycle 2."] * 2]


def has_five_messages(since: Growth) -> bool:
    return since.messages >= 5


def has_a_thousand_tokens(since: Growth) -> bool:
    return since.tokens >= 1_000


@pytest.mark.parametrize(
    ("trigger", "cycles"), [(has_five_messages, [5, 11]), (has_a_thousand_tokens, [11]), (lambda since: False, [])]
)
async def test_think_is_called_when_a_trigger_decides_so(trigger: Any, cycles: list[int]) -> None:
    model = ScriptedModel(*look_calls(7), "Done.")
    events = await collect_run(model, op.thinking_phase(LARGE, think=Thinker().think, think_every=trigger))
    assert [event.position for event in noted(events)] == cycles


@pytest.mark.parametrize("option", ["every", "think_every"])
async def test_run_fails_when_a_trigger_raises_an_error(option: str) -> None:
    def trigger(since: Growth) -> bool:
        raise LookupError("no such limit")

    options: dict[str, Any] = {option: trigger}
    phase = op.thinking_phase(LARGE, think=Thinker().think, **options)
    with pytest.raises(RunError, match="no such limit"):
        await Agent(ScriptedModel("Done."), loop=op.standard(before_model=[phase])).run("Find the crate.")


@pytest.mark.parametrize("trigger", [True, 0, "5"])
def test_trigger_must_be_a_number_or_a_function(trigger: Any) -> None:
    for option in ("every", "think_every"):
        with pytest.raises(ConfigurationError, match="at least 1, or a function"):
            op.thinking_phase(LARGE, **{option: trigger})


def test_trigger_must_not_be_an_async_function() -> None:
    async def trigger(since: Growth) -> bool:
        return False

    with pytest.raises(ConfigurationError, match="at least 1, or a function"):
        op.compress(LARGE, every=cast("Any", trigger))


async def test_model_calls_of_earlier_runs_of_the_conversation_are_not_counted() -> None:
    thinker, log = Thinker(), MemoryEventLog()
    phase = op.thinking_phase(LARGE, think=thinker.think, think_every=3)
    model = ScriptedModel(*look_calls(4), "Done.", *look_calls(4), "Done.")
    agent = Agent(model, log=log, tools=[look], loop=op.standard(before_model=[phase]))
    for _ in range(2):
        await agent.run("Find the crate.", context_id="c")
    assert [(len(cycle.history), len(cycle.results)) for cycle in thinker.cycles] == [(7, 1), (17, 1)]


async def test_summary_replaces_the_removed_messages() -> None:
    def result(cycle: Cycle) -> ThinkingResult:
        places = [message.text.split()[1] for message in cycle.budget.dropped if message.role == "tool"]
        return ThinkingResult(summary=f"Looked at {', '.join(places)}." if places else "")

    model = ScriptedModel(*look_calls(14), "Done.")
    events = await collect_run(model, op.thinking_phase(SMALL, think=Thinker(result).think, think_every=100))
    [event] = compressions(events)
    assert "Looked at 0, 1, 2" in event.summary
    assert "CR-1000-X" in event.summary
    assert sum("Looked at 0" in message.text for message in model.requests[-1].messages) == 1
    assert model.requests[-1].thinking is not None
    assert "Looked at 0" in model.requests[-1].thinking.summary


async def test_summary_is_a_part_of_the_note_when_no_messages_are_removed() -> None:
    thinker = Thinker(lambda cycle: ThinkingResult(summary="All is well.", current_state="Go on."))
    model = ScriptedModel(*look_calls(1), "Done.")
    await collect_run(model, op.thinking_phase(LARGE, think=thinker.think))
    assert model.requests[1].tail[-1].text.endswith("All is well.\nGo on.")


async def test_messages_of_think_are_sent_instead_of_the_history() -> None:
    def result(cycle: Cycle) -> ThinkingResult:
        return ThinkingResult(compressed_history=[cycle.history[0], *cycle.history[-2:]])

    model = ScriptedModel(*look_calls(5), "Done.")
    events = await collect_run(model, op.thinking_phase(LARGE, think=Thinker(result).think, think_every=3))
    assert [len(request.messages) for request in model.requests] == [1, 3, 5, 3, 5, 7]
    assert [(event.reason, event.dropped) for event in compressions(events)] == [("thinking", 4)]


async def test_think_cannot_remove_the_question_or_pinned_messages() -> None:
    pinned = Message.user("Metric units only.", pinned=True)
    thinker = Thinker(lambda cycle: ThinkingResult(compressed_history=cycle.history[-2:]))
    model = ScriptedModel(*look_calls(3), "Done.")
    prompt = [Message.user("Hi."), pinned, Message.user("Find the crate.")]
    events = await collect_run(model, op.thinking_phase(LARGE, think=thinker.think, think_every=3), prompt=prompt)
    assert [message.text for message in model.requests[-1].messages[:3]] == [message.text for message in prompt]
    assert [event.problems for event in events if isinstance(event, LLMCallEvent) and event.problems] == []


@given(st.lists(st.sets(st.integers(0, 16)), min_size=8, max_size=8), st.booleans())
@settings(max_examples=50)
def test_requests_are_valid_for_any_messages_of_think(removed: list[set[int]], window: bool) -> None:
    # T93, T95
    choices = iter(removed)

    def result(cycle: Cycle) -> ThinkingResult:
        indexes = next(choices)
        kept = [message for index, message in enumerate(cycle.history) if index not in indexes]
        return ThinkingResult(compressed_history=kept, summary="Some messages are left out.")

    calls = [look_calls(2, first=2 * number) for number in range(8)]
    model = ScriptedModel(*calls, "Done.")
    phase = op.thinking_phase(SMALL if window else LARGE, think=Thinker(result).think)
    events = asyncio.run(collect_run(model, phase))
    assert len(model.requests) == 9
    # Requests are repaired again before they are sent.
    assert [event.problems for event in events if isinstance(event, LLMCallEvent) and event.problems] == []
    for request in model.requests:
        assert find_problems(request.messages) == []
        assert request.messages[0].text == "Find the crate."


@pytest.mark.parametrize(
    ("result", "reason"),
    [
        (lambda cycle: "Go on.", "think must return a ThinkingResult, got 'Go on.'"),
        (
            lambda cycle: ThinkingResult(insights=cast("Any", "word")),
            "insights and next_actions must be tuples of strings",
        ),
        (lambda cycle: ThinkingResult(next_actions=cast("Any", count())), "must be tuples of strings"),
        (lambda cycle: "long" * 9_999, "must return a ThinkingResult, got 'longlonglonglonglong"),
        (lambda cycle: 1 / 0, "ZeroDivisionError: division by zero"),
        (lambda cycle: ThinkingResult(current_state="word " * 500), "the note must have at most 400 tokens, got"),
        (lambda cycle: ThinkingResult(compressed_history=[cycle.history[1], cycle.history[0]]), "keep the order"),
        (lambda cycle: ThinkingResult(compressed_history=[*cycle.history, Message.user("More")]), "more than the"),
    ],
)
async def test_request_is_sent_unchanged_when_think_fails_three_times(
    result: Callable[[Cycle], Any], reason: str
) -> None:
    # T105, T106, T115
    thinker, model = Thinker(result), ScriptedModel(*look_calls(20), "Done.")
    events = await collect_run(model, op.thinking_phase(SMALL, think=thinker.think))
    assert len(thinker.cycles) == len(failures(events)) == 3
    assert all(reason in each and len(each) < 200 for each in failures(events))
    assert noted(events) == []
    assert notes(model) == [""] * 21
    # Compression does not depend on thinking.
    assert len(compressions(events)) == 2


async def test_compression_and_thinking_fail_independently() -> None:
    class Broken:
        max_tokens = 700

        def compress(self, messages: Sequence[Message], budget: Budget) -> list[Message]:
            raise LookupError("broken")

    model = ScriptedModel(*look_calls(9), "Done.")
    events = await collect_run(model, op.thinking_phase(Broken(), think=Thinker().think))
    assert [event.thinking for event in events if isinstance(event, ThinkingFailedEvent)] == [False] * 3
    assert notes(model)[-1] == "Cycle 9."


async def test_think_cannot_change_the_messages_to_send() -> None:
    def change(cycle: Cycle) -> ThinkingResult:
        cast("list[Message]", cycle.budget.sent).clear()
        return ThinkingResult()

    model = ScriptedModel(*look_calls(20), "Done.")
    phase = op.thinking_phase(SMALL, think=Thinker(change).think, think_every=1_000)
    events = await collect_run(model, phase)
    assert compressions(events)
    assert failures(events)[0].startswith("AttributeError")
    assert all(len(request.messages) > 1 for request in model.requests[1:])


@pytest.mark.parametrize("error", [asyncio.CancelledError(), SystemExit(3)])
@pytest.mark.parametrize("is_async", [False, True])
async def test_error_that_would_end_the_caller_is_a_failure_of_think(error: BaseException, is_async: bool) -> None:
    def fail(*arguments: Any) -> ThinkingResult:
        raise error

    async def fail_later(*arguments: Any) -> ThinkingResult:
        raise error

    model = ScriptedModel(*look_calls(2), "Done.")
    events = await collect_run(model, op.thinking_phase(LARGE, think=fail_later if is_async else fail))
    assert [each.startswith("RuntimeError: the function") for each in failures(events)] == [True, True]


def test_slow_think_is_cancelled_after_its_timeout() -> None:
    async def think(*arguments: Any) -> ThinkingResult:
        await asyncio.sleep(3)
        return ThinkingResult()

    with virtual_time() as time:
        model = ScriptedModel(*look_calls(6), "Done.")
        events = time.run(collect_run(model, op.thinking_phase(LARGE, think=think, timeout=2)))
        assert time.now == pytest.approx(6)  # pyright: ignore[reportUnknownMemberType]
    assert failures(events) == ["think took more than 2 s"] * 3


def test_cancelled_run_cancels_think() -> None:
    # T110
    ended: list[str] = []

    async def think(*arguments: Any) -> ThinkingResult:
        try:
            await asyncio.sleep(9)
        finally:
            ended.append("cancelled")
        return ThinkingResult()

    with virtual_time() as time:
        loop = op.standard(before_model=[op.thinking_phase(LARGE, think=think)])
        run = Agent(ScriptedModel(*look_calls(2), "Done."), tools=[look], loop=loop).run("Find the crate.")
        time.at(2, run.cancel)
        with pytest.raises(RunCancelled):
            time.run(run)
        assert time.now < 3
    assert ended == ["cancelled"]


async def test_think_is_not_called_again_when_a_request_is_refused() -> None:
    # T107
    thinker = Thinker()
    model = ScriptedModel(*look_calls(6), ContextLengthExceeded("too long"), *look_calls(1), "Done.")
    events = await collect_run(model, op.thinking_phase(LARGE, think=thinker.think))
    assert [event.reason for event in compressions(events)] == ["refused"]
    assert len(thinker.cycles) == 7
    assert notes(model) == ["", *(f"Cycle {number}." for number in (1, 2, 3, 4, 5, 6, 6, 7))]


async def test_usage_of_think_is_counted_separately() -> None:
    # T108
    used = Usage(input_tokens=50, output_tokens=2)
    thinker = Thinker(lambda cycle: ThinkingResult(current_state="Go on.", thinking_tokens=used))
    model = ScriptedModel(*(turn(calls=[each], usage=Usage(input_tokens=9)) for each in look_calls(2)), "Done.")
    loop = op.standard(before_model=[op.thinking_phase(LARGE, think=thinker.think)])
    result = await Agent(model, tools=[look], loop=loop).run("Find the crate.")
    assert result.usage == Usage(input_tokens=18)
    assert result.compression.thinking == Usage(input_tokens=100, output_tokens=4)


async def test_agent_can_think_for_another_agent() -> None:
    thinker = Agent(ScriptedModel("Look at 2 next."), name="thinker")

    async def think(history: Sequence[Message], workspace: str, results: Sequence[Message], budget: Budget) -> Any:
        result = await thinker.run(f"{workspace}\n{results[-1].text}")
        return ThinkingResult(next_actions=(result.output,), thinking_tokens=result.usage)

    model = ScriptedModel(*look_calls(1), "Done.")
    await collect_run(model, op.thinking_phase(LARGE, think=think))
    assert notes(model) == ["", "To do: Look at 2 next."]


async def test_resumed_run_continues_with_its_note() -> None:
    log, thinker, model = MemoryEventLog(), Thinker(), ScriptedModel(*look_calls(6), "Done.")
    loop = op.standard(before_model=[op.thinking_phase(LARGE, think=thinker.think, think_every=3)])
    agent = Agent(model, tools=[look], log=log, loop=loop, limits=UNLIMITED)
    run = agent.run("Find the crate.")
    async for event in run:
        if event.kind == "tool-start" and event.step == "4":
            run.cancel()
    again = Agent(model, tools=[look], log=log, loop=loop, limits=UNLIMITED)
    await again.resume(run.task_id)
    assert notes(model)[3:] == ["Cycle 1.", "Cycle 1.", "Cycle 1.", "Cycle 2."]


@pytest.mark.parametrize("publish", [False, True])
async def test_clients_receive_notes_only_if_they_are_published(publish: bool) -> None:
    model = ScriptedModel(*look_calls(2), "Done.")
    events = await collect_run(model, op.thinking_phase(LARGE, think=Thinker().think, publish=publish))
    assert [event.to_public() is not None for event in noted(events)] == [publish] * 2


@pytest.mark.parametrize(("publish", "count"), [(False, 0), (True, 2)])
async def test_notes_built_from_rules_are_events_only_if_they_are_published(publish: bool, count: int) -> None:
    model = ScriptedModel(*look_calls(2), "Done.")
    events = await collect_run(model, op.thinking_phase(LARGE, publish=publish))
    assert [event.public for event in noted(events)] == [True] * count
    assert notes(model)[-1] == "2 model calls so far. The last one called look."


async def test_note_is_published_once_when_a_request_is_refused() -> None:
    model = ScriptedModel(*look_calls(2), ContextLengthExceeded("too long"), "Done.")
    events = await collect_run(model, op.thinking_phase(LARGE, publish=True))
    assert [event.step for event in noted(events)] == ["2", "3"]


async def test_thinking_model_reads_the_workspace() -> None:
    small = ScriptedModel(*['{"goal": "Find it"}'] * 3, name="small")
    phase = op.thinking_phase(SMALL, thinking_model=small)
    await collect_run(ScriptedModel(*look_calls(14), "Done."), op.workspace(TextWorkspace("House rules.")), phase)
    assert "The workspace, which stays in view:\nHouse rules.\n" in small.requests[0].messages[0].text


@pytest.mark.parametrize(
    "options",
    [
        {"think": 5},
        {"think": Thinker().think, "thinking_model": "zai:glm-4.5-air"},
        {"think": Thinker().think, "think_every": 0},
        {"every": "often"},
    ],
)
def test_invalid_options_are_rejected(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=r"think must be|think_every must be|every must be"):
        op.thinking_phase(LARGE, **options)
