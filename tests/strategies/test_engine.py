"""Custom strategies, written as async functions."""

import asyncio
from typing import Any

import pytest
from pydantic import BaseModel

from rxloop import (
    Agent,
    CheckpointEvent,
    ConfigurationError,
    MemoryEventLog,
    MessageAddedEvent,
    RunError,
    StageEvent,
    Thoughts,
    tool,
)
from rxloop.errors import StageRefused, StrategyError
from rxloop.pipeline.requests import ModelRequest
from rxloop.strategies import StrategyRun, strategy
from rxloop.testing import ScriptedModel, call, frames, virtual_time
from rxloop.thinking import Stage, StrategyDefinition
from support.runs import collect, copy_first_events, outcome, shape
from support.strategy_cases import add, ask_text, echo, find_open_items, in_turn

PAIR = StrategyDefinition(name="pair", stages=(Stage(name="draft", next="check", prompt="Write."), Stage(name="check")))


class Count(BaseModel):
    """Typed answer."""

    value: int


async def test_branch_is_passed_to_the_conclusion_but_not_to_the_history() -> None:
    model = ScriptedModel(echo, echo, "Done.")
    result = await Agent(model, strategy=in_turn).run("Q")
    assert shape(model.requests[1].messages) == [
        "user: Q",
        "user: First?",
        "assistant: in_turn/1: First?",
        "user: Second?",
    ]
    assert shape(model.requests[2].messages) == ["user: Q"]
    assert shape(model.requests[2].tail)[-1] == "user: in_turn/1: First? + in_turn/2: Second?"
    assert shape(result.messages) == ["user: Q", "assistant: Done."]


async def test_strategy_continues_a_conversation() -> None:
    log = MemoryEventLog()
    model = ScriptedModel(echo, echo, "One.", echo, echo, "Two.")
    agent = Agent(model, strategy=in_turn, log=log)
    await agent.run("Q1", context_id="c")
    result = await agent.run("Q2", context_id="c")
    assert shape(result.messages) == ["user: Q1", "assistant: One.", "user: Q2", "assistant: Two."]
    assert shape(model.requests[3].messages) == ["user: Q1", "assistant: One.", "user: Q2", "user: First?"]


async def test_answer_written_by_the_strategy_is_streamed() -> None:
    @strategy
    async def own(run: StrategyRun) -> str:
        await run.ask("?")
        return "In my words."

    run = Agent(ScriptedModel("x"), strategy=own).run("Q")
    assert [piece async for piece in run.text()] == ["In my words."]


async def test_branches_do_not_see_each_other() -> None:
    @strategy
    async def apart(run: StrategyRun) -> str:
        await run.ask("A?", branch="apart/1")
        return (await run.ask("B?", branch="apart/2")).text

    model = ScriptedModel(echo, echo)
    assert (await Agent(model, strategy=apart).run("Q")).output == "apart/2/1: B?"
    assert shape(model.requests[1].messages) == ["user: Q", "user: B?"]


def test_only_the_text_of_the_conclusion_is_streamed() -> None:
    with virtual_time() as time:

        async def main() -> list[str]:
            model = ScriptedModel(frames("--no--no|"), frames("-no|"), frames("--a--b|"))
            return [piece async for piece in Agent(model, strategy=in_turn).run("Q").text()]

        assert time.run(main()) == ["a", "b"]


async def test_strategy_has_the_name_and_docstring_of_its_function() -> None:
    assert getattr(in_turn, "__name__", "") == "in_turn"
    assert in_turn.__doc__ == "Ask two questions on a branch, then conclude."


def test_sync_function_is_refused_as_a_strategy() -> None:
    def plain(run: StrategyRun) -> Any:
        return "x"

    with pytest.raises(ConfigurationError, match="plain"):
        strategy(plain)


async def test_strategy_that_does_not_return_a_string_fails_the_run() -> None:
    @strategy
    async def forgetful(run: StrategyRun) -> Any:
        await run.ask("Anything?")

    result = await outcome(Agent(ScriptedModel("x"), strategy=forgetful).run("Q"))
    assert result.error is not None
    assert "must return the answer as a string, got None" in result.error.message


async def test_exception_of_the_strategy_fails_the_run_and_closes_open_calls() -> None:
    @strategy
    async def broken(run: StrategyRun) -> str:
        async def fails() -> str:
            await asyncio.sleep(0)
            raise KeyError("mine")

        await run.gather(*(ask_text(run, name) for name in "ab"), fails())
        return ""

    model = ScriptedModel(frames("--x"), frames("--x"))
    run = Agent(model, strategy=broken).run("Q")
    events = await collect(run)
    with pytest.raises(RunError, match="mine"):
        await run
    assert find_open_items(events) == set()
    assert model.open == 0


# -- stages


async def test_custom_stages_are_enforced_and_return_their_prompts() -> None:
    @strategy(stages=PAIR)
    async def pair(run: StrategyRun) -> str:
        prompts = [run.stage("draft"), run.stage("check")]
        try:
            run.stage("draft")
        except StageRefused as error:
            return f"{prompts} {error.allowed}"
        return "?"

    run = Agent(ScriptedModel(), strategy=pair).run("Q")
    stages = [event for event in await collect(run) if isinstance(event, StageEvent)]
    assert (await run).output == "['Write.', ''] ()"
    assert [(each.from_stage, each.to_stage, each.accepted) for each in stages] == [
        (None, "draft", True),
        ("draft", "check", True),
        ("check", "draft", False),
    ]


async def test_stage_names_are_free_without_stages_and_events_have_the_newest_thought() -> None:
    @strategy
    async def free(run: StrategyRun) -> str:
        run.stage("one")
        thought = run.thought("Hm.")
        return str(run.stage("two", "three")) + thought

    run = Agent(ScriptedModel(), strategy=free).run("Q")
    stages = [event for event in await collect(run) if isinstance(event, StageEvent)]
    assert (await run).output == "free:1"
    assert [(each.to_stage, each.thought_id) for each in stages] == [
        ("one", None),
        ("two", "free:1"),
        ("three", "free:1"),
    ]


# -- typed answers


async def test_typed_answer_is_parsed_and_texts_of_branches_are_not() -> None:
    @strategy
    async def counting(run: StrategyRun) -> str:
        await run.ask("How?")
        return "42"

    assert (await Agent(ScriptedModel("By hand."), strategy=counting, output_type=int).run("Q")).output == 42


@pytest.mark.parametrize("mode", ["prompted", "tool"])
async def test_invalid_answer_is_corrected_by_the_model(mode: Any) -> None:
    @strategy
    async def vague(run: StrategyRun) -> str:
        return "forty-two"

    right = call("final_answer", value=42) if mode == "tool" else "42"
    log = MemoryEventLog()
    agent = Agent(ScriptedModel(right), strategy=vague, output_type=int, output_mode=mode, log=log)
    result = await agent.run("Q")
    assert result.output == 42
    for event_count in range(2, len(await log.read(result.task_id))):
        partial_log = await copy_first_events(log, result.task_id, event_count)
        again = Agent(ScriptedModel(right), strategy=vague, output_type=int, output_mode=mode, log=partial_log)
        assert (await again.resume(result.task_id)).output == 42


async def test_model_concludes_by_calling_the_answer_tool() -> None:
    model = ScriptedModel("a", "b", call("final_answer", value=7))
    agent = Agent(model, tools=[add], strategy=in_turn, output_type=int, output_mode="tool")
    assert (await agent.run("Q")).output == 7
    assert [[each.name for each in request.tools] for request in model.requests] == [[], [], ["final_answer"]]


@pytest.mark.parametrize("mode", ["native", "tool"])
async def test_answer_schema_is_not_sent_on_branches(mode: Any) -> None:
    @strategy
    async def ask_with_tools(run: StrategyRun) -> str:
        await run.ask("With tools.", tools=True)
        return await run.conclude("Now.")

    model = ScriptedModel("a", call("final_answer", value=7) if mode == "tool" else '{"value": 7}')
    agent = Agent(model, tools=[add], strategy=ask_with_tools, output_type=Count, output_mode=mode)
    assert (await agent.run("Q")).output == Count(value=7)
    branch_request, main = model.requests
    assert [each.name for each in branch_request.tools] == ["add", "think_aloud"]
    assert (branch_request.response_schema, main.response_schema is None) == (None, mode == "tool")


# -- resume


async def test_resumed_branch_starts_at_its_original_message() -> None:
    @strategy
    async def steered(run: StrategyRun) -> str:
        await run.ask("One?")
        return await run.conclude("Now.")

    def steering(request: ModelRequest) -> str:
        request.ctx.port.publish(MessageAddedEvent(content="Be brief."))
        return "One."

    log = MemoryEventLog()
    complete_result = await Agent(ScriptedModel(steering, "Done."), strategy=steered, log=log).run("Q")
    assert shape(complete_result.messages) == ["user: Q", "user: Be brief.", "assistant: Done."]
    events = await log.read(complete_result.task_id)
    counts = [event.message_count for event in events if isinstance(event, CheckpointEvent)]
    partial_log = await copy_first_events(log, complete_result.task_id, len(events) - 1)
    await Agent(ScriptedModel(), strategy=steered, log=partial_log).resume(complete_result.task_id)
    again = [
        event.message_count
        for event in await partial_log.read(complete_result.task_id)
        if isinstance(event, CheckpointEvent)
    ]
    assert again == counts


async def test_question_does_not_change_during_a_run() -> None:
    @strategy
    async def read_question(run: StrategyRun) -> str:
        before = run.question
        run.ctx.port.publish(MessageAddedEvent(content="Be brief.", cause="strategy"))
        return f"{before} {run.question}"

    result = await Agent(ScriptedModel(), strategy=read_question).run(["Hello.", "Q"])
    assert result.output == "Q Q"


async def test_resume_keeps_two_equal_events() -> None:
    @strategy
    async def twice(run: StrategyRun) -> str:
        run.thought("Same.", id="same")
        run.thought("Same.", id="same")
        return (await run.ask("?")).text

    log = MemoryEventLog()
    complete_result = await Agent(ScriptedModel("x"), strategy=twice, log=log).run("Q")
    for event_count in range(2, 8):
        partial_log = await copy_first_events(log, complete_result.task_id, event_count)
        result = await Agent(ScriptedModel("x"), strategy=twice, log=partial_log).resume(complete_result.task_id)
        assert len(result.thoughts) == 2
        assert [event.kind for event in await partial_log.read(complete_result.task_id)].count("thought-stream") == 2


async def test_resume_with_another_strategy_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log = MemoryEventLog()
    complete_result = await Agent(ScriptedModel("a", "b", "c"), log=log).run("Q", strategy=in_turn)
    partial_log = await copy_first_events(log, complete_result.task_id, 2)
    await Agent(ScriptedModel("a"), log=partial_log).resume(complete_result.task_id)
    assert "was started using in_turn, but is being resumed using none" in caplog.text
    caplog.clear()
    partial_log = await copy_first_events(log, complete_result.task_id, 2)
    await Agent(ScriptedModel("a", "b", "c"), log=partial_log).resume(complete_result.task_id, strategy=in_turn)
    assert caplog.text == ""


async def test_on_message_is_called_before_the_tools() -> None:
    order: list[str] = []

    @tool
    async def note() -> str:
        """Notes."""
        order.append("tool")
        return "ok"

    @strategy
    async def watching(run: StrategyRun) -> str:
        return (await run.ask("Go.", tools=True, on_message=lambda reply: order.append(reply.text))).text

    model = ScriptedModel(["I will.", call("note")], "Done.")
    await Agent(model, tools=[note], strategy=watching, thoughts=Thoughts(limit=3)).run("Q")
    assert order == ["I will.", "tool", "Done."]


async def test_rewoo_without_tools_is_an_error() -> None:
    run = Agent(ScriptedModel("x"), strategy="rewoo").run("Q")
    with pytest.raises(RunError, match="requires an agent with tools") as raised:
        await run
    assert isinstance(raised.value.__cause__, StrategyError)
