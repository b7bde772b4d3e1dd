"""Batches."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator
from typing import Any, cast

import pytest
import reactivex as rx
from reactivex import operators as ops
from reactivex.subject import Subject

from rxloop import Agent, MemoryEventLog, ModelRequest, NotFinished, Outcome, RunContext, tool
from rxloop.errors import ConfigurationError, RunError, ServerError
from rxloop.testing import ScriptedModel, call, frames, turn, virtual_time
from support.run_checks import assert_no_tasks, run_ready_tasks, wait_until


def last_question(request: ModelRequest) -> str:
    return str(request.messages[-1].text)


def echo(marbles: str = "----{}|", **options: Any) -> Agent[None, str]:
    """Return an agent that answers with the question after 100 ms, or fails if the question contains "fail"."""

    def answer(request: ModelRequest) -> Any:
        prompt = last_question(request)
        return ServerError("503") if "fail" in prompt else turn(frames(marbles.replace("{}", prompt)))

    return Agent(ScriptedModel(*[answer] * 500), **options)


def list_questions(agent: Agent[Any, Any]) -> list[str]:
    model: Any = agent.model
    return [last_question(request) for request in model.requests]


def run_batch(stream: Any) -> list[Outcome[Any, Any]]:
    with virtual_time() as time:

        async def main() -> list[Outcome[Any, Any]]:
            return [outcome async for outcome in stream()]

        return time.run(main())


def test_outcomes_are_in_order_of_completion_with_item_and_key() -> None:
    def answer(request: ModelRequest) -> Any:
        return turn(frames("-" * int(last_question(request)) + "x|"))

    agent = Agent(ScriptedModel(*[answer] * 3))
    outcomes = run_batch(lambda: agent.map([9, 1, 4], prompt=str, key=lambda item: item * 10))
    assert [(outcome.item, outcome.key, outcome.output) for outcome in outcomes] == [
        (1, "10", "x"),
        (4, "40", "x"),
        (9, "90", "x"),
    ]


def test_failed_run_is_an_outcome_and_the_other_runs_continue() -> None:
    outcomes = run_batch(lambda: echo().map(["a", "fail", "b"]))
    failed = next(outcome for outcome in outcomes if outcome.error is not None)
    assert failed.item == failed.key == "fail"
    with pytest.raises(RunError, match="503"):
        _ = failed.output
    assert failed.result is not None
    assert sorted(outcome.output for outcome in outcomes if outcome.error is None) == ["a", "b"]


def test_failing_prompt_function_fails_only_its_item() -> None:
    items: list[dict[str, str]] = [{"text": "a"}, {}, {"text": ""}]
    outcomes = run_batch(lambda: echo().map(items, prompt=lambda item: item["text"]))
    assert sorted(type(outcome.error).__name__ for outcome in outcomes) == [
        "ConfigurationError",
        "KeyError",
        "NoneType",
    ]
    assert [outcome.output for outcome in outcomes if outcome.error is None] == ["a"]


def test_batch_runs_at_most_concurrency_runs_at_once() -> None:
    agent = echo()
    peak = 0
    with virtual_time() as time:

        async def main() -> None:
            nonlocal peak
            model: Any = agent.model
            async for _ in agent.map(map(str, range(10)), concurrency=3):
                peak = max(peak, model.open)

        time.run(main())
        assert peak <= 3
        assert round(time.now, 3) == 4 * 0.125


async def test_slow_reader_applies_backpressure_to_an_endless_batch() -> None:
    read_count = 0

    async def endless() -> AsyncGenerator[str]:
        nonlocal read_count
        while True:
            read_count += 1
            yield str(read_count)

    agent = Agent(ScriptedModel(*[last_question] * 10_000))
    reader = aiter(agent.map(endless(), concurrency=3))
    await anext(reader)
    await run_ready_tasks(2000)
    # Unread outcomes plus runs started before the reader fell behind.
    assert read_count <= 3 + 3 + 2
    before = read_count
    for _ in range(20):
        await anext(reader)
    await run_ready_tasks(200)
    assert before < read_count <= 20 + 8 + 1
    await reader.aclose()
    await assert_no_tasks()


async def test_closed_batch_cancels_its_runs_and_closes_its_items() -> None:
    closed = False

    async def source() -> AsyncGenerator[str]:
        nonlocal closed
        try:
            yield "fast"
            yield "slow"
            await asyncio.sleep(3600)
        finally:
            closed = True

    def answer(request: ModelRequest) -> Any:
        return "done" if last_question(request) == "fast" else frames("-a")

    model = ScriptedModel(*[answer] * 2)
    reader = aiter(Agent(model).map(source()))
    assert (await anext(reader)).output == "done"
    await wait_until(lambda: model.open)
    await reader.aclose()
    await wait_until(lambda: closed and not model.open)
    await assert_no_tasks()


def test_error_of_the_items_is_raised_after_the_outcomes_of_started_runs() -> None:
    def items() -> Iterator[str]:
        yield "a"
        raise OSError("the disk is gone")

    outcomes: list[Any] = []
    with virtual_time() as time, pytest.raises(OSError, match="the disk is gone"):
        time.run(echo().map(items()).pipe(ops.do_action(outcomes.append)))
    assert [outcome.output for outcome in outcomes] == ["a"]


def test_items_can_be_an_observable() -> None:
    questions: Subject[str] = Subject()
    agent = echo()
    with virtual_time() as time:

        async def main() -> list[str]:
            return [outcome.output async for outcome in agent.map(questions, concurrency=1)]

        time.at(0.0, lambda: [questions.on_next(item) for item in "abc"])
        time.at(1.0, lambda: questions.on_next("d"))
        time.at(1.1, questions.on_completed)
        assert time.run(main()) == ["a", "b", "c", "d"]


async def test_disposed_batch_unsubscribes_from_its_items() -> None:
    questions: Subject[str] = Subject()
    subscription = echo().map(questions).subscribe()
    assert len(questions.observers) == 1
    subscription.dispose()
    assert questions.observers == []
    await run_ready_tasks()


async def test_items_can_be_a_stock_observable() -> None:
    agent = Agent(ScriptedModel(*[last_question] * 5))
    outcomes = [outcome async for outcome in agent.map(rx.range(0, 5), prompt=str)]
    assert sorted(outcome.item for outcome in outcomes) == [0, 1, 2, 3, 4]


def test_completed_items_are_read_from_the_log() -> None:
    log = MemoryEventLog()
    first, second = echo(log=log), echo(log=log)
    run_batch(lambda: first.map(["a", "b"], name="letters"))
    outcomes = run_batch(lambda: second.map(["b", "c"], name="letters"))
    assert sorted(outcome.output for outcome in outcomes) == ["b", "c"]
    assert list_questions(second) == ["c"]


def test_run_is_reused_only_with_the_same_name_and_prompt() -> None:
    agent = echo(log=MemoryEventLog())
    run_batch(lambda: agent.map(["a"], name="first"))
    run_batch(lambda: agent.map(["a"], name="again"))
    run_batch(lambda: agent.map(["a"], name="first", prompt=lambda item: item * 2))
    run_batch(lambda: agent.map(["a"]))
    run_batch(lambda: agent.map(["a"]))
    assert list_questions(agent) == ["a", "a", "aa", "a", "a"]


def test_batch_name_requires_a_log() -> None:
    with pytest.raises(ConfigurationError, match="batch 'letters' requires an event log"):
        echo().map(["a"], name="letters")


def test_interrupted_item_is_resumed_without_repeating_calls() -> None:
    effects: list[str] = []

    @tool
    async def look() -> str:
        """Look."""
        effects.append("once")
        return "seen"

    def answer(request: ModelRequest) -> Any:
        return call("look") if request.messages[-1].role == "user" else frames("-never")

    log = MemoryEventLog()
    with virtual_time() as time:

        async def crash() -> None:
            reader = aiter(Agent(ScriptedModel(*[answer] * 2), tools=[look], log=log).map(["a"], name="n"))
            pending = asyncio.ensure_future(anext(reader))
            await asyncio.sleep(1)
            pending.cancel()
            await reader.aclose()

        time.run(crash())
        time.advance(1)
    outcomes = run_batch(lambda: Agent(ScriptedModel("done"), tools=[look], log=log).map(["a"], name="n"))
    assert [outcome.output for outcome in outcomes] == ["done"]
    assert effects == ["once"]


def test_item_that_failed_with_a_retryable_error_is_retried() -> None:
    log = MemoryEventLog()
    run_batch(lambda: Agent(ScriptedModel(ServerError("503")), log=log).map(["a"], name="n"))
    outcomes = run_batch(lambda: Agent(ScriptedModel("at last"), log=log).map(["a"], name="n"))
    assert [outcome.output for outcome in outcomes] == ["at last"]


def test_items_with_the_same_key_share_one_run() -> None:
    agent = echo(log=MemoryEventLog())
    outcomes = run_batch(lambda: agent.map(["a", "a", "a"], name="n", concurrency=2))
    assert [outcome.output for outcome in outcomes] == ["a", "a", "a"]
    assert list_questions(agent) == ["a"]


def test_each_item_has_its_own_run_without_a_name() -> None:
    agent = echo()
    assert len(run_batch(lambda: agent.map(["a", "a"]))) == 2
    assert list_questions(agent) == ["a", "a"]


async def test_waiting_run_is_an_outcome() -> None:
    @tool
    async def need(ctx: RunContext) -> str:
        """Ask."""
        return str(await ctx.ask("Which?", str))

    agent = Agent(ScriptedModel(call("need")), tools=[need], log=MemoryEventLog())
    outcome = await agent.map(["?"])
    assert outcome.result is not None
    assert len(outcome.result.pending) == 1
    with pytest.raises(NotFinished):
        _ = outcome.output


async def test_metadata_of_a_run_names_its_batch_and_key() -> None:
    log = MemoryEventLog()
    agent = Agent(ScriptedModel("a"), log=log)
    items = [{"id": 7}]
    outcome = await agent.map(items, name="n", prompt=lambda item: f"item {item['id']}", key=lambda item: item["id"])
    assert outcome.result is not None
    [task, *_] = await log.read(outcome.result.task_id)
    assert task.metadata["batch"] == {"name": "n", "key": "7"}  # type: ignore[attr-defined]


@pytest.mark.parametrize("items", ["a text", 7, None])
def test_map_rejects_items_that_are_not_iterable(items: Any) -> None:
    with pytest.raises(ConfigurationError, match="items must be an iterable"):
        echo().map(items)


def test_map_rejects_concurrency_below_one() -> None:
    with pytest.raises(ConfigurationError, match="at least 1, got 0"):
        echo().map(["a"], concurrency=0)


def test_map_rejects_items_that_are_not_prompts_before_a_model_call() -> None:
    agent = echo()
    with pytest.raises(ConfigurationError, match=r"with prompt=.*\{.id.: 1\}"):
        agent.map(cast("Any", ["a", {"id": 1}]))
    invalid: list[Any] = [{"id": 1}, {"id": 2}]
    with pytest.raises(ConfigurationError, match=r"with prompt=.*\{.id.: 1\}"):
        run_batch(lambda: agent.map(iter(invalid)))
    assert list_questions(agent) == []


def test_second_use_of_a_one_time_iterable_raises() -> None:
    agent = echo()
    batch = agent.map(item for item in ["a", "b"])
    assert len(run_batch(lambda: batch)) == 2
    with pytest.raises(ConfigurationError, match="can be read only once"):
        run_batch(lambda: batch)
    repeatable_batch = agent.map(["a", "b"])
    assert len(run_batch(lambda: repeatable_batch)) == len(run_batch(lambda: repeatable_batch)) == 2


def test_concurrent_batches_with_one_name_run_each_item_once() -> None:
    agent = echo(log=MemoryEventLog())
    with virtual_time() as time:

        async def run_once() -> list[str]:
            return sorted([outcome.output async for outcome in agent.map(["a", "b"], name="n")])

        async def run_twice() -> list[list[str]]:
            return [*await asyncio.gather(run_once(), run_once())]

        assert time.run(run_twice()) == [["a", "b"], ["a", "b"]]
    assert sorted(list_questions(agent)) == ["a", "b"]


def test_key_that_is_not_stable_fails_its_item() -> None:
    [outcome] = run_batch(lambda: echo().map(["a"], key=lambda _: object()))  # type: ignore[arg-type, return-value]
    assert outcome.item == "a"
    assert outcome.key == ""
    assert "a string or an integer" in str(outcome.error)


def french(ctx: object) -> str:
    return "Answer in French."


def german(ctx: object) -> str:
    return "Answer in German."


@tool
async def read_letter() -> str:
    """Read a letter."""
    return "a"


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"instructions": "Answer in French."}, {"instructions": "Answer in German."}),
        ({"instructions": french}, {"instructions": german}),
        ({"output_type": list[str]}, {"output_type": list[int]}),
        ({"tools": [read_letter]}, {}),
        ({"name": "french"}, {"name": "german"}),
    ],
    ids=["instructions", "functions", "output types", "tools", "names"],
)
def test_batches_of_different_agents_with_one_name_are_kept_apart(first: Any, second: Any) -> None:
    log = MemoryEventLog()
    answers = ['["1"]', "[2]"] if "output_type" in first else ["one", "two"]
    outputs: list[Any] = []
    for options, answer in zip((first, second), answers, strict=True):
        agent: Agent[Any, Any] = Agent(ScriptedModel(answer), log=log, **options)
        [outcome] = run_batch(lambda agent=agent: agent.map(["a"], name="letters"))
        outputs.append(outcome.output)
    assert outputs == ([["1"], [2]] if "output_type" in first else ["one", "two"])


class Language:
    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, ctx: object) -> str:
        return f"Answer in {self.name}."

    def instruct(self, ctx: object) -> str:
        return self(ctx)


@pytest.mark.parametrize(
    "make_instructions",
    [lambda name: lambda ctx: name, Language, lambda name: Language(name).instruct],
    ids=["closure", "object", "method"],
)
def test_batch_of_an_unnamed_agent_whose_instructions_have_no_unique_name_is_refused(make_instructions: Any) -> None:
    log = MemoryEventLog()
    agent = Agent(ScriptedModel("un"), instructions=make_instructions("French"), log=log)
    with pytest.raises(ConfigurationError, match=r"'letters' requires a name of the agent: Agent\(..., name='moods'\)"):
        agent.map(["a"], name="letters")
    assert [outcome.output for outcome in run_batch(lambda: agent.map(["a"]))] == ["un"]
    named = Agent(ScriptedModel("deux"), instructions=make_instructions("French"), log=log, name="french")
    assert [outcome.output for outcome in run_batch(lambda: named.map(["a"], name="letters"))] == ["deux"]
