"""Spans and metrics that `op.spans` creates from events."""

from __future__ import annotations

import asyncio
import cProfile
import subprocess
import sys
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.trace import Span, SpanProcessor, TracerProvider
from opentelemetry.trace import SpanKind, StatusCode

from rxloop import (
    Agent,
    Limits,
    LLMCallEvent,
    LLMFailedEvent,
    MemoryEventLog,
    ModelSettings,
    RunContext,
    Runtime,
    StatusUpdateEvent,
    ToolError,
    Usage,
    UsageEvent,
    fallback,
    op,
    replay,
    tool,
)
from rxloop.errors import RateLimited
from rxloop.protocol.messages import ErrorInfo
from rxloop.providers import openai_chat
from rxloop.telemetry import measurements
from rxloop.telemetry.export import make_spans
from rxloop.telemetry.names import split_model
from rxloop.testing import ScriptedModel, call, turn
from support.http_server import Reply, sse, start_server
from support.runs import copy_first_events, outcome
from support.span_collector import SpanCollector, get_id

SECRET = "the secret word"

PEER_ATTRIBUTES = {
    # Emitted by pydantic-ai 2.68 without content, and by google-adk 2.13 (google/adk/telemetry). Installing both here
    # would take minutes. The attributes with the prefixes of a vendor and the deprecated `gen_ai.system` are omitted,
    # and so are the descriptions of agents and tools, which events do not contain. pydantic-ai repeats the name of the
    # agent in all spans below it.
    "invoke_agent": {
        "gen_ai.operation.name",
        "gen_ai.agent.name",
        "gen_ai.conversation.id",
        "gen_ai.aggregated_usage.input_tokens",
        "gen_ai.aggregated_usage.output_tokens",
    },
    "chat": {
        "gen_ai.operation.name",
        "gen_ai.conversation.id",
        "gen_ai.provider.name",
        "gen_ai.request.model",
        "gen_ai.response.finish_reasons",
        "gen_ai.response.time_to_first_chunk",
        "gen_ai.usage.input_tokens",
        "gen_ai.usage.output_tokens",
    },
    "execute_tool": {"gen_ai.operation.name", "gen_ai.tool.name", "gen_ai.tool.call.id", "gen_ai.tool.type"},
}


@tool
async def get_weather(city: str) -> str:
    """Current weather."""
    if city == "Atlantis":
        raise ToolError(SECRET)
    return f"{SECRET} in {city}"


@tool
async def confirm(ctx: RunContext[Any]) -> str:
    """Asks."""
    return "yes" if await ctx.ask("Sure?") else "no"


def tokens(text: Any, input_tokens: int = 10, output_tokens: int = 2) -> Any:
    return turn(text, usage=Usage(input_tokens=input_tokens, output_tokens=output_tokens, cached_tokens=4))


def make_agent(*turns: Any, **options: Any) -> Agent:
    script = turns or (call("get_weather", "c1", city="Oslo"), tokens(SECRET))
    return Agent(ScriptedModel(*script), name="guide", tools=[get_weather, confirm], thoughts=False, **options)


async def trace_run(agent: Agent, collector: SpanCollector, **options: Any) -> str:
    """Execute a run with a view, and return its id."""
    run = agent.run(SECRET)
    run.pipe(collector.view(**options)).subscribe(on_error=lambda error: None)
    await outcome(run)
    return run.task_id


async def test_spans_of_a_run_have_its_names_kinds_and_parents() -> None:
    collector = SpanCollector()
    await trace_run(make_agent(), collector)

    root = "invoke_agent guide"
    assert collector.tree() == [
        f"{root} > chat scripted",
        f"{root} > execute_tool get_weather",
        f"{root} > chat scripted",
        root,
    ]
    assert {span.kind for span in collector.find("chat")} == {SpanKind.CLIENT}
    assert {span.kind for span in [*collector.find("execute"), *collector.find("invoke")]} == {SpanKind.INTERNAL}
    assert {span.status.status_code for span in collector.spans} == {StatusCode.UNSET}
    scope = collector.spans[0].instrumentation_scope
    assert scope is not None
    assert (scope.name, dict(scope.attributes or {})) == (
        "rxloop",
        {"rxloop.semantic_conventions": "gen_ai 1.42 (development)"},
    )


async def test_spans_have_the_attributes_that_other_frameworks_emit() -> None:
    collector = SpanCollector()
    await trace_run(make_agent(), collector)

    for prefix, expected in PEER_ATTRIBUTES.items():
        assert expected <= set(collector.find(prefix)[-1].attributes or {})


async def test_model_call_has_the_origin_of_its_answer() -> None:
    collector = SpanCollector()
    chunk = {"id": "r1", "model": "m-2", "choices": [{"index": 0, "delta": {"content": "Hi"}, "finish_reason": "stop"}]}
    async with start_server() as server:
        server.answer(Reply(sse(chunk)))
        model = openai_chat("m", base_url=server.base_url, api_key="key")
        await trace_run(Agent(model, name="guide", thoughts=False), collector)
        await model.aclose()
        port = server.port
    attributes = dict(collector.one("chat").attributes or {})
    names = ("gen_ai.response.id", "gen_ai.response.model", "server.address", "server.port", "gen_ai.request.stream")
    assert [attributes[name] for name in names] == ["r1", "m-2", "127.0.0.1", port, True]


async def test_nested_run_is_a_child_of_its_tool_call() -> None:
    collector = SpanCollector()
    inner = Agent(ScriptedModel("inside"), name="inner", thoughts=False)
    outer = Agent(ScriptedModel(call("inner", prompt="?"), "done"), tools=[inner.as_tool()], name="outer")
    await trace_run(outer, collector)

    assert collector.tree()[1:4] == [
        "invoke_agent inner > chat scripted",
        "execute_tool inner > invoke_agent inner",
        "invoke_agent outer > execute_tool inner",
    ]


async def test_tokens_are_counted_once_by_model_calls_and_once_by_their_agent() -> None:
    collector = SpanCollector()
    inner = Agent(ScriptedModel(tokens("inside", 5, 1)), name="inner", thoughts=False)
    outer = Agent(ScriptedModel(call("inner", prompt="?"), tokens("done", 7, 2)), tools=[inner.as_tool()], name="outer")
    await trace_run(outer, collector)

    assert sum((span.attributes or {}).get("gen_ai.usage.input_tokens", 0) for span in collector.spans) == 12  # pyright: ignore[reportArgumentType, reportCallIssue]
    by_agent = {
        span.name: (span.attributes or {})["gen_ai.aggregated_usage.input_tokens"]
        for span in collector.find("invoke_agent")
    }
    assert by_agent == {"invoke_agent inner": 5, "invoke_agent outer": 7}


async def test_view_that_is_subscribed_several_times_creates_one_span_for_each_operation() -> None:
    collector = SpanCollector()
    view = collector.view()
    agent = Agent(ScriptedModel("Hello."), name="guide", thoughts=False, views=[view, view])
    async with Runtime({"guide": agent}, log=MemoryEventLog(), views=[view]) as runtime:
        record = await runtime.start("guide", "Go.")
        await runtime.follow(record.task_id)
    assert collector.tree() == ["invoke_agent guide > chat scripted", "invoke_agent guide"]
    assert collector.metrics()["gen_ai.invoke_agent.duration"][0].count == 1


async def test_model_call_names_the_model_that_has_answered() -> None:
    collector = SpanCollector()
    failing = ScriptedModel(RateLimited(SECRET), name="zai:glm-4.7")
    await trace_run(Agent(fallback(failing, ScriptedModel(tokens("Hello."), name="xai:grok-5"))), collector)
    [point] = collector.metrics()["gen_ai.client.operation.duration"]
    assert collector.one("chat").name == "chat grok-5"
    for attributes in (point.attributes, collector.one("chat").attributes or {}):
        assert (attributes["gen_ai.provider.name"], attributes["gen_ai.request.model"]) == ("x_ai", "grok-5")


@pytest.mark.parametrize(
    ("name", "provider", "model"),
    [
        ("scripted", "scripted", "scripted"),
        ("google:gemini-4", "gcp.gemini", "gemini-4"),
        ("bedrock:us.anthropic.claude-v1:0", "aws.bedrock", "us.anthropic.claude-v1:0"),
        ("http://localhost:8000/v1#qwen3", "openai", "qwen3"),
        ("openai_responses:https://models.example/v1#org/m#2", "openai", "org/m#2"),
        ("fallback(zai:a, http://localhost/v1#b)", "fallback", "fallback(zai:a, http://localhost/v1#b)"),
    ],
)
def test_model_string_has_a_provider_and_a_model(name: str, provider: str, model: str) -> None:
    assert split_model(name) == {"gen_ai.provider.name": provider, "gen_ai.request.model": model}


@pytest.mark.parametrize("end", ["cancel", "limit", "model", "tool", "pause", "unsubscribed"])
async def test_each_span_ends_once(end: str) -> None:
    collector = SpanCollector()
    started = asyncio.Event()

    @tool
    async def wait() -> None:
        """Waits."""
        started.set()
        await asyncio.Event().wait()

    turns = {
        "cancel": [call("wait")],
        "unsubscribed": [call("wait")],
        "limit": [call("get_weather", city="Oslo")] * 2,
        "model": [RateLimited(SECRET)],
        "tool": [call("get_weather", city="Atlantis"), "done"],
        "pause": [call("confirm")],
    }
    options: dict[str, Any] = {"limits": Limits(iterations=1)} if end == "limit" else {}
    agent = Agent(
        ScriptedModel(*turns[end]), tools=[get_weather, confirm, wait], log=MemoryEventLog(), name="guide", **options
    )
    run = agent.run(SECRET)
    subscription = run.pipe(collector.view()).subscribe(on_error=lambda error: None)
    if end in ("cancel", "unsubscribed"):
        run.start()
        await started.wait()
        if end == "unsubscribed":
            subscription.dispose()
            collector.check()
        run.cancel()
    await outcome(run)

    errors = {
        span.name.split()[0]: (span.attributes or {}).get("error.type")
        for span in collector.check()
        if span.status.status_code is StatusCode.ERROR
    }
    state = (collector.one("invoke_agent").attributes or {})["rxloop.state"]
    assert (state, errors) == {
        "cancel": ("canceled", {"execute_tool": "canceled"}),
        "limit": ("failed", {"invoke_agent": "max_iterations"}),
        "model": ("failed", {"invoke_agent": "rate_limited", "chat": "rate_limited"}),
        "tool": ("completed", {"execute_tool": "tool_error"}),
        "pause": ("input-required", {}),
        "unsubscribed": ("working", {"invoke_agent": "interrupted", "execute_tool": "interrupted"}),
    }[end]


async def test_open_spans_end_if_a_span_processor_fails() -> None:
    class FailingProcessor(SpanProcessor):
        def on_start(self, span: Span, parent_context: Context | None = None) -> None:
            if span.name.startswith("execute_tool"):
                raise RuntimeError("broken processor")

    collector, provider = SpanCollector(), TracerProvider(shutdown_on_exit=False)
    for processor in (FailingProcessor(), collector):
        provider.add_span_processor(processor)
    await make_agent(views=[op.spans(tracer_provider=provider, metrics=False)]).run("Go.")
    assert collector.tree() == ["invoke_agent guide > chat scripted", "invoke_agent guide"]


async def test_recorded_run_has_the_spans_of_the_live_run() -> None:
    live, recorded, log = SpanCollector(), SpanCollector(), MemoryEventLog()
    agent = make_agent(call("confirm"), call("get_weather", city="Oslo"), tokens("done"), log=log)
    view = live.view()
    run = agent.run("Go.")
    run.pipe(view).subscribe()
    paused = await run
    resumed = agent.resume(run.task_id, inputs={paused.pending[0].input_id: True})
    resumed.pipe(view).subscribe()
    await resumed
    await replay(log, run.task_id).pipe(recorded.view())

    assert live.comparable() == recorded.comparable()
    first, second = live.find("invoke_agent guide")
    assert [link.context.span_id for link in second.links] == [get_id(first)]
    assert not first.links


async def test_spans_of_a_crashed_attempt_end_at_its_last_event() -> None:
    collector, log = SpanCollector(), MemoryEventLog()
    task_id = await trace_run(make_agent(log=log), SpanCollector())
    events = list(await log.read(task_id))
    started = next(event for event in events if event.kind == "tool-start")
    crashed = await copy_first_events(log, task_id, started.seq)
    await replay(crashed, task_id).pipe(collector.view())

    call_span, agent_span = collector.one("execute_tool"), collector.one("invoke_agent")
    assert call_span.end_time == agent_span.end_time == started.timestamp * 1_000_000
    assert [(span.attributes or {}).get("error.type") for span in (call_span, agent_span)] == ["interrupted"] * 2

    resumed = SpanCollector()
    await make_agent(tokens("done"), log=crashed).resume(task_id)
    await replay(crashed, task_id).pipe(resumed.view())
    assert [(span.attributes or {}).get("error.type") for span in resumed.find("invoke_agent")] == ["interrupted", None]


async def test_spans_of_a_fork_exclude_the_copied_calls() -> None:
    collector, log = SpanCollector(), MemoryEventLog()
    agent = make_agent(call("get_weather", "c1", city="Oslo"), "a", "b", log=log)
    task_id = await trace_run(agent, SpanCollector())
    completed = next(event.seq for event in await log.read(task_id) if event.kind == "checkpoint")
    fork = agent.fork(task_id, completed)
    fork.pipe(collector.view()).subscribe()
    await fork

    assert collector.tree() == ["invoke_agent guide > chat scripted", "invoke_agent guide"]


async def test_spans_contain_no_content_unless_it_is_requested(monkeypatch: pytest.MonkeyPatch) -> None:
    turns = [call("get_weather", city="Oslo"), call("get_weather", city="Atlantis"), RateLimited(SECRET)]
    silent = SpanCollector()
    await trace_run(make_agent(*turns), silent)
    assert SECRET not in silent.content()
    assert "Oslo" not in silent.content()

    monkeypatch.setenv("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT", "SPAN_ONLY")
    full = SpanCollector()
    await trace_run(make_agent(*turns), full)
    attributes = full.find("execute_tool")[0].attributes or {}
    assert attributes["gen_ai.tool.call.arguments"] == '{"city":"Oslo"}'
    assert attributes["gen_ai.tool.call.result"] == f"{SECRET} in Oslo"
    assert SECRET in str((full.one("invoke_agent").attributes or {})["gen_ai.input.messages"])
    assert "tool_call" in str((full.find("chat")[0].attributes or {})["gen_ai.output.messages"])
    assert SECRET in str(full.find("execute_tool")[1].status.description)


async def test_strategy_and_iterations_have_spans() -> None:
    collector = SpanCollector()
    agent = make_agent(call("get_weather", city="Oslo"), "done", strategy="self_ask")
    await trace_run(agent, collector, iterations=True)
    tree = collector.tree()
    assert tree[-2:] == ["invoke_agent guide > invoke_workflow self_ask", "invoke_agent guide"]
    [point] = collector.metrics()["gen_ai.invoke_workflow.duration"]
    assert dict(point.attributes) == {"gen_ai.workflow.name": "self_ask"}

    plain = SpanCollector()
    await trace_run(make_agent(), plain, iterations=True)
    assert plain.tree() == [
        "iteration 1 > chat scripted",
        "iteration 1 > execute_tool get_weather",
        "invoke_agent guide > iteration 1",
        "iteration 2 > chat scripted",
        "invoke_agent guide > iteration 2",
        "invoke_agent guide",
    ]


async def test_iterations_do_not_reduce_the_number_of_other_attribute_sets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measurements, "MAX_SETS", 3)
    collector = SpanCollector()
    turns = [*[call("get_weather", city="Oslo")] * 5, "done"]
    await trace_run(make_agent(*turns), collector, iterations=True)
    [point] = collector.metrics()["gen_ai.invoke_agent.duration"]
    assert dict(point.attributes) == {"gen_ai.agent.name": "guide"}


async def test_spans_that_the_sampler_omits_are_not_exported(monkeypatch: pytest.MonkeyPatch) -> None:
    log = MemoryEventLog()
    result = await make_agent("done", log=log).run("Go.")
    events = await log.read(result.task_id)
    assert len(make_spans("run", events)) == 2
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "always_off")
    assert make_spans("run", events) == []


async def test_run_is_a_child_of_the_span_of_its_caller() -> None:
    collector = SpanCollector()
    tracer = collector.tracer_provider.get_tracer("test")
    with tracer.start_as_current_span("request") as request:
        await trace_run(make_agent("done"), collector)
    assert "request > invoke_agent guide" in collector.tree()

    remote = SpanCollector()
    context = request.get_span_context()
    traceparent = f"00-{context.trace_id:032x}-{context.span_id:016x}-01"
    run = make_agent("done").run("Go.", metadata={"traceparent": traceparent})
    run.pipe(remote.view()).subscribe()
    await run
    parent = remote.one("invoke_agent").parent
    assert parent is not None
    assert (parent.trace_id, parent.span_id) == (context.trace_id, context.span_id)
    assert trace.get_current_span() is trace.INVALID_SPAN


async def test_failed_requests_are_events_of_their_model_call() -> None:
    collector = SpanCollector()
    log = MemoryEventLog()
    task_id = await trace_run(make_agent(RateLimited(SECRET), log=log), collector)
    assert [event.name for event in collector.one("chat").events] == ["rxloop.request_failed"]
    assert [event.kind for event in await log.read(task_id)].count("llm-failed") == 1


def test_failed_model_call_has_the_tokens_that_it_used() -> None:
    ids: dict[str, Any] = {"task_id": "run", "context_id": "conversation", "attempt": 1}
    counts = {"message_count": 1, "tool_count": 0, "estimated_input_tokens": 1}
    events = [
        StatusUpdateEvent(state="working", seq=1, **ids),
        LLMCallEvent(model="m", iteration=1, step="1", seq=2, **counts, **ids),
        UsageEvent(input_tokens=5, step="1", seq=3, **ids),
        StatusUpdateEvent(state="failed", reason="timeout", final=True, seq=4, **ids),
    ]
    chat, agent = make_spans("run", events)
    assert (chat.attributes or {})["gen_ai.usage.input_tokens"] == 5
    assert (chat.attributes or {})["error.type"] == "timeout"
    assert (agent.attributes or {})["gen_ai.aggregated_usage.input_tokens"] == 5


def test_model_call_without_end_is_interrupted_even_if_a_request_has_failed() -> None:
    ids: dict[str, Any] = {"task_id": "run", "context_id": "conversation", "attempt": 1}
    counts = {"message_count": 1, "tool_count": 0, "estimated_input_tokens": 1}
    error = ErrorInfo(code="rate_limited", message="")
    events = [
        StatusUpdateEvent(state="working", seq=1, **ids),
        LLMCallEvent(model="m", iteration=1, step="1", seq=2, **counts, **ids),
        LLMFailedEvent(error=error, retryable=True, retry_in=1.0, step="1", seq=3, **ids),
    ]
    chat, _ = make_spans("run", events)
    assert (chat.attributes or {})["error.type"] == "interrupted"
    assert [event.name for event in chat.events] == ["rxloop.request_failed"]


async def test_settings_are_attributes_of_model_calls() -> None:
    collector, log = SpanCollector(), MemoryEventLog()
    settings = ModelSettings(temperature=0.5, max_tokens=100, stop=["END"], headers={"authorization": SECRET})
    task_id = await trace_run(make_agent("done", settings=settings, log=log), collector)
    attributes = collector.one("chat").attributes or {}
    assert {name: value for name, value in attributes.items() if name.startswith("gen_ai.request.")} == {
        "gen_ai.request.model": "scripted",
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.max_tokens": 100,
        "gen_ai.request.stop_sequences": ("END",),
    }
    events = [event for event in await log.read(task_id) if isinstance(event, LLMCallEvent)]
    assert [event.settings for event in events] == [{"temperature": 0.5, "max_tokens": 100, "stop": ["END"]}]
    assert b"settings" not in events[0].to_json(public=True)


async def test_metrics_have_the_names_and_buckets_of_the_conventions() -> None:
    collector = SpanCollector()
    await trace_run(make_agent(), collector)
    metrics = collector.metrics()

    assert {name: sum(point.count for point in points) for name, points in metrics.items()} == {
        "gen_ai.client.operation.duration": 2,
        "gen_ai.client.operation.time_to_first_chunk": 2,
        "gen_ai.execute_tool.duration": 1,
        "gen_ai.invoke_agent.duration": 1,
        "gen_ai.client.token.usage": 2,
    }
    usage = {point.attributes["gen_ai.token.type"]: point for point in metrics["gen_ai.client.token.usage"]}
    assert (usage["input"].sum, usage["output"].sum) == (10, 2)
    assert tuple(usage["input"].explicit_bounds[:4]) == (1, 4, 16, 64)
    assert metrics["gen_ai.client.operation.duration"][0].explicit_bounds[:3] == (0.01, 0.02, 0.04)
    [agent], [tool_point] = metrics["gen_ai.invoke_agent.duration"], metrics["gen_ai.execute_tool.duration"]
    # The buckets and attributes of opentelemetry-util-genai and google-adk.
    assert (agent.explicit_bounds[0], agent.explicit_bounds[-1]) == pytest.approx((0.1, 409.6))
    assert dict(agent.attributes) == {"gen_ai.agent.name": "guide"}
    assert dict(tool_point.attributes) == {"gen_ai.tool.name": "get_weather", "gen_ai.tool.type": "function"}


async def test_recorded_runs_have_no_metrics_if_disabled() -> None:
    collector = SpanCollector()
    await trace_run(make_agent(), collector, metrics=False)
    assert collector.metrics() == {}


async def test_spans_cost_little_per_iteration_and_nothing_per_token() -> None:
    def count_calls(profile: cProfile.Profile) -> int:
        return sum(entry.callcount for entry in profile.getstats())  # pyright: ignore[reportAttributeAccessIssue]

    async def measure(turns: list[Any], is_traced: bool) -> int:
        view, found = op.spans(), 0
        for _ in range(2):
            run = make_agent(*turns, limits=Limits(iterations=None)).run("Go.")
            if is_traced:
                run.pipe(view).subscribe()
            profile = cProfile.Profile()
            profile.enable()
            await run
            profile.disable()
            found = count_calls(profile)
        return found

    async def added_calls(few: list[Any], many: list[Any]) -> tuple[int, int]:
        plain, traced = [await measure(many, each) - await measure(few, each) for each in (False, True)]
        return plain, traced - plain

    calls = [call("get_weather", city="Oslo")]
    plain, extra = await added_calls([*calls * 4, "done"], [*calls * 12, "done"])
    assert 0 < extra / 8 <= 90
    assert plain / 8 > 500

    _, per_token = await added_calls(["word " * 100], ["word " * 300])
    assert abs(per_token) <= 10


def test_package_is_imported_only_when_used_and_its_extra_is_named() -> None:
    program = """
import sys
sys.modules["opentelemetry"] = None
from rxloop import Agent, op
from rxloop.testing import ScriptedModel
assert Agent(ScriptedModel("x")).run_sync("?").output == "x"
try:
    op.spans()
except Exception as error:
    print(type(error).__name__, error)
"""
    output = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert output == "ConfigurationError op.spans requires opentelemetry; install it with pip install 'rxloop[otel]'\n"
    check = "import sys, rxloop; print('opentelemetry' in sys.modules)"
    checked = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert checked.stdout == "False\n"
