"""Ended runs and requests, whose memory is freed without a garbage collection."""

from __future__ import annotations

import asyncio
import gc
import logging
import weakref
from collections.abc import Awaitable, Callable, Generator
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount
from typing_extensions import override

from rxloop import Agent, Limits, MemoryEventLog, RunContext, Runtime, tool
from rxloop.coordination.inbox import Inbox
from rxloop.errors import LimitReached, RunCancelled, RunError
from rxloop.protocol.events import StatusUpdateEvent
from rxloop.run.attempt import Attempt
from rxloop.server import a2a, api
from rxloop.server.a2a.calls import A2aRequest
from rxloop.server.core.stream import _LimitedSend
from rxloop.state.run_state import RunState
from rxloop.support.tasks import limit_time
from rxloop.testing import ScriptedModel, call
from support.api_server import serve_app
from support.dropped_questions import wait_until_idle
from support.run_checks import run_ready_tasks, wait_until


@tool
async def look(place: str) -> str:
    """Look."""
    return "seen"


@tool
async def fail() -> str:
    """Fail."""
    raise RuntimeError("broken")


@tool(timeout=0.01)
async def time_out() -> str:
    """Wait for longer than the time limit."""
    await asyncio.Event().wait()
    return "never"


@tool
async def wait() -> str:
    """Wait for ever."""
    await asyncio.Event().wait()
    return "never"


@tool
async def ask(ctx: RunContext[Any]) -> str:
    """Ask."""
    return str(await ctx.ask("Really?"))


@tool(approve=True)
async def pay() -> str:
    """Pay."""
    return "paid"


async def finish(agent: Agent[Any, Any]) -> None:
    assert (await agent.run("Go.")).output == "Done."


async def answer_inline(agent: Agent[Any, Any]) -> None:
    assert (await agent.run("Go.", on_input=lambda question: True)).output == "Done."


async def pause_and_resume(agent: Agent[Any, Any]) -> None:
    result = await agent.run("Go.")
    assert (await agent.resume(result.task_id, inputs={result.pending[0].input_id: True})).output == "Done."


async def continue_in_runtime(agent: Agent[Any, Any]) -> None:
    async with Runtime({"clerk": agent}, log=MemoryEventLog()) as runtime:
        record = await wait_until_idle(runtime, await runtime.start("clerk", "Go."))
        [pending] = await runtime.list_pending()
        await runtime.answer(record.task_id, {pending.inputs[0].input_id: True})
        end = await runtime.follow(record.task_id)
        assert isinstance(end, StatusUpdateEvent)
        assert end.state == "completed"


async def fork(agent: Agent[Any, Any]) -> None:
    result = await agent.run("Go.")
    assert (await agent.fork(result.task_id, at=3)).output == "Done."


async def cancel(agent: Agent[Any, Any]) -> None:
    run = agent.run("Go.")
    async for event in run:
        if event.kind == "tool-start":
            run.cancel()
    with pytest.raises(RunCancelled):
        await run


async def drop(agent: Agent[Any, Any]) -> None:
    async for event in agent.run("Go."):
        if event.kind == "tool-start":
            break


async def reach_limit(agent: Agent[Any, Any]) -> None:
    with pytest.raises(LimitReached):
        await agent.run("Go.", limits=Limits(iterations=1))


async def fail_run(agent: Agent[Any, Any]) -> None:
    with pytest.raises(RunError):
        await agent.run("Go.")


USES: dict[str, tuple[Any, Callable[[Agent[Any, Any]], Awaitable[None]]]] = {
    "completed": (call("look", place="here"), finish),
    "invalid arguments": (call("look", what="here"), finish),
    "failed tool": (call("fail"), finish),
    "tool that timed out": (call("time_out"), finish),
    "answered inline": ([call("ask"), call("pay")], answer_inline),
    "question": (call("ask"), pause_and_resume),
    "approval": (call("pay"), pause_and_resume),
    "approval in a runtime": (call("pay"), continue_in_runtime),
    "fork": (call("look", place="here"), fork),
    "cancelled": (call("wait"), cancel),
    "dropped": (call("wait"), drop),
    "limit": (call("look", place="here"), reach_limit),
    "failed": (lambda request: {}["missing"], fail_run),
}


@pytest.fixture
def no_collections() -> Generator[None]:
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_collections")
@pytest.mark.parametrize("name", USES)
async def test_ended_run_is_freed_without_a_garbage_collection(
    name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    attempts, start = list[weakref.ref[Attempt]](), Attempt.__init__

    def watch(attempt: Attempt, *args: Any) -> None:
        attempts.append(weakref.ref(attempt))
        start(attempt, *args)

    monkeypatch.setattr(Attempt, "__init__", watch)
    # pytest keeps log records with their tracebacks.
    caplog.set_level(logging.CRITICAL, logger="rxloop")
    turn, use = USES[name]
    model = ScriptedModel(turn, "Done.", "Done.")
    log = None if use is continue_in_runtime else MemoryEventLog()
    agent = Agent(model, name="clerk", tools=[look, fail, time_out, wait, ask, pay], log=log)
    await use(agent)
    model.requests.clear()
    async with asyncio.timeout(10):
        await wait_until(lambda: not any(each() for each in attempts))
    assert attempts


@pytest.mark.usefixtures("no_collections")
async def test_objects_of_a_cancelled_task_with_a_time_limit_are_freed_without_a_garbage_collection() -> None:
    held: list[weakref.ref[object]] = []

    async def work() -> None:
        model = ScriptedModel()
        held.append(weakref.ref(model))
        await asyncio.Event().wait()

    task = asyncio.create_task(limit_time(work, 60, TimeoutError))
    await run_ready_tasks()
    task.cancel()
    await asyncio.wait([task])
    assert held[0]() is not None
    del task
    assert held[0]() is None


@pytest.mark.usefixtures("no_collections")
async def test_inbox_that_is_closed_while_it_is_read_is_freed_without_a_garbage_collection() -> None:
    class SlowLog(MemoryEventLog):
        @override
        async def read_commands(self, *args: Any, **options: Any) -> Any:
            await asyncio.Event().wait()

    def ignore(*_: object) -> Any:
        return False

    log = SlowLog()
    inbox = Inbox(
        log,
        "t",
        state=RunState,
        is_ending=ignore,
        on_cancel=ignore,
        on_message=ignore,
        on_answers=ignore,
    )
    inbox.open()
    inbox._notify()
    await run_ready_tasks()
    await inbox.aclose()
    held = weakref.ref(log)
    del inbox, log
    await run_ready_tasks()
    assert held() is None


@pytest.mark.usefixtures("no_collections")
async def test_requests_are_freed_without_a_garbage_collection() -> None:
    headers = {"A2A-Version": "1.0"}
    message = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "Go."}]}
    async with Runtime({"clerk": Agent(ScriptedModel("Done."), name="clerk")}, log=MemoryEventLog()) as runtime:
        app = Starlette(routes=[Mount("/a2a", a2a(runtime)), Mount("/", api(runtime))])
        async with serve_app(app) as url, httpx.AsyncClient(base_url=url, headers=headers) as http:
            sent = await http.post("/a2a/message:stream", json={"message": message})
            assert "TASK_STATE_COMPLETED" in sent.text
            tasks = (await http.get("/a2a/tasks")).json()["tasks"]
            assert (await http.get(f"/runs/{tasks[0]['id']}/events")).status_code == 200
            await run_ready_tasks()
            assert not [each for each in gc.get_objects() if isinstance(each, A2aRequest | _LimitedSend)]
