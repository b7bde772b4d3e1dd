"""Hidden content of runs, which the MCP server must not reveal to clients."""

from __future__ import annotations

from typing import Any

import httpx
import mcp_types as types
import pytest

from rxloop import Agent, MemoryEventLog
from support.clients.mcp import ERAS, ProgressRecorder, result_meta, serve_mcp
from support.hidden_runs import RUNS, agent
from support.hidden_tools import MARK


class Recorder:
    """ASGI middleware that records all sent data."""

    def __init__(self, app: Any) -> None:
        self.app, self.sent = app, bytearray()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async def record(message: Any) -> None:
            self.sent += message.get("body", b"") + repr(message.get("headers", "")).encode()
            await send(message)

        await self.app(scope, receive, record)


@pytest.mark.parametrize("mode", ERAS)
@pytest.mark.parametrize("name", RUNS)
async def test_server_never_sends_hidden_content(name: str, mode: str) -> None:
    log, steps = MemoryEventLog(), ProgressRecorder()
    questions: list[types.ElicitRequestParams] = []

    def answer(question: types.ElicitRequestParams) -> types.ElicitResult:
        questions.append(question)
        # The first answer is invalid. The error message must not reveal the options.
        return types.ElicitResult(action="accept", content={"answer": "maybe" if len(questions) == 1 else "no"})

    async with serve_mcp(agent(*RUNS[name]), log=log) as endpoint:
        recorder = Recorder(endpoint.server._app)
        endpoint.server._app = recorder  # pyright: ignore[reportAttributeAccessIssue]
        async with endpoint.client(mode, answer) as client:
            await client.list_tools()
            result = await client.call_tool("clerk", {"prompt": "Look"}, progress_callback=steps)
            await client.call_tool("continue_run", {"task_id": result_meta(result, "taskId")})
            await client.call_tool("continue_run", {"task_id": result_meta(result, "taskId"), "answers": {"nobody": 1}})
        events = await log.read(result_meta(result, "taskId"))
    assert MARK.encode() in b"".join(event.to_json() for event in events)
    assert ("question" in name) == bool(questions)
    text = recorder.sent.decode()
    assert "clerk is at work" in text
    assert MARK not in text, text[max(text.index(MARK) - 400, 0) : text.index(MARK) + 40]


@pytest.mark.parametrize("mode", ERAS)
async def test_hidden_question_is_answered_without_revealing_it(mode: str) -> None:
    async with serve_mcp(agent(*RUNS["a hidden question"])) as endpoint, endpoint.client(mode) as client:
        paused = await client.call_tool("clerk", {"prompt": "Look"})
        assert paused.structured_content is not None
        [question] = paused.structured_content["questions"]
        task = {"task_id": result_meta(paused, "taskId")}
        rejected = await client.call_tool("continue_run", {**task, "answers": {question["inputId"]: 3}})
        done = await client.call_tool("continue_run", {**task, "answers": {question["inputId"]: "no"}})
    assert MARK not in f"{paused}{rejected}{done}"
    assert rejected.is_error is True
    assert result_meta(done, "state") == "completed"


async def test_error_of_a_prompt_function_is_not_revealed() -> None:
    from rxloop.server import AgentTool
    from rxloop.testing import ScriptedModel

    def broken(city: str) -> str:
        raise RuntimeError(f"{MARK} {city}")

    clerk = Agent(ScriptedModel("Hi."), name="clerk")
    async with (
        serve_mcp(clerk, agents={"clerk": AgentTool(prompt=broken)}) as endpoint,
        endpoint.client(ERAS[0]) as client,
    ):
        result = await client.call_tool("clerk", {"city": "Oslo"})
    assert result.is_error
    assert MARK not in str(result)


async def test_request_that_is_not_json_rpc_reveals_no_error() -> None:
    async with serve_mcp(agent("Hi.")) as endpoint, httpx.AsyncClient() as client:
        accept = {"accept": "application/json, text/event-stream", "mcp-protocol-version": "2026-07-28"}
        answers = [
            await client.post(endpoint.url, content=body, headers=accept) for body in (b"{", b"[]", b"{}", b"\xff")
        ]
    assert all(each.status_code in (202, 400) for each in answers)
    assert not any("Traceback" in each.text for each in answers)
