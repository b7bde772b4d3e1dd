"""Invalid arguments are rejected immediately, with the value and a remedy."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from rxloop import Agent, ConfigurationError, MemoryEventLog, Message, RunContext, RunError, Thoughts, op, tool
from rxloop.errors import InvalidInput, InvalidOutput
from rxloop.pipeline.requests import Operator, RunRequest, Signal
from rxloop.protocol.messages import ToolCall
from rxloop.testing import ScriptedModel, call
from support.plain_tools import look, plain
from support.runs import collect

# -- run arguments


@pytest.mark.parametrize(
    ("wrong_value", "suggestion"),
    [("contextid", "context_id"), ("limit", "limits"), ("on_inputs", "on_input"), ("colour", None)],
)
@pytest.mark.parametrize("method", ["run", "run_sync", "resume"])
def test_run_rejects_unknown_argument_with_the_nearest_name(
    method: str, wrong_value: str, suggestion: str | None
) -> None:
    agent = Agent(ScriptedModel("Hi."), log=MemoryEventLog())

    with pytest.raises(TypeError) as raised:
        getattr(agent, method)("Hi", **{wrong_value: None})

    assert f"Agent.{method}()" in str(raised.value)
    assert repr(wrong_value) in str(raised.value)
    shown = "context_id, when_busy, model, settings" if suggestion is None else repr(suggestion)
    assert shown in str(raised.value)


def test_agent_rejects_unknown_option_with_the_nearest_name() -> None:
    options: dict[str, Any] = {"tols": [look]}
    with pytest.raises(TypeError, match=r"^Agent\(\) got an unknown argument 'tols'; did you mean 'tools'\?$"):
        Agent(ScriptedModel("Hi."), **options)


async def test_remote_run_rejects_unknown_option_with_the_nearest_name() -> None:
    run = Agent(ScriptedModel("Hi."), log=MemoryEventLog()).get_run("run")
    options: dict[str, Any] = {"when_bussy": "wait"}
    with pytest.raises(TypeError, match=r"unknown argument 'when_bussy'; did you mean 'when_busy'\?$"):
        await run.execute(**options)


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("model", 5),
        ("settings", {"temperature": 0}),
        ("limits", {"iterations": 3}),
        ("strategy", "iterate"),
        ("on_input", "abc"),
        ("metadata", ["a"]),
        ("metadata", {"command_id": 7}),
        ("metadata", {"mail_id": 7}),
        ("context_id", 7),
    ],
)
def test_run_rejects_invalid_argument_by_name(argument: str, value: Any) -> None:
    agent = Agent(ScriptedModel("Hi."), log=MemoryEventLog())
    options: dict[str, Any] = {argument: value}

    with pytest.raises(ConfigurationError) as raised:
        agent.run("Hi", **options)

    assert argument in str(raised.value)
    assert repr(value) in str(raised.value)


# -- agent arguments


class UnrelatedLog:
    """Class with log methods that does not inherit from `EventLog`."""

    keeps_deltas = False

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **options: None


@pytest.mark.parametrize(
    ("argument", "value", "advice"),
    [
        ("model", 5, "zai:glm-4.7"),
        ("model", ScriptedModel, "class"),
        ("name", None, "a string"),
        ("instructions", None, "a string, or a function"),
        ("instructions", 7, "function"),
        ("tools", plain, r"tools=\[plain\]"),
        ("tools", "look", "list"),
        ("tools", {"look": look}, "list"),
        ("output_retries", -1, "non-negative"),
        ("output_retries", "2", "non-negative"),
        ("loop", op.call_model, "list"),
        ("loop", op.call_model(), "list"),
        ("loop", [op.call_model], r"call_model\(\)"),
        ("loop", [op.standard()], r"\*"),
        ("loop", [op.call_model(), "run_tools"], "operator"),
        ("loop", [lambda: None], "operator"),
        ("strategy", 5, r"react\(\)"),
        ("strategy", "iterate", "self_consistency, step_back, tree_of_thoughts"),
        ("limits", {"iterations": 3}, r"Limits\(iterations=3\)"),
        ("thoughts", None, "False"),
        ("thoughts", "no", "False"),
        ("thoughts", Thoughts, r"Thoughts\(\)"),
        ("log", "runs.db", r"open_log\('runs.db'\)"),
        ("log", Path("runs.db"), r"open_log\('runs.db'\)"),
        ("log", 5, "subclass of EventLog"),
        ("log", UnrelatedLog(), "subclass of EventLog"),
        ("log", MemoryEventLog, "class"),
        ("settings", {"temperature": 0}, r"ModelSettings\(temperature=0\)"),
    ],
)
def test_agent_rejects_invalid_option_with_a_remedy(argument: str, value: Any, advice: str) -> None:
    fields: dict[str, Any] = {"model": ScriptedModel(), argument: value}

    with pytest.raises(ConfigurationError, match=advice) as raised:
        Agent(**fields)

    assert argument in str(raised.value)


@pytest.mark.parametrize("override", [{"model": 5}, {"tools": plain}])
def test_override_rejects_invalid_option(override: Any) -> None:
    with pytest.raises(ConfigurationError), Agent(ScriptedModel()).override(**override):
        pass


def test_with_log_rejects_object_that_is_not_an_event_log() -> None:
    agent: Any = Agent(ScriptedModel(), log=MemoryEventLog())
    with pytest.raises(ConfigurationError, match="subclass of EventLog"):
        agent.with_log(UnrelatedLog())
    assert agent.with_log(None).log is None


@pytest.mark.parametrize("returned", [5, None])
@pytest.mark.parametrize("asynchronous", [False, True])
async def test_instruction_function_that_returns_no_string_is_named_in_the_error(
    returned: Any, asynchronous: bool
) -> None:
    def instruct(ctx: RunContext[Any]) -> Any:
        return returned

    async def instruct_async(ctx: RunContext[Any]) -> Any:
        return returned

    with pytest.raises(RunError, match="instructions") as raised:
        await Agent(ScriptedModel("Hi."), instructions=instruct_async if asynchronous else instruct).run("Hi")

    assert ("instruct_async" if asynchronous else "instruct") in str(raised.value)
    assert repr(returned) in str(raised.value)


# -- prompts


@pytest.mark.parametrize("prompt", ["", [""], [], Message.user(""), ["Hi", ""]])
def test_run_rejects_empty_prompt(prompt: Any) -> None:
    with pytest.raises(ConfigurationError, match="empty"):
        Agent(ScriptedModel()).run(prompt)


@pytest.mark.parametrize("prompt", [None, 5, {"role": "user", "content": "Hi"}, b"Hi"])
def test_run_rejects_prompt_of_wrong_type(prompt: Any) -> None:
    with pytest.raises(ConfigurationError) as raised:
        Agent(ScriptedModel()).run(prompt)

    assert repr(prompt) in str(raised.value)


@pytest.mark.parametrize("wrong_value", [5, None, {"role": "user", "content": "Hi"}])
def test_run_names_position_of_invalid_message_in_prompt(wrong_value: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"prompt\[1\]") as raised:
        Agent(ScriptedModel()).run(["Hi", wrong_value])

    assert repr(wrong_value) in str(raised.value)


def ask_for_calls(*ids: str) -> Message:
    return Message.assistant("", tool_calls=[ToolCall(id=call_id, name="look") for call_id in ids])


@pytest.mark.parametrize(
    ("history", "position"),
    [
        ([ask_for_calls("a"), "And?"], r"prompt\[0\] .*'look' \('a'\)"),
        (["Hi", ask_for_calls("a", "b"), Message.tool("a", "1"), "And?"], r"prompt\[1\] .*'look' \('b'\)"),
        (["Hi", ask_for_calls("a")], r"prompt\[1\] .*'look' \('a'\)"),
        ([Message.tool("a", "1"), "And?"], r"prompt\[0\] .*'a'"),
        (["Hi", ask_for_calls("a"), Message.tool("a", "1"), Message.tool("a", "1")], r"prompt\[3\] .*'a'"),
        (["Hi", ask_for_calls("a"), Message.tool("z", "1")], r"prompt\[2\] .*'z'"),
    ],
)
def test_run_rejects_history_with_unpaired_tool_call_or_result(history: Any, position: str) -> None:
    with pytest.raises(ConfigurationError, match=position):
        Agent(ScriptedModel()).run(history)


@pytest.mark.parametrize("prompt", ["A caf\udce9?", Message.user("A caf\udce9?"), [Message.user("A caf\udce9?")]])
async def test_lone_surrogate_in_prompt_is_replaced(prompt: Any) -> None:
    model = ScriptedModel("Yes.")
    result = await Agent(model, log=MemoryEventLog()).run(prompt)
    assert result.output == "Yes."
    assert model.requests[0].messages[0].content == "A caf\ufffd?"


async def test_history_with_results_in_another_order_is_accepted() -> None:
    history = ["Hi", ask_for_calls("a", "b"), Message.tool("b", "1"), Message.tool("a", "2"), "And?"]

    assert (await Agent(ScriptedModel("Fine.")).run(history)).output == "Fine."


# -- answers


def make_answer_strategy(text: str) -> Any:
    def strategy(pipeline: Operator) -> Operator:
        async def handle_run(request: RunRequest, ctx: RunContext[Any]) -> AsyncIterator[Signal]:
            result = await Agent(ScriptedModel(text)).run("?")
            async for event in Agent(ScriptedModel(result.content)).run("?"):
                if event.kind == "content-complete":
                    yield event.model_copy(update={"task_id": "", "attempt": 0, "step": "1"})

        return op.on(RunRequest)(handle_run)

    return strategy


async def test_run_fails_with_code_output_when_strategy_answer_is_invalid() -> None:
    run = Agent(ScriptedModel(), output_type=int, strategy=make_answer_strategy("not a number")).run("How many?")
    events = await collect(run)

    with pytest.raises(RunError, match="does not fit") as raised:
        await run

    assert raised.value.code == "output"
    assert isinstance(raised.value.__cause__, InvalidOutput)
    assert vars(events[-1])["state"] == "failed"


async def test_output_of_finished_run_raises_when_answer_is_invalid() -> None:
    log = MemoryEventLog()
    run = Agent(ScriptedModel("not a number"), log=log).run("How many?")
    await run

    result = await Agent(ScriptedModel(), log=log, output_type=int).resume(run.task_id)

    assert (result.state, result.content) == ("completed", "not a number")
    for _ in range(2):
        with pytest.raises(InvalidOutput, match="not a number"):
            _ = result.output


# -- answers to questions


@pytest.mark.parametrize(
    ("answer_type", "wrong_value", "valid_value"),
    [
        (int, "five", 5),
        (int, True, 5),
        (int, 5.5, 5),
        (float, "x", 2),
        (str, 7, "seven"),
        (list[int], "1, 2", [1, 2]),
        (dict[str, int], [1], {"a": 1}),
        (int | None, "five", None),
    ],
)
async def test_resume_rejects_answer_of_wrong_type_without_writing_events(
    answer_type: Any, wrong_value: Any, valid_value: Any
) -> None:
    @tool
    async def asks_for(ctx: RunContext[Any]) -> str:
        """Asks."""
        return repr(await ctx.ask("Which?", answer_type))

    log = MemoryEventLog()
    agent = Agent(ScriptedModel(call("asks_for"), "done"), tools=[asks_for], log=log)
    paused = await agent.run("Hi")
    before = len(await log.read(paused.task_id))
    input_id = paused.pending[0].input_id

    with pytest.raises(InvalidInput, match="Which") as raised:
        await agent.resume(paused.task_id, inputs={input_id: wrong_value})

    assert repr(wrong_value) in str(raised.value)
    assert len(await log.read(paused.task_id)) == before
    assert (await agent.resume(paused.task_id, inputs={input_id: valid_value})).output == "done"
