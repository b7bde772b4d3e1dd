"""What is given wrongly is refused at once, with what was given and what to write."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import pytest
from reactivex import Observable

from runs import collect, outcome
from rxloop import (
    Agent,
    ConfigurationError,
    ContextBusy,
    EventLogError,
    InvalidInput,
    InvalidOutput,
    Limits,
    MemoryEventLog,
    Message,
    RunContext,
    RunError,
    Thoughts,
    Usage,
    op,
    tool,
)
from rxloop.pipeline import log_retry
from rxloop.pipeline.requests import IterationEnd, Operator, RunRequest, Signal, ToolRequest
from rxloop.protocol.messages import ToolCall
from rxloop.testing import ScriptedModel, call, turn


@tool
async def look(n: int = 0) -> int:
    """Looks."""
    return n


def plain(n: int) -> int:
    """Doubles."""
    return n * 2


# -- arguments of a run


@pytest.mark.parametrize(
    ("wrong", "meant"), [("contextid", "context_id"), ("limit", "limits"), ("on_inputs", "on_input"), ("colour", None)]
)
@pytest.mark.parametrize("method", ["run", "run_sync", "resume"])
def test_an_unknown_argument_is_refused_with_the_nearest_one(method: str, wrong: str, meant: str | None) -> None:
    agent = Agent(ScriptedModel("Hi."), log=MemoryEventLog())

    with pytest.raises(TypeError) as raised:
        getattr(agent, method)("Hi", **{wrong: None})

    assert f"Agent.{method}()" in str(raised.value)
    assert repr(wrong) in str(raised.value)
    shown = "context_id, when_busy, model, settings" if meant is None else repr(meant)
    assert shown in str(raised.value)


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("model", 5),
        ("settings", {"temperature": 0}),
        ("limits", {"iterations": 3}),
        ("strategy", "iterate"),
        ("on_input", "abc"),
        ("metadata", ["a"]),
        ("metadata", {"mail_id": 7}),
        ("context_id", 7),
    ],
)
def test_a_wrong_value_of_a_run_is_refused_by_name(argument: str, value: Any) -> None:
    agent = Agent(ScriptedModel("Hi."), log=MemoryEventLog())
    options: dict[str, Any] = {argument: value}

    with pytest.raises(ConfigurationError) as raised:
        agent.run("Hi", **options)

    assert argument in str(raised.value)
    assert repr(value) in str(raised.value)


# -- arguments of an agent


class NoLog:
    async def append(self) -> None: ...


class OldLog(MemoryEventLog):
    """As it was before logs kept the writer of a batch."""

    async def append(self, task_id: str, events: Any, *, expected_seq: int) -> None: ...  # type: ignore[override]


class NoFollow:
    keeps_deltas = False
    append = MemoryEventLog.append
    read = MemoryEventLog.read
    runs = MemoryEventLog.runs


class OldRead(MemoryEventLog):
    async def read(self, task_id: str) -> Any: ...  # type: ignore[override]


class OtherRuns(MemoryEventLog):
    async def runs(self, context_id: str) -> Any: ...  # type: ignore[override]


class OldAppendNow(MemoryEventLog):
    def append_now(self, task_id: str, events: Any, expected_seq: int) -> bool:
        return False


class Anything:
    """One that passes on whatever it is called with."""

    keeps_deltas = False

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **options: None


@pytest.mark.parametrize(
    ("argument", "value", "advice"),
    [
        ("model", 5, "zai:glm-4.7"),
        ("model", ScriptedModel, "class"),
        ("name", None, "a text"),
        ("instructions", None, "leave it out"),
        ("instructions", 7, "function"),
        ("tools", plain, r"tools=\[plain\]"),
        ("tools", "look", "list"),
        ("tools", {"look": look}, "list"),
        ("output_retries", -1, "0"),
        ("output_retries", "2", "0"),
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
        ("log", "runs.db", r"log=open_log\('runs.db'\)"),
        ("log", Path("runs.db"), r"log=open_log\('runs.db'\)"),
        ("log", 5, "event log"),
        ("log", NoLog(), "read"),
        ("log", OldLog(), r"append\(\).*'writer'.*: add writer=''$"),
        ("log", NoFollow(), "it has no follow, record, aclose;"),
        ("log", OldRead(), r"read\(\).*: add after_seq=0, deltas=False$"),
        ("log", OtherRuns(), r"runs\(\).*: add unfinished=False, states=None, .*limit=None$"),
        ("log", OldAppendNow(), r"append_now\(\).*: add writer=''$"),
        ("log", MemoryEventLog, "class"),
        ("settings", {"temperature": 0}, r"ModelSettings\(temperature=0\)"),
    ],
)
def test_a_wrong_value_of_an_agent_is_refused_with_what_to_write(argument: str, value: Any, advice: str) -> None:
    fields: dict[str, Any] = {"model": ScriptedModel(), argument: value}

    with pytest.raises(ConfigurationError, match=advice) as raised:
        Agent(**fields)

    assert argument in str(raised.value)


@pytest.mark.parametrize("overridden", [{"model": 5}, {"tools": plain}])
def test_an_override_is_checked_like_an_agent(overridden: Any) -> None:
    with pytest.raises(ConfigurationError), Agent(ScriptedModel()).override(**overridden):
        pass


def test_another_log_is_checked_like_that_of_an_agent() -> None:
    agent: Any = Agent(ScriptedModel(), log=MemoryEventLog())
    with pytest.raises(ConfigurationError, match="add writer=''"):
        agent.with_log(OldLog())
    assert agent.with_log(None).log is None
    agent.with_log(Anything())


@pytest.mark.parametrize("given", [5, None])
@pytest.mark.parametrize("asynchronous", [False, True])
async def test_an_instruction_function_that_gives_no_text_is_named(given: Any, asynchronous: bool) -> None:
    def at_once(ctx: RunContext[Any]) -> Any:
        return given

    async def later(ctx: RunContext[Any]) -> Any:
        return given

    with pytest.raises(RunError, match="instructions") as raised:
        await Agent(ScriptedModel("Hi."), instructions=later if asynchronous else at_once).run("Hi")

    assert ("later" if asynchronous else "at_once") in str(raised.value)
    assert repr(given) in str(raised.value)


# -- prompts


@pytest.mark.parametrize("prompt", ["", [""], [], Message.user(""), ["Hi", ""]])
def test_an_empty_prompt_is_refused(prompt: Any) -> None:
    with pytest.raises(ConfigurationError, match="empty"):
        Agent(ScriptedModel()).run(prompt)


@pytest.mark.parametrize("prompt", [None, 5, {"role": "user", "content": "Hi"}, b"Hi"])
def test_what_is_no_prompt_is_refused(prompt: Any) -> None:
    with pytest.raises(ConfigurationError) as raised:
        Agent(ScriptedModel()).run(prompt)

    assert repr(prompt) in str(raised.value)


@pytest.mark.parametrize("wrong", [5, None, {"role": "user", "content": "Hi"}])
def test_what_is_no_message_is_named_with_its_place(wrong: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"prompt\[1\]") as raised:
        Agent(ScriptedModel()).run(["Hi", wrong])

    assert repr(wrong) in str(raised.value)


def asks(*ids: str) -> Message:
    return Message.assistant("", tool_calls=[ToolCall(id=each, name="look") for each in ids])


@pytest.mark.parametrize(
    ("history", "place"),
    [
        ([asks("a"), "And?"], r"prompt\[0\] .*'look' \('a'\)"),
        (["Hi", asks("a", "b"), Message.tool("a", "1"), "And?"], r"prompt\[1\] .*'look' \('b'\)"),
        (["Hi", asks("a")], r"prompt\[1\] .*'look' \('a'\)"),
        ([Message.tool("a", "1"), "And?"], r"prompt\[0\] .*'a'"),
        (["Hi", asks("a"), Message.tool("a", "1"), Message.tool("a", "1")], r"prompt\[3\] .*'a'"),
        (["Hi", asks("a"), Message.tool("z", "1")], r"prompt\[2\] .*'z'"),
    ],
)
def test_a_history_with_a_call_or_an_answer_alone_is_refused_with_its_place(history: Any, place: str) -> None:
    with pytest.raises(ConfigurationError, match=place):
        Agent(ScriptedModel()).run(history)


@pytest.mark.parametrize("prompt", ["A caf\udce9?", Message.user("A caf\udce9?"), [Message.user("A caf\udce9?")]])
async def test_half_a_character_in_a_prompt_becomes_one_that_can_be_sent_and_kept(prompt: Any) -> None:
    model = ScriptedModel("Yes.")
    result = await Agent(model, log=MemoryEventLog()).run(prompt)
    assert result.output == "Yes."
    assert model.requests[0].messages[0].content == "A caf\ufffd?"


async def test_a_history_whose_calls_are_answered_is_taken() -> None:
    history = ["Hi", asks("a", "b"), Message.tool("b", "1"), Message.tool("a", "2"), "And?"]

    assert (await Agent(ScriptedModel("Fine.")).run(history)).output == "Fine."


# -- answers


def answering_with(text: str) -> Any:
    def strategy(pipeline: Operator) -> Operator:
        async def answers(request: RunRequest, ctx: RunContext[Any]) -> AsyncIterator[Signal]:
            result = await Agent(ScriptedModel(text)).run("?")
            async for event in Agent(ScriptedModel(result.content)).run("?"):
                if event.kind == "content-complete":
                    yield event.model_copy(update={"task_id": "", "attempt": 0, "step": "1"})

        return op.on(RunRequest)(answers)

    return strategy


async def test_a_strategy_whose_answer_does_not_fit_fails_by_output() -> None:
    run = Agent(ScriptedModel(), output_type=int, strategy=answering_with("not a number")).run("How many?")
    events = await collect(run)

    with pytest.raises(RunError, match="does not fit") as raised:
        await run

    assert raised.value.code == "output"
    assert isinstance(raised.value.__cause__, InvalidOutput)
    assert vars(events[-1])["state"] == "failed"


async def test_an_ended_run_whose_answer_does_not_fit_says_so_when_its_output_is_read() -> None:
    log = MemoryEventLog()
    run = Agent(ScriptedModel("not a number"), log=log).run("How many?")
    await run

    result = await Agent(ScriptedModel(), log=log, output_type=int).resume(run.task_id)

    assert (result.state, result.content) == ("completed", "not a number")
    for _ in range(2):
        with pytest.raises(InvalidOutput, match="not a number"):
            _ = result.output


# -- what belongs to an agent


class Family:
    """A family of tools, as plain functions."""

    def __init__(self, *functions: Any) -> None:
        self.functions = functions
        self.closed = 0

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        self.closed += 1

    async def tools(self, ctx: RunContext[Any]) -> Any:
        return self.functions


class Mine(ScriptedModel):
    closed = 0

    async def aclose(self) -> None:
        self.closed += 1


def test_run_sync_closes_what_the_agent_opened_and_nothing_else() -> None:
    model, family = Mine("one", "two"), Family(look)
    agent = Agent(model, tools=[family])

    assert agent.run_sync("Hi").output == "one"
    assert (model.closed, family.closed) == (0, 1)
    assert agent.run_sync("Hi").output == "two", "the agent is not closed"


async def test_the_limits_of_a_run_go_over_those_of_the_agent() -> None:
    spent = turn(calls=[call("look")], usage=Usage(input_tokens=2))
    agent = Agent(ScriptedModel(spent, "done"), tools=[look], limits=Limits(tokens=1, tool_failures=2))

    result = await outcome(agent.run("Hi", limits=Limits(iterations=5)))

    assert result.reason == "tokens"
    assert Limits(iterations=5, seconds=None).over(Limits(tokens=250, seconds=3)) == Limits(
        iterations=5, tokens=250, seconds=None
    )


async def test_the_model_of_an_override_goes_before_that_of_a_run() -> None:
    agent, real = Agent(ScriptedModel()), ScriptedModel("real")
    with agent.override(model=ScriptedModel("fake")):
        assert (await agent.run("Hi", model=real)).output == "fake"


# -- parts that are plugged in


async def test_a_family_may_give_plain_functions() -> None:
    model = ScriptedModel(call("plain", n=4), call("plain", n=5), "done")

    result = await Agent(model, tools=[Family(plain)], thoughts=False).run("Hi")

    assert [message.text for message in result.messages if message.role == "tool"] == ["8", "10"]
    assert model.requests[0].tools is model.requests[1].tools, "encoded once"


@dataclass
class Unhashable(MemoryEventLog):
    """A log that can be no key of a dict."""

    path: str = "runs"

    def __post_init__(self) -> None:
        super().__init__()


async def test_a_log_need_not_be_hashable() -> None:
    log = Unhashable()
    agent = Agent(ScriptedModel("one", "two"), log=log)

    first = agent.run("Hi", context_id="c")
    async with first:
        with pytest.raises(ContextBusy):
            await agent.run("Hi", context_id="c")
        await first
    assert (await agent.run("Hi", context_id="c")).output == "two"


async def test_two_equal_logs_are_two_logs() -> None:
    @dataclass(unsafe_hash=True)
    class Equal(MemoryEventLog):
        path: str = "runs"

        def __post_init__(self) -> None:
            super().__init__()

    one, other = Equal(), Equal()
    async with Agent(ScriptedModel("one"), log=one).run("Hi", context_id="c"):
        assert (await Agent(ScriptedModel("two"), log=other).run("Hi", context_id="c")).output == "two"


@pytest.mark.parametrize("broken", ["runs", "read"])
async def test_a_log_that_cannot_be_read_is_an_error_of_the_log(broken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_retry, "PATIENCE", 0)
    log = MemoryEventLog()
    agent = Agent(ScriptedModel("one", "two"), log=log)
    first = await agent.run("Hi", context_id="c")

    async def fails(*_: Any, **__: Any) -> Any:
        raise OSError("the disk is gone")

    setattr(log, broken, fails)
    for run in (agent.run("Hi", context_id="c"), agent.resume(first.task_id)):
        with pytest.raises(EventLogError, match="the disk is gone") as raised:
            await run
        assert isinstance(raised.value.__cause__, OSError)


async def returns(request: Any, ctx: RunContext[Any]) -> Any:
    return request


def generates(request: Any, ctx: RunContext[Any]) -> Any:
    yield request


@pytest.mark.parametrize("handler", [returns, generates, lambda request, ctx: request, 7])
@pytest.mark.parametrize("request_type", [ToolRequest, IterationEnd])
def test_a_handler_that_is_no_async_generator_function_is_refused_by_name(handler: Any, request_type: Any) -> None:
    with pytest.raises(ConfigurationError, match="async generator") as raised:
        op.on(request_type)(handler)

    assert getattr(handler, "__name__", "7") in str(raised.value)


@pytest.mark.parametrize("given", ["tool", str, ToolCall(id="1", name="look")])
def test_op_on_wants_a_class_of_requests(given: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"op\.on\(.*give ToolRequest, ModelRequest"):
        op.on(given)


@pytest.mark.parametrize("given", [op.text(), "guard", 5])
@pytest.mark.parametrize("place", ["before_model", "before_tools", "at_end"])
def test_a_place_of_the_usual_loop_wants_a_list(place: str, given: Any) -> None:
    with pytest.raises(ConfigurationError, match=f"^{place}=.*give a list of operators, such as {place}="):
        op.standard(**{place: given})


def test_op_of_type_wants_classes() -> None:
    wrong: Any = "tool-start"
    with pytest.raises(ConfigurationError, match=r"op\.of_type\('tool-start'\).*classes of events"):
        op.of_type(wrong)


async def test_a_loop_without_what_answers_a_request_is_told_what_to_add() -> None:
    model = ScriptedModel(call("look"), "Hi.")
    with pytest.raises(RunError, match=r"the pipeline is run_tools; put op\.call_model\(\) after"):
        await Agent(model, loop=[op.run_tools()]).run("Hi")
    with pytest.raises(RunError, match=r"the pipeline is call_model; put op\.run_tools\(\) after"):
        await Agent(model, tools=[look], loop=[op.call_model()]).run("Hi")


async def test_a_handler_may_be_an_object_or_wrapped() -> None:
    import functools

    class Guard:
        async def __call__(self, request: ToolRequest, ctx: RunContext[Any]) -> AsyncIterator[Signal]:
            yield request

    @functools.wraps(Guard.__call__)
    def wrapped(request: ToolRequest, ctx: RunContext[Any]) -> AsyncIterator[Signal]:
        return Guard()(request, ctx)

    for handler in (Guard(), wrapped, functools.partial(Guard.__call__, Guard())):
        op.on(ToolRequest)(handler)


async def test_a_strategy_that_answers_nothing_is_a_fault_of_the_pipeline() -> None:
    def mine(pipeline: Operator) -> Operator:
        return lambda source: source

    with pytest.raises(RunError, match="RunRequest") as raised:
        await Agent(ScriptedModel("Hi."), strategy=mine).run("Hi")

    assert raised.value.code == "pipeline"


async def test_a_strategy_that_gives_no_operator_is_named() -> None:
    def mine(pipeline: Operator) -> Any:
        return None

    with pytest.raises(ConfigurationError, match=r"mine.*None"):
        Agent(ScriptedModel("Hi."), strategy=mine).run("Hi")


def test_a_pipeline_as_a_strategy_is_told_by_its_operators() -> None:
    with pytest.raises(RunError, match="call_model, run_tools"):
        Agent(
            ScriptedModel("Hi."), strategy=lambda pipeline: pipeline, loop=[op.call_model(), op.run_tools()]
        ).run_sync("Hi")


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: op.run_tools(concurrency=0), "concurrency"),
        (lambda: op.checkpoint(every=0), "every"),
        (lambda: op.answering(ToolRequest, lambda request: Observable(), 0), "concurrency"),
    ],
)
def test_a_number_that_is_too_small_is_refused(make: Any, named: str) -> None:
    with pytest.raises(ConfigurationError, match=f"{named} must be at least 1, not 0"):
        make()


@pytest.mark.parametrize("heartbeat", [0, -1, float("nan")])
def test_a_heartbeat_that_never_rests_is_refused_at_once(heartbeat: float) -> None:
    run = Agent(ScriptedModel("Hi.")).run("Hi")
    with pytest.raises(ConfigurationError, match="heartbeat"):
        run.sse(heartbeat=heartbeat)
    run.cancel()


# -- answers to questions


@pytest.mark.parametrize(
    ("answer", "wrong", "right"),
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
async def test_an_answer_of_a_wrong_type_is_refused_before_the_run_goes_on(answer: Any, wrong: Any, right: Any) -> None:
    @tool
    async def asks_for(ctx: RunContext[Any]) -> str:
        """Asks."""
        return repr(await ctx.ask("Which?", answer))

    log = MemoryEventLog()
    agent = Agent(ScriptedModel(call("asks_for"), "done"), tools=[asks_for], log=log)
    paused = await agent.run("Hi")
    before = len(await log.read(paused.task_id))
    input_id = paused.pending[0].input_id

    with pytest.raises(InvalidInput, match="Which") as raised:
        await agent.resume(paused.task_id, inputs={input_id: wrong})

    assert repr(wrong) in str(raised.value)
    assert len(await log.read(paused.task_id)) == before
    assert (await agent.resume(paused.task_id, inputs={input_id: right})).output == "done"
