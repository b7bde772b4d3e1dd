"""States and graphs of long runs, computed without blocking the event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable, Sequence
from operator import is_
from typing import Any

import pytest
from mcp import Client
from reactivex import operators as ops
from typing_extensions import override

from rxloop import Agent, CustomEvent, Event, Limits, MemoryEventLog, Message, RunContext, Runtime, follow, op
from rxloop.pipeline import records
from rxloop.pipeline.requests import IterationEnd
from rxloop.protocol.json_data import _Converter
from rxloop.recorded import replay
from rxloop.run.log_writer import LogWriter
from rxloop.server import Principal, ServerLimits, http
from rxloop.server.agui.fold import Writer
from rxloop.server.agui.messages import Messages, StreamOptions
from rxloop.server.core import computations, runs
from rxloop.server.core.account import Account
from rxloop.server.core.chat_fold import ChatFold
from rxloop.server.http import reads
from rxloop.server.mcp import calls
from rxloop.state import earlier_attempts
from rxloop.storage import conversation
from rxloop.stream.hub import Hub
from rxloop.support.threads import run_in_thread
from rxloop.testing import ScriptedModel
from rxloop.thinking.graph import ThoughtGraph
from support.api_server import make_client, serve_api
from support.clients.mcp import result_text, serve_mcp
from support.long_runs import count_turns
from support.run_checks import wait_until
from support.viewer_runs import store_long_run

FOLDS = ["state", "graph", "graph?form=mermaid", "graph?form=html"]
PATHS = [*FOLDS, "export?form=jsonl", "export?form=otlp", "diff?with={id}"]


BOB = {"authorization": "Bearer bob-key"}


class WatchedLog(MemoryEventLog):
    """Event log that counts concurrent readers, and whose readers wait for `may_read`."""

    def __init__(self) -> None:
        super().__init__()
        self.readers = self.most_readers = 0
        self.may_read = asyncio.Event()
        self.may_read.set()

    @override
    async def follow(self, task_id: str, *args: Any, **options: Any) -> AsyncGenerator[Event]:
        self.readers += 1
        self.most_readers = max(self.most_readers, self.readers)
        try:
            async for event in super().follow(task_id, *args, **options):
                await self.may_read.wait()
                yield event
        finally:
            self.readers -= 1


def make_clerk() -> Agent[Any, Any]:
    return Agent(ScriptedModel(*["Hello."] * 2), name="clerk")


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> set[threading.Thread]:
    """Threads that computed parts of responses."""
    found = set[threading.Thread]()

    async def run(function: Callable[[], Any], **options: Any) -> Any:
        def watched() -> Any:
            found.add(threading.current_thread())
            return function()

        return await run_in_thread(watched, **options)

    monkeypatch.setattr(computations, "run_in_thread", run)
    return found


@pytest.mark.parametrize("path", PATHS)
async def test_events_are_processed_by_one_thread_outside_of_the_event_loop(
    path: str, threads: set[threading.Thread]
) -> None:
    async with serve_api(make_clerk()) as served, make_client(served.url) as ann:
        task_id = (await ann.post("/runs?wait=10", json={"input": "Hi"})).json()["taskId"]
        responses = await asyncio.gather(*[ann.get(f"/runs/{task_id}/{path.format(id=task_id)}") for _ in range(10)])
    assert {each.status_code for each in responses} == {200}
    assert len(threads) == 1
    assert threading.current_thread() not in threads


async def test_events_of_a_graph_are_added_outside_of_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    adding: list[threading.Thread] = []
    add = ThoughtGraph.add

    def watch(graph: ThoughtGraph, event: Event) -> ThoughtGraph:
        adding.append(threading.current_thread())
        return add(graph, event)

    async with serve_api(make_clerk()) as served, make_client(served.url) as ann:
        run = (await ann.post("/runs?wait=10", json={"input": "Hi"})).json()
        monkeypatch.setattr(ThoughtGraph, "add", watch)
        assert (await ann.get(f"/runs/{run['taskId']}/graph")).status_code == 200
    assert len(adding) == run["seq"]
    assert threading.current_thread() not in adding


@pytest.mark.parametrize(("path", "principals"), [("state", 2), ("export?form=jsonl", 1)])
async def test_process_reads_one_whole_run_but_several_folds_at_a_time(path: str, principals: int) -> None:
    log = WatchedLog()
    async with serve_api(make_clerk(), log=log) as served, make_client(served.url) as ann:
        task_id = (await ann.post("/runs?wait=10", json={"input": "Hi"})).json()["taskId"]
        bob_id = (await ann.post("/runs?wait=10", json={"input": "Hi"}, headers=BOB)).json()["taskId"]
        log.may_read.clear()
        log.most_readers = log.readers = 0
        account = log.local.get(Account)
        requests = [ann.get(f"/runs/{task_id}/{path}") for _ in range(3)]
        requests += [ann.get(f"/runs/{bob_id}/{path}", headers=BOB) for _ in range(3)]
        responses = asyncio.gather(*requests)
        # The requests have reserved their streams before they wait.
        await wait_until(lambda: account.total()["streams"] == 6 and log.readers == principals)
        log.may_read.set()
        assert {each.status_code for each in await responses} == {200}
    assert log.most_readers == principals


async def test_events_of_a_request_are_freed_in_parts_at_its_end() -> None:
    log = MemoryEventLog()
    async with serve_api(make_clerk(), log=log) as served, make_client(served.url) as ann:
        task_id = (await ann.post("/runs?wait=10", json={"input": "Hi"})).json()["taskId"]
        record = await log.get_record(task_id)
        async with served.gateway.computations.hold_runs("ann") as runs:
            events = await runs.read(log, record)
            assert [each.seq for each in events] == [*range(1, record.seq + 1)]
        assert events == []


@pytest.mark.parametrize("kind", ["log", "runtime"])
async def test_other_tasks_run_while_a_long_run_is_followed(kind: str) -> None:
    log = MemoryEventLog()
    await store_long_run(log, steps=240)
    runtime = Runtime({"clerk": make_clerk()}, log=log)
    events = follow(log, "long") if kind == "log" else runtime.follow("long")
    async with runtime, count_turns() as turns:
        await events.pipe(ops.do_action(lambda event: turns.count_item()), ops.last())
    assert turns.items.total() == 1_203
    assert max(turns.items.values()) <= 200


@pytest.mark.parametrize("path", PATHS)
async def test_request_for_a_long_run_counts_as_a_stream(path: str) -> None:
    limits = ServerLimits(streams=1)
    async with serve_api(make_clerk(), limits=limits) as served, make_client(served.url) as ann:
        task_id = (await ann.post("/runs?wait=10", json={"input": "Hi"})).json()["taskId"]
        with served.gateway.reserve_stream(Principal("ann")):
            refused = await ann.get(f"/runs/{task_id}/{path.format(id=task_id)}")
        accepted = await ann.get(f"/runs/{task_id}/{path.format(id=task_id)}")
    assert (refused.status_code, refused.json()["error"]["code"]) == (429, "too_many")
    assert refused.headers["retry-after"]
    assert accepted.status_code == 200


async def test_copied_events_of_a_fork_are_published_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    log = MemoryEventLog()
    await store_long_run(log, steps=240)
    agent = Agent(ScriptedModel("Found."), name="searcher", log=log, limits=Limits(iterations=500))
    async with count_turns() as turns:
        monkeypatch.setattr(Hub, "publish", turns.watch(Hub.publish))
        run = agent.fork("long", at=1_192)
        seqs = [event.seq async for event in run if event.durable]
    assert seqs == [*range(1, len(seqs) + 1)]
    assert turns.items.total() > 1_192
    assert max(turns.items.values()) <= 200


async def test_copied_events_of_a_fork_are_added_to_the_log_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    log, added = MemoryEventLog(), list[int]()
    await store_long_run(log, steps=240)
    add = LogWriter.add

    def watch(writer: LogWriter, event: Event) -> None:
        added.append(event.seq)
        add(writer, event)

    monkeypatch.setattr(LogWriter, "add", watch)
    run = Agent(ScriptedModel("Found."), name="searcher", log=log, limits=Limits(iterations=500)).fork("long", at=1_192)
    await run
    assert [event.seq for event in await log.read(run.task_id)] == [*range(1, added[-1] + 1)]
    assert added[0] == 1_192


async def test_messages_of_a_long_conversation_are_encoded_outside_of_the_event_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log, threads = MemoryEventLog(), list[int]()
    await store_long_run(log, steps=300)

    def record_thread(module: Any, name: str) -> None:
        function = getattr(module, name)

        def watched(*args: Any, **options: Any) -> Any:
            threads.append(threading.get_ident())
            return function(*args, **options)

        monkeypatch.setattr(module, name, watched)

    record_thread(replay, "select_public_messages")
    record_thread(reads, "MessageList")
    record_thread(reads, "write_json")
    async with serve_api(make_clerk(), log=log) as served, make_client(served.url, "root-key") as root:
        messages = (await root.get("/contexts/talk/messages")).json()["messages"]
    assert len(messages) == 601
    assert len(threads) == 3
    assert threading.get_ident() not in threads


async def test_new_messages_of_a_long_conversation_are_found_outside_of_the_event_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    threads, find_new = list[int](), runs._find_new

    def watch(*args: Any) -> Any:
        threads.append(threading.get_ident())
        return find_new(*args)

    monkeypatch.setattr(runs, "_find_new", watch)
    async with serve_api(make_clerk()) as served, make_client(served.url) as ann:
        earlier = [Message.user(str(number)) for number in range(600)]
        await served.runtime.start("clerk", earlier, context_id="talk", owner="ann")
        body = {"input": [{"content": "Hi", "messageId": "m1"}], "contextId": "talk"}
        assert (await ann.post("/runs?wait=10", json=body)).json()["state"] == "completed"
    assert len(threads) == 1
    assert threading.get_ident() not in threads


@pytest.mark.parametrize("protocol", ["http", "mcp"])
async def test_events_of_a_long_run_are_searched_outside_of_the_event_loop(
    protocol: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads, module = list[int](), runs if protocol == "http" else calls
    name = "_find_message" if protocol == "http" else "_find_answer"
    find = getattr(module, name)

    def watch(*args: Any) -> Any:
        if len(args[-1]) > 600:
            threads.append(threading.get_ident())
        return find(*args)

    @op.on(IterationEnd)
    async def emit_findings(request: IterationEnd, ctx: RunContext[Any]) -> AsyncGenerator[Any]:
        for number in range(600):
            ctx.emit(CustomEvent(name="finding", data={"number": number}))
        yield request

    monkeypatch.setattr(module, name, watch)
    clerk = Agent(ScriptedModel("Found."), name="clerk", loop=op.standard(at_end=[emit_findings]))
    if protocol == "http":
        async with serve_api(clerk) as served, make_client(served.url) as ann:
            body = {"input": [{"content": "Hi", "messageId": "m1"}], "contextId": "talk"}
            first, second = [(await ann.post("/runs?wait=10", json=body)).json() for _ in range(2)]
            assert first["state"] == second["state"] == "completed", first
            assert first["taskId"] == second["taskId"]
    else:
        async with serve_mcp(clerk) as endpoint, Client(endpoint.url) as client:
            assert result_text(await client.call_tool("clerk", {"prompt": "Hi"})) == "Found."
    assert len(threads) == 1
    assert threading.get_ident() not in threads


async def test_complete_messages_of_agui_clients_are_not_copied_for_each_snapshot() -> None:
    log, messages = MemoryEventLog(), Messages()
    await store_long_run(log, steps=100)
    fold = ChatFold(Writer(StreamOptions("talk", "", after=1_000), messages).take)
    for event in await log.read("long"):
        fold.take_public(event)
    snapshot = messages.all(activities=True)
    assert len(snapshot) == 201
    assert snapshot[1]["toolCalls"][0]["function"] == {"name": "search", "arguments": "{}"}
    assert all(map(is_, snapshot, messages.all(activities=True)))


async def test_messages_of_a_long_prompt_are_converted_outside_of_the_event_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    threads, convert = list[int](), _Converter.convert_model

    def watch(converter: _Converter, model: Any, depth: int) -> Any:
        threads.append(threading.get_ident())
        return convert(converter, model, depth)

    agent = Agent(ScriptedModel("Hello."), name="clerk", log=MemoryEventLog())
    prompt = [Message.user(str(number)) for number in range(600)]
    monkeypatch.setattr(_Converter, "convert_model", watch)
    await agent.submit(prompt)
    assert len(threads) == 600
    assert threading.get_ident() not in threads


async def test_openapi_document_is_created_outside_of_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    threads, make_document = list[int](), http.make_document

    def record_thread(**options: Any) -> dict[str, Any]:
        threads.append(threading.get_ident())
        return make_document(**options)

    monkeypatch.setattr(http, "make_document", record_thread)
    async with serve_api(make_clerk()) as served, make_client(served.url) as ann:
        for _ in range(2):
            assert (await ann.get("/openapi.json")).json()["servers"] == [{"url": "/"}]
    assert len(threads) == 1
    assert threading.get_ident() not in threads


async def test_long_run_is_folded_outside_of_the_event_loop_when_it_is_resumed(monkeypatch: pytest.MonkeyPatch) -> None:
    stored, log = MemoryEventLog(), MemoryEventLog()
    await store_long_run(stored, steps=120)
    await log.append("long", (await stored.read("long"))[:-1], expected_seq=0)
    modules = (records, earlier_attempts, conversation)
    threads: dict[object, set[int]] = {module: set() for module in modules}

    def record_thread(module: Any) -> None:
        fold_all = module.fold_all

        def fold(events: Sequence[Event], *states: Any) -> Any:
            if len(events) > 500:
                threads[module].add(threading.get_ident())
            return fold_all(events, *states)

        monkeypatch.setattr(module, "fold_all", fold)

    for module in modules:
        record_thread(module)
    agent = Agent(ScriptedModel("Found.", "Found again."), name="searcher", log=log, limits=Limits(iterations=200))
    assert (await agent.resume("long")).output == "Found."
    assert (await agent.run("Again", context_id="talk")).output == "Found again."
    assert all(threads.values())
    assert threading.get_ident() not in set[int]().union(*threads.values())
