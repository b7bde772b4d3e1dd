import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import reactivex as rx
from reactivex import Observable
from reactivex import operators as ops

from rxloop import op
from rxloop.operators.loop.compose import describe
from rxloop.pipeline.requests import IterationEnd, ModelRequest, Signal, ToolRequest
from rxloop.pipeline.run_context import RunContext
from rxloop.protocol.events import CustomEvent, ToolCompleteEvent
from rxloop.protocol.messages import Message
from rxloop.stream.sources import emit
from rxloop.testing import virtual_time
from support.runs import context, tool_call


async def collect_output(operator: Any, *signals: Any) -> list[Any]:
    source: Observable[Any] = emit(*signals)
    return await operator(source).pipe(ops.to_list())


def make_request(name: str = "f") -> ToolRequest:
    return ToolRequest(tool_call(name), RunContext(call=tool_call(name)))


@op.on(ToolRequest)
async def yield_twice(request: ToolRequest, ctx: RunContext[Any]) -> AsyncIterator[Signal]:
    """Yield the request twice."""
    yield request
    yield request


async def test_yielded_signals_replace_the_request() -> None:
    request = make_request()

    assert await collect_output(yield_twice, request) == [request, request]


async def test_other_signals_pass_unchanged_and_immediately() -> None:
    event, end, model = CustomEvent(name="a"), IterationEnd(1, context()), ModelRequest(messages=[Message.user("Hi")])
    request = make_request()

    seen = await collect_output(yield_twice, request, event, end, model)

    assert seen == [event, end, model, request, request]
    assert seen[0] is event


async def test_handler_may_yield_events_nothing_or_another_request() -> None:
    @op.on(ToolRequest)
    async def handler(request: ToolRequest, ctx: RunContext[Any]) -> AsyncIterator[Signal]:
        if request.call.name == "delete":
            yield CustomEvent(name="seen")
            yield request.refuse("No.")
        elif request.call.name == "read":
            yield request.replace(path="b")

    refused = await collect_output(handler, make_request("delete"))
    assert [type(signal) for signal in refused] == [CustomEvent, ToolCompleteEvent]
    assert refused[1].success is False
    assert refused[1].content == "No."
    assert refused[1].error == "No."
    (changed,) = await collect_output(handler, make_request("read"))
    assert changed.call.arguments == {"path": "b"}
    assert changed.ctx.call is changed.call
    assert await collect_output(handler, make_request("other")) == []


async def test_exception_of_a_handler_becomes_the_error_of_the_stream() -> None:
    @op.on(ToolRequest)
    async def handler(request: ToolRequest, ctx: RunContext[Any]) -> AsyncIterator[Signal]:
        raise KeyError("missing")
        yield request

    with pytest.raises(KeyError, match="missing"):
        await collect_output(handler, make_request())


async def test_handler_gets_the_context_of_the_request() -> None:
    seen: list[RunContext[Any]] = []

    @op.on(ToolRequest)
    async def handler(request: ToolRequest, ctx: RunContext[Any]) -> AsyncIterator[Signal]:
        seen.append(ctx)
        yield request

    request = make_request()
    await collect_output(handler, request)

    assert seen == [request.ctx.bind(asked_by="handler")]


def test_requests_are_handled_concurrently_and_disposal_closes_handlers() -> None:
    closed: list[str] = []

    @op.on(ToolRequest)
    async def handler(request: ToolRequest, ctx: RunContext[Any]) -> AsyncIterator[Signal]:
        try:
            await asyncio.sleep(1 if request.call.name == "slow" else 0.5)
            yield request
        finally:
            closed.append(request.call.name)

    with virtual_time() as time:

        async def main() -> list[Any]:
            seen: list[Any] = []
            subscription = handler(emit(make_request("slow"), make_request("fast"))).subscribe(seen.append)
            await asyncio.sleep(0.75)
            subscription.dispose()
            await asyncio.sleep(0.01)
            return seen

        seen = time.run(main())

    assert [each.call.name for each in seen] == ["fast"]
    assert closed == ["fast", "slow"]


def test_operator_has_the_name_and_docstring_of_its_handler() -> None:
    assert describe(yield_twice) == "yield_twice"
    assert yield_twice.__doc__ == "Yield the request twice."


def test_iteration_end_waits_until_earlier_signals_are_handled() -> None:
    seen: list[str] = []

    @op.on(IterationEnd)
    async def ends(end: IterationEnd, ctx: RunContext[Any]) -> AsyncIterator[Signal]:
        seen.append("end")
        yield end

    end = IterationEnd(1, RunContext())
    source: rx.Subject[Any] = rx.Subject()

    with virtual_time() as time:

        async def main() -> None:
            ends(source).subscribe(lambda signal: seen.append(type(signal).__name__))
            source.on_next(end)
            await asyncio.sleep(1)
            source.on_next(CustomEvent(name="late"))
            source.on_completed()
            await asyncio.sleep(1)

        time.run(main())

    assert seen == ["CustomEvent", "end", "IterationEnd"]
