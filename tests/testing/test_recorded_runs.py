"""Models from recorded runs of different kinds."""

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


def last_messages(model: ScriptedModel) -> list[str]:
    return shape(model.requests[-1].messages)


async def run_again(events: Sequence[Event], *, tools: Any = TOOLS, prompt: str = "Go", **fields: Any) -> ScriptedModel:
    """Run a recording again and compare the events."""
    model = ScriptedModel.from_events(events)
    run = Agent(model, tools=tools, **fields).run(prompt)
    await run.pipe(op.compare(events), op.grammar())
    assert model.open == 0
    return model


async def test_recorded_run_can_be_compared_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    script = (turn("I look.", calls=[call("get_weather", city="Oslo")], reasoning="Hm.", usage=USED), "It is 7 C.")
    first = Agent(ScriptedModel(*script, name="vendor:big"), tools=TOOLS).run("Weather?")
    await first.pipe(op.record(path))

    await Agent(recorded(path), tools=TOOLS).run("Weather?").pipe(op.compare(path))

    run = Agent(model := recorded(str(path)), tools=TOOLS).run("Weather?")
    result, expected = await run, await first
    assert (result.output, shape(result.messages), result.usage) == (
        expected.output,
        shape(expected.messages),
        expected.usage,
    )
    assert model.name == "vendor:big"
    assert [message.reasoning for message in result.messages] == [None, "Hm.", None, None]


async def test_recorded_run_streams_the_same_deltas() -> None:
    script = (turn(frames("-I-look.|", 0.001), calls=[call("get_weather", city="Oslo")], reasoning="Hm."), "7 C.")
    first = await collect(Agent(ScriptedModel(*script), tools=TOOLS).run("Go"))
    again = await collect(Agent(ScriptedModel.from_events(first), tools=TOOLS).run("Go"))
    assert dump_deltas(again) == dump_deltas(first)
    assert [each.index for each in again if isinstance(each, ThoughtStreamEvent)] == [0]


async def test_missing_deltas_are_recreated() -> None:
    log = MemoryEventLog()
    script = (turn("I look.", calls=[call("get_weather", city="Oslo")], reasoning="Hm.", usage=USED), "7 C.")
    first = await collect(Agent(ScriptedModel(*script), tools=TOOLS, log=log).run("Go"))
    again = await collect(Agent(ScriptedModel.from_events(await log.read(first[0].task_id)), tools=TOOLS).run("Go"))
    assert dump_deltas(again) == dump_deltas(first)


def dump_deltas(events: Sequence[Event]) -> list[Any]:
    """Return the fields of streamed events."""
    kinds = ("content-delta", "thought-delta", "tool-call-delta", "thought-stream", "usage")
    ids = {"context_id", "task_id", "timestamp", "seq", "sub"}
    return [event.model_dump(exclude=ids) for event in events if event.kind in kinds]


async def test_recreated_deltas_of_a_hidden_call_are_hidden() -> None:
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


async def test_thoughts_of_a_strategy_are_not_replayed_by_the_model() -> None:
    first = await collect(Agent(ScriptedModel(turn("Hello.", reasoning="Hm."))).run("Hi"))
    index = next(index for index, event in enumerate(first) if isinstance(event, ThoughtStreamEvent))
    thought = first[index].model_copy(update={"source": "strategy", "thought_id": "mine"})
    model = ScriptedModel.from_events([*first[:index], thought, *first[index:]])
    again = await collect(Agent(model).run("Hi"))
    assert [each.source for each in again if isinstance(each, ThoughtStreamEvent)] == ["reasoning"]


async def test_parallel_and_failed_calls_are_repeated() -> None:
    script = ([call("get_weather", city="Oslo"), call("nowhere"), THOUGHT, call("get_weather", town="?")], "7 C.")
    first = await collect(Agent(ScriptedModel(*script), tools=TOOLS).run("Go"))
    model = await run_again(first)
    assert len(model.requests) == 2
    answers = {event.index: f"tool: {event.content}" for event in first if isinstance(event, ToolCompleteEvent)}
    assert last_messages(model)[2:] == [answers[index] for index in range(4)]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
async def test_branches_of_a_strategy_get_their_answers_in_any_order(case: Any) -> None:
    def answer_late(request: ModelRequest) -> Any:
        answer = turn_by_step(case.turns)(request)
        return answer if not isinstance(answer, str) or set(answer) & set("-#|") else frames(f"--{answer}|", 0.0001)

    def agent(model: ScriptedModel) -> Agent:
        return Agent(model, tools=[add], strategy=case.strategy())

    first = await collect(agent(ScriptedModel(*[answer_late] * 20)).run("2 + 2?"))
    model = ScriptedModel.from_events(first)
    run = agent(model).run("2 + 2?")
    await run.pipe(op.compare(first))
    assert (await run).output == case.answer
    assert len(model.requests) == case.calls


async def test_failed_model_fails_again_with_the_same_error() -> None:
    for error in (RateLimited("come back later"), frames("-It-is#", 0.001), RuntimeError("a bug")):
        run = Agent(ScriptedModel(call("get_weather", city="Oslo"), error), tools=TOOLS).run("Go")
        first = await collect(run)
        with pytest.raises(RunError) as expected:
            await run
        again = Agent(ScriptedModel.from_events(first), tools=TOOLS).run("Go")
        await again.pipe(op.compare(first))
        with pytest.raises(RunError) as actual:
            await again
        assert (actual.value.code, str(actual.value)) == (expected.value.code, str(expected.value))
        assert actual.value.result.content == expected.value.result.content


async def test_repeated_request_is_repeated_again() -> None:
    def fields() -> dict[str, Any]:
        return {"loop": op.standard(before_model=[op.compress(SlidingWindowCompressor(max_tokens=1_000))])}

    too_long = ContextLengthExceeded("too long")
    first = await collect(Agent(ScriptedModel(too_long, "Short."), tools=TOOLS, **fields()).run("Go"))
    assert "llm-failed" in [event.kind for event in first]
    model = await run_again(first, **fields())
    assert len(model.requests) == 2


async def test_recording_of_a_fallback_has_the_answer_of_the_second_model() -> None:
    model = fallback(ScriptedModel(RateLimited("later"), name="one"), ScriptedModel("Hello.", name="two"))
    first = await collect(Agent(model).run("Hi"))
    again = Agent(ScriptedModel.from_events(first)).run("Hi")
    assert (await again).output == "Hello."


async def test_invalid_output_and_its_correction_are_repeated() -> None:
    first = await collect(Agent(ScriptedModel("many", "5"), output_type=int).run("How many?"))
    result = await Agent(ScriptedModel.from_events(first), output_type=int).run("How many?")
    assert result.output == 5


async def test_recorded_nested_agent_has_a_separate_model(tmp_path: Path) -> None:
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


async def test_recording_of_a_fork_answers_like_a_run() -> None:
    log = MemoryEventLog()
    agent = Agent(ScriptedModel(call("get_weather", city="Oslo"), "7 C.", "Cold."), tools=TOOLS, log=log)
    parent = await agent.run("Go")
    fork = await agent.fork(parent.task_id, at=7, prompt="Warm or cold?")
    model = ScriptedModel.from_events(await log.read(fork.task_id))
    result = await Agent(model, tools=TOOLS).run("Go")
    assert result.output == "Cold."


@pytest.mark.parametrize("command", ["run", "export"])
def test_output_of_the_command_is_a_recording(command: str, tmp_path: Path) -> None:
    with serve_offline(OfflineModel()) as url:
        workspace = Workspace(tmp_path, url)
        output, _ = workspace.process("run", "--json", "--tools", "kit:get_weather", "Weather in Oslo?").communicate()
        if command == "export":
            output, _ = workspace.process("export", "last", "--full").communicate()
    path = tmp_path / "run.jsonl"
    path.write_bytes(output)

    async def run_recording() -> Any:
        again = Agent(recorded(path), tools=[oslo]).run("Weather in Oslo?")
        await again.pipe(op.grammar())
        return await again, await replay_recording(path)

    again, first = asyncio.run(run_recording())
    assert (again.output, shape(again.messages)) == (first.output, shape(first.messages))
    assert "18" in again.output


@tool(name="get_weather")
async def oslo(city: str) -> dict[str, Any]:
    """Current weather in a city."""
    return {"temperature": 18.0, "unit": "C", "sky": "rain"}


async def replay_recording(path: Path) -> Any:
    """Return the result of a recorded run."""
    log = MemoryEventLog()
    events = [event for event in recorded_events(path) if event.durable]
    await log.append(events[0].task_id, events, expected_seq=0)
    return await replay(log, events[0].task_id).result()


async def test_request_without_an_answer_raises_an_error_with_the_remaining_answers() -> None:
    first = await collect(Agent(ScriptedModel(call("get_weather", city="Oslo"), "7 C."), tools=TOOLS).run("Go"))
    model = ScriptedModel.from_events(first)
    await Agent(model, tools=TOOLS).run("Go")
    with pytest.raises(RunError, match="the recording has no answer for step 1; remaining answers: nothing") as raised:
        await Agent(model, tools=TOOLS).run("Go")
    assert isinstance(raised.value.__cause__, ScriptExhausted)

    other = Agent(ScriptedModel.from_events(first), strategy=CASES[0].strategy())
    with pytest.raises(RunError, match="no answer for step linear/1; remaining answers: 1, 2"):
        await other.run("Go")


async def test_events_without_a_task_event_are_rejected(tmp_path: Path) -> None:
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
def test_every_recorded_run_can_be_repeated(turns: list[Any], failure: Any) -> None:
    script = [*turns, failure or "done"]
    options: dict[str, Any] = {"tools": TOOLS, "limits": Limits(tool_failures=None)}
    with virtual_time() as time:
        run = Agent(ScriptedModel(*script), **options).run("Go", on_input=lambda question: True)
        first = time.run(collect(run))
        model = ScriptedModel.from_events(first)
        again = Agent(model, **options).run("Go", on_input=lambda question: True)
        time.run(collect(again.pipe(op.compare(first), op.grammar())))
        expected, actual = time.run(outcome(run)), time.run(outcome(again))
    assert (actual.content, actual.state, actual.usage) == (expected.content, expected.state, expected.usage)
    assert shape(actual.messages) == shape(expected.messages)
