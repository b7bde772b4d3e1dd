"""Current spans in tools and model calls, which become parents of the spans created there."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from opentelemetry import baggage, context, trace
from reactivex import Observable

from rxloop import (
    Agent,
    ContentCompleteEvent,
    Event,
    MemoryEventLog,
    Provider,
    Retry,
    Runtime,
    fallback,
    hedge,
    limited,
    op,
    tool,
)
from rxloop.errors import ConfigurationError, RateLimited
from rxloop.pipeline.requests import ModelRequest
from rxloop.protocol.messages import ToolCall
from rxloop.providers.retry import retrying
from rxloop.strategies import self_consistency
from rxloop.stream.sources import Push, from_task
from rxloop.testing import ScriptedModel, call, virtual_time
from support.span_collector import SpanCollector, get_id


class TracedModel:
    """Model that creates a span for each request, like an instrumented HTTP client."""

    name = "traced"

    def __init__(self, collector: SpanCollector, *answers: ContentCompleteEvent) -> None:
        self._answers = list(answers)
        self._tracer = collector.tracer_provider.get_tracer("http")

    def call(self, request: ModelRequest) -> Observable[Event]:
        async def work(push: Push[Event]) -> None:
            with self._tracer.start_as_current_span(f"POST {request.step}"):
                await asyncio.sleep(0)
            push(self._answers.pop(0))

        return from_task(work, request.ctx)

    async def aclose(self) -> None:
        pass


def make_answers() -> list[ContentCompleteEvent]:
    calls = [ToolCall(id=str(index), name=name) for index, name in enumerate(("look", "count"))]
    return [ContentCompleteEvent(tool_calls=calls, finish_reason="tool_calls"), ContentCompleteEvent(content="done")]


def make_traced_agent(collector: SpanCollector) -> Agent:
    tracer = collector.tracer_provider.get_tracer("tool")

    @tool
    async def look() -> str:
        """Look."""
        with tracer.start_as_current_span("look up"):
            await asyncio.sleep(0)
        return "seen"

    @tool
    def count() -> int:
        """Count in a thread."""
        with tracer.start_as_current_span("select"):
            return 3

    tracing = collector.view()
    loop = op.standard(at_end=[op.current_span(tracing)])
    model = TracedModel(collector, *make_answers())
    return Agent(model, tools=[look, count], loop=loop, views=[tracing], name="guide", thoughts=False)


async def test_spans_in_tools_and_requests_are_children_of_their_call() -> None:
    collector = SpanCollector()
    await make_traced_agent(collector).run("Go.")

    tree = collector.tree()
    assert {line for line in tree if not line.startswith("invoke_agent")} == {
        "chat traced > POST 1",
        "chat traced > POST 2",
        "execute_tool look > look up",
        "execute_tool count > select",
    }
    parents = {span.name: span.parent.span_id for span in collector.spans if span.parent is not None}
    chats = [span.context.span_id for span in collector.find("chat") if span.context is not None]
    assert [parents["POST 1"], parents["POST 2"]] == chats
    assert trace.get_current_span() is trace.INVALID_SPAN


class SlowModel:
    """Model that creates a span for each request of a step, and fails the first requests."""

    def __init__(self, collector: SpanCollector, *, failures: int = 0, seconds: float = 1.0) -> None:
        self.name = "slow"
        self._failures, self._seconds = failures, seconds
        self._tracer = collector.tracer_provider.get_tracer("http")
        self._requests = Counter[str]()

    def call(self, request: ModelRequest) -> Observable[Event]:
        async def work(push: Push[Event]) -> None:
            with self._tracer.start_as_current_span("POST", attributes={"step": request.step}):
                self._requests[request.step] += 1
                await asyncio.sleep(self._seconds)
            if self._requests[request.step] <= self._failures:
                raise RateLimited("busy")
            push(ContentCompleteEvent(content="Answer: 4", finish_reason="stop"))

        return from_task(work, request.ctx)

    async def aclose(self) -> None:
        pass


class RetryingModel(SlowModel):
    """Model that repeats failed requests."""

    def call(self, request: ModelRequest) -> Observable[Event]:
        return retrying(Retry(attempts=2, first=1.0, jitter=0))(super().call(request))


DELAYED_MODELS: dict[str, Callable[[SpanCollector], Provider]] = {
    "retry": lambda collector: RetryingModel(collector, failures=1),
    "fallback": lambda collector: fallback(SlowModel(collector, failures=1), SlowModel(collector)),
    "hedge": lambda collector: hedge(SlowModel(collector, seconds=9), SlowModel(collector), after=1),
    "limited": lambda collector: limited(SlowModel(collector), concurrent=1),
}
"""Models with requests that start later than their `llm-call`."""


@pytest.mark.parametrize("name", DELAYED_MODELS)
def test_delayed_requests_of_concurrent_branches_are_children_of_their_model_call(name: str) -> None:
    collector = SpanCollector()
    tracing = collector.view()
    model, loop = DELAYED_MODELS[name](collector), op.standard(at_end=[op.current_span(tracing)])
    agent = Agent(model, strategy=self_consistency(samples=3), loop=loop, views=[tracing], thoughts=False)
    with virtual_time() as time:
        time.run(agent.run("Go.").result())

    chats = {get_id(span): (span.attributes or {})["rxloop.step"] for span in collector.find("chat")}
    requests = [(span.parent, (span.attributes or {})["step"]) for span in collector.find("POST")]
    assert len(requests) >= len(chats) == 3
    assert [parent and chats.get(parent.span_id) for parent, _ in requests] == [step for _, step in requests]


async def test_tools_keep_the_baggage_of_the_caller() -> None:
    collector, found = SpanCollector(), list[object]()

    @tool
    def look() -> None:
        """Look."""
        found.append(baggage.get_baggage("tenant"))

    tracing = collector.view()
    loop = op.standard(at_end=[op.current_span(tracing)])
    token = context.attach(baggage.set_baggage("tenant", "acme"))
    await Agent(ScriptedModel(call("look"), "done"), tools=[look], loop=loop, views=[tracing]).run("Go.")
    context.detach(token)
    assert found == ["acme"]


async def test_concurrent_runs_do_not_share_current_spans() -> None:
    collectors = [SpanCollector() for _ in range(5)]
    await asyncio.gather(*(make_traced_agent(collector).run("Go.").result() for collector in collectors))
    assert all("execute_tool look > look up" in collector.tree() for collector in collectors)


async def test_operator_without_spans_passes_everything() -> None:
    collector = SpanCollector()
    loop = op.standard(at_end=[op.current_span(collector.view())])
    result = await Agent(ScriptedModel("done"), loop=loop).run("Go.")
    assert result.output == "done"
    assert collector.check() == []


async def test_run_of_a_runtime_is_a_child_of_the_span_that_started_it() -> None:
    collector = SpanCollector()
    tracer = collector.tracer_provider.get_tracer("server")
    agents = {"guide": Agent(ScriptedModel("done"))}
    async with Runtime(agents, log=MemoryEventLog(), views=[collector.view()]) as runtime:
        with tracer.start_as_current_span("POST /runs"):
            record = await runtime.start("guide", "Go.")
        async for _ in runtime.follow(record.task_id):
            pass
    assert "POST /runs > invoke_agent guide" in collector.tree()


@pytest.mark.parametrize("view", [op.stats(), op.spans])
def test_operator_requires_a_view_of_spans(view: Callable[..., Any]) -> None:
    with pytest.raises(ConfigurationError, match="requires a view created by"):
        op.current_span(view)
