"""`op.thinking_phase`: the note, the summary by a model, and everything that may go wrong with it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from rxloop import (
    Agent,
    ConfigurationError,
    ContextCompressedEvent,
    Event,
    Limits,
    RunCancelled,
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

GOOD = '{"goal": "Find the crate", "done": ["looked at places"], "facts": ["CR-1000-X"], "openErrors": []}'
WINDOW = SlidingWindowCompressor(3_000)


def failures(events: list[Event]) -> list[str]:
    return [event.reason for event in events if isinstance(event, ThinkingFailedEvent)]


def thinker(*turns: Any) -> ScriptedModel:
    return ScriptedModel(*turns, name="small")


async def test_a_note_stands_at_the_end_and_only_there() -> None:
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


async def test_the_answer_is_the_same_with_the_phase_and_without() -> None:
    # T88, T114
    plain, model = (ScriptedModel(*look_calls(12), "CR-1003-X") for _ in range(2))
    without = await Agent(plain, tools=[look], limits=UNLIMITED).run("Find the crate.")
    loop = op.standard(before_model=[op.thinking_phase(WINDOW)])
    with_it = await Agent(model, tools=[look], limits=UNLIMITED, loop=loop).run("Find the crate.")
    assert (with_it.output, with_it.messages) == (without.output, without.messages)


async def test_a_model_writes_the_summary_and_its_usage_is_counted_apart() -> None:
    # T108, T113
    usage = Usage(input_tokens=700, output_tokens=60)
    small = thinker(*[turn(GOOD, usage=usage)] * 9)
    little = Usage(input_tokens=100, output_tokens=1)
    model = ScriptedModel(*(turn(calls=[each], usage=little) for each in look_calls(20)), "Done.")
    loop = op.standard(before_model=[op.thinking_phase(WINDOW, thinking_model=small)])
    run = Agent(model, tools=[look], limits=UNLIMITED, loop=loop).run("Find the crate.")
    told = compressions([event async for event in run])
    result = await run
    assert len(small.requests) == len(told) >= 2
    assert {event.thinking_model for event in told} == {"small"}
    assert all("Goal: Find the crate" in event.summary and "CR-1000-X" in event.summary for event in told)
    assert result.usage == Usage(input_tokens=100 * 20, output_tokens=20)
    assert result.compression.thinking == Usage(input_tokens=700 * len(told), output_tokens=60 * len(told))
    counter = TokenEstimator()
    assert all(counter.count(request_messages(request), request.tools) <= 3_000 for request in model.requests)
    kinds = [event.kind for event in told]
    assert "llm-call" not in kinds


async def test_the_summary_is_brought_up_to_date_and_not_nested() -> None:
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


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (ProviderTimeout("no answer"), "no answer"),
        ("I cannot do that.", "instead of a JSON object"),
        ("{}", "the summary is empty"),
        ('{"goal": 3}', "does not fit"),
        ('{"goal": " "', "instead of a JSON object"),
    ],
)
async def test_whatever_goes_wrong_the_rule_based_summary_is_sent(answer: Any, reason: str) -> None:
    # T105, T106
    small = thinker(*[answer] * 9)
    model, ruled = (ScriptedModel(*look_calls(40), "Done.") for _ in range(2))
    events = await collect_run(model, op.thinking_phase(WINDOW, thinking_model=small))
    assert len(small.requests) == 3
    said = failures(events)
    assert len(said) == 3
    assert all(reason in each for each in said)
    told = compressions(events)
    assert len(told) == 3
    assert all("CR-1000-X" in event.summary for event in told)
    await collect_run(ruled, op.thinking_phase(WINDOW))
    assert [each.messages[0] for each in model.requests] == [each.messages[0] for each in ruled.requests]


def test_a_model_that_takes_too_long_is_cut_off() -> None:
    # T105
    with virtual_time() as time:
        small = thinker(*[frames("-" * 200 + GOOD + "|")] * 9)
        model = ScriptedModel(*look_calls(14), "Done.")
        events = time.run(collect_run(model, op.thinking_phase(WINDOW, thinking_model=small, timeout=1.0)))
    assert failures(events) == ["the thinking model small took more than 1 s"]
    assert len(compressions(events)) == 1


def test_a_cancelled_run_cancels_the_thinking_too() -> None:
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


async def test_the_model_is_not_asked_again_when_a_request_is_refused() -> None:
    # T107
    small = thinker(*[GOOD] * 9)
    too_long = ContextLengthExceeded("too long")
    model = ScriptedModel(*look_calls(6), too_long, *look_calls(1), "Done.")
    events = await collect_run(model, op.thinking_phase(WINDOW, thinking_model=small))
    refused = [event for event in compressions(events) if event.reason == "refused"]
    assert len(refused) == 1
    assert len(small.requests) == len(compressions(events)) - 1


async def test_what_was_thought_travels_on_the_request() -> None:
    model = ScriptedModel(*look_calls(12), "Done.")
    events = await collect_run(model, op.thinking_phase(WINDOW))
    last = model.requests[-1].thinking
    assert isinstance(last, ThinkingResult)
    assert last.summary == compressions(events)[-1].summary
    assert list(last.compressed_history) == list(model.requests[-1].messages)
    assert last.current_state == "12 model calls so far. The last one called look."


async def test_the_note_may_be_left_out() -> None:
    model = ScriptedModel(*look_calls(2), "Done.")
    await collect_run(model, op.thinking_phase(WINDOW, note=False))
    assert all(request.tail == () for request in model.requests)


@pytest.mark.parametrize("options", [{"summary_tokens": 0}, {"timeout": 0}])
def test_options_that_make_no_sense_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(options))):
        op.thinking_phase(WINDOW, **options)


def test_a_summary_is_read_from_whatever_surrounds_it_and_cut_to_what_fits() -> None:
    found = Summary.read(
        'Here:\n```json\n{"goal": "g", "done": "- a\\n- b", "facts": {"id": 7}, "files": null, "x": 1}\n```'
    )
    assert found.lines() == ["Goal: g", "Done:", "- a", "- b", "Facts:", "- id: 7"]
    assert found.text(lambda text: len(text) < 20) == "Goal: g\nDone:\n- b"
    assert found.text(lambda text: len(text) < 10) == "Goal: g"
    assert found.text(lambda text: "id: 7" not in text) == "Goal: g\nDone:\n- a\n- b"


async def test_side_by_side_runs_of_one_agent_keep_to_themselves() -> None:
    loop = op.standard(before_model=[op.thinking_phase(WINDOW)])

    async def one(count: int) -> list[ContextCompressedEvent]:
        model = ScriptedModel(*look_calls(count), "Done.")
        agent = Agent(model, tools=[look], loop=loop, limits=Limits(iterations=None))
        return compressions([event async for event in agent.run("Find the crate.")])

    alone = [await one(count) for count in (8, 20, 30)]
    together = await asyncio.gather(*map(one, (8, 20, 30)))
    assert [[event.folded for event in each] for each in together] == [
        [event.folded for event in each] for each in alone
    ]


async def test_a_thinking_model_is_named_by_a_string_and_closed_with_the_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    # T108
    made: list[Any] = []

    class Small(ScriptedModel):
        closed = 0

        async def aclose(self) -> None:
            self.closed += 1

    def resolve(name: str) -> Small:
        made.append(Small(*[turn('{"goal": "Find it"}')] * 30))
        assert name == "zai:glm-4.5-air"
        return made[-1]

    monkeypatch.setattr("rxloop.providers.factories.resolve_model", resolve)
    phase = op.thinking_phase(SlidingWindowCompressor(3_000), thinking_model="zai:glm-4.5-air")
    made.clear()
    model = ScriptedModel(*look_calls(20), "Done.")
    async with Agent(model, tools=[look], limits=UNLIMITED, loop=op.standard(before_model=[phase])) as agent:
        events = [event async for event in agent.run("Find the crate.")]
    assert len(made) == 1
    assert made[0].closed == 1
    assert len(made[0].requests) == len(compressions(events)) >= 2
    assert [event for event in events if isinstance(event, ThinkingFailedEvent)] == []


@pytest.mark.parametrize("wrong", [5, object(), ScriptedModel, "nobody:nothing", "no model", ""])
def test_what_is_no_model_is_refused_when_the_phase_is_made(wrong: Any) -> None:
    with pytest.raises(ConfigurationError):
        op.thinking_phase(SlidingWindowCompressor(3_000), thinking_model=wrong)


async def test_whatever_a_thinking_model_is_the_run_goes_on() -> None:
    # T105
    class Nameless(ScriptedModel):
        good = True

        @property
        def name(self) -> str:
            if self.good:
                return "small"
            raise AttributeError("no name")

    small = Nameless()
    phase = op.thinking_phase(SlidingWindowCompressor(3_000), thinking_model=small)
    small.good = False
    model = ScriptedModel(*look_calls(20), "Done.")
    events = await collect_run(model, phase)
    assert "no name" in next(event.reason for event in events if isinstance(event, ThinkingFailedEvent))
    assert model.requests[-1].step == "21"
