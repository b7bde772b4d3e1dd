"""A marker in everything of a run that is not for clients, and no such marker in any byte of the MCP door."""

from __future__ import annotations

from typing import Any

import httpx
import mcp_types as types
import pytest

from rxloop import Agent, MemoryEventLog
from support.clients.mcp import ERAS, ProgressRecorder, result_meta, serve_mcp
from support.hidden_runs import RUNS, agent
from support.hidden_tools import MARK


class Tap:
    """Keeps what an application sends."""

    def __init__(self, app: Any) -> None:
        self.app, self.said = app, bytearray()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async def tapped(message: Any) -> None:
            self.said += message.get("body", b"") + repr(message.get("headers", "")).encode()
            await send(message)

        await self.app(scope, receive, tapped)


@pytest.mark.parametrize("mode", ERAS)
@pytest.mark.parametrize("name", RUNS)
async def test_no_byte_of_the_door_has_what_is_not_for_clients(name: str, mode: str) -> None:
    log, steps = MemoryEventLog(), ProgressRecorder()
    asked: list[types.ElicitRequestParams] = []

    def answers(question: types.ElicitRequestParams) -> types.ElicitResult:
        asked.append(question)
        # Wrong first: what is said of that is not to name the options.
        return types.ElicitResult(action="accept", content={"answer": "maybe" if len(asked) == 1 else "no"})

    async with serve_mcp(agent(*RUNS[name]), log=log) as there:
        tap = Tap(there.server._app)
        there.server._app = tap  # pyright: ignore[reportAttributeAccessIssue]
        async with there.client(mode, answers) as client:
            await client.list_tools()
            result = await client.call_tool("clerk", {"prompt": "Look"}, progress_callback=steps)
            await client.call_tool("continue_run", {"task_id": result_meta(result, "taskId")})
            await client.call_tool("continue_run", {"task_id": result_meta(result, "taskId"), "answers": {"nobody": 1}})
        events = await log.read(result_meta(result, "taskId"))
    assert MARK.encode() in b"".join(event.to_json() for event in events)
    assert ("question" in name) == bool(asked)
    said = tap.said.decode()
    assert "clerk is at work" in said
    assert MARK not in said, said[max(said.index(MARK) - 400, 0) : said.index(MARK) + 40]


@pytest.mark.parametrize("mode", ERAS)
async def test_a_hidden_question_that_a_client_cannot_ask_is_answered_without_its_words(mode: str) -> None:
    async with serve_mcp(agent(*RUNS["a hidden question"])) as there, there.client(mode) as client:
        waits = await client.call_tool("clerk", {"prompt": "Look"})
        assert waits.structured_content is not None
        [question] = waits.structured_content["questions"]
        asked = {"task_id": result_meta(waits, "taskId")}
        wrong = await client.call_tool("continue_run", {**asked, "answers": {question["inputId"]: 3}})
        done = await client.call_tool("continue_run", {**asked, "answers": {question["inputId"]: "no"}})
    assert MARK not in f"{waits}{wrong}{done}"
    assert (wrong.is_error, result_meta(done, "state")) == (True, "completed")


async def test_a_failing_prompt_says_nothing_of_its_error() -> None:
    from rxloop.server import AgentTool
    from rxloop.testing import ScriptedModel

    def broken(city: str) -> str:
        raise RuntimeError(f"{MARK} {city}")

    clerk = Agent(ScriptedModel("Hi."), name="clerk")
    async with serve_mcp(clerk, agents={"clerk": AgentTool(prompt=broken)}) as there, there.client(ERAS[0]) as client:
        result = await client.call_tool("clerk", {"city": "Oslo"})
    assert result.is_error
    assert MARK not in str(result)


async def test_a_request_that_is_no_json_rpc_gets_no_words_of_errors() -> None:
    async with serve_mcp(agent("Hi.")) as there, httpx.AsyncClient() as client:
        accept = {"accept": "application/json, text/event-stream", "mcp-protocol-version": "2026-07-28"}
        said = [await client.post(there.url, content=body, headers=accept) for body in (b"{", b"[]", b"{}", b"\xff")]
    assert all(each.status_code in (202, 400) for each in said)
    assert not any("Traceback" in each.text for each in said)
