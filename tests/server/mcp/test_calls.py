"""Calls of agents as MCP tools, with the official client for both protocols."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

import pytest
from mcp import Client
from mcp.shared.exceptions import MCPError
from pydantic import BaseModel, Field
from reactivex import operators as ops

from rxloop import (
    Agent,
    ContentCompleteEvent,
    CustomEvent,
    FilePart,
    ImagePart,
    ModelSettings,
    RunContext,
    ToolError,
    op,
    tool,
)
from rxloop.errors import ServerError
from rxloop.server import AgentTool
from rxloop.stream.sources import emit
from rxloop.testing import ScriptedModel, call, frames, turn
from support.clients.mcp import (
    ERAS,
    LEGACY,
    MODERN,
    McpEndpoint,
    ProgressRecorder,
    cancel_call,
    result_meta,
    result_text,
    serve_mcp,
)

each_protocol = pytest.mark.parametrize("mode", ERAS)


class Weather(BaseModel):
    sky: str
    degrees: float | None = None


@tool
async def search(ctx: RunContext[Any], what: str) -> str:
    """Search."""
    ctx.progress("half of it", 0.5)
    return f"found {what}"


@tool
async def fail() -> str:
    """Fail."""
    raise ToolError("closed")


def make_clerk(*turns: Any, name: str = "clerk", thoughts: bool = False, **options: Any) -> Agent[Any, Any]:
    return Agent(ScriptedModel(*turns), name=name, thoughts=thoughts, **options)


def make_endless() -> Agent[Any, Any]:
    return make_clerk(call("search", what="more"), frames("-and so on", 0.01), tools=[search])


async def wait_until_idle(endpoint: McpEndpoint, task_id: str) -> str:
    async with asyncio.timeout(10):
        async for _ in endpoint.runtime.follow(task_id):
            pass
    return (await endpoint.runtime.get_record(task_id)).state


@each_protocol
async def test_agent_is_a_tool_that_returns_its_answer(mode: str) -> None:
    async with serve_mcp(make_clerk("It is open."), agents={"clerk": "Knows when it is open."}) as endpoint:
        async with endpoint.client(mode) as client:
            listed = {each.name: each for each in (await client.list_tools()).tools}
            result = await client.call_tool("clerk", {"prompt": "Is it open?"})
        record = await endpoint.runtime.get_record(result_meta(result, "taskId"))
    assert [*listed] == ["clerk", "continue_run"]
    assert listed["clerk"].description == "Knows when it is open."
    assert listed["clerk"].input_schema["required"] == ["prompt"]
    assert not result.is_error
    assert result_text(result) == "It is open."
    assert record.context_id == result_meta(result, "contextId")
    assert record.state == "completed"


@each_protocol
async def test_context_id_of_an_answer_continues_its_conversation(mode: str) -> None:
    model = ScriptedModel("Oslo.", "You said Oslo.")
    async with serve_mcp(Agent(model, name="clerk", thoughts=False)) as endpoint, endpoint.client(mode) as client:
        first = await client.call_tool("clerk", {"prompt": "Which city?"})
        assert result_meta(first, "contextId") in str(first.content[1]), (
            "the result must show the context id to the client's model"
        )
        again = {"prompt": "What did I say?", "context_id": result_meta(first, "contextId")}
        second = await client.call_tool("clerk", again)
        unknown = await client.call_tool("clerk", {"prompt": "Hi", "context_id": "made-up"})
    assert result_meta(second, "contextId") == result_meta(first, "contextId")
    assert [message.text for message in model.requests[1].messages if message.role != "system"] == [
        "Which city?",
        "Oslo.",
        "What did I say?",
    ]
    assert unknown.is_error is True
    assert result_text(unknown) == "the conversation does not exist"


@each_protocol
async def test_typed_answer_is_structured_content_that_fits_the_schema(mode: str) -> None:
    sky = make_clerk('{"sky": "blue", "degrees": 3}', name="sky", output_type=Weather)
    many = make_clerk("[1, 2]", name="many", output_type=list[int])
    async with serve_mcp(sky, many) as endpoint, endpoint.client(mode) as client:
        # The client validates results only after it has listed the tools.
        await client.list_tools()
        one = await client.call_tool("sky", {"prompt": "?"})
        two = await client.call_tool("many", {"prompt": "?"})
    assert one.structured_content == {"sky": "blue", "degrees": 3.0}
    assert result_text(one) == '{"sky": "blue", "degrees": 3}'
    assert two.structured_content == {"result": [1, 2]}


@each_protocol
async def test_prompt_with_parameters_is_a_tool_with_typed_input(mode: str) -> None:
    def order(number: Annotated[int, Field(ge=1)], urgent: bool = False) -> str:
        """Looks after an order.

        Args:
            number: The number of the order.
        """
        return f"Order {number}{', at once' if urgent else ''}"

    model = ScriptedModel("Done.")
    agents = {"clerk": AgentTool(prompt=order, title="The clerk", annotations={"readOnlyHint": True})}
    async with (
        serve_mcp(Agent(model, name="clerk", thoughts=False), agents=agents) as endpoint,
        endpoint.client(mode) as client,
    ):
        [listed, _] = (await client.list_tools()).tools
        wrong = await client.call_tool("clerk", {"number": 0})
        right = await client.call_tool("clerk", {"number": 7, "urgent": True})
    assert listed.description == "Looks after an order."
    assert listed.input_schema["properties"]["number"]["description"] == "The number of the order."
    assert listed.title == "The clerk"
    assert (listed.annotations and listed.annotations.read_only_hint) is True
    assert wrong.is_error
    assert "number: Input should be greater than or equal to 1 (got 0)" in result_text(wrong)
    assert result_text(right) == "Done."
    assert model.requests[0].messages[-1].text == "Order 7, at once"


@each_protocol
async def test_progress_increases_and_describes_tools_and_thoughts(mode: str) -> None:
    steps = ProgressRecorder()
    think = call("think_aloud", thought="First look.", thought_type="planning")
    agent = make_clerk(think, call("search", what="tea"), "Found.", tools=[search], thoughts=True)
    async with serve_mcp(agent) as endpoint, endpoint.client(mode) as client:
        await client.call_tool("clerk", {"prompt": "Tea"}, progress_callback=steps)
    assert steps.numbers == sorted(set(steps.numbers))
    assert steps.messages[0].startswith("clerk is at work (run ")
    assert "planning: First look." in steps.messages
    assert "search(what='tea')" in steps.messages
    assert "search: half of it (50%)" in steps.messages


@each_protocol
async def test_cancel_of_the_client_cancels_the_run(mode: str) -> None:
    async with serve_mcp(make_endless()) as endpoint, endpoint.client(mode) as client:
        await cancel_call(client, "search(")
        [record] = await endpoint.runtime.log.list_runs()
        assert await wait_until_idle(endpoint, record.task_id) == "canceled"
        assert (await client.list_tools()).tools, "the session must stay open"


async def test_run_continues_without_its_caller_and_can_be_awaited_again() -> None:
    agent = make_clerk(call("search", what="tea"), frames("-Found.|", 0.05), tools=[search])
    async with serve_mcp(agent, on_disconnect="keep") as endpoint:
        async with endpoint.client(MODERN) as client:
            await cancel_call(client, "search(")
        [record] = await endpoint.runtime.log.list_runs()
        async with endpoint.client(LEGACY) as client:
            result = await client.call_tool("continue_run", {"task_id": record.task_id})
            again = await client.call_tool("continue_run", {"task_id": record.task_id})
    assert result_text(result) == "Found."
    assert result_text(again) == "Found."


@each_protocol
async def test_key_starts_one_run(mode: str) -> None:
    key: Any = {"rxloop/key": "request-1"}
    async with serve_mcp(make_clerk("One.", "Two.")) as endpoint, endpoint.client(mode) as client:
        first, second = await asyncio.gather(*(client.call_tool("clerk", {"prompt": "Hi"}, meta=key) for _ in range(2)))
        other = await client.call_tool("clerk", {"prompt": "Something else"}, meta=key)
        wrong = await client.call_tool("clerk", {"prompt": "Hi"}, meta={"rxloop/key": 3})  # pyright: ignore[reportArgumentType]
    assert result_text(first) == "One."
    assert result_text(second) == "One."
    assert result_meta(first, "taskId") == result_meta(second, "taskId")
    assert other.is_error is True
    assert result_text(other) == "the key was used for a different request"
    assert wrong.is_error


@each_protocol
async def test_call_that_exceeds_its_wait_explains_how_to_continue(mode: str) -> None:
    agent = make_clerk(frames("-At -last.|", 0.2), name="slow", output_type=str)
    async with serve_mcp(agent, wait=0.05) as endpoint, endpoint.client(mode) as client:
        first = await client.call_tool("slow", {"prompt": "Take your time"})
        assert first.structured_content is not None
        assert first.is_error is False
        assert first.structured_content["state"] == "working"
        assert await wait_until_idle(endpoint, first.structured_content["taskId"]) == "completed"
        last = await client.call_tool("continue_run", {"task_id": first.structured_content["taskId"]})
    assert f"Call continue_run with task_id '{result_meta(first, 'taskId')}'" in result_text(first)
    assert result_text(last) == "At last."


@each_protocol
async def test_failed_run_is_a_result_with_a_public_error(mode: str) -> None:
    broken = make_clerk(ServerError("http://10.0.0.1/key=sk-123"), name="broken")
    async with serve_mcp(broken) as endpoint, endpoint.client(mode) as client:
        result = await client.call_tool("broken", {"prompt": "Hi"})
    assert result.is_error is True
    assert result_text(result) == "The model provider failed."
    assert result_meta(result, "state") == "failed"


@each_protocol
async def test_failed_run_has_structured_content_that_fits_the_schema(mode: str) -> None:  # P6
    broken = make_clerk(ServerError("no"), name="broken", output_type=Weather)
    async with serve_mcp(broken) as endpoint, endpoint.client(mode) as client:
        await client.list_tools()
        result = await client.call_tool("broken", {"prompt": "Hi"})
    assert result.is_error
    assert result.structured_content is not None
    assert result.structured_content["state"] == "failed"
    assert result.structured_content["taskId"] == result_meta(result, "taskId")
    assert result.structured_content["error"]["message"] == "The model provider failed."


@each_protocol
async def test_prompt_function_may_fail_with_a_value_and_parts(mode: str) -> None:  # P6
    def order(number: int) -> str:
        chart = ImagePart(data=b"PNG", media_type="image/png")
        raise ToolError("sold out", value={"left": 0}, parts=[chart])

    agents = {"clerk": AgentTool(prompt=order)}
    async with (
        serve_mcp(make_clerk("Hi.", output_type=Weather), agents=agents) as endpoint,
        endpoint.client(mode) as client,
    ):
        await client.list_tools()
        result = await client.call_tool("clerk", {"number": 7})
    assert result.is_error
    assert result.structured_content == {"state": "failed", "value": {"left": 0}}
    assert result_text(result).startswith('sold out\n{"left":0}')
    assert [block.type for block in result.content] == ["text", "image"]


@each_protocol
async def test_unknown_tools_and_invalid_arguments_are_reported(mode: str) -> None:
    async with serve_mcp(make_clerk("Hi.")) as endpoint, endpoint.client(mode) as client:
        with pytest.raises(MCPError, match="the tool 'nobody' does not exist"):
            await client.call_tool("nobody", {})
        missing = await client.call_tool("clerk", {})
        more = await client.call_tool("clerk", {"prompt": "Hi", "temperature": 3})
        unknown = await client.call_tool("continue_run", {"task_id": "0199"})
        empty = await client.call_tool("clerk", {"prompt": ""})
        assert await endpoint.runtime.log.list_runs() == []
    assert [each.is_error for each in (missing, more, unknown, empty)] == [True] * 4
    assert "prompt: required, but missing" in result_text(missing)
    assert "temperature: there is no such parameter" in result_text(more)
    assert result_text(unknown) == "the run does not exist"


@each_protocol
async def test_sequential_thinking_can_be_served_with_agents(mode: str) -> None:
    thought = {"thought": "Two cases.", "thoughtNumber": 1, "totalThoughts": 2, "nextThoughtNeeded": True}
    async with serve_mcp(make_clerk("Hi."), sequential_thinking=True) as endpoint, endpoint.client(mode) as client:
        names = [each.name for each in (await client.list_tools()).tools]
        result = await client.call_tool("sequentialthinking", thought)
    assert names == ["clerk", "continue_run", "sequentialthinking", "thinking_history", "clear_thinking"]
    assert result.structured_content is not None
    assert result.structured_content["thoughtHistoryLength"] == 1


async def test_server_accepts_a_client_in_the_same_process() -> None:
    async with serve_mcp(make_clerk("Hi.")) as endpoint, Client(endpoint.server.server) as client:
        assert result_text(await client.call_tool("clerk", {"prompt": "Hi"})) == "Hi."


async def test_concurrent_calls_of_one_connection_have_their_own_runs() -> None:
    model = ScriptedModel(*(f"answer {number}" for number in range(50)))
    async with serve_mcp(Agent(model, name="clerk", thoughts=False)) as endpoint, endpoint.client(LEGACY) as client:
        calls = (client.call_tool("clerk", {"prompt": f"number {number}"}) for number in range(50))
        results = await asyncio.gather(*calls)
    assert {result_text(each) for each in results} == {f"answer {number}" for number in range(50)}
    assert len({result_meta(each, "contextId") for each in results}) == 50


@each_protocol
async def test_files_of_an_answer_follow_its_text(mode: str) -> None:
    files = [
        ImagePart(data=b"\xff\xfe", media_type="image/png"),
        FilePart(data=b"RIFF", media_type="audio/wav"),
        FilePart(data=b"%PDF", media_type="application/pdf", filename="a.pdf"),
        FilePart(url="https://example.org/b.pdf", filename="b.pdf"),
    ]
    async with serve_mcp(make_clerk(turn("See.", files=files))) as endpoint, endpoint.client(mode) as client:
        result = await client.call_tool("clerk", {"prompt": "Draw."})
    assert result_text(result) == "See."
    image, sound, file, link = [each.model_dump(mode="json", exclude_none=True) for each in result.content[1:-1]]
    assert image["type"] == "image"
    assert image["data"] == "//4="
    assert image["mime_type"] == "image/png"
    assert sound["type"] == "audio"
    assert sound["data"] == "UklGRg=="
    assert file["resource"]["blob"] == "JVBERg=="
    assert file["resource"]["mime_type"] == "application/pdf"
    assert file["resource"]["uri"].startswith("rxloop://runs/")
    assert link["type"] == "resource_link"
    assert link["name"] == "b.pdf"
    assert link["uri"] == "https://example.org/b.pdf"


async def test_files_are_found_among_many_later_events() -> None:
    def busy(source: Any) -> Any:
        def add_notes(event: Any) -> Any:
            notes = [CustomEvent(name="note") for _ in range(40)] if isinstance(event, ContentCompleteEvent) else []
            return emit(event, *notes)

        return source.pipe(ops.flat_map(add_notes))

    agent = make_clerk(turn("See.", files=[ImagePart(data=b"x", media_type="image/png")]), loop=[op.call_model(), busy])
    async with serve_mcp(agent) as endpoint, endpoint.client(MODERN) as client:
        result = await client.call_tool("clerk", {"prompt": "Draw."})
    assert [each.type for each in result.content] == ["text", "image", "text"]


@pytest.mark.parametrize(
    ("finish", "why"), [("length", "truncated"), ("content_filter", "filter"), ("unknown", "report")]
)
async def test_result_says_that_the_answer_is_incomplete_and_why(finish: str, why: str) -> None:  # P15
    async with (
        serve_mcp(make_clerk(turn("half an ans", finish_reason=finish))) as endpoint,
        endpoint.client(MODERN) as client,
    ):
        result = await client.call_tool("clerk", {"prompt": "?"})
    note = result.content[1]
    assert note.type == "text"
    assert note.text.startswith("The answer is incomplete: ")
    assert why in note.text


async def test_result_names_the_limit_and_the_vendor_reason_of_an_incomplete_answer() -> None:  # P15
    truncated = turn("half", finish_reason="length", raw_finish_reason="max_tokens")
    unknown = turn("half", finish_reason="unknown", raw_finish_reason="weird")
    agent = make_clerk(truncated, unknown, settings=ModelSettings(max_tokens=7))
    async with serve_mcp(agent) as endpoint, endpoint.client(MODERN) as client:
        first = await client.call_tool("clerk", {"prompt": "?"})
        second = await client.call_tool("clerk", {"prompt": "?"})
    assert "max_tokens=7" in str(first.content[1])
    assert "'weird'" in str(second.content[1])
