"""Strategies of one's own: async functions that ask, go through stages and answer."""

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
    """An answer that has a form."""

    value: int


async def test_a_line_goes_on_and_the_answer_sees_it_but_the_history_keeps_only_question_and_answer() -> None:
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


async def test_a_strategy_goes_on_with_a_conversation() -> None:
    log = MemoryEventLog()
    model = ScriptedModel(echo, echo, "One.", echo, echo, "Two.")
    agent = Agent(model, strategy=in_turn, log=log)
    await agent.run("Q1", context_id="c")
    result = await agent.run("Q2", context_id="c")
    assert shape(result.messages) == ["user: Q1", "assistant: One.", "user: Q2", "assistant: Two."]
    assert shape(model.requests[3].messages) == ["user: Q1", "assistant: One.", "user: Q2", "user: First?"]


async def test_an_answer_in_the_words_of_the_strategy_is_text_of_the_run() -> None:
    @strategy
    async def own(run: StrategyRun) -> str:
        await run.ask("?")
        return "In my words."

    run = Agent(ScriptedModel("x"), strategy=own).run("Q")
    assert [piece async for piece in run.text()] == ["In my words."]


async def test_lines_of_their_own_know_nothing_of_each_other() -> None:
    @strategy
    async def apart(run: StrategyRun) -> str:
        await run.ask("A?", branch="apart/1")
        return (await run.ask("B?", branch="apart/2")).text

    model = ScriptedModel(echo, echo)
    assert (await Agent(model, strategy=apart).run("Q")).output == "apart/2/1: B?"
    assert shape(model.requests[1].messages) == ["user: Q", "user: B?"]


def test_the_concluding_text_streams_and_that_of_other_lines_does_not() -> None:
    with virtual_time() as time:

        async def main() -> list[str]:
            model = ScriptedModel(frames("--no--no|"), frames("-no|"), frames("--a--b|"))
            return [piece async for piece in Agent(model, strategy=in_turn).run("Q").text()]

        assert time.run(main()) == ["a", "b"]


async def test_a_name_and_a_docstring_are_those_of_the_function() -> None:
    assert getattr(in_turn, "__name__", "") == "in_turn"
    assert in_turn.__doc__ == "Ask two questions on one branch, then conclude."


def test_what_is_no_async_function_is_refused() -> None:
    def plain(run: StrategyRun) -> Any:
        return "x"

    with pytest.raises(ConfigurationError, match="plain"):
        strategy(plain)


async def test_a_strategy_that_returns_no_text_is_told_so() -> None:
    @strategy
    async def forgetful(run: StrategyRun) -> Any:
        await run.ask("Anything?")

    result = await outcome(Agent(ScriptedModel("x"), strategy=forgetful).run("Q"))
    assert result.error is not None
    assert "must return the answer as a string, got None" in result.error.message


async def test_an_exception_of_the_function_ends_the_run_and_closes_what_goes_on() -> None:
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


async def test_stages_of_ones_own_are_kept_to_and_give_their_prompts() -> None:
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


async def test_without_stages_any_name_will_do_and_each_event_has_the_newest_thought() -> None:
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


async def test_a_typed_answer_is_read_and_what_is_said_on_other_lines_need_not_fit() -> None:
    @strategy
    async def counting(run: StrategyRun) -> str:
        await run.ask("How?")
        return "42"

    assert (await Agent(ScriptedModel("By hand."), strategy=counting, output_type=int).run("Q")).output == 42


@pytest.mark.parametrize("mode", ["prompted", "tool"])
async def test_an_answer_that_does_not_fit_is_corrected_by_the_model(mode: Any) -> None:
    @strategy
    async def vague(run: StrategyRun) -> str:
        return "forty-two"

    right = call("final_answer", value=42) if mode == "tool" else "42"
    log = MemoryEventLog()
    agent = Agent(ScriptedModel(right), strategy=vague, output_type=int, output_mode=mode, log=log)
    result = await agent.run("Q")
    assert result.output == 42
    for held in range(2, len(await log.read(result.task_id))):
        cut = await copy_first_events(log, result.task_id, held)
        again = Agent(ScriptedModel(right), strategy=vague, output_type=int, output_mode=mode, log=cut)
        assert (await again.resume(result.task_id)).output == 42


async def test_the_model_concludes_by_the_tool_for_the_answer() -> None:
    model = ScriptedModel("a", "b", call("final_answer", value=7))
    agent = Agent(model, tools=[add], strategy=in_turn, output_type=int, output_mode="tool")
    assert (await agent.run("Q")).output == 7
    assert [[each.name for each in request.tools] for request in model.requests] == [[], [], ["final_answer"]]


@pytest.mark.parametrize("mode", ["native", "tool"])
async def test_on_other_lines_nothing_is_said_of_the_form_of_the_answer(mode: Any) -> None:
    @strategy
    async def asking(run: StrategyRun) -> str:
        await run.ask("With tools.", tools=True)
        return await run.conclude("Now.")

    model = ScriptedModel("a", call("final_answer", value=7) if mode == "tool" else '{"value": 7}')
    agent = Agent(model, tools=[add], strategy=asking, output_type=Count, output_mode=mode)
    assert (await agent.run("Q")).output == Count(value=7)
    beside, main = model.requests
    assert [each.name for each in beside.tools] == ["add", "think_aloud"]
    assert (beside.response_schema, main.response_schema is None) == (None, mode == "tool")


# -- resume


async def test_a_line_begins_where_it_began_though_the_main_line_has_gone_on() -> None:
    @strategy
    async def steered(run: StrategyRun) -> str:
        await run.ask("One?")
        return await run.conclude("Now.")

    def steering(request: ModelRequest) -> str:
        request.ctx.port.publish(MessageAddedEvent(content="Be brief."))
        return "One."

    log = MemoryEventLog()
    whole = await Agent(ScriptedModel(steering, "Done."), strategy=steered, log=log).run("Q")
    assert shape(whole.messages) == ["user: Q", "user: Be brief.", "assistant: Done."]
    events = await log.read(whole.task_id)
    counts = [event.message_count for event in events if isinstance(event, CheckpointEvent)]
    cut = await copy_first_events(log, whole.task_id, len(events) - 1)
    await Agent(ScriptedModel(), strategy=steered, log=cut).resume(whole.task_id)
    again = [event.message_count for event in await cut.read(whole.task_id) if isinstance(event, CheckpointEvent)]
    assert again == counts


async def test_the_question_stays_what_it_was() -> None:
    @strategy
    async def asked(run: StrategyRun) -> str:
        before = run.question
        run.ctx.port.publish(MessageAddedEvent(content="Be brief.", cause="strategy"))
        return f"{before} {run.question}"

    result = await Agent(ScriptedModel(), strategy=asked).run(["Hello.", "Q"])
    assert result.output == "Q Q"


async def test_two_equal_events_are_two_after_a_resume() -> None:
    @strategy
    async def twice(run: StrategyRun) -> str:
        run.thought("Same.", id="same")
        run.thought("Same.", id="same")
        return (await run.ask("?")).text

    log = MemoryEventLog()
    whole = await Agent(ScriptedModel("x"), strategy=twice, log=log).run("Q")
    for held in range(2, 8):
        cut = await copy_first_events(log, whole.task_id, held)
        result = await Agent(ScriptedModel("x"), strategy=twice, log=cut).resume(whole.task_id)
        assert len(result.thoughts) == 2
        assert [event.kind for event in await cut.read(whole.task_id)].count("thought-stream") == 2


async def test_a_resume_by_another_strategy_than_the_run_was_begun_with_is_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log = MemoryEventLog()
    whole = await Agent(ScriptedModel("a", "b", "c"), log=log).run("Q", strategy=in_turn)
    cut = await copy_first_events(log, whole.task_id, 2)
    await Agent(ScriptedModel("a"), log=cut).resume(whole.task_id)
    assert "was started using in_turn, but is being resumed using none" in caplog.text
    caplog.clear()
    cut = await copy_first_events(log, whole.task_id, 2)
    await Agent(ScriptedModel("a", "b", "c"), log=cut).resume(whole.task_id, strategy=in_turn)
    assert caplog.text == ""


async def test_a_message_of_the_model_is_told_before_its_tools_are_called() -> None:
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


async def test_a_strategy_of_the_table_that_plans_without_tools_says_what_is_missing() -> None:
    run = Agent(ScriptedModel("x"), strategy="rewoo").run("Q")
    with pytest.raises(RunError, match="requires an agent with tools") as raised:
        await run
    assert isinstance(raised.value.__cause__, StrategyError)
