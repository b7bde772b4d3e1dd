"""Runs whose questions are dropped by a later run of the conversation."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from a2a.client import ClientConfig, create_client
from a2a.types import a2a_pb2 as pb
from starlette.applications import Starlette
from starlette.routing import Mount

from rxloop import Event, RunRecord, Runtime, follow
from rxloop.client import Client
from rxloop.errors import ApiError, InvalidInput, NotAsked
from rxloop.protocol.commands import AnswerCommand, MessageCommand
from rxloop.recorded.replay import history
from rxloop.run import loader
from rxloop.server import a2a, agui, api, mcp_server, openai_api, ui_stream
from support.api_server import serve_app
from support.clients.a2a import collect_responses, task_states
from support.clients.mcp import McpEndpoint, result_text
from support.dropped_questions import LOGS, clerk, drop_question, shared_logs, start_waiting_run, wait_until_idle


class Setup:
    """Two runtimes with the same event log. The first serves all protocols, the second drops questions."""

    def __init__(self, runtime: Runtime, other_runtime: Runtime, url: str, mcp: McpEndpoint) -> None:
        self.runtime, self.other_runtime, self.url, self.mcp = runtime, other_runtime, url, mcp
        self.http = httpx.AsyncClient(base_url=url, timeout=20)


@asynccontextmanager
async def serve_setup(kind: str, folder: Path, request: pytest.FixtureRequest) -> AsyncGenerator[Setup]:
    async with AsyncExitStack() as stack:
        make = await stack.enter_async_context(shared_logs(kind, folder, request))
        agents = clerk(), clerk()
        runtime, other_runtime = [
            await stack.enter_async_context(Runtime({"clerk": agent}, log=make(), grace=0.3)) for agent in agents
        ]
        mcp = mcp_server(runtime)
        mounts = [
            Mount("/agui", agui(runtime)),
            Mount("/ui", ui_stream(runtime)),
            Mount("/openai", openai_api(runtime)),
            Mount("/a2a", a2a(runtime)),
            Mount("/", api(runtime)),
        ]
        url = await stack.enter_async_context(serve_app(Starlette(routes=mounts)))
        setup = Setup(
            runtime, other_runtime, url, McpEndpoint(await stack.enter_async_context(serve_app(mcp)), mcp, runtime)
        )
        yield setup
        await setup.http.aclose()
        await mcp.drain(0.2)
        for agent in agents:
            await agent.aclose()


@pytest.fixture(params=LOGS)
async def setup(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncGenerator[Setup]:
    async with serve_setup(request.param, tmp_path, request) as setup:
        yield setup


# -- readers


async def _follow_runtime(setup: Setup, record: RunRecord) -> str:
    events = [event async for event in setup.runtime.follow(record.task_id)]
    return getattr(events[-1], "state", "")


async def _follow_log_from_start(setup: Setup, record: RunRecord) -> str:
    events = [event async for event in follow(setup.runtime.log, record.task_id, until="end")]
    return getattr(events[-1], "state", "")


async def _follow_log(setup: Setup, record: RunRecord) -> str:
    events = [event async for event in setup.runtime.log.follow(record.task_id, until="end")]
    return getattr(events[-1], "state", "")


async def _follow_after_pause(setup: Setup, record: RunRecord) -> str:
    cursor = f"{record.task_id}/{record.attempt}.{record.seq}.0"
    events: list[Event] = [event async for event in setup.runtime.follow(record.task_id, after=cursor)]
    return getattr(events[-1], "state", "") if events else record.state


async def _follow_client(setup: Setup, record: RunRecord) -> str:
    async with Client(setup.url) as client:
        events = [event async for event in client.follow(record.task_id)]
    return getattr(events[-1], "state", "")


async def _read_sse(setup: Setup, record: RunRecord) -> str:
    answer = await setup.http.get(f"/runs/{record.task_id}/events", headers={"accept": "text/event-stream"})
    assert answer.status_code == 200
    return next(word for word in ("canceled", "input-required") if f'"state":"{word}"' in answer.text)


async def _subscribe_a2a(setup: Setup, record: RunRecord) -> str:
    config = ClientConfig(httpx_client=setup.http, supported_protocol_bindings=["JSONRPC"])
    async with await create_client(f"{setup.url}/a2a", config) as client:
        updates = await collect_responses(client.subscribe(pb.SubscribeToTaskRequest(id=record.task_id)))
    return task_states(updates)[-1].lower().replace("_", "-")


READERS: list[Callable[[Setup, RunRecord], Awaitable[str]]] = [
    *(
        _follow_runtime,
        _follow_log_from_start,
        _follow_log,
        _follow_after_pause,
        _follow_client,
        _read_sse,
        _subscribe_a2a,
    )
]


# P18
@pytest.mark.parametrize("read", READERS)
async def test_reader_ends_when_a_later_run_drops_the_question(
    setup: Setup, read: Callable[[Setup, RunRecord], Awaitable[str]]
) -> None:
    record = await start_waiting_run(setup.runtime, context_id="c")
    reading = asyncio.ensure_future(read(setup, record))
    await asyncio.sleep(0.3)
    assert not reading.done()
    await drop_question(setup.other_runtime, record)
    async with asyncio.timeout(20):
        assert await reading == "canceled"


# P18
@pytest.mark.parametrize("read", [each for each in READERS if each is not _subscribe_a2a])
async def test_reader_that_starts_after_the_question_was_dropped_ends(
    setup: Setup, read: Callable[[Setup, RunRecord], Awaitable[str]]
) -> None:
    record = await start_waiting_run(setup.runtime, context_id="c")
    await drop_question(setup.other_runtime, record)
    async with asyncio.timeout(20):
        assert await read(setup, record) == "canceled"


# P18
@pytest.mark.parametrize("read", [each for each in READERS if each is not _follow_log])
async def test_reader_of_a_run_that_an_earlier_version_dropped_ends(
    tmp_path: Path,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    read: Callable[[Setup, RunRecord], Awaitable[str]],
) -> None:
    async def allow_start(*_: Any) -> bool:
        return True

    async with serve_setup("sqlite", tmp_path, request) as setup:
        record = await start_waiting_run(setup.runtime, context_id="c")
        with monkeypatch.context() as earlier_version:
            earlier_version.setattr(loader, "drop_earlier_questions", allow_start)
            await drop_question(setup.other_runtime, record)
        assert (await setup.runtime.get_record(record.task_id)).state == "input-required"
        async with asyncio.timeout(20):
            assert await read(setup, record) == "input-required"

        # The run ends when the next run of the conversation starts.
        await drop_question(setup.other_runtime, record)
        assert (await setup.runtime.get_record(record.task_id)).state == "canceled"


# P18
@pytest.mark.parametrize("read", [each for each in READERS if each is not _follow_log])
async def test_reader_ends_when_the_process_that_dropped_the_question_has_died(
    tmp_path: Path, request: pytest.FixtureRequest, read: Callable[[Setup, RunRecord], Awaitable[str]]
) -> None:
    async with serve_setup("sqlite", tmp_path, request) as setup:
        record = await start_waiting_run(setup.runtime, context_id="c")
        # Simulate a process that stored this command and then died.
        await setup.other_runtime.log.send_command(
            record.task_id, MessageCommand(messages=[], superseding_task_id="later")
        )
        async with asyncio.timeout(20):
            assert await read(setup, record) == "input-required"
        await drop_question(setup.other_runtime, record)
        assert (await setup.runtime.get_record(record.task_id)).state == "canceled"


# P18
async def test_show_command_ends_with_a_dropped_run(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    async with serve_setup("sqlite", tmp_path, request) as setup:
        record = await start_waiting_run(setup.runtime, context_id="c")
        command = (sys.executable, "-m", "rxloop", "show", record.task_id, "--until-end", "--db", tmp_path / "runs.db")
        process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
        assert process.stdout is not None
        while b"input-required" not in (line := await process.stdout.readline()):
            assert line
        await drop_question(setup.other_runtime, record)
        remaining, _ = await asyncio.wait_for(process.communicate(), 30)
        assert b"cancelled" in remaining
        assert process.returncode == 0


# -- records


# P18
async def test_dropped_run_is_listed_as_canceled(setup: Setup) -> None:
    record = await start_waiting_run(setup.runtime, context_id="c")
    await drop_question(setup.other_runtime, record)

    dropped = await setup.runtime.get_record(record.task_id)
    assert dropped.state == "canceled"
    assert (dropped.error and dropped.error.code) == "superseded"
    waiting = await setup.runtime.log.list_runs(states=("input-required", "auth-required"))
    assert list(waiting) == []
    info = (await setup.http.get(f"/runs/{record.task_id}")).json()
    assert info["state"] == "canceled"
    assert info["reason"] == "superseded"
    assert info.get("pending") is None
    assert info["error"]["message"] == "A later run of the conversation dropped this run's questions."


# P18
async def test_later_run_ends_all_earlier_waiting_runs(setup: Setup) -> None:
    first = await start_waiting_run(setup.runtime, context_id="c")
    second = await start_waiting_run(setup.other_runtime, context_id="c")
    await drop_question(setup.runtime, first)
    states = [(await setup.runtime.get_record(each.task_id)).state for each in (first, second)]
    assert states == ["canceled", "canceled"]
    other = await start_waiting_run(setup.runtime, context_id="another")
    assert (await setup.other_runtime.get_record(other.task_id)).state == "input-required"


# P18
async def test_dropped_run_cannot_be_resumed_or_answered(setup: Setup) -> None:
    record = await start_waiting_run(setup.runtime, context_id="c")
    later = await drop_question(setup.other_runtime, record)
    agent = setup.runtime.agents["clerk"]
    for attempt in (agent.resume(record.task_id), agent.resume(record.task_id, inputs={"1.0.1": True})):
        with pytest.raises(
            NotAsked, match=f"the later run {later.task_id} of the conversation c dropped its questions"
        ):
            await attempt
    with pytest.raises(InvalidInput, match=f"{later.task_id} .* dropped its questions"):
        await setup.runtime.answer(record.task_id, {"1.0.1": True})
    assert (await agent.get_run(record.task_id).execute()).state == "canceled"
    forked = await agent.fork(record.task_id, at=record.seq, on_input=lambda question: True)
    assert forked.output == "Refunded."


# -- late answers


AnswerQuestion = Callable[[Setup, RunRecord, bool], Awaitable[Any]]


async def _answer_by_http(setup: Setup, record: RunRecord, value: bool) -> Any:
    answer = await setup.http.post(f"/runs/{record.task_id}/resume?wait=5", json={"inputs": {"1.0.1": value}})
    return answer.status_code, answer.json().get("error", {}).get("code")


async def _answer_by_client(setup: Setup, record: RunRecord, value: bool) -> Any:
    async with Client(setup.url) as client:
        try:
            await client.answer(record.task_id, {"1.0.1": value}, wait=5)
        except ApiError as error:
            return error.status, error.code
    return 200, None


async def _answer_by_ui(setup: Setup, record: RunRecord, value: bool, **more: Any) -> Any:
    approval = {"id": f"{record.task_id}:1.0.1", "approved": value, **more}
    part = {"type": "dynamic-tool", "toolName": "refund", "toolCallId": "x", "state": "approval-responded"}
    message = {"id": record.task_id, "role": "assistant", "parts": [{**part, "approval": approval}]}
    body = {"id": record.context_id, "messages": [message], "messageId": record.task_id}
    answer = await setup.http.post("/ui/api/chat", json=body)
    return answer.status_code, "not_waiting" if answer.status_code == 409 else None


async def _answer_by_agui(setup: Setup, record: RunRecord, value: bool, reason: str | None = None) -> Any:
    entry = {"interruptId": f"{record.task_id}:1.0.1", "status": "resolved", "payload": value}
    messages = [{"id": "m9", "role": "user", "content": reason}] if reason else []
    body = {"threadId": record.context_id, "runId": f"r-{value}", "messages": messages, "resume": [entry]}
    answer = await setup.http.post("/agui/", json=body)
    assert answer.text.endswith("\n\n")
    if "RUN_ERROR" not in answer.text:
        return 200, None
    return 409, "not_waiting" if "not_waiting" in answer.text else answer.text


async def _answer_by_openai(setup: Setup, record: RunRecord, value: bool) -> Any:
    item = {
        "type": "mcp_approval_response",
        "approval_request_id": f"mcpr_{record.task_id}:1.0.1",
        "approve": value,
    }
    answer = await setup.http.post("/openai/v1/responses", json={"model": "clerk", "input": [item]})
    return answer.status_code, (answer.json().get("error") or {}).get("code")


async def _answer_by_a2a(setup: Setup, record: RunRecord, value: bool) -> Any:
    part = {"data": {"inputs": {"1.0.1": value}}}
    message = {"messageId": f"m-{value}", "role": "ROLE_USER", "taskId": record.task_id, "parts": [part]}
    body = {"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": {"message": message}}
    answer = (await setup.http.post("/a2a/rpc", json=body, headers={"a2a-version": "1.0"})).json()
    return (200, None) if "result" in answer else (409, answer["error"])


async def _answer_by_mcp(setup: Setup, record: RunRecord, value: bool) -> Any:
    async with setup.mcp.client("legacy") as client:
        result = await client.call_tool("continue_run", {"task_id": record.task_id, "answers": {"1.0.1": value}})
    return (409, result_text(result)) if result.is_error else (200, None)


ANSWERS: list[AnswerQuestion] = [
    _answer_by_http,
    _answer_by_client,
    _answer_by_ui,
    _answer_by_agui,
    _answer_by_openai,
    _answer_by_a2a,
    _answer_by_mcp,
]


# P18
@pytest.mark.parametrize("answer", ANSWERS)
@pytest.mark.parametrize("late", ["dropped", "canceled", "answered differently"])
async def test_late_answer_is_refused(setup: Setup, answer: AnswerQuestion, late: str) -> None:
    record = await start_waiting_run(setup.runtime, context_id="c")
    if late == "dropped":
        await drop_question(setup.other_runtime, record)
    elif late == "canceled":
        await setup.other_runtime.cancel(record.task_id)
    else:
        await setup.other_runtime.answer(record.task_id, {"1.0.1": True})
    async with asyncio.timeout(20):
        status, code = await answer(setup, record, False)
    assert 400 <= status < 500, code
    assert code is not None


# P18
@pytest.mark.parametrize("answer", ANSWERS)
async def test_repeated_answer_is_not_late(setup: Setup, answer: AnswerQuestion) -> None:
    record = await start_waiting_run(setup.runtime, context_id="c")
    async with asyncio.timeout(20):
        assert await answer(setup, record, True) == (200, None)
        status, _ = await answer(setup, record, True)
    assert status in (200, 409)
    assert (await setup.other_runtime.get_record(record.task_id)).state == "completed"


# P18
@pytest.mark.parametrize("answer", [_answer_by_ui, _answer_by_agui])
@pytest.mark.parametrize(
    "first", [AnswerCommand(inputs={"1.0.1": True}), MessageCommand(messages=[], superseding_task_id="later")]
)
async def test_message_sent_with_a_late_answer_is_not_stored(
    setup: Setup,
    monkeypatch: pytest.MonkeyPatch,
    answer: Callable[..., Awaitable[Any]],
    first: AnswerCommand | MessageCommand,
) -> None:
    record = await start_waiting_run(setup.runtime, context_id="c")
    send = type(setup.runtime.log).send_command
    commands: list[Any] = []

    async def send_after_other(log: Any, task_id: str, command: Any) -> int:
        commands.append(command)
        if len(commands) == 1:
            # Simulate a concurrent command from another process.
            await send(setup.other_runtime.log, task_id, first)
        return await send(log, task_id, command)

    with monkeypatch.context() as patched:
        patched.setattr(type(setup.runtime.log), "send_command", send_after_other)
        async with asyncio.timeout(20):
            assert await answer(setup, record, False, reason="It is too expensive.") == (409, "not_waiting")
    assert commands
    if isinstance(first, AnswerCommand):
        result = await setup.other_runtime.agents["clerk"].resume(record.task_id)
        assert result.output == "Refunded."
    else:
        await drop_question(setup.other_runtime, record)
    assert "too expensive" not in str([each.text for each in await history(setup.runtime.log, "c")])


# P18
@pytest.mark.parametrize("answer", [_answer_by_ui, _answer_by_agui])
async def test_message_sent_with_an_answer_reaches_the_model(
    setup: Setup, answer: Callable[..., Awaitable[Any]]
) -> None:
    record = await start_waiting_run(setup.runtime, context_id="c")
    async with asyncio.timeout(20):
        assert await answer(setup, record, False, reason="It is too expensive.") == (200, None)
        assert (await wait_until_idle(setup.runtime, record)).state == "completed"
    messages = [(each.role, each.text) for each in await history(setup.runtime.log, "c", public=True)]
    assert [each for each in messages if "expensive" in each[1]] == [("user", "It is too expensive.")]
    assert [role for role, _ in messages] == ["user", "assistant", "tool", "user", "assistant"]
