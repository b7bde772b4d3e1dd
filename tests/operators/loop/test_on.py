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


async def through(operator: Any, *signals: Any) -> list[Any]:
    source: Observable[Any] = emit(*signals)
    return await operator(source).pipe(ops.to_list())


def request(name: str = "f") -> ToolRequest:
    return ToolRequest(tool_call(name), RunContext(call=tool_call(name)))


@op.on(ToolRequest)
async def twice(request: ToolRequest, ctx: RunContext[Any]) -> AsyncIterator[Signal]:
    """Lets it through twice."""
    yield request
    yield request


async def test_what_is_yielded_takes_the_place_of_the_request() -> None:
    asked = request()

    assert await through(twice, asked) == [asked, asked]


async def test_everything_else_passes_untouched_and_does_not_wait() -> None:
    event, end, model = CustomEvent(name="a"), IterationEnd(1, context()), ModelRequest(messages=[Message.user("Hi")])
    asked = request()

    seen = await through(twice, asked, event, end, model)

    assert seen == [event, end, model, asked, asked]
    assert seen[0] is event


async def test_a_handler_may_yield_events_or_nothing_or_another_request() -> None:
    @op.on(ToolRequest)
    async def handler(request: ToolRequest, ctx: RunContext[Any]) -> AsyncIterator[Signal]:
        if request.call.name == "delete":
            yield CustomEvent(name="seen")
            yield request.refuse("No.")
        elif request.call.name == "read":
            yield request.replace(path="b")

    refused = await through(handler, request("delete"))
    assert [type(signal) for signal in refused] == [CustomEvent, ToolCompleteEvent]
    assert (refused[1].success, refused[1].content, refused[1].error) == (False, "No.", "No.")
    (changed,) = await through(handler, request("read"))
    assert changed.call.arguments == {"path": "b"}
    assert changed.ctx.call is changed.call
    assert await through(handler, request("other")) == []


async def test_what_a_handler_raises_is_the_error_of_the_stream() -> None:
    @op.on(ToolRequest)
    async def handler(request: ToolRequest, ctx: RunContext[Any]) -> AsyncIterator[Signal]:
        raise KeyError("missing")
        yield request

    with pytest.raises(KeyError, match="missing"):
        await through(handler, request())


async def test_the_handler_gets_the_context_of_the_request() -> None:
    seen: list[RunContext[Any]] = []

    @op.on(ToolRequest)
    async def handler(request: ToolRequest, ctx: RunContext[Any]) -> AsyncIterator[Signal]:
        seen.append(ctx)
        yield request

    asked = request()
    await through(handler, asked)

    assert seen == [asked.ctx.bind(asked_by="handler")]


def test_requests_are_handled_side_by_side_and_a_disposed_handler_is_closed() -> None:
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
            subscription = handler(emit(request("slow"), request("fast"))).subscribe(seen.append)
            await asyncio.sleep(0.75)
            subscription.dispose()
            await asyncio.sleep(0.01)
            return seen

        seen = time.run(main())

    assert [each.call.name for each in seen] == ["fast"]
    assert closed == ["fast", "slow"]


def test_the_operator_is_called_as_its_handler_is() -> None:
    assert describe(twice) == "twice"
    assert twice.__doc__ == "Lets it through twice."


def test_the_end_of_an_iteration_comes_when_everything_before_it_is_done() -> None:
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
