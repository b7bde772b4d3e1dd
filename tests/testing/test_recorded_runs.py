"""A recorded run as a model: it answers as it did, whatever kind of run it was."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rxloop import (
    Agent,
    ConfigurationError,
    Event,
    Limits,
    MemoryEventLog,
    RunContext,
    RunError,
    SlidingWindowCompressor,
    TaskEvent,
    ThoughtStreamEvent,
    ToolCallDeltaEvent,
    ToolCompleteEvent,
    Usage,
    op,
    replay,
    tool,
)
from rxloop.errors import ContextLengthExceeded, RateLimited
from rxloop.pipeline.requests import ModelRequest
from rxloop.providers import fallback
from rxloop.providers.script import ScriptExhausted
from rxloop.testing import (
    OfflineModel,
    ScriptedModel,
    call,
    frames,
    recorded,
    recorded_events,
    turn,
    virtual_time,
)
from support.cli_workspace import Workspace
from support.offline_server import serve_offline
from support.runs import collect, outcome, shape
from support.strategy_cases import CASES, add, turn_by_step
from support.weather import TOOLS, get_weather

USED = Usage(input_tokens=7, output_tokens=3)


THOUGHT = call("think_aloud", "t", thought="Both.", thought_type="planning", thought_id="plan")


def calls(model: ScriptedModel) -> list[str]:
    """The calls and results that a model was sent last."""
    return shape(model.requests[-1].messages)


async def same(events: Sequence[Event], *, tools: Any = TOOLS, prompt: str = "Go", **fields: Any) -> ScriptedModel:
    """Run a recording once more, and compare."""
    model = ScriptedModel.from_events(events)
    run = Agent(model, tools=tools, **fields).run(prompt)
    await run.pipe(op.compare(events), op.grammar())
    assert model.open == 0
    return model


async def test_a_recorded_run_is_a_test_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    script = (turn("I look.", calls=[call("get_weather", city="Oslo")], reasoning="Hm.", usage=USED), "It is 7 C.")
    first = Agent(ScriptedModel(*script, name="vendor:big"), tools=TOOLS).run("Weather?")
    await first.pipe(op.record(path))

    await Agent(recorded(path), tools=TOOLS).run("Weather?").pipe(op.compare(path))

    run = Agent(model := recorded(str(path)), tools=TOOLS).run("Weather?")
    result, then = await run, await first
    assert (result.output, shape(result.messages), result.usage) == (then.output, shape(then.messages), then.usage)
    assert model.name == "vendor:big"
    assert [message.reasoning for message in result.messages] == [None, "Hm.", None, None]


async def test_what_streams_once_more_is_what_streamed() -> None:
    script = (turn(frames("-I-look.|", 0.001), calls=[call("get_weather", city="Oslo")], reasoning="Hm."), "7 C.")
    first = await collect(Agent(ScriptedModel(*script), tools=TOOLS).run("Go"))
    again = await collect(Agent(ScriptedModel.from_events(first), tools=TOOLS).run("Go"))
    assert pieces(again) == pieces(first)
    assert [each.index for each in again if isinstance(each, ThoughtStreamEvent)] == [0]


async def test_deltas_that_a_log_has_not_kept_are_made_up() -> None:
    log = MemoryEventLog()
    script = (turn("I look.", calls=[call("get_weather", city="Oslo")], reasoning="Hm.", usage=USED), "7 C.")
    first = await collect(Agent(ScriptedModel(*script), tools=TOOLS, log=log).run("Go"))
    again = await collect(Agent(ScriptedModel.from_events(await log.read(first[0].task_id)), tools=TOOLS).run("Go"))
    assert pieces(again) == pieces(first)


def pieces(events: Sequence[Event]) -> list[Any]:
    """What a model streamed."""
    kinds = ("content-delta", "thought-delta", "tool-call-delta", "thought-stream", "usage")
    ids = {"context_id", "task_id", "timestamp", "seq", "sub"}
    return [event.model_dump(exclude=ids) for event in events if event.kind in kinds]


async def test_the_pieces_of_a_call_of_a_hidden_tool_are_hidden() -> None:
    @tool(hidden=True)
    async def peek() -> str:
        """Looks, unseen."""
        return "seen"

    log = MemoryEventLog()
    tools = [peek, get_weather]
    script = ([call("peek"), call("get_weather", city="Oslo")], "done")
    result = await Agent(ScriptedModel(*script), tools=tools, log=log).run("Go")
    again = await collect(Agent(ScriptedModel.from_events(await log.read(result.task_id)), tools=tools).run("Go"))
    deltas = [each for each in again if isinstance(each, ToolCallDeltaEvent)]
    assert [(each.name, each.hidden, each.public) for each in deltas] == [
        ("peek", True, False),
        ("get_weather", False, True),
    ]


async def test_thoughts_that_are_none_of_the_model_are_none_of_its_answers() -> None:
    first = await collect(Agent(ScriptedModel(turn("Hello.", reasoning="Hm."))).run("Hi"))
    at = next(at for at, event in enumerate(first) if isinstance(event, ThoughtStreamEvent))
    thought = first[at].model_copy(update={"source": "strategy", "thought_id": "mine"})
    model = ScriptedModel.from_events([*first[:at], thought, *first[at:]])
    again = await collect(Agent(model).run("Hi"))
    assert [each.source for each in again if isinstance(each, ThoughtStreamEvent)] == ["reasoning"]


async def test_tools_side_by_side_and_calls_that_fail_come_again() -> None:
    script = ([call("get_weather", city="Oslo"), call("nowhere"), THOUGHT, call("get_weather", town="?")], "7 C.")
    first = await collect(Agent(ScriptedModel(*script), tools=TOOLS).run("Go"))
    model = await same(first)
    assert len(model.requests) == 2
    answers = {event.index: f"tool: {event.content}" for event in first if isinstance(event, ToolCompleteEvent)}
    assert calls(model)[2:] == [answers[index] for index in range(4)]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
async def test_the_lines_of_a_strategy_get_their_own_answers_in_any_order(case: Any) -> None:
    def late(request: ModelRequest) -> Any:
        said = turn_by_step(case.turns)(request)
        return said if not isinstance(said, str) or set(said) & set("-#|") else frames(f"--{said}|", 0.0001)

    def agent(model: ScriptedModel) -> Agent:
        return Agent(model, tools=[add], strategy=case.strategy())

    first = await collect(agent(ScriptedModel(*[late] * 20)).run("2 + 2?"))
    model = ScriptedModel.from_events(first)
    run = agent(model).run("2 + 2?")
    await run.pipe(op.compare(first))
    assert (await run).output == case.answer
    assert len(model.requests) == case.calls


async def test_a_model_that_fails_fails_again_with_the_same_error() -> None:
    for error in (RateLimited("come back later"), frames("-It-is#", 0.001), RuntimeError("a bug")):
        run = Agent(ScriptedModel(call("get_weather", city="Oslo"), error), tools=TOOLS).run("Go")
        first = await collect(run)
        with pytest.raises(RunError) as then:
            await run
        again = Agent(ScriptedModel.from_events(first), tools=TOOLS).run("Go")
        await again.pipe(op.compare(first))
        with pytest.raises(RunError) as now:
            await again
        assert (now.value.code, str(now.value)) == (then.value.code, str(then.value))
        assert now.value.result.content == then.value.result.content


async def test_a_request_that_was_sent_once_more_is_sent_once_more() -> None:
    def fields() -> dict[str, Any]:
        return {"loop": op.standard(before_model=[op.compress(SlidingWindowCompressor(max_tokens=1_000))])}

    too_long = ContextLengthExceeded("too long")
    first = await collect(Agent(ScriptedModel(too_long, "Short."), tools=TOOLS, **fields()).run("Go"))
    assert "llm-failed" in [event.kind for event in first]
    model = await same(first, **fields())
    assert len(model.requests) == 2


async def test_what_a_second_model_answered_is_the_answer() -> None:
    model = fallback(ScriptedModel(RateLimited("later"), name="one"), ScriptedModel("Hello.", name="two"))
    first = await collect(Agent(model).run("Hi"))
    again = Agent(ScriptedModel.from_events(first)).run("Hi")
    assert (await again).output == "Hello."


async def test_an_answer_that_did_not_fit_comes_again_and_the_one_behind_it() -> None:
    first = await collect(Agent(ScriptedModel("many", "5"), output_type=int).run("How many?"))
    result = await Agent(ScriptedModel.from_events(first), output_type=int).run("How many?")
    assert result.output == 5


async def test_a_nested_agent_has_a_model_of_its_own_in_the_recording(tmp_path: Path) -> None:
    def agents(outer: ScriptedModel, inner: ScriptedModel) -> Agent:
        child = Agent(inner, tools=[get_weather], name="child")

        @tool
        async def delegate(ctx: RunContext[Any]) -> str:
            """Asks another agent."""
            run = child.run("Weather?")
            async for event in run:
                ctx.emit(event)
            return (await run).output

        return Agent(outer, tools=[delegate])

    path = tmp_path / "run.jsonl"
    outer, inner = ScriptedModel(call("delegate"), "Fine."), ScriptedModel(call("get_weather", city="Oslo"), "7 C.")
    await agents(outer, inner).run("Go").pipe(op.record(path))

    tasks = {event.agent_name: event.task_id for event in recorded_events(path) if isinstance(event, TaskEvent)}
    models = recorded(path), recorded(path, task_id=tasks["child"])
    await agents(*models).run("Go").pipe(op.compare(path), op.grammar())
    assert [len(model.requests) for model in models] == [2, 2]


async def test_a_fork_is_a_run_like_any_other() -> None:
    log = MemoryEventLog()
    agent = Agent(ScriptedModel(call("get_weather", city="Oslo"), "7 C.", "Cold."), tools=TOOLS, log=log)
    parent = await agent.run("Go")
    fork = await agent.fork(parent.task_id, at=7, prompt="Warm or cold?")
    model = ScriptedModel.from_events(await log.read(fork.task_id))
    result = await Agent(model, tools=TOOLS).run("Go")
    assert result.output == "Cold."


@pytest.mark.parametrize("command", ["run", "export"])
def test_what_the_command_wrote_is_a_recording(command: str, tmp_path: Path) -> None:
    with serve_offline(OfflineModel()) as url:
        place = Workspace(tmp_path, url)
        written, _ = place.process("run", "--json", "--tools", "kit:get_weather", "Weather in Oslo?").communicate()
        if command == "export":
            written, _ = place.process("export", "last", "--full").communicate()
    path = tmp_path / "run.jsonl"
    path.write_bytes(written)

    async def once_more() -> Any:
        again = Agent(recorded(path), tools=[oslo]).run("Weather in Oslo?")
        await again.pipe(op.grammar())
        return await again, await replayed(path)

    again, first = asyncio.run(once_more())
    assert (again.output, shape(again.messages)) == (first.output, shape(first.messages))
    assert "18" in again.output


@tool(name="get_weather")
async def oslo(city: str) -> dict[str, Any]:
    """Current weather in a city."""
    return {"temperature": 18.0, "unit": "C", "sky": "rain"}


async def replayed(path: Path) -> Any:
    """What a recording came to."""
    log = MemoryEventLog()
    events = [event for event in recorded_events(path) if event.durable]
    await log.append(events[0].task_id, events, expected_seq=0)
    return await replay(log, events[0].task_id).result()


async def test_one_request_too_many_is_told_what_the_recording_has() -> None:
    first = await collect(Agent(ScriptedModel(call("get_weather", city="Oslo"), "7 C."), tools=TOOLS).run("Go"))
    model = ScriptedModel.from_events(first)
    await Agent(model, tools=TOOLS).run("Go")
    with pytest.raises(RunError, match="the recording has no answer for step 1; remaining answers: nothing") as raised:
        await Agent(model, tools=TOOLS).run("Go")
    assert isinstance(raised.value.__cause__, ScriptExhausted)

    other = Agent(ScriptedModel.from_events(first), strategy=CASES[0].strategy())
    with pytest.raises(RunError, match="no answer for step linear/1; remaining answers: 1, 2"):
        await other.run("Go")


async def test_events_that_are_no_run_are_refused(tmp_path: Path) -> None:
    first = await collect(Agent(ScriptedModel("Hello.")).run("Hi"))
    with pytest.raises(ConfigurationError, match=r"the 0 events do not contain the task event of a run"):
        ScriptedModel.from_events([])
    with pytest.raises(ConfigurationError, match="do not contain the task event of a run; pass all events in order"):
        ScriptedModel.from_events(first[1:])
    with pytest.raises(ConfigurationError, match="of the run nowhere"):
        ScriptedModel.from_events(first, task_id="nowhere")
    path = tmp_path / "run.jsonl"
    path.touch()
    with pytest.raises(ConfigurationError) as raised:
        recorded(path)
    assert str(raised.value).startswith(f"{path}: the 0 events")


CALLS = st.sampled_from([call("get_weather", city="Oslo"), call("sure"), call("nowhere"), THOUGHT])
TURNS = st.builds(
    lambda text, calls, slow: turn(frames(f"{text}-{text}|") if slow else text, calls=calls, reasoning=text or None),
    st.sampled_from(["", "So", "Well"]),
    st.lists(CALLS, min_size=1, max_size=3),
    st.booleans(),
)


@settings(max_examples=40)
@given(turns=st.lists(TURNS, max_size=4), failure=st.none() | st.sampled_from([RateLimited("later"), frames("So#")]))
def test_every_run_comes_again_from_its_recording(turns: list[Any], failure: Any) -> None:
    script = [*turns, failure or "done"]
    options: dict[str, Any] = {"tools": TOOLS, "limits": Limits(tool_failures=None)}
    with virtual_time() as time:
        run = Agent(ScriptedModel(*script), **options).run("Go", on_input=lambda question: True)
        first = time.run(collect(run))
        model = ScriptedModel.from_events(first)
        again = Agent(model, **options).run("Go", on_input=lambda question: True)
        time.run(collect(again.pipe(op.compare(first), op.grammar())))
        then, now = time.run(outcome(run)), time.run(outcome(again))
    assert (now.content, now.state, now.usage) == (then.content, then.state, then.usage)
    assert shape(now.messages) == shape(then.messages)
