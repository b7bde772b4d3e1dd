"""`rxloop mcp module:agent` as a process, over its pipes, and by HTTP."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import mcp_types as types
import pytest
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.shared.exceptions import MCPError

from rxloop import SqliteEventLog
from support.cli_workspace import Workspace
from support.clients.mcp import ERAS, AnswerForm, ProgressRecorder, accept, cancel_call, result_meta, result_text

AGENTS = '''
import asyncio
import os
from pathlib import Path

from rxloop import Agent, MemoryEventLog, RunContext, Runtime, tool
from rxloop.server import mcp_server
from rxloop.testing import ScriptedModel, call

print("a module that says something")


@tool(idempotent=True)
async def wait(ctx: RunContext) -> str:
    """Wait until a file is there."""
    print("a tool that says something")
    ctx.progress("waiting")
    with Path("pids").open("a") as file:
        file.write(f"{os.getpid()}\\n")
    while not Path("go").exists():
        await asyncio.sleep(0.01)
    return "waited"


@tool(approve=True)
async def pay(amount: int) -> str:
    """Pay."""
    return f"paid {amount}"


def then(name, **arguments):
    def turn(request):
        last = request.messages[-1]
        return call(name, **arguments) if last.role == "user" else f"Done: {last.text}"

    return ScriptedModel(*[turn] * 9)


clerk = Agent(then("wait"), tools=[wait], thoughts=False)


def both():
    return {"one": clerk, "two": clerk.with_name("x")}


def payer():
    return Agent(then("pay", amount=5), tools=[pay], thoughts=False, name="payer")


desk = mcp_server(Runtime({"payer": payer()}, log=MemoryEventLog()), agents={"payer": "Pays."})
number = 5
'''


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "office.py").write_text(AGENTS, encoding="utf-8")
    return Workspace(tmp_path, "http://127.0.0.1:9/v1")


@asynccontextmanager
async def client(
    workspace: Workspace, mode: str, *arguments: str, says: AnswerForm | None = None
) -> AsyncGenerator[Client]:
    async def elicit(context: Any, params: types.ElicitRequestParams) -> types.ElicitResult:
        assert says is not None
        return says(params)

    command = StdioServerParameters(
        command=sys.executable, args=["-m", "rxloop", "mcp", *arguments], env=workspace.env, cwd=workspace.folder
    )
    with (workspace.folder / "stderr").open("a") as log:
        transport = stdio_client(command, errlog=log)
        async with Client(transport, mode=mode, elicitation_callback=elicit if says else None) as made:
            yield made


async def begun(workspace: Workspace, count: int) -> list[int]:
    """The processes in which the tool has begun, once there are as many."""
    async with asyncio.timeout(20):
        while True:
            pids = (workspace.folder / "pids").read_text().split() if (workspace.folder / "pids").exists() else []
            if len(pids) >= count:
                return [*map(int, pids)]
            await asyncio.sleep(0.01)


async def state_of(workspace: Workspace, task_id: str) -> str:
    async with aclosing(SqliteEventLog(workspace.database)) as log:
        return (await log.get_record(task_id)).state


@pytest.mark.parametrize("mode", ERAS)
async def test_agents_are_served_over_pipes_with_questions_and_nothing_else_on_stdout(
    workspace: Workspace, mode: str
) -> None:
    (workspace.folder / "go").touch()
    steps = ProgressRecorder()
    async with client(workspace, mode, "office:clerk", "office.py:payer", says=accept(answer=True)) as desk:
        names = [each.name for each in (await desk.list_tools()).tools]
        waited = await desk.call_tool("clerk", {"prompt": "Wait"}, progress_callback=steps)
        paid = await desk.call_tool("payer", {"prompt": "Pay"})
    assert names == ["clerk", "payer", "continue_run"]
    assert (result_text(waited), result_text(paid)) == ("Done: waited", "Done: paid 5")
    assert "wait: waiting" in steps.messages
    assert "a tool that says something" in (workspace.folder / "stderr").read_text()
    assert await state_of(workspace, result_meta(paid, "taskId")) == "completed"


@pytest.mark.parametrize("mode", ERAS)
async def test_a_cancel_over_pipes_cancels_the_run_and_the_process_serves_on(workspace: Workspace, mode: str) -> None:
    async with client(workspace, mode, "office:clerk") as desk:
        await cancel_call(desk, "waiting")
        [record] = await runs(workspace)
        async with asyncio.timeout(10):
            while await state_of(workspace, record.task_id) != "canceled":  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        (workspace.folder / "go").touch()
        assert result_text(await desk.call_tool("clerk", {"prompt": "Again"})) == "Done: waited"


async def runs(workspace: Workspace) -> Any:
    async with aclosing(SqliteEventLog(workspace.database)) as log:
        return await log.list_runs()


async def test_what_a_killed_process_leaves_the_next_one_goes_on_with(workspace: Workspace) -> None:
    async with client(workspace, ERAS[0], "office:clerk") as desk:
        calling = asyncio.create_task(desk.call_tool("clerk", {"prompt": "Wait"}))
        [pid] = await begun(workspace, 1)
        os.kill(pid, signal.SIGKILL)
        with suppress(MCPError):
            await calling
    [record] = await runs(workspace)
    assert record.state == "working"
    (workspace.folder / "go").touch()
    async with client(workspace, ERAS[1], "office:clerk") as desk:
        result = await desk.call_tool("continue_run", {"task_id": record.task_id})
    assert result_text(result) == "Done: waited"
    assert len({*await begun(workspace, 2)}) == 2, "the tool is idempotent, and was called once more"


async def test_a_run_goes_on_behind_the_back_of_a_client_that_is_gone_where_that_is_wanted(
    workspace: Workspace,
) -> None:
    async with client(workspace, ERAS[0], "office:clerk", "--keep", "--wait", "0.2") as desk:
        result = await desk.call_tool("clerk", {"prompt": "Wait"})
        assert result_meta(result, "state") == "working"
    assert await state_of(workspace, result_meta(result, "taskId")) == "working"
    (workspace.folder / "go").touch()
    async with client(workspace, ERAS[0], "office:clerk") as desk:
        assert (
            result_text(await desk.call_tool("continue_run", {"task_id": result_meta(result, "taskId")}))
            == "Done: waited"
        )


async def test_a_server_of_ones_own_is_served_as_it_is(workspace: Workspace) -> None:
    async with client(workspace, ERAS[0], "office:desk", says=accept(answer=True)) as desk:
        [payer, _] = (await desk.list_tools()).tools
        assert payer.description == "Pays."
        assert result_text(await desk.call_tool("payer", {"prompt": "Pay"})) == "Done: paid 5"


async def test_by_http_it_says_where_it_is(workspace: Workspace) -> None:
    (workspace.folder / "go").touch()
    process = workspace.process("mcp", "office:clerk", "--http", "--port", "0")
    assert process.stderr is not None
    try:
        lines = iter(process.stderr.readline, b"")
        url = next(found[0] for line in lines if (found := re.search(r"http://127\.0\.0\.1:\d+/mcp", line.decode())))
        async with Client(url) as desk:
            assert result_text(await desk.call_tool("clerk", {"prompt": "Wait"})) == "Done: waited"
    finally:
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130
        process.communicate()


async def test_a_dict_of_agents_is_served_as_rxloop_serve_does_it(workspace: Workspace) -> None:
    async with client(workspace, ERAS[0], "office:both") as desk:
        assert [tool.name for tool in (await desk.list_tools()).tools] == ["one", "two", "continue_run"]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["office:nobody"], "rxloop mcp 'office:nobody': office has no 'nobody'"),
        (
            ["office:number"],
            "rxloop mcp 'office:number' is 5: it must be an Agent, a dict of agents, or a function that gives one",
        ),
        (["nowhere:clerk"], "there is no module 'nowhere'"),
        (["office:clerk", "office.py:clerk"], "two agents are called 'clerk'"),
        (["office:desk", "--allow-host", "example.org"], "--allow-host is for agents"),
        (["office:clerk", "--wait", "0"], "wait must be more than 0 seconds"),
    ],
)
def test_what_cannot_be_served_is_said_in_one_line(workspace: Workspace, arguments: list[str], told: str) -> None:
    result = workspace.run("mcp", *arguments, "--no-log", code=2)
    assert told in result.stderr.splitlines()[-1]
