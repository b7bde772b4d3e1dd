"""Tools for a model to create and read artifacts."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rxloop import Agent, Limits, RunContext, artifact_tools, tool
from rxloop.storage import MemoryArtifacts
from rxloop.testing import ScriptedModel, call
from rxloop.tools.result import decode_range


@tool
async def draw(ctx: RunContext[None], size: int = 5) -> str:
    """Draw an image."""
    await (await ctx.artifacts.create("a.png", media_type="image/png")).append(b"\x89PNG\x00" * (size // 5))
    return "drawn"


async def collect_answers(*calls: Any) -> list[str]:
    limits = Limits(tool_failures=9)
    agent = Agent(ScriptedModel(*calls, "Done."), tools=[draw, *artifact_tools()], limits=limits)
    result = await agent.run("Go.")
    return [message.text for message in result.messages if message.role == "tool"]


async def test_model_creates_and_reads_an_artifact() -> None:
    assert await collect_answers(
        call("create_artifact", artifact_id="r.md", content="# Oslo\n", media_type="text/markdown"),
        call("append_to_artifact", artifact_id="r.md", content="It rains.\n", last=True),
        call("read_artifact", artifact_id="r.md"),
        call("list_artifacts"),
    ) == [
        "Created r.md, version 1, 7 bytes.",
        "Appended; r.md has 17 bytes now and is complete.",
        "# Oslo\nIt rains.\n",
        '[{"artifact_id":"r.md","media_type":"text/markdown","bytes":17,"version":1,"complete":true}]',
    ]


async def test_model_reads_a_part_and_gets_the_next_offset() -> None:
    text = "\u00e5ngstr\u00f6m " * 10
    create = call("create_artifact", artifact_id="a", content=text)
    _, first, second = await collect_answers(
        create, call("read_artifact", artifact_id="a", limit=8), call("read_artifact", artifact_id="a", offset=8)
    )
    # Bytes 7 and 8 encode a single character, so the first part ends before it.
    assert first == "[bytes 0 to 7 of 110 of a; read on with offset=7]\n\u00e5ngstr"
    assert second == "[bytes 9 to 110 of 110 of a]\nm " + text[9:]


async def test_errors_of_artifact_tools_contain_a_remedy() -> None:
    create = call("create_artifact", artifact_id="a", content="one")
    [_, taken_id, missing, bad, again, old] = await collect_answers(
        create,
        create,
        call("append_to_artifact", artifact_id="b", content="x"),
        call("create_artifact", artifact_id="../a"),
        call("create_artifact", artifact_id="a", content="two", override=True),
        call("read_artifact", artifact_id="a", version=1),
    )
    assert "append to it, choose another id, or create a new version with override=True" in taken_id
    assert missing == "this conversation has no artifact 'b'; list its artifacts first"
    assert "must be a plain file name" in bad
    assert again == "Created a, version 2, 3 bytes."
    assert old == "one"


@pytest.mark.parametrize("size", [5, 100_000])
async def test_binary_artifact_is_described_and_not_read(size: int) -> None:
    _, read = await collect_answers(call("draw", size=size), call("read_artifact", artifact_id="a.png"))
    assert read == f"a.png is not text but image/png, of {size} bytes."


async def test_list_of_many_artifacts_is_truncated() -> None:
    store = MemoryArtifacts()

    @tool
    async def many(ctx: RunContext[None]) -> str:
        for n in range(203):
            await ctx.artifacts.create(f"{n:03}")
        return "made"

    model = ScriptedModel(call("many"), call("list_artifacts"), "Done.")
    result = await Agent(model, tools=[many, *artifact_tools()], artifacts=store).run("Go.")
    assert result.messages[-2].text.endswith('{"not_listed":3}]')


@given(
    st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])), st.integers(0, 60), st.integers(4, 60)
)
def test_parts_of_a_text_add_up_to_the_text(text: str, start: int, limit: int) -> None:
    data = text.encode()
    position, text_read = 0, ""
    while position < len(data):
        part = data[position : position + limit]
        decoded = decode_range(part, first=position == 0, last=position + len(part) >= len(data))
        assert decoded is not None
        assert decoded[0] == 0
        text_read += decoded[1]
        position += len(decoded[1].encode())
    assert text_read == text
    # An arbitrary offset starts at the next character.
    decoded = decode_range(data[start:], first=start == 0, last=True)
    assert decoded is not None
    assert data[start + decoded[0] :].decode() == decoded[1]
