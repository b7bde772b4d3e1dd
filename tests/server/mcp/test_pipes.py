"""`rxloop mcp module:agent` in a separate process, over pipes and HTTP."""

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

print("a module that prints something")


@tool(idempotent=True)
async def wait(ctx: RunContext) -> str:
    """Wait until a file is there."""
    print("a tool that prints something")
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
async def connect(
    workspace: Workspace, mode: str, *arguments: str, answer_form: AnswerForm | None = None
) -> AsyncGenerator[Client]:
    async def elicit(context: Any, params: types.ElicitRequestParams) -> types.ElicitResult:
        assert answer_form is not None
        return answer_form(params)

    command = StdioServerParameters(
        command=sys.executable, args=["-m", "rxloop", "mcp", *arguments], env=workspace.env, cwd=workspace.folder
    )
    with (workspace.folder / "stderr").open("a") as log:
        transport = stdio_client(command, errlog=log)
        async with Client(transport, mode=mode, elicitation_callback=elicit if answer_form else None) as client:
            yield client


async def wait_for_pids(workspace: Workspace, count: int) -> list[int]:
    """Wait until `count` processes have started the tool, then return their process ids."""
    async with asyncio.timeout(20):
        while True:
            pids = (workspace.folder / "pids").read_text().split() if (workspace.folder / "pids").exists() else []
            if len(pids) >= count:
                return [*map(int, pids)]
            await asyncio.sleep(0.01)


async def read_state(workspace: Workspace, task_id: str) -> str:
    async with aclosing(SqliteEventLog(workspace.database)) as log:
        return (await log.get_record(task_id)).state


@pytest.mark.parametrize("mode", ERAS)
async def test_agents_are_served_over_pipes_and_stdout_has_only_the_protocol(workspace: Workspace, mode: str) -> None:
    (workspace.folder / "go").touch()
    steps = ProgressRecorder()
    async with connect(workspace, mode, "office:clerk", "office.py:payer", answer_form=accept(answer=True)) as client:
        names = [each.name for each in (await client.list_tools()).tools]
        waited = await client.call_tool("clerk", {"prompt": "Wait"}, progress_callback=steps)
        paid = await client.call_tool("payer", {"prompt": "Pay"})
    assert names == ["clerk", "payer", "continue_run"]
    assert result_text(waited) == "Done: waited"
    assert result_text(paid) == "Done: paid 5"
    assert "wait: waiting" in steps.messages
    assert "a tool that prints something" in (workspace.folder / "stderr").read_text()
    assert await read_state(workspace, result_meta(paid, "taskId")) == "completed"


@pytest.mark.parametrize("mode", ERAS)
async def test_cancel_over_pipes_cancels_the_run_and_the_server_continues(workspace: Workspace, mode: str) -> None:
    async with connect(workspace, mode, "office:clerk") as client:
        await cancel_call(client, "waiting")
        [record] = await list_runs(workspace)
        async with asyncio.timeout(10):
            while await read_state(workspace, record.task_id) != "canceled":  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        (workspace.folder / "go").touch()
        assert result_text(await client.call_tool("clerk", {"prompt": "Again"})) == "Done: waited"


async def list_runs(workspace: Workspace) -> Any:
    async with aclosing(SqliteEventLog(workspace.database)) as log:
        return await log.list_runs()


async def test_next_process_continues_a_run_of_a_killed_process(workspace: Workspace) -> None:
    async with connect(workspace, ERAS[0], "office:clerk") as client:
        calling = asyncio.create_task(client.call_tool("clerk", {"prompt": "Wait"}))
        [pid] = await wait_for_pids(workspace, 1)
        os.kill(pid, signal.SIGKILL)
        with suppress(MCPError):
            await calling
    [record] = await list_runs(workspace)
    assert record.state == "working"
    (workspace.folder / "go").touch()
    async with connect(workspace, ERAS[1], "office:clerk") as client:
        result = await client.call_tool("continue_run", {"task_id": record.task_id})
    assert result_text(result) == "Done: waited"
    assert len({*await wait_for_pids(workspace, 2)}) == 2, "the idempotent tool must be executed again"


async def test_run_continues_after_its_client_is_gone_with_keep(
    workspace: Workspace,
) -> None:
    async with connect(workspace, ERAS[0], "office:clerk", "--keep", "--wait", "0.2") as client:
        result = await client.call_tool("clerk", {"prompt": "Wait"})
        assert result_meta(result, "state") == "working"
    assert await read_state(workspace, result_meta(result, "taskId")) == "working"
    (workspace.folder / "go").touch()
    async with connect(workspace, ERAS[0], "office:clerk") as client:
        assert (
            result_text(await client.call_tool("continue_run", {"task_id": result_meta(result, "taskId")}))
            == "Done: waited"
        )


async def test_custom_server_is_served_unchanged(workspace: Workspace) -> None:
    async with connect(workspace, ERAS[0], "office:desk", answer_form=accept(answer=True)) as client:
        [payer, _] = (await client.list_tools()).tools
        assert payer.description == "Pays."
        assert result_text(await client.call_tool("payer", {"prompt": "Pay"})) == "Done: paid 5"


async def test_http_server_prints_its_url(workspace: Workspace) -> None:
    (workspace.folder / "go").touch()
    process = workspace.process("mcp", "office:clerk", "--http", "--port", "0")
    assert process.stderr is not None
    try:
        lines = iter(process.stderr.readline, b"")
        url = next(match[0] for line in lines if (match := re.search(r"http://127\.0\.0\.1:\d+/mcp", line.decode())))
        async with Client(url) as client:
            assert result_text(await client.call_tool("clerk", {"prompt": "Wait"})) == "Done: waited"
    finally:
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130
        process.communicate()


async def test_dict_of_agents_is_served(workspace: Workspace) -> None:
    async with connect(workspace, ERAS[0], "office:both") as client:
        assert [tool.name for tool in (await client.list_tools()).tools] == ["one", "two", "continue_run"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["office:nobody"], "rxloop mcp 'office:nobody': missing attribute 'nobody' in office"),
        (
            ["office:number"],
            "rxloop mcp 'office:number' must be an Agent, a dict of agents, or a function that returns one, got 5",
        ),
        (["nowhere:clerk"], "no module 'nowhere'"),
        (["office:clerk", "office.py:clerk"], "agent names must be unique, got 'clerk' twice"),
        (["office:desk", "--allow-host", "example.org"], "--allow-host cannot be used with an mcp_server"),
        (["office:clerk", "--wait", "0"], "wait must be a positive number of seconds"),
    ],
)
def test_invalid_targets_and_options_are_reported_in_one_line(
    workspace: Workspace, arguments: list[str], message: str
) -> None:
    result = workspace.run("mcp", *arguments, "--no-log", code=2)
    assert message in result.stderr.splitlines()[-1]
