"""Notes, summaries and failures of `op.thinking_phase`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from rxloop import (
    Agent,
    ConfigurationError,
    ContextCompressedEvent,
    Event,
    Limits,
    ModelRequest,
    RunCancelled,
    RunContext,
    Signal,
    SlidingWindowCompressor,
    ThinkingFailedEvent,
    Usage,
    op,
)
from rxloop.context import TokenEstimator
from rxloop.context.summaries import Summary
from rxloop.errors import ContextLengthExceeded, ProviderTimeout
from rxloop.pipeline import ThinkingResult
from rxloop.testing import ScriptedModel, call, frames, turn, virtual_time
from support.long_runs import UNLIMITED, collect_run, compressions, look, look_calls, request_messages

GOOD = (
    '{"goal": "Find the crate", "done": ["looked at places"], "next": ["look at 7"], "facts": ["CR-1000-X"], '
    '"openErrors": []}'
)
WINDOW = SlidingWindowCompressor(2_700)


def failures(events: list[Event]) -> list[str]:
    return [event.reason for event in events if isinstance(event, ThinkingFailedEvent)]


def thinker(*turns: Any) -> ScriptedModel:
    return ScriptedModel(*turns, name="small")


async def test_note_is_sent_at_the_end_of_a_request_only() -> None:
    # T92
    model = ScriptedModel(
        turn(calls=[call("think_aloud", thought="Look at 3 next.", thought_type="planning"), *look_calls(1)]),
        *look_calls(30, first=1),
        "Done.",
    )
    events = await collect_run(model, op.thinking_phase(WINDOW))
    notes = [request.tail for request in model.requests]
    assert notes[0] == ()
    assert all(len(tail) == 1 for tail in notes[1:])
    assert "To do: Look at 3 next." in notes[5][0].text
    sizes = [len(tail[0].text) for tail in notes[1:]]
    assert max(sizes) < min(sizes) + 20
    summaries = [sum("left out here" in each.text for each in request.messages) for request in model.requests]
    assert max(summaries) == 1
    texts = [message.text for event in events if event.kind == "task" for message in event.messages]  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType, reportUnknownVariableType]
    assert not any("Where you are" in text for text in texts)  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]


async def test_answer_is_the_same_with_and_without_the_thinking_phase() -> None:
    # T88, T114
    plain, model = (ScriptedModel(*look_calls(12), "CR-1003-X") for _ in range(2))
    plain_result = await Agent(plain, tools=[look], limits=UNLIMITED).run("Find the crate.")
    loop = op.standard(before_model=[op.thinking_phase(WINDOW)])
    compressed = await Agent(model, tools=[look], limits=UNLIMITED, loop=loop).run("Find the crate.")
    assert compressed.output == plain_result.output
    assert compressed.messages == plain_result.messages


async def test_usage_of_the_summarising_model_is_counted_separately() -> None:
    # T108, T113
    usage = Usage(input_tokens=700, output_tokens=60)
    small = thinker(*[turn(GOOD, usage=usage)] * 9)
    little = Usage(input_tokens=100, output_tokens=1)
    model = ScriptedModel(*(turn(calls=[each], usage=little) for each in look_calls(20)), "Done.")
    loop = op.standard(before_model=[op.thinking_phase(WINDOW, thinking_model=small)])
    run = Agent(model, tools=[look], limits=UNLIMITED, loop=loop).run("Find the crate.")
    reported = compressions([event async for event in run])
    result = await run
    assert len(small.requests) == len(reported) >= 2
    assert {event.thinking_model for event in reported} == {"small"}
    assert all("Goal: Find the crate" in event.summary and "CR-1000-X" in event.summary for event in reported)
    assert result.usage == Usage(input_tokens=100 * 20, output_tokens=20)
    assert result.compression.thinking == Usage(input_tokens=700 * len(reported), output_tokens=60 * len(reported))
    counter = TokenEstimator()
    assert all(counter.count(request_messages(request), request.tools) <= 2_700 for request in model.requests)
    kinds = [event.kind for event in reported]
    assert "llm-call" not in kinds


async def test_summary_is_updated_and_not_nested() -> None:
    # T103, T104
    small = thinker(*[GOOD] * 9)
    model = ScriptedModel(*look_calls(20), "Done.")
    await collect_run(model, op.thinking_phase(WINDOW, thinking_model=small))
    second = small.requests[1].messages[0].text
    assert "Goal: Find the crate" in second
    assert "CR-1000-X stands" not in second.split("What leaves the view:")[1]
    assert all(message.text.count("[Summary of") <= 1 for request in model.requests for message in request.messages)
    summaries = [sum("[Summary of" in each.text for each in request.messages) for request in model.requests]
    assert max(summaries) == 1


async def test_later_operators_read_the_facts_and_steps_of_the_summary() -> None:
    small = thinker(*[GOOD] * 9)
    model = ScriptedModel(*look_calls(20), "Done.")
    results: list[ThinkingResult] = []

    @op.on(ModelRequest)
    async def read(request: ModelRequest, ctx: RunContext[Any]) -> AsyncIterator[Signal]:
        if request.thinking is not None:
            results.append(request.thinking)
        yield request

    await collect_run(model, op.compose(op.thinking_phase(WINDOW, thinking_model=small), read))
    first = next(result for result in results if "Goal: Find the crate" in result.summary)
    assert first.insights == ("CR-1000-X",)
    assert first.next_actions == ("look at 7",)


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (ProviderTimeout("no answer"), "no answer"),
        ("I cannot do that.", "instead of a JSON object"),
        ("{}", "the summary is empty"),
        ('{"goal": 3}', "does not match its schema"),
        ('{"goal": " "', "instead of a JSON object"),
    ],
)
async def test_rule_based_summary_is_sent_when_the_thinking_model_fails(answer: Any, reason: str) -> None:
    # T105, T106
    small = thinker(*[answer] * 9)
    model, ruled = (ScriptedModel(*look_calls(40), "Done.") for _ in range(2))
    events = await collect_run(model, op.thinking_phase(WINDOW, thinking_model=small))
    assert len(small.requests) == 3
    reasons = failures(events)
    assert len(reasons) == 3
    assert all(reason in each for each in reasons)
    reported = compressions(events)
    assert len(reported) > 3
    assert all("CR-1000-X" in event.summary for event in reported)
    await collect_run(ruled, op.thinking_phase(WINDOW))
    assert [each.messages[0] for each in model.requests] == [each.messages[0] for each in ruled.requests]


def test_thinking_model_that_exceeds_its_timeout_is_cancelled() -> None:
    # T105
    with virtual_time() as time:
        small = thinker(*[frames("-" * 200 + GOOD + "|")] * 9)
        model = ScriptedModel(*look_calls(14), "Done.")
        events = time.run(collect_run(model, op.thinking_phase(WINDOW, thinking_model=small, timeout=1.0)))
    assert failures(events) == ["the thinking model small took more than 1 s"]
    assert len(compressions(events)) == 1


def test_cancelled_run_cancels_the_thinking_model() -> None:
    # T110
    with virtual_time() as time:
        small = thinker(frames("-" * 500 + GOOD + "|"))
        model = ScriptedModel(*look_calls(20), "Done.")
        loop = op.standard(before_model=[op.thinking_phase(WINDOW, thinking_model=small)])
        run = Agent(model, tools=[look], limits=UNLIMITED, loop=loop).run("Find the crate.")
        time.at(2, run.cancel)
        with pytest.raises(RunCancelled) as caught:
            time.run(run)
        assert time.now < 3
    assert len(small.requests) == 1
    result = caught.value.result
    assert result.compression.count == 0
    assert [message.role for message in result.messages].count("tool") == len(model.requests)


async def test_thinking_model_is_not_called_again_when_a_request_is_refused() -> None:
    # T107
    small = thinker(*[GOOD] * 9)
    too_long = ContextLengthExceeded("too long")
    model = ScriptedModel(*look_calls(6), too_long, *look_calls(1), "Done.")
    events = await collect_run(model, op.thinking_phase(WINDOW, thinking_model=small))
    refused = [event for event in compressions(events) if event.reason == "refused"]
    assert len(refused) == 1
    assert len(small.requests) == len(compressions(events)) - 1


async def test_thinking_result_is_attached_to_the_request() -> None:
    model = ScriptedModel(*look_calls(12), "Done.")
    events = await collect_run(model, op.thinking_phase(WINDOW))
    last = model.requests[-1].thinking
    assert isinstance(last, ThinkingResult)
    assert last.summary == compressions(events)[-1].summary
    assert list(last.compressed_history) == list(model.requests[-1].messages)
    assert last.current_state == "12 model calls so far. The last one called look."


async def test_note_can_be_turned_off() -> None:
    model = ScriptedModel(*look_calls(2), "Done.")
    await collect_run(model, op.thinking_phase(WINDOW, note=False))
    assert all(request.tail == () for request in model.requests)


@pytest.mark.parametrize("options", [{"summary_tokens": 0}, {"timeout": 0}])
def test_thinking_phase_rejects_invalid_options(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(options))):
        op.thinking_phase(WINDOW, **options)


def test_summary_is_parsed_from_surrounding_text_and_truncated_to_fit() -> None:
    summary = Summary.read(
        'Here:\n```json\n{"goal": "g", "done": "- a\\n- b", "facts": {"id": 7}, "files": null, "x": 1}\n```'
    )
    assert summary.lines() == ["Goal: g", "Done:", "- a", "- b", "Facts:", "- id: 7"]
    assert summary.text(lambda text: len(text) < 20) == "Goal: g\nDone:\n- b"
    assert summary.text(lambda text: len(text) < 10) == "Goal: g"
    assert summary.text(lambda text: "id: 7" not in text) == "Goal: g\nDone:\n- a\n- b"


async def test_concurrent_runs_of_one_agent_do_not_share_compressions() -> None:
    loop = op.standard(before_model=[op.thinking_phase(WINDOW)])

    async def compress_run(count: int) -> list[ContextCompressedEvent]:
        model = ScriptedModel(*look_calls(count), "Done.")
        agent = Agent(model, tools=[look], loop=loop, limits=Limits(iterations=None))
        return compressions([event async for event in agent.run("Find the crate.")])

    alone = [await compress_run(count) for count in (8, 20, 30)]
    together = await asyncio.gather(*map(compress_run, (8, 20, 30)))
    assert [[event.folded for event in each] for each in together] == [
        [event.folded for event in each] for each in alone
    ]


async def test_thinking_model_named_by_a_string_is_closed_with_the_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    # T108
    models: list[Any] = []

    class Small(ScriptedModel):
        closed = 0

        async def aclose(self) -> None:
            self.closed += 1

    def resolve(name: str) -> Small:
        models.append(Small(*[turn('{"goal": "Find it"}')] * 30))
        assert name == "zai:glm-4.5-air"
        return models[-1]

    monkeypatch.setattr("rxloop.providers.factories.resolve_model", resolve)
    phase = op.thinking_phase(SlidingWindowCompressor(2_700), thinking_model="zai:glm-4.5-air")
    models.clear()
    model = ScriptedModel(*look_calls(20), "Done.")
    async with Agent(model, tools=[look], limits=UNLIMITED, loop=op.standard(before_model=[phase])) as agent:
        events = [event async for event in agent.run("Find the crate.")]
    assert len(models) == 1
    assert models[0].closed == 1
    assert len(models[0].requests) == len(compressions(events)) >= 2
    assert [event for event in events if isinstance(event, ThinkingFailedEvent)] == []


@pytest.mark.parametrize("wrong", [5, object(), ScriptedModel, "nobody:nothing", "no model", ""])
def test_thinking_phase_rejects_an_invalid_model(wrong: Any) -> None:
    with pytest.raises(ConfigurationError):
        op.thinking_phase(SlidingWindowCompressor(2_700), thinking_model=wrong)


async def test_run_continues_when_the_thinking_model_has_no_name() -> None:
    # T105
    class Nameless(ScriptedModel):
        good = True

        @property
        def name(self) -> str:
            if self.good:
                return "small"
            raise AttributeError("no name")

    small = Nameless()
    phase = op.thinking_phase(SlidingWindowCompressor(2_700), thinking_model=small)
    small.good = False
    model = ScriptedModel(*look_calls(20), "Done.")
    events = await collect_run(model, phase)
    assert "no name" in next(event.reason for event in events if isinstance(event, ThinkingFailedEvent))
    assert model.requests[-1].step == "21"
