"""Artifact writes and events."""

from __future__ import annotations

import asyncio
from base64 import b64decode
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rxloop import Agent, ArtifactUpdateEvent, MemoryEventLog, RunContext, SqliteEventLog, artifact_tools, op, tool
from rxloop.errors import ArtifactError, ArtifactExists, ConfigurationError, UnknownArtifact
from rxloop.pipeline import artifacts as front
from rxloop.pipeline.artifacts import ArtifactStore, RunArtifacts, Writer, Writes
from rxloop.protocol.events import Event
from rxloop.storage import FolderArtifacts, MemoryArtifacts, SqliteArtifacts
from rxloop.testing import ScriptedModel, call, turn

MAKERS: dict[str, Callable[[Path], ArtifactStore]] = {
    "memory": lambda folder: MemoryArtifacts(),
    "folder": lambda folder: FolderArtifacts(folder / "files"),
    "sqlite": lambda folder: SqliteArtifacts(folder / "app.db"),
}


@tool
async def report(ctx: RunContext[None], city: str) -> str:
    """Write a report."""
    draft = await ctx.artifacts.create("report.md", name="Report", media_type="text/markdown")
    await draft.append(f"# {city}\n")
    await draft.append("It rains.\n", last=True)
    return f"wrote {draft.artifact_id}"


def updates(events: list[Event]) -> list[ArtifactUpdateEvent]:
    return [event for event in events if isinstance(event, ArtifactUpdateEvent)]


async def collect_updates(agent: Agent[None, str], prompt: str = "Write.", **options: Any) -> list[ArtifactUpdateEvent]:
    run = agent.run(prompt, **options)
    received = updates([event async for event in run])
    await run
    return received


async def test_append_event_follows_the_write() -> None:  # L128
    store = MemoryArtifacts()
    model = ScriptedModel(call("report", city="Oslo"), "Done.")
    run = Agent(model, tools=[report], artifacts=store).run("Write.")
    artifacts = run.artifacts
    sizes = [
        (event.offset + event.size, (await artifacts.record("report.md")).size)
        async for event in run.pipe(op.of_type(ArtifactUpdateEvent))
    ]
    first, second = updates([event async for event in run])
    assert len(sizes) == 2
    assert all(announced <= stored for announced, stored in sizes)
    assert (first.index, first.data, first.last) == (0, "# Oslo\n", False)
    assert (first.name, first.media_type) == ("Report", "text/markdown")
    assert (second.index, second.data, second.last) == (1, "It rains.\n", True)
    assert (second.name, second.media_type) == (None, None)
    assert (second.offset, second.size) == (7, 10)
    assert first.step == "1"
    assert await store.read(run.context_id, "report.md") == b"# Oslo\nIt rains.\n"


async def test_empty_last_chunk_only_completes_the_artifact() -> None:  # L128
    @tool
    async def write(ctx: RunContext[None]) -> None:
        draft = await ctx.artifacts.create("a.txt")
        await draft.append("all")
        await draft.append("")
        await draft.append("", last=True)

    first, last = await collect_updates(Agent(ScriptedModel(call("write"), "Done."), tools=[write]))
    assert (first.index, first.data, first.last) == (0, "all", False)
    assert (last.index, last.data, last.size, last.last) == (1, "", 0, True)


async def test_create_rejects_existing_id_without_override() -> None:  # L126
    @tool
    async def write(ctx: RunContext[None]) -> list[Any]:
        old = await ctx.artifacts.create("a.txt")
        await old.append("old")
        with pytest.raises(ArtifactExists):
            await ctx.artifacts.create("a.txt")
        new = await ctx.artifacts.create("a.txt", override=True)
        with pytest.raises(ArtifactError, match="because version 2 exists"):
            await old.append("late")
        await new.append("new")
        records = await ctx.artifacts.versions("a.txt")
        assert len({record.created for record in records}) == 1
        return [new.version, (await ctx.artifacts.read("a.txt", version=1)).decode()]

    run = Agent(ScriptedModel(call("write"), "Done."), tools=[write]).run("Write.")
    received = updates([event async for event in run])
    assert [(event.artifact_version, event.index, event.data) for event in received] == [(1, 0, "old"), (2, 0, "new")]
    assert (await run).messages[2].text == '[2,"old"]'


async def test_artifact_is_invisible_to_other_conversations() -> None:  # L129
    store = MemoryArtifacts()
    model = ScriptedModel(call("report", city="Oslo"), "Done.", call("read_artifact", artifact_id="report.md"), "No.")
    agent = Agent(model, tools=[report, *artifact_tools()], artifacts=store)
    await agent.run("Write.")
    result = await agent.run("Read.")
    assert "no artifact 'report.md'" in result.messages[2].text


async def test_artifacts_are_stored_next_to_the_log_of_their_conversation(tmp_path: Path) -> None:
    log = SqliteEventLog(tmp_path / "runs.db")
    model = ScriptedModel(call("report", city="Oslo"), "Done.")
    await Agent(model, tools=[report], log=log).run("Write.", context_id="ann")
    await log.aclose()
    log = SqliteEventLog(tmp_path / "runs.db")
    model = ScriptedModel(call("read_artifact", artifact_id="report.md"), "It rains.")
    run = Agent(model, tools=artifact_tools(), log=log).run("Read.", context_id="ann")
    assert (await run).messages[-2].text == "# Oslo\nIt rains.\n"
    assert [record.name for record in await run.artifacts.list()] == ["Report"]
    await log.aclose()


async def test_artifact_events_of_hidden_tool_are_not_public() -> None:
    hidden = tool(hidden=True)(report._function)  # pyright: ignore[reportPrivateUsage]
    run = Agent(ScriptedModel(call("report", city="Oslo"), "Done."), tools=[hidden]).run("Write.")
    assert len(updates([event async for event in run])) == 2
    assert updates([event async for event in run.pipe(op.public())]) == []


async def test_bytes_are_base64_in_artifact_events() -> None:
    @tool
    async def draw(ctx: RunContext[None]) -> None:
        await (await ctx.artifacts.create("a.png", media_type="image/png")).append(b"\x89PNG\x00", last=True)

    [event] = await collect_updates(Agent(ScriptedModel(call("draw"), "Done."), tools=[draw]))
    assert (event.encoding, b64decode(event.data), event.size) == ("base64", b"\x89PNG\x00", 5)


async def test_large_append_is_chunked_and_only_its_first_million_bytes_are_inline() -> None:
    text = "".join(f"{n:08}" for n in range(250_000)) + "\u00e5"

    @tool
    async def write(ctx: RunContext[None]) -> None:
        await (await ctx.artifacts.create("a.txt")).append(text, last=True)

    run = Agent(ScriptedModel(call("write"), "Done."), tools=[write]).run("Write.")
    received = updates([event async for event in run])
    assert [event.index for event in received] == [*range(32)]
    assert [event.last for event in received] == [False] * 31 + [True]
    inline = [event for event in received if event.data is not None]
    assert inline == received[: len(inline)]
    assert "".join(event.data for event in inline) == text[: front.CHUNK * 15]
    assert [event.offset for event in received] == [sum(event.size for event in received[:n]) for n in range(32)]
    assert (await run.artifacts.read("a.txt")).decode() == text


@pytest.mark.parametrize("kind", MAKERS)
async def test_writing_100_megabytes_blocks_neither_event_loop_nor_memory(kind: str, tmp_path: Path) -> None:
    import tracemalloc

    store, delays = MAKERS[kind](tmp_path), list[float]()
    piece = b"x" * 1_000_000

    @tool
    async def write(ctx: RunContext[None]) -> None:
        draft = await ctx.artifacts.create("big.bin", media_type="application/octet-stream")
        for _ in range(100):
            await draft.append(piece)

    async def watch() -> None:
        loop = asyncio.get_running_loop()
        while True:
            before = loop.time()
            await asyncio.sleep(0.005)
            delays.append(loop.time() - before - 0.005)

    watcher = asyncio.create_task(watch())
    tracemalloc.start()
    run = Agent(ScriptedModel(call("write"), "Done."), tools=[write], artifacts=store).run("Write.")
    await run
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    watcher.cancel()
    assert (await run.artifacts.record("big.bin")).size == 100_000_000
    assert peak < (250_000_000 if kind == "memory" else 25_000_000)
    # Occasional delays come from other processes, whereas blocking writes would delay every piece.
    assert sorted(delays)[-3] < 0.3
    await store.aclose()


def make_artifacts(store: ArtifactStore, writer: str = "w") -> tuple[RunArtifacts, list[ArtifactUpdateEvent]]:
    received: list[Any] = []
    artifact_writes = Writes(store)
    return RunArtifacts(
        artifact_writes, "c", Writer(name=writer, hidden=False, emit=received.append, now=lambda: 1)
    ), received


Step = tuple[str, str, int]
STEPS = st.lists(
    st.tuples(st.sampled_from(["create", "override", "append", "last"]), st.sampled_from("ab"), st.integers(0, 3)),
    max_size=25,
)


def simulate_steps(steps: list[Step]) -> tuple[dict[str, list[str]], list[bool]]:
    """Return the contents after the steps run in sequence, and which steps fail."""
    contents: dict[str, list[str]] = {}
    complete: set[str] = set()
    failed: list[bool] = []
    for number, (operation, name, size) in enumerate(steps):
        versions = contents.setdefault(name, [])
        if operation in ("create", "override"):
            failed.append(bool(versions) and operation == "create")
            if not failed[-1]:
                versions.append("")
                complete.discard(name)
        else:
            data = f"<{number}>" * size
            # An empty append writes nothing, so it is not validated.
            is_empty = not data and operation == "append"
            failed.append(not is_empty and (not versions or name in complete))
            if not failed[-1] and versions:
                versions[-1] += data
            if operation == "last" and not failed[-1]:
                complete.add(name)
    return contents, failed


async def run_steps(steps: list[Step], artifacts: RunArtifacts) -> list[bool]:
    def start_step(number: int, operation: str, name: str, size: int) -> Any:
        if operation in ("create", "override"):
            return artifacts.create(name, override=operation == "override")
        return artifacts.append(name, f"<{number}>" * size, last=operation == "last")

    outcomes = await asyncio.gather(
        *(start_step(number, *step) for number, step in enumerate(steps)), return_exceptions=True
    )
    assert all(not isinstance(outcome, BaseException) or isinstance(outcome, ArtifactError) for outcome in outcomes)
    return [isinstance(outcome, ArtifactError) for outcome in outcomes]


@pytest.mark.parametrize("kind", MAKERS)
@settings(max_examples=40, deadline=None)
@given(steps=STEPS)
def test_concurrent_writes_apply_in_issue_order(  # L127
    kind: str, tmp_path_factory: pytest.TempPathFactory, steps: list[Step]
) -> None:
    async def main() -> None:
        store = MAKERS[kind](tmp_path_factory.mktemp("store"))
        artifacts, received = make_artifacts(store)
        contents, failed = simulate_steps(steps)
        assert await run_steps(steps, artifacts) == failed
        for name, versions in contents.items():
            records = await artifacts.versions(name)
            assert [record.version for record in records] == [*range(1, len(versions) + 1)]
            read = [(await artifacts.read(name, version=n + 1)).decode() for n in range(len(versions))]
            assert read == versions
            for n, version in enumerate(versions, 1):
                own = [event for event in received if (event.artifact_id, event.artifact_version) == (name, n)]
                assert "".join(event.data for event in own) == version
                assert [event.index for event in own] == [*range(len(own))]
        await store.aclose()

    asyncio.run(main())


@pytest.mark.parametrize("kind", MAKERS)
@settings(max_examples=40, deadline=None)
@given(steps=STEPS, step_count=st.integers(0, 25))
def test_repeated_writes_emit_events_but_are_not_written_twice(
    kind: str, tmp_path_factory: pytest.TempPathFactory, steps: list[Step], step_count: int
) -> None:
    async def main() -> None:
        store = MAKERS[kind](tmp_path_factory.mktemp("store"))
        good = [step for step, bad in zip(steps, simulate_steps(steps)[1], strict=True) if not bad]
        contents, failed = simulate_steps(good)
        before, first_events = make_artifacts(store)
        assert await run_steps(good[:step_count], before) == failed[:step_count]
        # Simulate a call interrupted by a crash.
        again, received = make_artifacts(store)
        assert await run_steps(good, again) == failed
        for name, versions in contents.items():
            assert [(await again.read(name, version=n + 1)).decode() for n in range(len(versions))] == versions
        assert {*map(repr, first_events)} <= {*map(repr, received)}
        await store.aclose()

    asyncio.run(main())


class BlockedArtifacts(MemoryArtifacts):
    """Store with manually released writes."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting: dict[str, asyncio.Event] = {}

    async def append(self, context_id: str, artifact_id: str, data: bytes, **fields: Any) -> Any:
        event = self.waiting[artifact_id] = asyncio.Event()
        await event.wait()
        return await super().append(context_id, artifact_id, data, **fields)


async def test_different_artifacts_are_written_concurrently() -> None:  # L127
    store = BlockedArtifacts()
    artifacts, received = make_artifacts(store)
    await artifacts.create("a")
    await artifacts.create("b")
    tasks = [asyncio.create_task(artifacts.append(name, name)) for name in "aab"]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    store.waiting["b"].set()
    await tasks[2]
    assert [event.artifact_id for event in received] == ["b"]
    tasks[0].cancel()
    with pytest.raises(asyncio.CancelledError):
        await tasks[0]
    # A canceled write releases its position in the queue.
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    store.waiting["a"].set()
    await tasks[1]
    assert [event.artifact_id for event in received] == ["b", "a"]


async def test_invalid_writes_are_rejected_with_a_remedy() -> None:
    artifacts, received = make_artifacts(MemoryArtifacts())
    with pytest.raises(ArtifactError, match="plain file name"):
        await artifacts.create("../../etc/passwd")
    with pytest.raises(ArtifactError, match="single line"):
        await artifacts.create("a", name="two\nlines")
    with pytest.raises(UnknownArtifact):
        await artifacts.append("a", "text")
    await artifacts.create("a")
    with pytest.raises(ArtifactError, match="a string or bytes, got int"):
        await artifacts.append("a", 1)  # pyright: ignore[reportArgumentType]
    await artifacts.append("a", "half a character \ud800")
    assert (await artifacts.read("a")).decode() == "half a character \ufffd"
    assert len(received) == 1


def test_agent_rejects_artifacts_option_that_is_not_a_store() -> None:
    with pytest.raises(ConfigurationError, match=r"an ArtifactStore, such as FolderArtifacts\('files'\)"):
        Agent(ScriptedModel("Hi."), artifacts="files")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ConfigurationError, match="an ArtifactStore"):
        Agent(ScriptedModel("Hi."), artifacts=MemoryArtifacts)  # pyright: ignore[reportArgumentType]


async def test_nested_agent_writes_artifacts_of_its_caller() -> None:
    writer = Agent(ScriptedModel(call("report", city="Oslo"), "Done."), name="writer", tools=[report])
    model = ScriptedModel(call("writer", prompt="Write."), call("read_artifact", artifact_id="report.md"), "It rains.")
    run = Agent(model, tools=[writer.as_tool(), *artifact_tools()]).run("Write.")
    received = updates([event async for event in run])
    assert (await run).messages[-2].text == "# Oslo\nIt rains.\n"
    assert [(event.index, event.agent_path) for event in received] == [(0, ("writer",)), (1, ("writer",))]


@pytest.mark.parametrize("nested", [False, True])
async def test_repeated_tool_call_does_not_repeat_artifact_writes_or_events(nested: bool) -> None:
    log, tries = MemoryEventLog(), 0

    @tool(idempotent=True)
    async def write(ctx: RunContext[None]) -> str:
        """Write before and after a question."""
        nonlocal tries
        tries += 1
        draft = await ctx.artifacts.create("a.txt")
        await draft.append("one ")
        good = await ctx.ask("Go on?")
        await draft.append("two" if good else "no", last=True)
        return "written"

    agent = Agent(ScriptedModel(call("write"), "Done."), name="writer", tools=[write], log=None if nested else log)
    if nested:
        agent = Agent(ScriptedModel(call("writer", prompt="Write."), "Done."), tools=[agent.as_tool()], log=log)
    first = await agent.run("Write.")
    run = agent.resume(first.task_id, inputs={first.pending[0].input_id: True})
    await run
    assert tries == 2
    assert await run.artifacts.read("a.txt") == b"one two"
    received = updates(list(await log.read(first.task_id)))
    assert [(event.index, event.data, event.attempt) for event in received] == [(0, "one ", 1), (1, "two", 2)]


async def test_fork_starts_without_artifacts_and_creates_its_own() -> None:
    log = MemoryEventLog()
    model = ScriptedModel(call("report", city="Oslo"), "Done.", "Done again.")
    agent = Agent(model, tools=[tool(idempotent=True)(report._function)], log=log)
    run = agent.run("Write.")
    await run
    events = await log.read(run.task_id)
    fork = agent.fork(run.task_id, at=updates(list(events))[0].seq)
    await fork
    # One copied event, then two events from repeating this call.
    received = updates(list(await log.read(fork.task_id)))
    assert [(event.index, event.data) for event in received] == [(0, "# Oslo\n"), (0, "# Oslo\n"), (1, "It rains.\n")]
    assert await fork.artifacts.read("report.md") == b"# Oslo\nIt rains.\n"


async def test_parallel_tool_calls_can_append_to_one_artifact() -> None:
    @tool
    async def line(ctx: RunContext[None], n: int) -> str:
        await ctx.artifacts.append("a.txt", f"{n}\n")
        return "ok"

    @tool
    async def begin(ctx: RunContext[None]) -> str:
        await ctx.artifacts.create("a.txt")
        return "ok"

    calls = [call("line", f"c{n}", n=n) for n in range(20)]
    run = Agent(ScriptedModel(call("begin"), turn("", calls=calls), "Done."), tools=[begin, line]).run("Write.")
    received = updates([event async for event in run])
    assert sorted((await run.artifacts.read("a.txt")).split()) == sorted(b"%d" % n for n in range(20))
    assert [event.index for event in received] == [*range(20)]


async def test_repeated_writes_to_different_artifacts_may_change_order() -> None:
    store = MemoryArtifacts()
    for names in ("ab", "ba"):
        artifacts, _ = make_artifacts(store)
        for name in names:
            draft = await artifacts.create(name)
            await draft.append(name)
    assert [await store.read("c", name) for name in "ab"] == [b"a", b"b"]
