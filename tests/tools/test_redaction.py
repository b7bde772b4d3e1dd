"""Redaction of tool results with `rxloop.tools.redact`."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from rxloop import (
    Agent,
    CustomEvent,
    ImagePart,
    MemoryEventLog,
    RunContext,
    ThoughtStreamEvent,
    ToolError,
    ToolResult,
    client_tool,
    tool,
)
from rxloop.errors import ConfigurationError
from rxloop.pipeline.interfaces import Tool
from rxloop.protocol.messages import Message, TextPart
from rxloop.testing import ScriptedModel, call
from rxloop.tools import redact

SECRET = "ann@example.com"


def hide(text: str, ctx: RunContext[Any]) -> str:
    return text.replace(SECRET, "[e-mail]")


def reveal(text: str, ctx: RunContext[Any]) -> str:
    return text.replace("[e-mail]", SECRET)


async def run_tool(*tools: Any, **arguments: Any) -> tuple[ScriptedModel, str]:
    """Call the tool `find` in a run, and return the model and all events in the log as JSON."""
    log = MemoryEventLog()
    model = ScriptedModel(call("find", **arguments), "Done.")
    result = await Agent(model, tools=tools, log=log, thoughts=False).run("Find Ann.")
    events = await log.read(result.task_id)
    return model, "\n".join(event.to_json().decode() for event in events)


RESULTS: list[tuple[Any, str]] = [
    (f"Ann: {SECRET}", "Ann: [e-mail]"),
    ({"name": "Ann", "addresses": [{SECRET: f'"{SECRET}"'}], "age": 40},
     r'{"name":"Ann","addresses":[{"[e-mail]":"\"[e-mail]\""}],"age":40}'),
    (ToolResult({"mail": SECRET}, f"mail {SECRET}", messages=f"Write to {SECRET}."), "mail [e-mail]"),
    (ToolError(f"{SECRET} is unknown", value={"mail": SECRET}), '[e-mail] is unknown\n{"mail":"[e-mail]"}'),
    (LookupError(SECRET), "LookupError: [e-mail]"),
]  # fmt: skip


@pytest.mark.parametrize(("outcome", "text"), RESULTS, ids=lambda value: type(value).__name__)
async def test_result_is_redacted_for_model_and_log(outcome: Any, text: str, caplog: pytest.LogCaptureFixture) -> None:
    @tool
    async def find() -> Any:
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    with caplog.at_level(logging.DEBUG):
        model, events = await run_tool(redact(find, hide))
    assert model.requests[1].messages[2].text == text
    assert SECRET not in events + caplog.text
    assert SECRET not in str(model.requests[1])


async def test_text_parts_of_messages_are_redacted_and_images_are_kept() -> None:
    image = ImagePart(data=b"png", media_type="image/png")

    @tool
    async def find() -> ToolResult:
        return ToolResult("found", "found", messages=[Message.system([TextPart(text=f"Write to {SECRET}."), image])])

    model, _ = await run_tool(redact(find, hide))
    assert model.requests[1].messages[3].content == [TextPart(text="Write to [e-mail]."), image]


async def test_events_of_a_redacted_tool_are_redacted() -> None:
    @tool
    async def find(ctx: RunContext) -> AsyncIterator[Any]:
        ctx.progress(f"asking {SECRET}")
        yield CustomEvent(name="found", data={"mail": [SECRET]})
        yield ThoughtStreamEvent(content=f"It is {SECRET}.", alternatives=[SECRET])
        yield f"asked {SECRET}"

    events = [
        event
        async for event in Agent(ScriptedModel(call("find"), "Done."), tools=[redact(find, hide)]).run("Find Ann.")
    ]
    assert SECRET not in str([event.to_json() for event in events])
    assert [event.kind for event in events].count("tool-progress") == 2
    [custom] = [event for event in events if isinstance(event, CustomEvent)]
    assert custom.data == {"mail": ["[e-mail]"]}


async def test_arguments_are_restored_for_the_tool_only() -> None:
    received: list[Any] = []

    @tool(approve="Write to {to}?")
    async def find(to: str, copies: list[str]) -> str:
        received.append((to, copies))
        return f"sent to {to}"

    log = MemoryEventLog()
    model = ScriptedModel(call("find", to="[e-mail]", copies=["[e-mail]"]), "Done.")
    agent = Agent(model, tools=[redact(find, hide, reveal=reveal)], log=log)
    result = await agent.run("Write to Ann.")
    assert result.pending[0].prompt == "Write to [e-mail]?"
    result = await agent.resume(result.task_id, inputs={result.pending[0].input_id: True})
    assert received == [(SECRET, [SECRET])]
    assert SECRET not in str([event.to_json() for event in await log.read(result.task_id)])


async def test_invalid_restored_arguments_are_not_quoted() -> None:
    @tool
    async def find(to: int) -> str:
        return "found"

    model, events = await run_tool(redact(find, hide, reveal=reveal), to="[e-mail]")
    assert "to" in model.requests[1].messages[2].text
    assert SECRET not in events


async def test_tools_of_a_toolset_are_redacted() -> None:
    class Directory:
        is_open = False
        found: Sequence[Tool[Any]] = ()

        async def __aenter__(self) -> Directory:
            self.is_open = True
            return self

        async def __aexit__(self, *error: object) -> None:
            self.is_open = False

        async def tools(self, ctx: RunContext[Any]) -> Sequence[Tool[Any]]:
            assert self.is_open
            return self.found

    @tool
    async def find() -> str:
        return SECRET

    directory = Directory()
    directory.found = [find]
    toolset: Any = redact(directory, hide)  # pyright: ignore[reportCallIssue, reportArgumentType]
    async with Agent(ScriptedModel(call("find"), "Done."), tools=[toolset]) as agent:
        result = await agent.run("Find Ann.")
    assert result.messages[2].text == "[e-mail]"
    assert not directory.is_open
    context: RunContext[Any] = RunContext()
    directory.is_open = True
    assert await toolset.tools(context) is await toolset.tools(context)


async def test_images_of_a_redacted_tool_are_kept() -> None:
    @tool
    async def find() -> list[Any]:
        return [f"Ann, {SECRET}", ImagePart(data=b"\x89PNG", media_type="image/png")]

    model, events = await run_tool(redact(find, hide))
    message = model.requests[1].messages[2]
    assert message.text == "Ann, [e-mail]\n[image/png, 4 bytes]"
    assert len(message.media) == 1
    assert SECRET not in events


async def test_result_is_discarded_when_the_redaction_fails(caplog: pytest.LogCaptureFixture) -> None:
    def fail(text: str, ctx: RunContext[Any]) -> str:
        raise ValueError(text)

    @tool
    async def find() -> str:
        return SECRET

    model, events = await run_tool(redact(find, fail))
    assert model.requests[1].messages[2].text == (
        "The tool ran, but its result could not be redacted and was discarded."
    )
    assert SECRET not in events + caplog.text
    assert "Redacting the tool find failed with ValueError" in caplog.text


async def test_tool_is_not_called_when_its_arguments_cannot_be_restored() -> None:
    called: list[str] = []

    @tool
    async def find(to: str) -> str:
        called.append(to)
        return "found"

    model, _ = await run_tool(redact(find, hide, reveal=lambda text, ctx: None), to="a")  # pyright: ignore[reportCallIssue, reportArgumentType]
    assert model.requests[1].messages[2].text == "The arguments could not be restored, so the tool was not called."
    assert called == []


def test_options_of_a_redacted_tool_are_kept() -> None:
    @tool(read_only=True, timeout=3, hidden=True, max_result=10, enabled=lambda ctx: False)
    async def find() -> str:
        return ""

    redacted: Any = redact(find, hide)
    assert (redacted.read_only, redacted.timeout, redacted.max_result) == (True, 3, 10)
    assert redacted.definition is find.definition
    assert not redacted.enabled(RunContext())
    assert redacted.is_conditional


def test_redaction_of_a_nested_agent_or_client_tool_is_refused() -> None:
    nested = Agent(ScriptedModel("Hi."), name="nested").as_tool()
    for wrong in (nested, client_tool("locate")):
        with pytest.raises(ConfigurationError, match="does not support"):
            redact(wrong, hide)


@pytest.mark.parametrize("wrong", [lambda text: text, 5])
def test_redaction_function_needs_two_parameters(wrong: Any) -> None:
    @tool
    async def find() -> str:
        return ""

    with pytest.raises(ConfigurationError, match="hide must be a function"):
        redact(find, wrong)


def test_async_redaction_function_is_refused() -> None:
    async def wrong(text: str, ctx: RunContext[Any]) -> str:
        return text

    with pytest.raises(ConfigurationError, match="async function"):
        redact(tool(name="find")(lambda: None), wrong)  # pyright: ignore[reportArgumentType, reportCallIssue]
