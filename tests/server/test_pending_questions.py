"""Lists of pending questions after a question has died, over every interface and event log."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

from rxloop import Agent, EventLog, ModelRequest, RunContext, RunRecord, Runtime, Signal, op, replay
from rxloop import tool as as_tool
from rxloop.client import Client
from rxloop.pipeline.records import find_last_end
from rxloop.protocol.commands import AnswerCommand, CancelCommand, Command, MessageCommand
from rxloop.protocol.events import WAITING, ContentCompleteEvent
from rxloop.recorded import list_pending
from rxloop.server import a2a, api
from rxloop.testing import ScriptedModel, call
from support.api_server import serve_app
from support.cli_workspace import Workspace
from support.dropped_questions import (
    LOGS,
    clerk,
    drop_question,
    shared_logs,
    start_waiting_run,
    wait_until_idle,
)

WAITING_STATES = {"input-required", "auth-required", "TASK_STATE_INPUT_REQUIRED", "TASK_STATE_AUTH_REQUIRED"}


class Setup:
    """Runtime over HTTP and A2A. It does not adopt runs, so stored commands stay unapplied."""

    def __init__(self, runtime: Runtime, url: str) -> None:
        self.runtime, self.log, self.url = runtime, runtime.log, url
        self.http = httpx.AsyncClient(base_url=url, timeout=20)

    async def call_a2a(self, method: str, **params: Any) -> Any:
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        answer = (await self.http.post("/a2a/rpc", json=body, headers={"a2a-version": "1.0"})).json()
        assert "result" in answer, answer
        return answer["result"]

    async def store(self, record: RunRecord, command: Command) -> None:
        """Store a command that no process applies."""
        while self.runtime.is_executing(record.task_id):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        await self.log.send_command(record.task_id, command)

    async def list_everywhere(self) -> dict[str, set[str]]:
        """Return the ids of the runs with pending questions, by interface."""
        async with Client(self.url) as client:
            by_client = (await client.pending()).runs
            records = [await client.record(each.task_id) for each in (await client.runs()).runs]
        tasks = (await self.call_a2a("ListTasks"))["tasks"]
        waiting_tasks = (await self.call_a2a("ListTasks", status="TASK_STATE_INPUT_REQUIRED")).get("tasks", [])
        task_infos = [await self.call_a2a("GetTask", id=each["id"]) for each in tasks]
        for each in records:
            assert (each.state in WAITING_STATES) == bool(each.pending), each
        ids = [each.task_id for each in await self.log.list_runs()]
        return {
            "list_pending": {each.record.task_id for each in await list_pending(self.log)},
            "runtime": {each.record.task_id for each in await self.runtime.list_pending()},
            "replay": {task_id for task_id in ids if (await replay(self.log, task_id).result()).pending},
            "client": {each.task_id for each in by_client},
            "record": {each.task_id for each in records if each.pending},
            "a2a list": {each["id"] for each in tasks if each["status"]["state"] in WAITING_STATES},
            "a2a filter": {each["id"] for each in waiting_tasks},
            "a2a get": {each["id"] for each in task_infos if each["status"]["state"] in WAITING_STATES},
        }


@contextlib.asynccontextmanager
async def serve(log: EventLog, agent: Agent[Any, Any]) -> AsyncGenerator[Setup]:
    async with Runtime({"clerk": agent}, log=log, grace=0.3, adopt_every=3_600) as runtime:
        routes = [Mount("/a2a", a2a(runtime)), Mount("/", api(runtime))]
        async with serve_app(Starlette(routes=routes)) as url:
            setup = Setup(runtime, url)
            try:
                yield setup
            finally:
                await setup.http.aclose()
    await agent.aclose()


@pytest.fixture(params=LOGS)
async def log(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncGenerator[EventLog]:
    async with shared_logs(request.param, tmp_path, request) as make:
        yield make()


async def supersede(setup: Setup, record: RunRecord) -> None:
    await drop_question(setup.runtime, record)


async def cancel(setup: Setup, record: RunRecord) -> None:
    await setup.runtime.cancel(record.task_id)


async def answer(setup: Setup, record: RunRecord) -> None:
    await setup.runtime.answer(record.task_id, {"1.0.1": True})
    await wait_until_idle(setup.runtime, record)


async def store_answer(setup: Setup, record: RunRecord) -> None:
    await setup.store(record, AnswerCommand(inputs={"1.0.1": True}))


async def store_cancel(setup: Setup, record: RunRecord) -> None:
    await setup.store(record, CancelCommand())


async def store_drop(setup: Setup, record: RunRecord) -> None:
    """Simulate a process that dropped the question and died before it ended the run."""
    await setup.store(record, MessageCommand(messages=[], superseding_task_id="later"))


async def fork_with_result(setup: Setup, record: RunRecord) -> None:
    """Cancel a run after forking it with a result of its open call."""
    [message] = [each for each in await setup.log.read(record.task_id) if isinstance(each, ContentCompleteEvent)]
    call_id = message.tool_calls[0].id
    forked = await setup.runtime.fork(record.task_id, record.seq, results={call_id: "refunded"})
    assert (await wait_until_idle(setup.runtime, forked)).state == "completed"
    await setup.runtime.cancel(record.task_id)


WAYS: list[Callable[[Setup, RunRecord], Awaitable[None]]] = [
    supersede,
    cancel,
    answer,
    store_answer,
    store_cancel,
    store_drop,
    fork_with_result,
]


@pytest.mark.parametrize("end_question", WAYS)
async def test_question_is_listed_nowhere_after_it_has_died(
    log: EventLog, end_question: Callable[[Setup, RunRecord], Awaitable[None]]
) -> None:
    async with serve(log, clerk()) as setup:
        other = await start_waiting_run(setup.runtime)
        record = await start_waiting_run(setup.runtime, context_id="c")
        before = await setup.list_everywhere()
        assert {name: ids for name, ids in before.items() if ids != {other.task_id, record.task_id}} == {}
        await end_question(setup, record)
        after = await setup.list_everywhere()
        assert {name: ids for name, ids in after.items() if ids != {other.task_id}} == {}


async def test_invalid_answer_leaves_the_question_in_the_lists(log: EventLog) -> None:
    async with serve(log, clerk()) as setup:
        record = await start_waiting_run(setup.runtime)
        await setup.store(record, AnswerCommand(inputs={"1.0.1": "perhaps"}))
        listed = await setup.list_everywhere()
        assert {name: ids for name, ids in listed.items() if ids != {record.task_id}} == {}


async def test_unanswered_question_is_listed_after_the_other_one_was_answered(log: EventLog) -> None:
    @as_tool(approve="Refund {order}?")
    async def refund(order: str) -> str:
        return "refunded"

    model = ScriptedModel([call("refund", order="A1"), call("refund", order="A2")], "Done.")
    async with serve(log, Agent(model, tools=[refund], name="clerk")) as setup:
        record = await wait_until_idle(setup.runtime, await setup.runtime.start("clerk", "Refund"))
        await setup.store(record, AnswerCommand(inputs={"1.0.1": True}))
        [pending] = await setup.runtime.list_pending()
        assert [each.prompt for each in pending.inputs] == ["Refund A2?"]
        info = (await setup.http.get(f"/runs/{record.task_id}")).json()
        assert info["state"] == "input-required"
        assert [each["prompt"] for each in info["pending"]] == ["Refund A2?"]


async def test_answered_run_is_reported_as_working_until_the_answer_is_applied(log: EventLog) -> None:
    async with serve(log, clerk()) as setup:
        record = await start_waiting_run(setup.runtime)
        await store_answer(setup, record)
        assert (await setup.http.get(f"/runs/{record.task_id}")).json()["state"] == "working"
        assert (await setup.call_a2a("GetTask", id=record.task_id))["status"]["state"] == "TASK_STATE_WORKING"
        assert (await replay(log, record.task_id).result()).state == "working"


async def test_run_whose_question_was_dropped_is_reported_as_canceled_before_its_end_is_logged(log: EventLog) -> None:
    async with serve(log, clerk()) as setup:
        record = await start_waiting_run(setup.runtime)
        await store_drop(setup, record)
        info = (await setup.http.get(f"/runs/{record.task_id}")).json()
        assert (info["state"], info["reason"], info.get("pending")) == ("canceled", "superseded", None)
        assert info["error"]["message"] == "A later run of the conversation dropped this run's questions."
        assert (await setup.call_a2a("GetTask", id=record.task_id))["status"]["state"] == "TASK_STATE_CANCELED"


async def test_replay_until_an_event_keeps_the_questions_of_that_time(log: EventLog) -> None:
    async with serve(log, clerk()) as setup:
        record = await start_waiting_run(setup.runtime)
        await store_answer(setup, record)
        assert (await replay(log, record.task_id).until(record.seq).result()).state == "input-required"


# -- questions outside calls


@op.on(ModelRequest)
async def confirm(request: ModelRequest, ctx: RunContext[Any]) -> AsyncIterator[Signal]:
    """Ask before each request."""
    if await ctx.ask("Ask the model?"):
        yield request


def guarded_clerk() -> Agent[Any, Any]:
    return Agent(ScriptedModel(*["Fine."] * 9), name="clerk", loop=op.standard(before_model=[confirm]))


@pytest.mark.parametrize("end_question", [supersede, cancel, store_cancel, store_drop])
async def test_question_of_a_guard_is_listed_nowhere_after_it_has_died(
    log: EventLog, end_question: Callable[[Setup, RunRecord], Awaitable[None]]
) -> None:
    async with serve(log, guarded_clerk()) as setup:
        record = await wait_until_idle(setup.runtime, await setup.runtime.start("clerk", "Hi", context_id="c"))
        assert record.state in WAITING
        await end_question(setup, record)
        for ids in (await setup.list_everywhere()).values():
            assert record.task_id not in ids
        end = find_last_end(await log.read(record.task_id))
        assert end is not None
        assert end.pending == [] or end.state in WAITING


# -- command line


@pytest.mark.parametrize("end_question", [None, supersede, store_answer])
async def test_runs_command_lists_pending_questions(
    tmp_path: Path, request: pytest.FixtureRequest, end_question: Callable[[Setup, RunRecord], Awaitable[None]] | None
) -> None:
    async with shared_logs("sqlite", tmp_path, request) as make, serve(make(), clerk()) as setup:
        record = await start_waiting_run(setup.runtime, context_id="c")
        if end_question is not None:
            await end_question(setup, record)
    workspace, options = Workspace(tmp_path, ""), ("--pending", "--db", str(tmp_path / "runs.db"))
    rows = await asyncio.to_thread(workspace.rows, *options)
    if end_question is not None:
        assert rows == []
        return
    assert [(row["taskId"], row["pending"][0]["inputId"]) for row in rows] == [(record.task_id, "1.0.1")]
    table = await asyncio.to_thread(workspace.run, "runs", *options)
    assert table.stdout.rstrip().endswith(rows[0]["pending"][0]["prompt"])
    assert await asyncio.to_thread(workspace.rows, *options, "--grep", "refund") == rows
    assert await asyncio.to_thread(workspace.rows, *options, "--grep", "unknown") == []
