"""Tests for tool calls whose arguments were changed by a guard."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
from pydantic import BaseModel

from rxloop import (
    Agent,
    ContentCompleteEvent,
    MemoryEventLog,
    RunContext,
    Signal,
    ToolCompleteEvent,
    ToolRequest,
    ToolStartEvent,
    client_tool,
    op,
    tool,
)
from rxloop.errors import ToolError
from rxloop.testing import ScriptedModel, call

read: list[str] = []


@pytest.fixture(autouse=True)
def nothing_read() -> None:
    read.clear()


@tool
async def read_file(path: str, lines: int = 1) -> str:
    """Read a file."""
    read.append(path)
    return f"text of {path}"


@op.on(ToolRequest)
async def within_home(request: ToolRequest, ctx: RunContext[Any]) -> AsyncIterator[Signal]:
    yield request.replace(path="/srv/a.txt")


def agent(*turns: Any, guard: Any = within_home, tools: Any = (read_file,), **options: Any) -> Agent[Any, Any]:
    return Agent(ScriptedModel(*turns), tools=list(tools), loop=op.standard(before_tools=[guard]), **options)


NOTE = '[Note: the arguments of this call were changed; it was executed with path: "/srv/a.txt"]'


async def test_tool_message_states_the_executed_arguments_when_a_guard_changed_them() -> None:  # P20
    model = ScriptedModel(call("read_file", path="a.txt"), "Done")
    run = Agent(model, tools=[read_file], loop=op.standard(before_tools=[within_home])).run("Read")
    events = [event async for event in run]
    result = await run

    assert read == ["/srv/a.txt"]
    assert model.requests[1].messages[-1].text == f"text of /srv/a.txt\n\n{NOTE}"
    [asked] = result.messages[1].tool_calls
    assert asked.arguments == {"path": "a.txt"}
    [message] = [event for event in events if isinstance(event, ContentCompleteEvent) and event.tool_calls]
    assert message.tool_calls[0].arguments == {"path": "a.txt"}
    [started] = [event for event in events if isinstance(event, ToolStartEvent)]
    [completed] = [event for event in events if isinstance(event, ToolCompleteEvent)]
    assert started.call.arguments == completed.call.arguments == {"path": "/srv/a.txt"}
    assert (started.call.raw, completed.call.raw, completed.result) == (None, None, "text of /srv/a.txt")


async def test_replaced_call_keeps_the_written_text_when_nothing_changed() -> None:
    @op.on(ToolRequest)
    async def same(request: ToolRequest, ctx: RunContext[Any]) -> AsyncIterator[Signal]:
        yield request.replace(path="a.txt")

    run = agent(call("read_file", path="a.txt"), "Done", guard=same).run("Read")
    events = [event async for event in run]
    result = await run

    assert result.messages[2].text == "text of a.txt"
    [started] = [event for event in events if isinstance(event, ToolStartEvent)]
    assert started.call.raw == result.messages[1].tool_calls[0].raw


async def test_failure_of_an_edited_call_states_the_executed_arguments() -> None:  # P20
    @tool(name="read_file")
    async def fails(path: str) -> str:
        """Fail."""
        raise ToolError("There is no such file.")

    result = await agent(call("read_file", path="a.txt"), "Done", tools=[fails]).run("Read")

    assert result.messages[2].text == f"There is no such file.\n\n{NOTE}"


async def test_note_is_not_shortened_with_a_long_result_and_is_bounded() -> None:  # P20
    @tool(name="read_file", max_result=100)
    async def long(path: str, text: str = "") -> str:
        """Read much."""
        return "x" * 5_000

    @op.on(ToolRequest)
    async def much(request: ToolRequest, ctx: RunContext[Any]) -> AsyncIterator[Signal]:
        yield request.replace(path="/srv/a.txt", text="y" * 100_000)

    result = await agent(call("read_file", path="a.txt"), "Done", tools=[long], guard=much).run("Read")

    text = result.messages[2].text
    assert 'path: "/srv/a.txt"' in text
    assert len(text) < 2_000


async def test_unchanged_arguments_are_not_repeated_in_the_note() -> None:  # P20
    result = await agent(call("read_file", path="a.txt", lines=7), "Done").run("Read")

    assert result.messages[2].text.endswith(NOTE)


async def test_note_names_the_changed_fields_of_nested_arguments() -> None:  # P20
    @tool
    async def send(mail: dict[str, Any]) -> str:
        """Send a mail."""
        return "sent"

    @op.on(ToolRequest)
    async def redirect(request: ToolRequest, ctx: RunContext[Any]) -> AsyncIterator[Signal]:
        mail = request.call.arguments["mail"]
        yield request.replace(mail={"text": mail["text"], "to": {**mail["to"], "name": "Ann"}})

    mail = {"text": "x" * 5_000, "to": {"host": "example.org", "name": "Bob"}, "copy": "Eve"}
    result = await agent(call("send", mail=mail), "Done", tools=[send], guard=redirect).run("Send")

    assert result.messages[2].text == (
        "sent\n\n[Note: the arguments of this call were changed; "
        'it was executed with mail.to.name: "Ann" and without mail.copy]'
    )


async def test_tool_gets_the_call_of_its_request_when_a_guard_replaced_the_call() -> None:  # P20
    @op.on(ToolRequest)
    async def within(request: ToolRequest, ctx: RunContext[Any]) -> AsyncIterator[Signal]:
        yield replace(request, call=request.call.model_copy(update={"arguments": {"path": "/srv/a.txt"}}))

    result = await agent(call("read_file", path="a.txt"), "Done", guard=within).run("Read")

    assert read == ["/srv/a.txt"]
    assert result.messages[2].text == f"text of /srv/a.txt\n\n{NOTE}"


async def test_note_names_removed_arguments_and_another_tool() -> None:  # P20
    @tool
    async def read_copy(path: str) -> str:
        """Read a copy."""
        return "copy"

    @op.on(ToolRequest)
    async def redirect(request: ToolRequest, ctx: RunContext[Any]) -> AsyncIterator[Signal]:
        arguments = {"path": "b.txt"}
        if ctx.index:
            other = request.call.model_copy(update={"name": "read_copy", "arguments": arguments, "raw": None})
        else:
            other = request.call.model_copy(update={"arguments": {"path": "a.txt"}, "raw": None})
        yield ToolRequest(other, ctx.bind(call=other), request.offered)

    calls = [call("read_file", path="a.txt", lines=7), call("read_file", path="a.txt")]
    result = await agent(calls, "Done", tools=[read_file, read_copy], guard=redirect).run("Read")

    assert result.messages[2].text.endswith(
        "[Note: the arguments of this call were changed; it was executed without lines]"
    )
    assert result.messages[3].text.endswith('[Note: read_copy was executed instead of read_file, with path: "b.txt"]')


async def test_cached_answer_of_an_edited_call_states_the_arguments() -> None:  # P20
    @op.on(ToolRequest)
    async def cached(request: ToolRequest, ctx: RunContext[Any]) -> AsyncIterator[Signal]:
        yield request.replace(path="/srv/a.txt").answer("cached", "cached")

    result = await agent(call("read_file", path="a.txt"), "Done", guard=cached).run("Read")

    assert (read, result.messages[2].text) == ([], f"cached\n\n{NOTE}")


async def test_two_guards_that_restore_the_arguments_leave_no_note() -> None:
    @op.on(ToolRequest)
    async def back(request: ToolRequest, ctx: RunContext[Any]) -> AsyncIterator[Signal]:
        yield request.replace(path="a.txt")

    loop = op.standard(before_tools=[within_home, back])
    model = ScriptedModel(call("read_file", path="a.txt"), "Done")
    result = await Agent(model, tools=[read_file], loop=loop).run("Read")

    assert result.messages[2].text == "text of a.txt"


async def test_answer_by_a_tool_is_not_changed_by_a_note() -> None:  # P20
    class City(BaseModel):
        name: str

    @op.on(ToolRequest)
    async def rename(request: ToolRequest, ctx: RunContext[Any]) -> AsyncIterator[Signal]:
        yield request.replace(name="Oslo")

    model = ScriptedModel(call("final_answer", name="Bergen"))
    loop = op.standard(before_tools=[rename])
    result = await Agent(model, output_type=City, output_mode="tool", loop=loop).run("Where?")

    assert result.output == City(name="Oslo")


async def test_edit_from_a_persons_answer_is_told_in_the_next_attempt() -> None:  # P20
    log = MemoryEventLog()

    @op.on(ToolRequest)
    async def person(request: ToolRequest, ctx: RunContext[Any]) -> AsyncIterator[Signal]:
        yield request.replace(path=await ctx.ask("Which file?", str))

    asking = agent(call("read_file", path="a.txt"), "Done", guard=person, log=log)
    waiting = await asking.run("Read")
    result = await asking.resume(waiting.task_id, inputs={waiting.pending[0].input_id: "/srv/a.txt"})

    assert (read, result.messages[2].text) == (["/srv/a.txt"], f"text of /srv/a.txt\n\n{NOTE}")
    again = Agent(ScriptedModel("Yes"), log=log)
    later = await again.run("Which file was it?", context_id=result.context_id)
    assert NOTE in later.messages[2].text


async def test_edit_of_a_nested_agents_prompt_is_told() -> None:  # P20
    clerk = Agent(ScriptedModel("It is short."), name="clerk")

    @op.on(ToolRequest)
    async def shorten(request: ToolRequest, ctx: RunContext[Any]) -> AsyncIterator[Signal]:
        yield request.replace(prompt="Be short")

    outer = ScriptedModel(call("clerk", prompt="Tell me everything"), "Done")
    run = Agent(outer, tools=[clerk.as_tool()], loop=op.standard(before_tools=[shorten]))
    result = await run.run("Go")

    assert result.messages[2].text.startswith("It is short.\n\n[Note:")


async def test_edit_of_a_client_tools_call_reaches_the_client_and_the_model() -> None:  # P20
    show = client_tool("read_file", {"type": "object", "properties": {"path": {"type": "string"}}})
    shown: list[Any] = []

    def client(question: Any) -> str:
        shown.append(question.call.arguments)
        return "shown"

    result = await agent(call("read_file", path="a.txt"), "Done", tools=[show]).run("Show", on_input=client)

    assert shown == [{"path": "/srv/a.txt"}]
    assert result.messages[2].text == f"shown\n\n{NOTE}"


@pytest.mark.parametrize("early", [False, True])
async def test_edited_call_of_a_read_only_tool_is_told(early: bool) -> None:  # P20
    @tool(name="read_file", read_only=True)
    async def look(path: str) -> str:
        """Look."""
        return f"text of {path}"

    model = ScriptedModel(call("read_file", path="a.txt"), "Done")
    loop = op.standard(before_tools=[within_home], early=early)
    result = await Agent(model, tools=[look], loop=loop).run("Read")

    assert result.messages[2].text == f"text of /srv/a.txt\n\n{NOTE}"


async def test_hidden_edited_call_stays_hidden() -> None:  # P20
    @tool(name="read_file", hidden=True)
    async def secret(path: str) -> str:
        """Read in secret."""
        return f"text of {path}"

    run = agent(call("read_file", path="a.txt"), "Done", tools=[secret]).run("Read")
    public = [shown for event in [event async for event in run] if (shown := event.to_public()) is not None]

    assert "/srv/a.txt" not in " ".join(event.to_json(public=True).decode() for event in public)
