"""MCP over streamable HTTP: shared lists, credentials per run, and cleanup."""

import asyncio
import logging
import os
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, cast

import anyio
import mcp_types as types
import pytest
import uvicorn
from mcp.server import Server, ServerRequestContext

from rxloop import Agent, RunContext, SqliteEventLog
from rxloop.errors import ConfigurationError
from rxloop.protocol.events import ToolCompleteEvent, ToolsUnavailableEvent
from rxloop.testing import ScriptedModel, call
from rxloop.tools.mcp import mcp
from support.api_server import abort_connections
from support.mcp_servers.runs import count_open_files, results
from support.run_checks import wait_until
from support.tcp_server import stop_accepting

CLOSINGS = int(os.environ.get("RXLOOP_CLOSINGS", "25"))
SCHEMA: dict[str, Any] = {"type": "object", "properties": {}}


class ToolServer:
    """Server that lists tools in pages and counts requests."""

    def __init__(self, names: list[list[str]] | None = None) -> None:
        self.pages = names or [["who", "a"], ["b"], ["c"]]
        self.requests: Counter[str] = Counter()
        self.tokens: list[str | None] = []
        self.released = asyncio.Event()
        self.released.set()
        self.server: Server[Any] = Server("many", on_list_tools=self.list, on_call_tool=self.call)

    async def list(
        self, ctx: ServerRequestContext[Any, Any], params: types.PaginatedRequestParams | None
    ) -> types.ListToolsResult:
        page = int(params.cursor) if params is not None and params.cursor else 0
        self.requests[f"list {page}"] += 1
        await self.released.wait()
        tools = [types.Tool(name=name, description="x" * 20_000, input_schema=SCHEMA) for name in self.pages[page]]
        more = str(page + 1) if page + 1 < len(self.pages) else None
        return types.ListToolsResult(tools=tools, next_cursor=more)

    async def call(
        self, ctx: ServerRequestContext[Any, Any], params: types.CallToolRequestParams
    ) -> types.CallToolResult:
        token = None if ctx.request is None else ctx.request.headers.get("authorization")
        self.tokens.append(token)
        answer = f"{params.name} {token}"
        return types.CallToolResult(content=[types.TextContent(type="text", text=answer)])

    @asynccontextmanager
    async def serve(self) -> AsyncGenerator[str]:
        config = uvicorn.Config(self.server.streamable_http_app(), port=0, log_config=None, timeout_graceful_shutdown=1)
        runner = uvicorn.Server(config)
        task = asyncio.create_task(runner.serve())
        while not runner.started:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        try:
            yield f"http://127.0.0.1:{runner.servers[0].sockets[0].getsockname()[1]}/mcp"
        finally:
            await stop_accepting(*runner.servers)
            runner.should_exit = True
            with suppress(asyncio.CancelledError):
                await task
            await abort_connections(runner)


@dataclass
class Deps:
    token: str


async def test_fifty_concurrent_runs_list_all_pages_once() -> None:  # L116
    tool_server = ToolServer()
    async with tool_server.serve() as url:
        model = ScriptedModel(*["Hi."] * 51)
        async with Agent(model, tools=[mcp(url, name="many")], thoughts=False) as agent:
            await asyncio.gather(*(agent.run("Hi") for _ in range(50)))
            await agent.run("Hi")
    assert tool_server.requests == {"list 0": 1, "list 1": 1, "list 2": 1}
    assert [tool.name for tool in model.requests[0].tools] == ["many__who", "many__a", "many__b", "many__c"]
    assert len(model.requests[0].tools[0].description) == 10_000


async def test_each_run_uses_only_its_own_credential(tmp_path: Any, caplog: pytest.LogCaptureFixture) -> None:  # L116
    tool_server = ToolServer()
    people = [f"secret-of-{name}" for name in ("ann", "bob", "eve")]
    path = tmp_path / "runs.db"
    log = SqliteEventLog(path)

    async def token(ctx: RunContext[Deps]) -> str:
        return ctx.deps.token

    caplog.set_level(logging.DEBUG, "rxloop")
    async with tool_server.serve() as url:
        server = mcp(url, name="many", auth=token)
        async with Agent(ScriptedModel(), tools=[server], deps_type=Deps, log=log, thoughts=False) as agent:

            async def run_calls(person: str) -> list[Any]:
                model = ScriptedModel(call("many__who"), "done")
                run = agent.run("Who?", deps=Deps(person), model=model, metadata={"token": "of nobody"})
                return [event async for event in run.events]

            streams = await asyncio.gather(*(run_calls(person) for person in people * 5))
    await log.aclose()
    missing = [each.reason for stream in streams for each in stream if isinstance(each, ToolsUnavailableEvent)]
    answers = Counter(each.content for stream in streams for each in results(stream))
    assert missing == []
    assert answers == {"who [redacted]": 15}
    assert Counter(tool_server.tokens) == {f"Bearer {person}": 5 for person in people}
    encoded = b"".join(event.to_json() for stream in streams for event in stream)
    for person in people:
        assert person.encode() not in encoded
        assert person.encode() not in path.read_bytes()
        assert person not in caplog.text
        assert person not in repr(server)


async def test_run_that_starts_during_the_first_listing_has_the_tools() -> None:
    tool_server = ToolServer()
    tool_server.released.clear()
    async with tool_server.serve() as url:
        async with Agent(ScriptedModel(), tools=[mcp(url, name="many")], thoughts=False) as agent:

            async def run_calls() -> list[Any]:
                run = agent.run("Who?", model=ScriptedModel(call("many__who"), "done"))
                return [event async for event in run.events]

            first = asyncio.create_task(run_calls())
            await wait_until(lambda: tool_server.requests["list 0"])
            second = asyncio.create_task(run_calls())
            await asyncio.sleep(0.05)
            tool_server.released.set()
            streams = await asyncio.gather(first, second)
    assert [each.content for stream in streams for each in results(stream)] == ["who None"] * 2


@pytest.mark.parametrize(
    ("auth", "header"),
    [("t0ken-t0ken", "Bearer t0ken-t0ken"), ({"Authorization": "Basic abcdefgh"}, "Basic abcdefgh"), (None, None)],
)
async def test_credential_may_be_a_token_or_headers(auth: Any, header: str | None) -> None:
    tool_server = ToolServer()
    async with tool_server.serve() as url:
        async with Agent(ScriptedModel(call("m__who"), "x"), tools=[mcp(url, name="m", auth=auth)]) as agent:
            await agent.run("Hi")
    assert tool_server.tokens == [header]


async def test_unreachable_server_is_reported_and_the_run_continues() -> None:
    run = Agent(ScriptedModel("Hi."), tools=[mcp("http://127.0.0.1:9/mcp", name="gone")]).run("Hi")
    [missing] = [event async for event in run.pipe() if isinstance(event, ToolsUnavailableEvent)]
    assert "gone is not available" in missing.reason
    assert (await run).output == "Hi."


async def test_restarted_server_is_connected_again() -> None:
    tool_server = ToolServer()
    async with Agent(ScriptedModel(), thoughts=False, tools=[]) as agent:
        async with tool_server.serve() as url:
            server = mcp(url, name="m")
            with agent.override(tools=[server]):
                first = agent.run("Hi", model=ScriptedModel(call("m__a"), "x"))
                assert results([event async for event in first.events])[0].success
        with agent.override(tools=[server]):
            gone = agent.run("Hi", model=ScriptedModel(call("m__a"), "x"))
            failed = [event async for event in gone.events]
        assert [event.success for event in failed if isinstance(event, ToolCompleteEvent)] == [False]


async def test_server_that_does_not_answer_is_awaited_only_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rxloop.tools.mcp.tool_list._TIME_LIMIT", 0.3)
    tool_server = ToolServer()
    tool_server.released.clear()
    async with tool_server.serve() as url:
        async with Agent(ScriptedModel(*[call("m__a")] * 3, "done"), tools=[mcp(url, name="m")]) as agent:
            run = agent.run("Hi")
            [missing] = [event async for event in run.pipe() if isinstance(event, ToolsUnavailableEvent)]
        tool_server.released.set()
    assert "listing the tools timed out" in missing.reason
    assert tool_server.requests == {"list 0": 1}


async def test_names_that_vendors_refuse_are_made_valid() -> None:
    long = "x" * 80
    tool_server = ToolServer([["a.b/c", "a b/c", long, long + "y"]])
    async with tool_server.serve() as url:
        model = ScriptedModel("Hi.")
        async with Agent(model, tools=[mcp(url, name="m")], thoughts=False) as agent:
            await agent.run("Hi")
    names = [tool.name for tool in model.requests[0].tools]
    assert names[0] == "m__a_b_c"
    assert len(names) == len(set(names)) == 3
    assert all(len(name) <= 64 for name in names)


@pytest.mark.parametrize("when", ["connected", "connecting", "listing"])
async def test_close_in_a_cancelled_scope_leaves_nothing(when: str) -> None:
    tool_server = ToolServer()
    async with tool_server.serve() as url:
        server = mcp(url, name="m")
        await _connect_once(server, tool_server, "connected")
        await asyncio.sleep(0.2)
        tasks, opened = len(asyncio.all_tasks()), count_open_files()
        for _ in range(CLOSINGS):
            await _connect_once(server, tool_server, when)
        for _ in range(600):
            if len(asyncio.all_tasks()) <= tasks and count_open_files() <= opened:
                break
            await asyncio.sleep(0.05)
        assert len(asyncio.all_tasks()) <= tasks
        assert count_open_files() <= opened


async def _connect_once(server: Any, tool_server: ToolServer, when: str) -> None:
    agent = Agent(ScriptedModel("Hi."), tools=[server])
    if when == "listing":
        tool_server.released.clear()
    run = agent.run("Hi")
    running = asyncio.ensure_future(_wait_for_end(run))
    if when == "connected":
        await asyncio.wait([running])
    elif when == "connecting":
        for _ in range(5):
            await asyncio.sleep(0)
    else:
        before = tool_server.requests["list 0"]
        while tool_server.requests["list 0"] == before:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
    with anyio.CancelScope() as scope:
        scope.cancel()
        await agent.aclose()
    tool_server.released.set()
    await asyncio.wait([running])


async def _wait_for_end(run: Any) -> None:
    with suppress(Exception):
        await run


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: mcp("npx", "x", auth="t"), "are only valid for a URL"),
        (lambda: mcp("https://x.example", "arg"), "are only valid for a program"),
        (lambda: mcp("npx", **cast("Any", {"nmae": "x"})), "unknown option 'nmae'"),
        (lambda: mcp("npx", only="x"), "must be lists"),
        (lambda: mcp("npx", ttl=0), "ttl must be a positive number or None, got 0"),
        (lambda: mcp("npx -y some-server"), r"mcp\('npx', '-y', 'some-server'\)"),
        (lambda: mcp("npx", approve=cast("Any", "never")), "'destructive'"),
    ],
)
def test_invalid_combination_of_options_is_an_error(make: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        make()
