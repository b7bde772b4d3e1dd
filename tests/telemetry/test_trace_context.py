"""Trace contexts of callers, from HTTP headers to the spans of runs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from opentelemetry import trace
from starlette.applications import Starlette
from starlette.routing import Mount

from rxloop import Agent, MemoryEventLog, RunContext, Runtime, TaskEvent, tool
from rxloop.server import a2a, agui, api, openai_api, ui_stream
from rxloop.server.core import caller_trace
from rxloop.support.trace_context import parse_trace_context
from rxloop.testing import ScriptedModel, call
from support.clients.mcp import ERAS, serve_mcp
from support.queues import MemoryQueue
from support.span_collector import SpanCollector

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
PARENT = f"00-{TRACE}-{SPAN}-01"
HEADERS = {"traceparent": PARENT, "tracestate": "vendor=1,other@tenant=x"}
CARRIER = HEADERS


@tool
async def confirm(ctx: RunContext[Any]) -> str:
    """Asks."""
    return "yes" if await ctx.ask("Sure?") else "no"


def make_agent(*turns: Any) -> Agent:
    return Agent(ScriptedModel(*(turns or ["Done."] * 3)), name="guide", tools=[confirm], thoughts=False)


@pytest.mark.parametrize(
    ("parent", "state", "expected"),
    [
        (PARENT, [], {"traceparent": PARENT}),
        (f" {PARENT}\t", ["a=1", " b=2 ,"], {"traceparent": PARENT, "tracestate": "a=1,b=2"}),
        (f"cc-{TRACE}-{SPAN}-01-later", [], {"traceparent": PARENT}),
        (f"00-{TRACE}-{SPAN}-01-later", [], {}),
        (f"ff-{TRACE}-{SPAN}-01", [], {}),
        (f"00-{'0' * 32}-{SPAN}-01", [], {}),
        (f"00-{TRACE}-{'0' * 16}-01", [], {}),
        (PARENT.upper(), [], {}),
        (f"{PARENT}\n", [], {}),
        ("", ["a=1"], {}),
        (PARENT, ["a=1,a=2"], {"traceparent": PARENT}),
        (PARENT, ["a=\x00"], {"traceparent": PARENT}),
        (PARENT, ["A=1"], {"traceparent": PARENT}),
        (PARENT, [",".join(f"k{number}=1" for number in range(33))], {"traceparent": PARENT}),
        (PARENT, [",".join(f"k{number}={'v' * 100}" for number in range(5))], {"traceparent": PARENT}),
    ],
)
def test_invalid_headers_are_ignored(parent: str, state: list[str], expected: dict[str, str]) -> None:
    assert parse_trace_context(parent, state) == expected


REQUESTS: dict[str, tuple[str, Any]] = {
    "http": ("/runs?wait=10", {"input": "Go."}),
    "agui": (
        "/agui/",
        {
            "threadId": "t",
            "runId": "r",
            "messages": [{"id": "m", "role": "user", "content": "Go."}],
            "state": {},
            "tools": [],
            "context": [],
            "forwardedProps": {},
        },
    ),
    "ui_stream": (
        "/ui/",
        {"id": "chat", "messages": [{"id": "m", "role": "user", "parts": [{"type": "text", "text": "Go."}]}]},
    ),
    "openai": ("/v1/responses", {"model": "guide", "input": "Go."}),
    "a2a": (
        "/a2a/rpc/",
        {
            "jsonrpc": "2.0",
            "id": 1,
            "method": "SendMessage",
            "params": {"message": {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "Go."}]}},
        },
    ),
}


async def post(runtime: Runtime, name: str, headers: Any = HEADERS) -> httpx.Response:
    app = Starlette(
        routes=[
            Mount("/agui", agui(runtime)),
            Mount("/ui", ui_stream(runtime, path="")),
            Mount("/a2a", a2a(runtime)),
            Mount("/", openai_api(runtime) if name == "openai" else api(runtime)),
        ]
    )
    path, body = REQUESTS[name]
    extra = {"a2a-version": "1.0"} if name == "a2a" else {}
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(app), base_url="http://localhost", headers={**dict(headers), **extra}
    ) as client:
        return await client.post(path, json=body)


@pytest.mark.parametrize("name", REQUESTS)
async def test_span_of_a_run_is_a_child_of_the_span_of_its_client(name: str) -> None:
    collector = SpanCollector()
    runtime = Runtime({"guide": make_agent()}, log=MemoryEventLog(), views=[collector.view()])
    async with runtime:
        response = await post(runtime, name)
        assert response.status_code == 200, response.text
        [record] = await runtime.log.list_runs()
        async for _ in runtime.follow(record.task_id):
            pass
    parent = collector.one("invoke_agent").parent
    assert parent is not None
    assert (f"{parent.trace_id:032x}", f"{parent.span_id:016x}") == (TRACE, SPAN)
    assert parent.trace_state.to_header() == HEADERS["tracestate"]
    assert {key: record.metadata[key] for key in CARRIER} == CARRIER
    assert TRACE not in response.text


@pytest.mark.parametrize("mode", ERAS)
@pytest.mark.parametrize("has_opentelemetry", [True, False])
async def test_mcp_calls_use_the_trace_context_of_their_own_request(
    mode: str, has_opentelemetry: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not has_opentelemetry:
        # The MCP SDK also reads the metadata, but only with OpenTelemetry.
        monkeypatch.setattr(caller_trace, "sys", SimpleNamespace(modules={}))
    async with serve_mcp(make_agent()) as endpoint, endpoint.client(mode) as client:
        await client.call_tool("guide", {"prompt": "Go."})
        await client.call_tool("guide", {"prompt": "Go."}, meta={"traceparent": PARENT})
        await client.call_tool("guide", {"prompt": "Go."})
        records = await endpoint.runtime.log.list_runs()
    assert [record.metadata.get("traceparent") for record in records] == [None, PARENT, None]


async def test_worker_continues_the_trace_in_all_attempts() -> None:
    log, queue, collector = MemoryEventLog(), MemoryQueue(), SpanCollector()
    server = Runtime({"guide": make_agent()}, log=log, queue=queue, is_worker=False)
    async with server:
        path, body = "/runs", {"input": "Go."}
        transport = httpx.ASGITransport(api(server))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost", headers=HEADERS) as client:
            task_id = (await client.post(path, json=body)).json()["taskId"]

    def make_worker(*turns: Any) -> Runtime:
        view = collector.view()
        return Runtime({"guide": make_agent(*turns)}, log=log, queue=queue, is_worker=True, views=[view])

    first = make_worker(call("confirm"))
    async with first:
        async for _ in first.follow(task_id, until="attempt"):
            pass
        [pending] = await first.list_pending()
    second = make_worker("Done.")
    async with second:
        await second.answer(task_id, {pending.inputs[0].input_id: True})
        async for _ in second.follow(task_id):
            pass
    parents = [span.parent for span in collector.find("invoke_agent")]
    assert [parent and f"{parent.trace_id:032x}-{parent.span_id:016x}" for parent in parents] == [f"{TRACE}-{SPAN}"] * 2
    events = [event.to_public() for event in await log.read(task_id)]
    assert not any(TRACE in event.to_json().decode() for event in events if event is not None)


async def test_span_of_the_server_is_the_parent_if_it_is_instrumented() -> None:
    collector = SpanCollector()
    runtime = Runtime({"guide": make_agent()}, log=MemoryEventLog(), views=[collector.view()])
    async with runtime:
        with collector.tracer_provider.get_tracer("asgi").start_as_current_span("POST /runs"):
            span_id = trace.get_current_span().get_span_context().span_id
            await post(runtime, "http")
    parent = collector.one("invoke_agent").parent
    assert parent is not None
    assert parent.span_id == span_id


async def test_fork_does_not_continue_the_trace_of_the_original_run() -> None:
    log = MemoryEventLog()
    runtime = Runtime({"guide": make_agent()}, log=log)
    async with runtime:
        original = await runtime.start("guide", "Go.", metadata={**HEADERS, "mine": 1})
        async for _ in runtime.follow(original.task_id):
            pass
        plain = await runtime.fork(original.task_id, 1)
        traced = await runtime.fork(original.task_id, 1, metadata={"traceparent": PARENT})
        for record in (plain, traced):
            async for _ in runtime.follow(record.task_id):
                pass
    assert dict(plain.metadata) == {"mine": 1}
    assert dict(traced.metadata) == {"mine": 1, "traceparent": PARENT}
    first = (await log.read(traced.task_id))[0]
    assert isinstance(first, TaskEvent)
    assert first.metadata == {"mine": 1, "traceparent": PARENT}
