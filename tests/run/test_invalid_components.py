"""Invalid and caller-owned agent components."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, Self

import pytest
from reactivex import Observable

from rxloop import Agent, ConfigurationError, EventLog, Limits, MemoryEventLog, RunContext, RunError, Usage, op
from rxloop.errors import ContextBusy, EventLogError
from rxloop.pipeline import log_retry
from rxloop.pipeline.requests import IterationEnd, Operator, Signal, ToolRequest
from rxloop.protocol.messages import ToolCall
from rxloop.testing import ScriptedModel, call, turn
from support.plain_tools import look, plain
from support.runs import outcome

# -- ownership


class PlainToolset:
    """Toolset of plain functions."""

    def __init__(self, *functions: Any) -> None:
        self.functions = functions
        self.closed = 0

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        self.closed += 1

    async def tools(self, ctx: RunContext[Any]) -> Any:
        return self.functions


class CountingModel(ScriptedModel):
    closed = 0

    async def aclose(self) -> None:
        self.closed += 1


def test_run_sync_closes_toolsets_but_not_the_model() -> None:
    model, toolset = CountingModel("one", "two"), PlainToolset(look)
    agent = Agent(model, tools=[toolset])

    assert agent.run_sync("Hi").output == "one"
    assert (model.closed, toolset.closed) == (0, 1)
    assert agent.run_sync("Hi").output == "two", "the agent is not closed"


async def test_limits_of_run_override_limits_of_agent() -> None:
    spent = turn(calls=[call("look")], usage=Usage(input_tokens=2))
    agent = Agent(ScriptedModel(spent, "done"), tools=[look], limits=Limits(tokens=1, tool_failures=2))

    result = await outcome(agent.run("Hi", limits=Limits(iterations=5)))

    assert result.reason == "tokens"
    assert Limits(iterations=5, seconds=None).merge_defaults(Limits(tokens=250, seconds=3)) == Limits(
        iterations=5, tokens=250, seconds=None
    )


async def test_model_of_override_replaces_model_of_run() -> None:
    agent, real = Agent(ScriptedModel()), ScriptedModel("real")
    with agent.override(model=ScriptedModel("fake")):
        assert (await agent.run("Hi", model=real)).output == "fake"


# -- validation


async def test_toolset_may_return_plain_functions() -> None:
    model = ScriptedModel(call("plain", n=4), call("plain", n=5), "done")

    result = await Agent(model, tools=[PlainToolset(plain)], thoughts=False).run("Hi")

    assert [message.text for message in result.messages if message.role == "tool"] == ["8", "10"]
    assert model.requests[0].tools is model.requests[1].tools, "encoded once"


@dataclass
class UnhashableLog(MemoryEventLog):
    """Unhashable log."""

    path: str = "list_runs"

    def __post_init__(self) -> None:
        super().__init__()


async def test_context_is_busy_when_its_log_is_unhashable() -> None:
    log = UnhashableLog()
    agent = Agent(ScriptedModel("one", "two"), log=log)

    first = agent.run("Hi", context_id="c")
    async with first:
        with pytest.raises(ContextBusy):
            await agent.run("Hi", context_id="c")
        await first
    assert (await agent.run("Hi", context_id="c")).output == "two"


async def test_context_is_not_busy_in_another_log_that_compares_equal() -> None:
    @dataclass(unsafe_hash=True)
    class EqualLog(MemoryEventLog):
        path: str = "list_runs"

        def __post_init__(self) -> None:
            super().__init__()

    one, other = EqualLog(), EqualLog()
    async with Agent(ScriptedModel("one"), log=one).run("Hi", context_id="c"):
        assert (await Agent(ScriptedModel("two"), log=other).run("Hi", context_id="c")).output == "two"


@pytest.mark.parametrize("broken_method", ["list_runs", "read"])
async def test_unreadable_log_raises_event_log_error(broken_method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class BrokenLog(MemoryEventLog):
        disk_is_gone = False
        # The memory log would not call `read`.
        snapshot = EventLog.snapshot
        read_conversation = EventLog.read_conversation

    async def fail_if_disk_is_gone(log: BrokenLog, *args: Any, **options: Any) -> Any:
        if log.disk_is_gone:
            raise OSError("the disk is gone")
        return await getattr(super(BrokenLog, log), broken_method)(*args, **options)

    monkeypatch.setattr(log_retry, "RETRY_SECONDS", 0)
    log = type("Failing", (BrokenLog,), {broken_method: fail_if_disk_is_gone})()
    agent = Agent(ScriptedModel("one", "two"), log=log)
    first = await agent.run("Hi", context_id="c")
    log.disk_is_gone = True
    for run in (agent.run("Hi", context_id="c"), agent.resume(first.task_id)):
        with pytest.raises(EventLogError, match="the disk is gone") as raised:
            await run
        assert isinstance(raised.value.__cause__, OSError)


async def return_request(request: Any, ctx: RunContext[Any]) -> Any:
    return request


def generate_requests(request: Any, ctx: RunContext[Any]) -> Any:
    yield request


@pytest.mark.parametrize("handler", [return_request, generate_requests, lambda request, ctx: request, 7])
@pytest.mark.parametrize("request_type", [ToolRequest, IterationEnd])
def test_op_on_rejects_handler_that_is_not_an_async_generator_function(handler: Any, request_type: Any) -> None:
    with pytest.raises(ConfigurationError, match="async generator") as raised:
        op.on(request_type)(handler)

    assert getattr(handler, "__name__", "7") in str(raised.value)


@pytest.mark.parametrize("value", ["tool", str, ToolCall(id="1", name="look")])
def test_op_on_rejects_value_that_is_not_a_request_class(value: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"op\.on\(\) requires ToolRequest, ModelRequest"):
        op.on(value)


@pytest.mark.parametrize("value", [op.text(), "guard", 5])
@pytest.mark.parametrize("option", ["before_model", "before_tools", "at_end"])
def test_standard_rejects_option_that_is_not_a_list(option: str, value: Any) -> None:
    with pytest.raises(ConfigurationError, match=f"^{option} must be a list of operators such as "):
        op.standard(**{option: value})


def test_op_of_type_rejects_event_kind_string() -> None:
    wrong: Any = "tool-start"
    with pytest.raises(ConfigurationError, match=r"op\.of_type\(\) requires event classes.*tool-start"):
        op.of_type(wrong)


async def test_loop_without_handler_fails_with_the_missing_operator() -> None:
    model = ScriptedModel(call("look"), "Hi.")
    with pytest.raises(RunError, match=r"put op\.call_model\(\) after its sender; the pipeline is run_tools"):
        await Agent(model, loop=[op.run_tools()]).run("Hi")
    with pytest.raises(RunError, match=r"put op\.run_tools\(\) after its sender; the pipeline is call_model"):
        await Agent(model, tools=[look], loop=[op.call_model()]).run("Hi")


async def test_op_on_accepts_callable_object_wrapped_and_partial_handlers() -> None:
    import functools

    class Guard:
        async def __call__(self, request: ToolRequest, ctx: RunContext[Any]) -> AsyncIterator[Signal]:
            yield request

    @functools.wraps(Guard.__call__)
    def wrapped(request: ToolRequest, ctx: RunContext[Any]) -> AsyncIterator[Signal]:
        return Guard()(request, ctx)

    for handler in (Guard(), wrapped, functools.partial(Guard.__call__, Guard())):
        op.on(ToolRequest)(handler)


async def test_run_fails_with_code_pipeline_when_strategy_answers_no_request() -> None:
    def mine(pipeline: Operator) -> Operator:
        return lambda source: source

    with pytest.raises(RunError, match="RunRequest") as raised:
        await Agent(ScriptedModel("Hi."), strategy=mine).run("Hi")

    assert raised.value.code == "pipeline"


async def test_strategy_that_returns_no_operator_is_named_in_the_error() -> None:
    def mine(pipeline: Operator) -> Any:
        return None

    with pytest.raises(ConfigurationError, match=r"mine.*None"):
        Agent(ScriptedModel("Hi."), strategy=mine).run("Hi")


def test_error_lists_operators_when_pipeline_is_used_as_strategy() -> None:
    with pytest.raises(RunError, match="call_model, run_tools"):
        Agent(
            ScriptedModel("Hi."), strategy=lambda pipeline: pipeline, loop=[op.call_model(), op.run_tools()]
        ).run_sync("Hi")


@pytest.mark.parametrize(
    ("make", "argument"),
    [
        (lambda: op.run_tools(concurrency=0), "concurrency"),
        (lambda: op.checkpoint(every=0), "every"),
        (lambda: op.answer_requests(ToolRequest, lambda request: Observable(), 0), "concurrency"),
    ],
)
def test_operator_rejects_number_below_one(make: Any, argument: str) -> None:
    with pytest.raises(ConfigurationError, match=f"{argument} must be an integer of at least 1( or None)?, got 0"):
        make()


@pytest.mark.parametrize("heartbeat", [0, -1, float("nan")])
def test_sse_rejects_heartbeat_that_is_not_positive(heartbeat: float) -> None:
    run = Agent(ScriptedModel("Hi.")).run("Hi")
    with pytest.raises(ConfigurationError, match="heartbeat"):
        run.sse(heartbeat=heartbeat)
    run.cancel()
