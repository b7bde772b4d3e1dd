"""Artifacts that are links to external files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rxloop import Agent, ArtifactUpdateEvent, RunContext, artifact_tools, tool
from rxloop.errors import ArtifactError, ArtifactExists
from rxloop.pipeline.artifacts import ArtifactStore, RunArtifacts, Writer, Writes
from rxloop.storage import FolderArtifacts, MemoryArtifacts, SqliteArtifacts
from rxloop.testing import ScriptedModel, call

MAKERS: dict[str, Callable[[Path], ArtifactStore]] = {
    "memory": lambda folder: MemoryArtifacts(),
    "folder": lambda folder: FolderArtifacts(folder / "files"),
    "sqlite": lambda folder: SqliteArtifacts(folder / "app.db"),
}


async def collect_updates(agent: Agent[None, str]) -> list[ArtifactUpdateEvent]:
    run = agent.run("Write.")
    received = [event async for event in run if isinstance(event, ArtifactUpdateEvent)]
    await run
    return received


async def test_link_is_stored_and_published() -> None:
    store = MemoryArtifacts()

    @tool
    async def publish(ctx: RunContext[None]) -> None:
        await ctx.artifacts.link("a", "https://example.org/report.pdf?x=1#page=2", name="A report")
        await ctx.artifacts.link("b.csv", "http://localhost:8000/export")
        await ctx.artifacts.link("c", "https://example.org/", media_type="application/json")
        await ctx.artifacts.link("d", "https://example.org/%C3%B8")

    model = ScriptedModel(call("publish"), "Done.")
    run = Agent(model, tools=[publish], artifacts=store).run("Write.")
    first, *others = [event async for event in run if isinstance(event, ArtifactUpdateEvent)]
    assert first.url == "https://example.org/report.pdf?x=1#page=2"
    assert first.data == {"url": first.url}
    assert (first.index, first.offset, first.size, first.last) == (0, 0, len(first.url), True)
    assert (first.name, first.media_type) == ("A report", "application/pdf")
    assert [each.media_type for each in others] == ["text/csv", "application/json", None]
    record = await run.artifacts.record("a")
    assert (record.name, record.media_type, record.size, record.complete) == ("A report", "text/uri-list", 41, True)
    assert await run.artifacts.read("a") == first.url.encode()


async def test_link_can_replace_an_artifact_but_is_complete() -> None:
    @tool
    async def publish(ctx: RunContext[None]) -> None:
        await ctx.artifacts.create("a")
        with pytest.raises(ArtifactExists):
            await ctx.artifacts.link("a", "https://example.org/1")
        await ctx.artifacts.link("a", "https://example.org/2", override=True)
        with pytest.raises(ArtifactError, match="complete"):
            await ctx.artifacts.append("a", "more")

    [update] = await collect_updates(Agent(ScriptedModel(call("publish"), "Done."), tools=[publish]))
    assert (update.url, update.artifact_version) == ("https://example.org/2", 2)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "report.pdf",
        "/etc/passwd",
        "file:///etc/passwd",
        "ftp://example.org/a",
        "javascript:alert(1)",
        "data:text/plain,a",
        "https://",
        "https:///a",
        "https:example.org",
        "//example.org/a",
        "https://ann:s3cret@example.org/",
        "https://ann@example.org/",
        "https://@example.org/",
        "https://example.org:0/",
        "https://example.org:99999/",
        "https://[::1/",
        "https://example.org/a b",
        "https://example.org/\na",
        "https://example.org\\@evil.example/",
        "https://example.org/\u00f8",
        "https://example.org/\u202e",
        "https://example.org/" + "x" * 2_000,
        7,
        None,
    ],
)
async def test_link_refuses_other_urls_without_repeating_them(url: Any) -> None:
    refusals: list[str] = []

    @tool
    async def publish(ctx: RunContext[None]) -> None:
        with pytest.raises(ArtifactError, match="url is not a link") as refused:
            await ctx.artifacts.link("a", url)
        refusals.append(str(refused.value))
        assert await ctx.artifacts.list() == []

    assert await collect_updates(Agent(ScriptedModel(call("publish"), "Done."), tools=[publish])) == []
    [refusal] = refusals
    assert "s3cret" not in refusal
    assert len(refusal) < 200


async def test_emitted_data_is_a_link_only_with_a_valid_url() -> None:
    for data in (
        {"url": "javascript:alert(1)"},
        {"url": "https://example.org", "more": 1},
        "https://example.org",
        None,
    ):
        assert ArtifactUpdateEvent(artifact_id="a", index=0, data=data).url is None
    assert (
        ArtifactUpdateEvent(artifact_id="a", index=0, data={"url": "https://example.org"}).url == "https://example.org"
    )


@pytest.mark.parametrize("maker", MAKERS.values(), ids=MAKERS)
async def test_repeated_link_is_stored_once(maker: Callable[[Path], ArtifactStore], tmp_path: Path) -> None:
    store = maker(tmp_path)

    async def publish(url: str) -> None:
        writer = Writer(name="call", hidden=False, emit=lambda event: None, now=lambda: 1)
        await RunArtifacts(Writes(store), "c", writer).link("a", url)

    await publish("https://example.org/1")
    await publish("https://example.org/1")
    with pytest.raises(ArtifactError):
        await publish("https://example.org/2")
    [record] = await store.versions("c", "a")
    assert (record.chunks, record.complete) == (1, True)
    assert await store.read("c", "a") == b"https://example.org/1"
    await store.aclose()


async def test_model_reads_the_url_of_a_link() -> None:
    @tool
    async def publish(ctx: RunContext[None]) -> str:
        await ctx.artifacts.link("a.pdf", "https://example.org/a.pdf")
        return "published"

    model = ScriptedModel(call("publish"), call("read_artifact", artifact_id="a.pdf"), "Done.")
    result = await Agent(model, tools=[publish, *artifact_tools()]).run("Write.")
    assert result.messages[-2].text == "https://example.org/a.pdf"
