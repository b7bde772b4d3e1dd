"""Results for failing tools and invalid calls."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from reactivex import operators as ops

from rxloop import (
    Agent,
    ContentCompleteEvent,
    Event,
    ModelRequest,
    RunContext,
    ToolCompleteEvent,
    ToolError,
    op,
    tool,
)
from rxloop.protocol.messages import ToolCall
from rxloop.providers.script import ScriptedCall
from rxloop.testing import ScriptedModel, call
from support.runs import collect, format_marbles, is_well_formed, outcome
from support.tool_results import echo, run_tool_calls


@tool
async def fails_plainly() -> None:
    """Fails."""
    raise ToolError("No city is called 'Osllo'.")


@tool
async def fails_oddly() -> None:
    """Fails."""
    raise KeyError("city")


@tool
async def fails_silently() -> None:
    """Fails."""
    raise ValueError


class UnreadableError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no message")


@tool
async def fails_unreadably() -> None:
    """Fails."""
    raise UnreadableError


@tool
async def times_out_by_itself() -> None:
    """Fails."""
    raise TimeoutError("the weather service is slow")


@tool
def exits() -> None:
    """Fails."""
    raise SystemExit(3)


@tool
async def exits_on_the_loop() -> None:
    """Fails."""
    raise SystemExit(3)


@tool
async def awaits_a_cancelled_future() -> None:
    """Fails."""
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    future.cancel()
    await future


@tool
async def raises_a_cancellation() -> None:
    """Fails."""
    raise asyncio.CancelledError


@tool
async def returns_no_json() -> object:
    """Fails."""
    return object()


@tool
async def raises_a_group() -> None:
    """Fails."""
    raise ExceptionGroup("several", [ValueError("one"), KeyError("two")])


@pytest.mark.parametrize(
    ("failing", "text"),
    [
        (fails_plainly, "No city is called 'Osllo'."),
        (fails_oddly, "KeyError: 'city'"),
        (fails_silently, "ValueError"),
        (fails_unreadably, "UnreadableError: UnreadableError.__str__ raised RuntimeError"),
        (times_out_by_itself, "TimeoutError: the weather service is slow"),
        (exits, "exit"),
        (exits_on_the_loop, "exit"),
        (awaits_a_cancelled_future, "cancelled"),
        (raises_a_cancellation, "cancelled"),
        (returns_no_json, "cannot be written as JSON"),
        (raises_a_group, "ExceptionGroup: several"),
    ],
    ids=lambda each: getattr(each, "__name__", None),
)
async def test_failure_of_a_tool_is_reported_to_the_model_and_other_calls_succeed(
    failing: Any, text: str
) -> None:  # L74, L113
    (bad, good), read = await run_tool_calls(
        failing, echo, calls=[ScriptedCall(failing.__name__, {}), call("echo", value="fine")]
    )
    if bad.name == "echo":
        bad, good = good, bad

    assert not bad.success
    assert text in (bad.error or "")
    assert text in read[0]
    assert good.success
    assert read[1] == "fine"


async def test_run_ends_when_a_tool_cancels_its_own_task() -> None:
    @tool
    async def cancels_itself() -> None:
        """Cancels the task that it runs in."""
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(0)

    run = Agent(ScriptedModel(call("cancels_itself"), "done"), tools=[cancels_itself]).run("Go")

    async with asyncio.timeout(5):
        result = await outcome(run)

    assert result.state == "canceled"
    assert result.error is not None
    assert "rxloop-tool-cancels_itself" in result.error.message
    assert is_well_formed(result.messages)


async def test_model_gets_the_failures_of_all_calls_of_a_message() -> None:  # L73
    _, read = await run_tool_calls(
        fails_plainly, fails_oddly, calls=[call("fails_plainly"), call("fails_oddly"), call("fails_plainly")]
    )

    assert read == ["No city is called 'Osllo'.", "KeyError: 'city'", "No city is called 'Osllo'."]


async def test_call_of_an_unknown_tool_is_answered_with_the_available_tools() -> None:  # L79
    (answer,), read = await run_tool_calls(echo, calls=call("ecko", value=1), thoughts=False)

    assert not answer.success
    assert "echo" in read[0]
    assert "There is no tool 'ecko'" in read[0]


async def test_call_is_refused_when_no_tools_were_offered() -> None:  # L80
    @op.on(ModelRequest)
    async def remove_tools(request: ModelRequest, ctx: RunContext[Any]) -> AsyncIterator[Any]:
        yield request.replace(tools=())

    (answer,), read = await run_tool_calls(
        echo, calls=call("echo", value=1), loop=op.standard(before_model=[remove_tools])
    )

    assert not answer.success
    assert "No tools are available" in read[0]


async def test_think_aloud_call_is_an_error_when_thoughts_are_off() -> None:  # L16
    model = ScriptedModel(call("think_aloud", thought="a", thought_type="planning"), "done")
    events = await collect(Agent(model, tools=[echo], thoughts=False).run("Go"))

    assert "h" not in format_marbles(events)
    assert [event.success for event in events if isinstance(event, ToolCompleteEvent)] == [False]
    assert [definition.name for definition in model.requests[0].tools] == ["echo"]


@pytest.mark.parametrize(
    ("raw", "text"), [('{"value": ', "not valid JSON"), ("[1]", "must be a JSON object, not list")]
)
async def test_unreadable_arguments_fail_only_their_own_call(raw: str, text: str) -> None:  # L59
    class BadArguments(ScriptedModel):
        def call(self, request: Any) -> Any:
            def spoil(event: Event) -> Event:
                if isinstance(event, ContentCompleteEvent) and event.tool_calls:
                    first = ToolCall.parse("call_1", "echo", raw)
                    return event.model_copy(update={"tool_calls": [first, *event.tool_calls[1:]]})
                return event

            return super().call(request).pipe(ops.map(spoil))

    model = BadArguments([call("echo", value=1), call("echo", value=2)], "done")
    events = await collect(Agent(model, tools=[echo]).run("Go"))

    answers = {event.index: event for event in events if isinstance(event, ToolCompleteEvent)}
    assert not answers[0].success
    assert text in answers[0].content
    assert answers[1].success is True
    assert answers[1].result == 2
    assert format_marbles(events).count("s") == 1  # A refused call has no tool-start.


async def test_invalid_arguments_are_named_to_the_model() -> None:  # L110
    @tool
    async def add(a: int, b: int) -> int:
        """Adds."""
        return a + b

    (answer,), read = await run_tool_calls(add, calls=call("add", a="x"))

    assert not answer.success
    assert "a" in read[0]
    assert "b" in read[0]
    assert add.definition.parameters["required"] == ["a", "b"]
