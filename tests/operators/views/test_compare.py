"""Runs compared with recordings."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import reactivex as rx
from reactivex.testing import ReactiveTest, Recorded, TestScheduler

from rxloop import (
    Agent,
    ConfigurationError,
    Event,
    MemoryEventLog,
    RunContext,
    SlidingWindowCompressor,
    diff,
    op,
    replay,
    tool,
)
from rxloop.errors import RecordingMismatch, RxloopError
from rxloop.operators.views.compare import comparable_data, is_same
from rxloop.pipeline.requests import ModelRequest
from rxloop.protocol.events import ContentCompleteEvent, ToolCompleteEvent
from rxloop.protocol.messages import ToolCall
from rxloop.stream.sources import emit
from rxloop.testing import ScriptedModel, assert_marbles, call, frames, turn, virtual_time
from support.runs import collect
from support.strategy_cases import CASES, add, turn_by_step

on_next: Callable[[int, Any], Recorded[Any]] = ReactiveTest.on_next


@tool
async def get_weather(city: str) -> str:
    """Current weather."""
    return f"7 C in {city}"


SCRIPT = (call("get_weather", "a", city="Oslo"), "It is 7 C.")


def make_agent(*turns: Any, **fields: Any) -> Agent:
    return Agent(ScriptedModel(*(turns or SCRIPT), **fields), tools=[get_weather])


async def record_run(*turns: Any, **fields: Any) -> list[Event]:
    return await collect(make_agent(*turns, **fields).run("Weather?"))


@pytest.fixture
async def recorded_run() -> list[Event]:
    return await record_run()


def test_events_pass_at_once_and_the_comparison_result_is_the_end(recorded_run: list[Event]) -> None:
    events = [event for event in recorded_run if event.durable]
    other = [*events[:-2], events[-2].model_copy(update={"kind": "custom"}), events[-1]]
    for expected, ok in ((events, True), (events[:-1], False), (other, True)):
        scheduler = TestScheduler()
        source = scheduler.create_cold_observable(
            *(on_next(10 + at, event) for at, event in enumerate(events)), ReactiveTest.on_completed(300)
        )
        seen = scheduler.start(lambda source=source, expected=expected: source.pipe(op.compare(expected)))
        assert seen.messages[:-1] == [on_next(210 + at, event) for at, event in enumerate(events)]
        ended = seen.messages[-1] == ReactiveTest.on_completed(500)
        assert ended == ok
        assert seen.messages[-1].time == 500
        assert source.subscriptions == [ReactiveTest.subscribe(200, 500)]


async def test_ids_times_and_tokens_are_not_compared(recorded_run: list[Event], tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    slow = turn(frames("-It is 7 C.|", 0.001), reasoning=None)
    await (
        make_agent(call("get_weather", "z", city="Oslo"), slow)
        .run("Weather?")
        .pipe(op.record(path), op.compare(recorded_run))
    )
    again = make_agent(*SCRIPT).run("Weather?")
    assert (await again.pipe(op.compare(path))) == (await again.events)


async def test_replayed_events_can_be_compared(recorded_run: list[Event]) -> None:
    log = MemoryEventLog()
    model = ScriptedModel(*SCRIPT)
    result = await Agent(model, tools=[get_weather], log=log).run("Weather?")
    await replay(log, result.task_id).pipe(op.compare(recorded_run))
    emit(*recorded_run).pipe(op.compare(recorded_run)).subscribe()


def test_comparison_adds_no_delay() -> None:
    with virtual_time() as time:
        expected = time.run(record_run(*SCRIPT[:1], frames("--It is--7 C.|")))
        run = make_agent(*SCRIPT[:1], frames("--It is--7 C.|")).run("Weather?")
        assert_marbles(run.pipe(op.compare(expected)), "(twlcsxl) 150ms (cF|)")
        run = make_agent(*SCRIPT[:1], frames("--It is--8 C.|")).run("Weather?")
        assert_marbles(run.pipe(op.compare(expected)), "(twlcsxl) 150ms (cF#)")


DIFFERENT: dict[str, tuple[tuple[Any, ...], dict[str, Any], list[str]]] = {
    "another call": (
        (call("get_weather", city="Bergen"), "It is 7 C."),
        {},
        [
            "the run differs from the recording at compared event 3 of 8",
            "recorded     4 content-complete 1: get_weather(city='Oslo')",
            "happened     4 content-complete 1: get_weather(city='Bergen')",
        ],
    ),
    "another answer": (
        (SCRIPT[0], "It is 8 C."),
        {},
        [
            "the run differs from the recording at compared event 7 of 8",
            "recorded  9 content-complete 2: It is 7 C.",
            "happened  9 content-complete 2: It is 8 C.",
            "  content: 'It is 7 C.' != 'It is 8 C.'",
        ],
    ),
    "another model": (
        SCRIPT,
        {"name": "other"},
        [
            "the run differs from the recording at compared event 2 of 8",
            "recorded  3 llm-call 1: scripted, 1 messages",
            "happened  3 llm-call 1: other, 1 messages",
            "  model: 'scripted' != 'other'",
        ],
    ),
}


@pytest.mark.parametrize("name", DIFFERENT)
async def test_difference_shows_both_sides(recorded_run: list[Event], name: str) -> None:
    turns, fields, lines = DIFFERENT[name]
    with pytest.raises(RecordingMismatch) as raised:
        await make_agent(*turns, **fields).run("Weather?").pipe(op.compare(recorded_run))
    lines_of_error = str(raised.value).splitlines()
    assert [" ".join(line.split()) for line in lines_of_error[: len(lines)]] == [
        " ".join(line.split()) for line in lines
    ]
    assert raised.value.expected in recorded_run
    assert raised.value.position == int(lines[0].split()[9]) - 1


async def test_mismatch_is_an_assertion_error_and_does_not_affect_the_run(recorded_run: list[Event]) -> None:
    run = make_agent(SCRIPT[0], "Cold.").run("Weather?")
    with pytest.raises(AssertionError) as raised:
        await run.pipe(op.compare(recorded_run))
    assert isinstance(raised.value, RxloopError)
    assert (await run).output == "Cold."


async def test_mismatch_is_reported_when_a_run_is_longer_or_shorter(recorded_run: list[Event]) -> None:
    longer = [SCRIPT[0], call("get_weather", city="Bergen"), "It is 7 C."]
    with pytest.raises(RecordingMismatch, match="happened  9 content-complete 2: get_weather"):
        await make_agent(*longer).run("Weather?").pipe(op.compare(recorded_run))
    shorter = emit(*(event for event in recorded_run if event.seq < 6))
    errors: list[Any] = []
    shorter.pipe(op.compare(recorded_run)).subscribe(on_error=errors.append)
    assert "happened  has ended" in str(errors[0])
    emit(*recorded_run).pipe(op.compare(recorded_run[:6])).subscribe(on_error=errors.append)
    assert "recorded  had ended" in str(errors[1])
    assert errors[0].actual is None
    assert errors[1].expected is None


def test_order_in_which_parallel_calls_end_is_not_compared() -> None:
    @tool
    async def work(ctx: RunContext[None], name: str) -> str:
        """Work for some time."""
        await asyncio.sleep(pauses[ctx.index])
        return name

    turns = ([call("work", name="a"), call("work", name="b"), call("work", name="c")], "done")
    with virtual_time() as time:
        pauses = [1, 2, 3]
        first = time.run(collect(Agent(ScriptedModel(*turns), tools=[work]).run("Go")))
        pauses = [3, 1, 2]
        again = time.run(collect(Agent(ScriptedModel(*turns), tools=[work]).run("Go").pipe(op.compare(first))))
    ended = [[event.index for event in events if isinstance(event, ToolCompleteEvent)] for events in (first, again)]
    assert ended == [[0, 1, 2], [1, 2, 0]]


def test_calls_of_parallel_branches_are_sorted_by_branch() -> None:
    calls = [ToolCall(id=str(index), name="f") for index in range(2)]

    def stream(*order: tuple[str, int]) -> list[Event]:
        events: list[Event] = [
            ContentCompleteEvent(branch=line, step=f"{line}/1", tool_calls=calls) for line in ("a", "b")
        ]
        for line, index in order:
            answer = ToolCompleteEvent(call=calls[index], index=index, success=True, content=f"{line} {index}")
            events.append(answer.model_copy(update={"branch": line, "step": f"{line}/1"}))
        return [event.model_copy(update={"seq": seq}) for seq, event in enumerate(events, 1)]

    one = stream(("a", 1), ("b", 1), ("a", 0), ("b", 0))
    other = stream(("b", 0), ("b", 1), ("a", 0), ("a", 1))
    errors: list[Exception] = []
    emit(*other).pipe(op.compare(one)).subscribe(on_error=errors.append)
    assert errors == []


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_interleaving_of_branches_is_not_compared(case: Any) -> None:
    log = MemoryEventLog()
    steps: list[str] = []

    def slow(backwards: bool) -> Any:
        def answer(request: ModelRequest) -> Any:
            steps.append(request.step)
            answer_text = turn_by_step(case.turns)(request)
            if not request.branch or not isinstance(answer_text, str) or set(answer_text) & set("-#|"):
                return answer_text
            position = len(steps) % 7
            return frames("-" * ((7 - position) if backwards else position) + answer_text + "|")

        return answer

    def run(backwards: bool) -> Any:
        model = ScriptedModel(*[slow(backwards)] * 20)
        return Agent(model, tools=[add], strategy=case.strategy(), log=log).run("How much is two and two?")

    with virtual_time() as time:
        a, b = run(False), run(True)
        first = time.run(collect(a))
        steps.clear()
        time.run(collect(b.pipe(op.compare(first))))
        same = time.run(diff(log, a.task_id, b.task_id))
    assert same.first is None


def test_difference_on_a_branch_is_reported_for_that_branch() -> None:
    case = next(case for case in CASES if case.name == "self_consistency")

    def run(**turns: str) -> Any:
        answers = {**case.turns, **{f"self_consistency/{step}/1": text for step, text in turns.items()}}
        model = ScriptedModel(*[turn_by_step(answers)] * 20)
        return Agent(model, strategy=case.strategy()).run("How much is two and two?")

    with virtual_time() as time:
        first = time.run(collect(run()))
        with pytest.raises(RecordingMismatch) as raised:
            time.run(collect(run(**{"2": "Answer: 6"}).pipe(op.compare(first))))
    assert raised.value.expected is not None
    assert raised.value.actual is not None
    assert raised.value.expected.step == raised.value.actual.step == "self_consistency/2/1"
    assert "'Answer: 5' != 'Answer: 6'" in str(raised.value)


async def test_duration_of_a_compression_is_not_compared() -> None:
    def compressing_agent() -> Agent:
        loop = op.standard(before_model=[op.compress(SlidingWindowCompressor(max_tokens=60))])
        return Agent(ScriptedModel(*SCRIPT), tools=[get_weather], thoughts=False, loop=loop)

    prompt = [f"This is the long question number {number}, with many words in it." for number in range(20)]
    first = await collect(compressing_agent().run(prompt))
    assert any(event.kind == "context-compressed" for event in first)
    await compressing_agent().run(prompt).pipe(op.compare(first))


def test_error_of_the_stream_precedes_the_comparison_result(recorded_run: list[Event]) -> None:
    errors: list[Exception] = []
    source = rx.concat(emit(*recorded_run[:3]), rx.throw(LookupError("gone")))
    source.pipe(op.compare(recorded_run)).subscribe(on_error=errors.append)
    assert [type(error) for error in errors] == [LookupError]


def test_compare_rejects_a_file_that_it_cannot_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="cannot read recording"):
        op.compare(tmp_path / "nowhere.jsonl")
    (tmp_path / "run.jsonl").write_text("nonsense\n", encoding="utf-8")
    with pytest.raises(ConfigurationError, match="line 1"):
        op.compare(str(tmp_path / "run.jsonl"))


async def test_events_are_the_same_if_their_comparable_data_is_equal() -> None:
    scripts = [SCRIPT, SCRIPT, (call("get_weather", "other", city="Oslo"), "It is 8 C."), ("It is 7 C.",)]
    runs = [await record_run(*script) for script in scripts]
    events = [each for run in runs for each in run if each.durable]
    results = [(is_same(a, b), comparable_data(a, ()) == comparable_data(b, ())) for a in events for b in events]
    assert [found for found, _ in results] == [expected for _, expected in results]
    assert {True, False} == {found for found, _ in results}
