"""`ctx.artifacts`: what tools write, what is told of it, in which order, and what is not written a second time."""

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


async def told(agent: Agent[None, str], prompt: str = "Write.", **options: Any) -> list[ArtifactUpdateEvent]:
    run = agent.run(prompt, **options)
    found = updates([event async for event in run])
    await run
    return found


async def test_what_a_tool_appends_is_told_after_it_is_written() -> None:  # L128
    store = MemoryArtifacts()
    model = ScriptedModel(call("report", city="Oslo"), "Done.")
    run = Agent(model, tools=[report], artifacts=store).run("Write.")
    kept = run.artifacts
    sizes = [
        (event.offset + event.size, (await kept.record("report.md")).size)
        async for event in run.pipe(op.of_type(ArtifactUpdateEvent))
    ]
    first, second = updates([event async for event in run])
    assert len(sizes) == 2
    assert all(told <= written for told, written in sizes)
    assert (first.index, first.data, first.name, first.media_type, first.last) == (
        *(0, "# Oslo\n", "Report", "text/markdown"),
        False,
    )
    assert (second.index, second.data, second.name, second.media_type, second.last) == (
        *(1, "It rains.\n", None, None),
        True,
    )
    assert (second.offset, second.size, first.step) == (7, 10, "1")
    assert await store.read(run.context_id, "report.md") == b"# Oslo\nIt rains.\n"


async def test_an_empty_last_chunk_only_completes() -> None:  # L128
    @tool
    async def write(ctx: RunContext[None]) -> None:
        draft = await ctx.artifacts.create("a.txt")
        await draft.append("all")
        await draft.append("")
        await draft.append("", last=True)

    first, last = await told(Agent(ScriptedModel(call("write"), "Done."), tools=[write]))
    assert (first.index, first.data, first.last) == (0, "all", False)
    assert (last.index, last.data, last.size, last.last) == (1, "", 0, True)


async def test_an_id_that_is_taken_is_refused_unless_it_is_begun_anew() -> None:  # L126
    @tool
    async def write(ctx: RunContext[None]) -> list[Any]:
        old = await ctx.artifacts.create("a.txt")
        await old.append("old")
        with pytest.raises(ArtifactExists):
            await ctx.artifacts.create("a.txt")
        new = await ctx.artifacts.create("a.txt", override=True)
        with pytest.raises(ArtifactError, match="begun since"):
            await old.append("late")
        await new.append("new")
        records = await ctx.artifacts.versions("a.txt")
        assert len({record.created for record in records}) == 1
        return [new.version, (await ctx.artifacts.read("a.txt", version=1)).decode()]

    run = Agent(ScriptedModel(call("write"), "Done."), tools=[write]).run("Write.")
    found = updates([event async for event in run])
    assert [(event.artifact_version, event.index, event.data) for event in found] == [(1, 0, "old"), (2, 0, "new")]
    assert (await run).messages[2].text == '[2,"old"]'


async def test_conversations_do_not_see_each_others_artifacts() -> None:  # L129
    store = MemoryArtifacts()
    model = ScriptedModel(call("report", city="Oslo"), "Done.", call("read_artifact", artifact_id="report.md"), "No.")
    agent = Agent(model, tools=[report, *artifact_tools()], artifacts=store)
    await agent.run("Write.")
    result = await agent.run("Read.")
    assert "no artifact 'report.md'" in result.messages[2].text


async def test_a_conversation_keeps_its_artifacts_beside_its_log(tmp_path: Path) -> None:
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


async def test_what_a_hidden_call_writes_is_not_for_clients() -> None:
    hidden = tool(hidden=True)(report._function)  # pyright: ignore[reportPrivateUsage]
    run = Agent(ScriptedModel(call("report", city="Oslo"), "Done."), tools=[hidden]).run("Write.")
    assert len(updates([event async for event in run])) == 2
    assert updates([event async for event in run.pipe(op.public())]) == []


async def test_bytes_are_base64_on_the_stream() -> None:
    @tool
    async def draw(ctx: RunContext[None]) -> None:
        await (await ctx.artifacts.create("a.png", media_type="image/png")).append(b"\x89PNG\x00", last=True)

    [event] = await told(Agent(ScriptedModel(call("draw"), "Done."), tools=[draw]))
    assert (event.encoding, b64decode(event.data), event.size) == ("base64", b"\x89PNG\x00", 5)


async def test_a_large_append_becomes_several_chunks_of_which_the_first_million_bytes_are_told() -> None:
    text = "".join(f"{n:08}" for n in range(250_000)) + "\u00e5"

    @tool
    async def write(ctx: RunContext[None]) -> None:
        await (await ctx.artifacts.create("a.txt")).append(text, last=True)

    run = Agent(ScriptedModel(call("write"), "Done."), tools=[write]).run("Write.")
    found = updates([event async for event in run])
    assert [event.index for event in found] == [*range(32)]
    assert [event.last for event in found] == [False] * 31 + [True]
    inline = [event for event in found if event.data is not None]
    assert inline == found[: len(inline)]
    assert "".join(event.data for event in inline) == text[: front.CHUNK * 15]
    assert [event.offset for event in found] == [sum(event.size for event in found[:n]) for n in range(32)]
    assert (await run.artifacts.read("a.txt")).decode() == text


@pytest.mark.parametrize("kind", MAKERS)
async def test_a_hundred_megabytes_hold_up_neither_the_loop_nor_the_memory(kind: str, tmp_path: Path) -> None:
    import tracemalloc

    store, late = MAKERS[kind](tmp_path), list[float]()
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
            late.append(loop.time() - before - 0.005)

    watching = asyncio.create_task(watch())
    tracemalloc.start()
    run = Agent(ScriptedModel(call("write"), "Done."), tools=[write], artifacts=store).run("Write.")
    await run
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    watching.cancel()
    assert (await run.artifacts.record("big.bin")).size == 100_000_000
    assert most < (250_000_000 if kind == "memory" else 25_000_000)
    # Other processes may take the processor once or twice; what holds the loop does so for each piece.
    assert sorted(late)[-3] < 0.3
    await store.aclose()


def writing(store: ArtifactStore, writer: str = "w") -> tuple[RunArtifacts, list[ArtifactUpdateEvent]]:
    found: list[Any] = []
    writes = Writes(store)
    return RunArtifacts(writes, "c", Writer(name=writer, hidden=False, emit=found.append, now=lambda: 1)), found


Step = tuple[str, str, int]
STEPS = st.lists(
    st.tuples(st.sampled_from(["create", "override", "append", "last"]), st.sampled_from("ab"), st.integers(0, 3)),
    max_size=25,
)


def expected(steps: list[Step]) -> tuple[dict[str, list[str]], list[bool]]:
    """What artifacts hold when the steps are carried out one after the other, and which of them fail."""
    contents: dict[str, list[str]] = {}
    complete: set[str] = set()
    failed: list[bool] = []
    for place, (what, name, size) in enumerate(steps):
        versions = contents.setdefault(name, [])
        if what in ("create", "override"):
            failed.append(bool(versions) and what == "create")
            if not failed[-1]:
                versions.append("")
                complete.discard(name)
        else:
            data = f"<{place}>" * size
            # Nothing is written, and so nothing is looked at.
            nothing = not data and what == "append"
            failed.append(not nothing and (not versions or name in complete))
            if not failed[-1] and versions:
                versions[-1] += data
            if what == "last" and not failed[-1]:
                complete.add(name)
    return contents, failed


async def carry_out(steps: list[Step], artifacts: RunArtifacts) -> list[bool]:
    def one(place: int, what: str, name: str, size: int) -> Any:
        if what in ("create", "override"):
            return artifacts.create(name, override=what == "override")
        return artifacts.append(name, f"<{place}>" * size, last=what == "last")

    done = await asyncio.gather(*(one(place, *step) for place, step in enumerate(steps)), return_exceptions=True)
    assert all(not isinstance(each, BaseException) or isinstance(each, ArtifactError) for each in done)
    return [isinstance(each, ArtifactError) for each in done]


@pytest.mark.parametrize("kind", MAKERS)
@settings(max_examples=40, deadline=None)
@given(steps=STEPS)
def test_writes_at_once_apply_in_the_order_in_which_they_were_issued(  # L127
    kind: str, tmp_path_factory: pytest.TempPathFactory, steps: list[Step]
) -> None:
    async def main() -> None:
        store = MAKERS[kind](tmp_path_factory.mktemp("store"))
        artifacts, found = writing(store)
        contents, failed = expected(steps)
        assert await carry_out(steps, artifacts) == failed
        for name, versions in contents.items():
            records = await artifacts.versions(name)
            assert [record.version for record in records] == [*range(1, len(versions) + 1)]
            read = [(await artifacts.read(name, version=n + 1)).decode() for n in range(len(versions))]
            assert read == versions
            for n, version in enumerate(versions, 1):
                own = [event for event in found if (event.artifact_id, event.artifact_version) == (name, n)]
                assert "".join(event.data for event in own) == version
                assert [event.index for event in own] == [*range(len(own))]
        await store.aclose()

    asyncio.run(main())


@pytest.mark.parametrize("kind", MAKERS)
@settings(max_examples=40, deadline=None)
@given(steps=STEPS, made=st.integers(0, 25))
def test_writes_that_are_made_again_are_told_and_not_written_twice(
    kind: str, tmp_path_factory: pytest.TempPathFactory, steps: list[Step], made: int
) -> None:
    async def main() -> None:
        store = MAKERS[kind](tmp_path_factory.mktemp("store"))
        good = [step for step, bad in zip(steps, expected(steps)[1], strict=True) if not bad]
        contents, failed = expected(good)
        before, told = writing(store)
        assert await carry_out(good[:made], before) == failed[:made]
        # As a call does that a crash has cut off there.
        again, found = writing(store)
        assert await carry_out(good, again) == failed
        for name, versions in contents.items():
            assert [(await again.read(name, version=n + 1)).decode() for n in range(len(versions))] == versions
        assert {*map(repr, told)} <= {*map(repr, found)}
        await store.aclose()

    asyncio.run(main())


class Slow(MemoryArtifacts):
    """It waits before each write until it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting: dict[str, asyncio.Event] = {}

    async def append(self, context_id: str, artifact_id: str, data: bytes, **fields: Any) -> Any:
        event = self.waiting[artifact_id] = asyncio.Event()
        await event.wait()
        return await super().append(context_id, artifact_id, data, **fields)


async def test_different_artifacts_are_written_side_by_side() -> None:  # L127
    store = Slow()
    artifacts, found = writing(store)
    await artifacts.create("a")
    await artifacts.create("b")
    tasks = [asyncio.create_task(artifacts.append(name, name)) for name in "aab"]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    store.waiting["b"].set()
    await tasks[2]
    assert [event.artifact_id for event in found] == ["b"]
    tasks[0].cancel()
    with pytest.raises(asyncio.CancelledError):
        await tasks[0]
    # One that is cancelled gives its place away.
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    store.waiting["a"].set()
    await tasks[1]
    assert [event.artifact_id for event in found] == ["b", "a"]


async def test_what_cannot_be_written_is_refused_with_what_to_do() -> None:
    artifacts, found = writing(MemoryArtifacts())
    with pytest.raises(ArtifactError, match="plain name"):
        await artifacts.create("../../etc/passwd")
    with pytest.raises(ArtifactError, match="one line"):
        await artifacts.create("a", name="two\nlines")
    with pytest.raises(UnknownArtifact):
        await artifacts.append("a", "text")
    await artifacts.create("a")
    with pytest.raises(ArtifactError, match="a text or bytes, and not int"):
        await artifacts.append("a", 1)  # pyright: ignore[reportArgumentType]
    await artifacts.append("a", "half a character \ud800")
    assert (await artifacts.read("a")).decode() == "half a character \ufffd"
    assert len(found) == 1


def test_an_agent_takes_a_store_and_nothing_else() -> None:
    with pytest.raises(ConfigurationError, match=r"write artifacts=FolderArtifacts\('files'\)"):
        Agent(ScriptedModel("Hi."), artifacts="files")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ConfigurationError, match="give a store"):
        Agent(ScriptedModel("Hi."), artifacts=MemoryArtifacts)  # pyright: ignore[reportArgumentType]


async def test_an_agent_that_is_called_writes_to_the_files_of_its_caller() -> None:
    writer = Agent(ScriptedModel(call("report", city="Oslo"), "Done."), name="writer", tools=[report])
    model = ScriptedModel(call("writer", prompt="Write."), call("read_artifact", artifact_id="report.md"), "It rains.")
    run = Agent(model, tools=[writer.as_tool(), *artifact_tools()]).run("Write.")
    found = updates([event async for event in run])
    assert (await run).messages[-2].text == "# Oslo\nIt rains.\n"
    assert [(event.index, event.agent_path) for event in found] == [(0, ("writer",)), (1, ("writer",))]


@pytest.mark.parametrize("nested", [False, True])
async def test_a_call_that_is_made_again_writes_and_tells_nothing_twice(nested: bool) -> None:
    log, tries = MemoryEventLog(), 0

    @tool(idempotent=True)
    async def write(ctx: RunContext[None]) -> str:
        """Write, ask, and write on."""
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
    found = updates(list(await log.read(first.task_id)))
    assert [(event.index, event.data, event.attempt) for event in found] == [(0, "one ", 1), (1, "two", 2)]


async def test_a_fork_begins_without_artifacts_and_makes_its_own() -> None:
    log = MemoryEventLog()
    model = ScriptedModel(call("report", city="Oslo"), "Done.", "Done again.")
    agent = Agent(model, tools=[report], log=log)
    run = agent.run("Write.")
    await run
    events = await log.read(run.task_id)
    fork = agent.fork(run.task_id, at=updates(list(events))[0].seq)
    await fork
    # The first one is that of the other run; then the call is made again, and the artifact begins again.
    found = updates(list(await log.read(fork.task_id)))
    assert [(event.index, event.data) for event in found] == [(0, "# Oslo\n"), (0, "# Oslo\n"), (1, "It rains.\n")]
    assert await fork.artifacts.read("report.md") == b"# Oslo\nIt rains.\n"


async def test_tools_of_one_message_write_side_by_side() -> None:
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
    found = updates([event async for event in run])
    assert sorted((await run.artifacts.read("a.txt")).split()) == sorted(b"%d" % n for n in range(20))
    assert [event.index for event in found] == [*range(20)]


async def test_writes_to_different_artifacts_may_come_in_another_order_when_they_are_made_again() -> None:
    store = MemoryArtifacts()
    for names in ("ab", "ba"):
        artifacts, _ = writing(store)
        for name in names:
            draft = await artifacts.create(name)
            await draft.append(name)
    assert [await store.read("c", name) for name in "ab"] == [b"a", b"b"]
