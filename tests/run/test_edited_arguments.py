"""Tool calls edited by guards."""

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

read_paths: list[str] = []


@pytest.fixture(autouse=True)
def clear_read_paths() -> None:
    read_paths.clear()


@tool
async def read_file(path: str, lines: int = 1) -> str:
    """Read a file."""
    read_paths.append(path)
    return f"text of {path}"


@op.on(ToolRequest)
async def redirect_to_home(request: ToolRequest, ctx: RunContext[Any]) -> AsyncIterator[Signal]:
    yield request.replace(path="/srv/a.txt")


def agent(*turns: Any, guard: Any = redirect_to_home, tools: Any = (read_file,), **options: Any) -> Agent[Any, Any]:
    return Agent(ScriptedModel(*turns), tools=list(tools), loop=op.standard(before_tools=[guard]), **options)


NOTE = '[Note: the arguments of this call were changed; it was executed with path: "/srv/a.txt"]'


async def test_tool_message_states_the_executed_arguments_when_a_guard_changed_them() -> None:  # P20
    model = ScriptedModel(call("read_file", path="a.txt"), "Done")
    run = Agent(model, tools=[read_file], loop=op.standard(before_tools=[redirect_to_home])).run("Read")
    events = [event async for event in run]
    result = await run

    assert read_paths == ["/srv/a.txt"]
    assert model.requests[1].messages[-1].text == f"text of /srv/a.txt\n\n{NOTE}"
    [requested] = result.messages[1].tool_calls
    assert requested.arguments == {"path": "a.txt"}
    [message] = [event for event in events if isinstance(event, ContentCompleteEvent) and event.tool_calls]
    assert message.tool_calls[0].arguments == {"path": "a.txt"}
    [started] = [event for event in events if isinstance(event, ToolStartEvent)]
    [completed] = [event for event in events if isinstance(event, ToolCompleteEvent)]
    assert started.call.arguments == completed.call.arguments == {"path": "/srv/a.txt"}
    assert (started.call.raw, completed.call.raw) == (None, None)
    assert completed.result == "text of /srv/a.txt"


async def test_replaced_call_keeps_the_written_text_when_nothing_changed() -> None:
    @op.on(ToolRequest)
    async def repeat_path(request: ToolRequest, ctx: RunContext[Any]) -> AsyncIterator[Signal]:
        yield request.replace(path="a.txt")

    run = agent(call("read_file", path="a.txt"), "Done", guard=repeat_path).run("Read")
    events = [event async for event in run]
    result = await run

    assert result.messages[2].text == "text of a.txt"
    [started] = [event for event in events if isinstance(event, ToolStartEvent)]
    assert started.call.raw == result.messages[1].tool_calls[0].raw


async def test_failure_of_an_edited_call_states_the_executed_arguments() -> None:  # P20
    @tool(name="read_file")
    async def fail(path: str) -> str:
        """Fail."""
        raise ToolError("There is no such file.")

    result = await agent(call("read_file", path="a.txt"), "Done", tools=[fail]).run("Read")

    assert result.messages[2].text == f"There is no such file.\n\n{NOTE}"


async def test_note_is_not_shortened_with_a_long_result_and_is_bounded() -> None:  # P20
    @tool(name="read_file", max_result=100)
    async def read_long(path: str, text: str = "") -> str:
        """Read much."""
        return "x" * 5_000

    @op.on(ToolRequest)
    async def add_long_argument(request: ToolRequest, ctx: RunContext[Any]) -> AsyncIterator[Signal]:
        yield request.replace(path="/srv/a.txt", text="y" * 100_000)

    result = await agent(call("read_file", path="a.txt"), "Done", tools=[read_long], guard=add_long_argument).run(
        "Read"
    )

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
    async def replace_call(request: ToolRequest, ctx: RunContext[Any]) -> AsyncIterator[Signal]:
        yield replace(request, call=request.call.model_copy(update={"arguments": {"path": "/srv/a.txt"}}))

    result = await agent(call("read_file", path="a.txt"), "Done", guard=replace_call).run("Read")

    assert read_paths == ["/srv/a.txt"]
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
            other_call = request.call.model_copy(update={"name": "read_copy", "arguments": arguments, "raw": None})
        else:
            other_call = request.call.model_copy(update={"arguments": {"path": "a.txt"}, "raw": None})
        yield ToolRequest(other_call, ctx.bind(call=other_call), request.offered)

    calls = [call("read_file", path="a.txt", lines=7), call("read_file", path="a.txt")]
    result = await agent(calls, "Done", tools=[read_file, read_copy], guard=redirect).run("Read")

    assert result.messages[2].text.endswith(
        "[Note: the arguments of this call were changed; it was executed without lines]"
    )
    assert result.messages[3].text.endswith('[Note: read_copy was executed instead of read_file, with path: "b.txt"]')


async def test_cached_answer_of_an_edited_call_states_the_arguments() -> None:  # P20
    @op.on(ToolRequest)
    async def answer_from_cache(request: ToolRequest, ctx: RunContext[Any]) -> AsyncIterator[Signal]:
        yield request.replace(path="/srv/a.txt").answer("cached", "cached")

    result = await agent(call("read_file", path="a.txt"), "Done", guard=answer_from_cache).run("Read")

    assert read_paths == []
    assert result.messages[2].text == f"cached\n\n{NOTE}"


async def test_two_guards_that_restore_the_arguments_leave_no_note() -> None:
    @op.on(ToolRequest)
    async def restore_path(request: ToolRequest, ctx: RunContext[Any]) -> AsyncIterator[Signal]:
        yield request.replace(path="a.txt")

    loop = op.standard(before_tools=[redirect_to_home, restore_path])
    model = ScriptedModel(call("read_file", path="a.txt"), "Done")
    result = await Agent(model, tools=[read_file], loop=loop).run("Read")

    assert result.messages[2].text == "text of a.txt"


async def test_output_tool_answer_is_not_changed_by_a_note() -> None:  # P20
    class City(BaseModel):
        name: str

    @op.on(ToolRequest)
    async def rename(request: ToolRequest, ctx: RunContext[Any]) -> AsyncIterator[Signal]:
        yield request.replace(name="Oslo")

    model = ScriptedModel(call("final_answer", name="Bergen"))
    loop = op.standard(before_tools=[rename])
    result = await Agent(model, output_type=City, output_mode="tool", loop=loop).run("Where?")

    assert result.output == City(name="Oslo")


async def test_edit_from_an_answer_is_noted_in_the_next_attempt() -> None:  # P20
    log = MemoryEventLog()

    @op.on(ToolRequest)
    async def ask_for_path(request: ToolRequest, ctx: RunContext[Any]) -> AsyncIterator[Signal]:
        yield request.replace(path=await ctx.ask("Which file?", str))

    asking_agent = agent(call("read_file", path="a.txt"), "Done", guard=ask_for_path, log=log)
    paused = await asking_agent.run("Read")
    result = await asking_agent.resume(paused.task_id, inputs={paused.pending[0].input_id: "/srv/a.txt"})

    assert read_paths == ["/srv/a.txt"]
    assert result.messages[2].text == f"text of /srv/a.txt\n\n{NOTE}"
    second_agent = Agent(ScriptedModel("Yes"), log=log)
    later = await second_agent.run("Which file was it?", context_id=result.context_id)
    assert NOTE in later.messages[2].text


async def test_edit_of_nested_agent_prompt_is_noted() -> None:  # P20
    clerk = Agent(ScriptedModel("It is short."), name="clerk")

    @op.on(ToolRequest)
    async def shorten(request: ToolRequest, ctx: RunContext[Any]) -> AsyncIterator[Signal]:
        yield request.replace(prompt="Be short")

    outer = ScriptedModel(call("clerk", prompt="Tell me everything"), "Done")
    run = Agent(outer, tools=[clerk.as_tool()], loop=op.standard(before_tools=[shorten]))
    result = await run.run("Go")

    assert result.messages[2].text.startswith("It is short.\n\n[Note:")


async def test_edit_of_client_tool_call_reaches_the_client_and_the_model() -> None:  # P20
    show = client_tool("read_file", {"type": "object", "properties": {"path": {"type": "string"}}})
    shown: list[Any] = []

    def show_to_user(question: Any) -> str:
        shown.append(question.call.arguments)
        return "shown"

    result = await agent(call("read_file", path="a.txt"), "Done", tools=[show]).run("Show", on_input=show_to_user)

    assert shown == [{"path": "/srv/a.txt"}]
    assert result.messages[2].text == f"shown\n\n{NOTE}"


@pytest.mark.parametrize("early", [False, True])
async def test_edited_call_of_a_read_only_tool_is_noted(early: bool) -> None:  # P20
    @tool(name="read_file", read_only=True)
    async def look(path: str) -> str:
        """Look."""
        return f"text of {path}"

    model = ScriptedModel(call("read_file", path="a.txt"), "Done")
    loop = op.standard(before_tools=[redirect_to_home], early=early)
    result = await Agent(model, tools=[look], loop=loop).run("Read")

    assert result.messages[2].text == f"text of /srv/a.txt\n\n{NOTE}"


async def test_hidden_edited_call_stays_hidden() -> None:  # P20
    @tool(name="read_file", hidden=True)
    async def read_secretly(path: str) -> str:
        """Read in secret."""
        return f"text of {path}"

    run = agent(call("read_file", path="a.txt"), "Done", tools=[read_secretly]).run("Read")
    public = [shown for event in [event async for event in run] if (shown := event.to_public()) is not None]

    assert "/srv/a.txt" not in " ".join(event.to_json(public=True).decode() for event in public)
