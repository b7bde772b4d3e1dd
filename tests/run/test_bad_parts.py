"""Parts that are plugged into an agent and are not what they should be, and what belongs to the agent."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, Self

import pytest
from reactivex import Observable

from rxloop import Agent, ConfigurationError, Limits, MemoryEventLog, RunContext, RunError, Usage, op
from rxloop.errors import ContextBusy, EventLogError
from rxloop.pipeline import log_retry
from rxloop.pipeline.requests import IterationEnd, Operator, Signal, ToolRequest
from rxloop.protocol.messages import ToolCall
from rxloop.testing import ScriptedModel, call, turn
from support.plain_tools import look, plain
from support.runs import outcome

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
    assert Limits(iterations=5, seconds=None).merge_defaults(Limits(tokens=250, seconds=3)) == Limits(
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

    path: str = "list_runs"

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
        path: str = "list_runs"

        def __post_init__(self) -> None:
            super().__init__()

    one, other = Equal(), Equal()
    async with Agent(ScriptedModel("one"), log=one).run("Hi", context_id="c"):
        assert (await Agent(ScriptedModel("two"), log=other).run("Hi", context_id="c")).output == "two"


@pytest.mark.parametrize("broken", ["list_runs", "read"])
async def test_a_log_that_cannot_be_read_is_an_error_of_the_log(broken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(MemoryEventLog):
        disk_is_gone = False

    async def fails(log: Broken, *args: Any, **options: Any) -> Any:
        if log.disk_is_gone:
            raise OSError("the disk is gone")
        return await getattr(super(Broken, log), broken)(*args, **options)

    monkeypatch.setattr(log_retry, "PATIENCE", 0)
    log = type("Failing", (Broken,), {broken: fails})()
    agent = Agent(ScriptedModel("one", "two"), log=log)
    first = await agent.run("Hi", context_id="c")
    log.disk_is_gone = True
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
