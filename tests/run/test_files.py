"""Images and files that tools return and models create."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any, cast

import pytest

from rxloop import (
    Agent,
    Citation,
    ContentCompleteEvent,
    Event,
    FilePart,
    ImagePart,
    MemoryEventLog,
    Message,
    RunContext,
    TextPart,
    ToolCompleteEvent,
    ToolResult,
    op,
    replay,
    tool,
)
from rxloop.pipeline.requests import ToolRequest
from rxloop.testing import ScriptedModel, call, turn

CHART = ImagePart(data=b"\x89PNG" * 1_000, media_type="image/png")
REPORT = FilePart(data=b"%PDF", media_type="application/pdf", filename="report.pdf")
LINKED = ImagePart(url="https://example.org/cat.png")
PLACEHOLDER = "[image/png, 4.0 kB]"


@tool
async def look(at: str = "chart") -> Any:
    """Looks at something."""
    return {
        "chart": CHART,
        "both": ["See:", CHART, TextPart(text="and"), REPORT],
        "rows": [{"rows": 3}, LINKED],
        "result": ToolResult({"rows": 3}, "A chart.", parts=[CHART]),
    }[at]


async def call_look(*names: str, log: MemoryEventLog | None = None) -> list[ToolCompleteEvent]:
    model = ScriptedModel([call("look", at=at) for at in names], "Seen.")
    run = Agent(model, tools=[look], log=log).run("Look.")
    return [event async for event in run.events if isinstance(event, ToolCompleteEvent)]


@pytest.mark.parametrize(
    ("at", "result", "content", "parts"),
    [
        ("chart", {"type": "image", "mediaType": "image/png", "size": 4_000}, PLACEHOLDER, [CHART]),
        (
            "both",
            [
                "See:",
                {"type": "image", "mediaType": "image/png", "size": 4_000},
                "and",
                {"type": "file", "mediaType": "application/pdf", "filename": "report.pdf", "size": 4},
            ],
            f"See:\n{PLACEHOLDER}\nand\n[report.pdf, application/pdf, 4 bytes]",
            [CHART, REPORT],
        ),
        (
            "rows",
            [{"rows": 3}, {"type": "image", "url": "https://example.org/cat.png"}],
            '{"rows":3}\n[image at https://example.org/cat.png]',
            [LINKED],
        ),
        ("result", {"rows": 3}, f"A chart.\n{PLACEHOLDER}", [CHART]),
    ],
)
async def test_tool_can_return_images_and_files(at: str, result: Any, content: str, parts: Sequence[Any]) -> None:
    [event] = await call_look(at)
    assert event.success
    assert (event.result, event.content, event.parts) == (result, content, parts)


async def test_model_receives_the_parts_after_the_text_of_a_result() -> None:
    model = ScriptedModel([call("look", at="both"), call("look", at="chart")], "Seen.")
    result = await Agent(model, tools=[look]).run("Look.")
    both, chart = [message for message in model.requests[1].messages if message.role == "tool"]
    assert both.content == [TextPart(text=both.text), CHART, REPORT]
    assert chart.content == [TextPart(text=PLACEHOLDER), CHART]
    assert [*model.requests[1].messages] == result.messages[:-1]


async def test_iterator_of_parts_is_consumed_once() -> None:
    @tool
    async def draw() -> Iterator[Any]:
        return iter(["Two:", CHART, CHART])

    result = await Agent(ScriptedModel(call("draw"), "Drawn."), tools=[draw]).run("Draw.")
    assert result.messages[2].media == [CHART, CHART]


async def test_last_item_of_a_generator_tool_is_its_result_and_others_are_progress() -> None:
    @tool
    async def draw() -> Any:
        yield CHART
        yield REPORT

    events = [event async for event in Agent(ScriptedModel(call("draw"), "Drawn."), tools=[draw]).run("Draw.").events]
    [progress] = [event for event in events if event.kind == "tool-progress"]
    [answer] = [event for event in events if isinstance(event, ToolCompleteEvent)]
    assert PLACEHOLDER in progress.to_json().decode()
    assert answer.parts == [REPORT]


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ([LINKED] * 101, "more than 100 images and files"),
        ([ImagePart(data=b"x" * 11_000_000, media_type="image/png")] * 2, "larger than 20 MB"),
        (ToolResult(1, "one", parts=cast("Any", ["a.png"])), "'a.png' among the parts"),
        ([CHART, object()], "cannot be written as JSON"),
    ],
    ids=["many", "large", "invalid", "mixed"],
)
async def test_call_fails_when_its_parts_are_too_many_too_large_or_invalid(value: Any, reason: str) -> None:
    @tool
    async def draw() -> Any:
        return value

    events = [event async for event in Agent(ScriptedModel(call("draw"), "Oh."), tools=[draw]).run("Draw.").events]
    [answer] = [event for event in events if isinstance(event, ToolCompleteEvent)]
    assert not answer.success
    assert reason in answer.content
    assert answer.parts == []


async def test_operator_can_answer_a_call_with_parts() -> None:
    @op.on(ToolRequest)
    async def answer_from_cache(request: ToolRequest, ctx: RunContext[Any]) -> AsyncIterator[Event]:
        yield request.answer({"hit": True}, "From the cache.", [CHART])

    model = ScriptedModel(call("look"), "Seen.")
    loop = op.standard(before_tools=[answer_from_cache])
    result = await Agent(model, tools=[look], loop=loop).run("Look.")
    assert result.messages[2].text == f"From the cache.\n{PLACEHOLDER}"
    assert result.messages[2].media == [CHART]


async def test_parts_are_kept_by_log_replay_and_next_run() -> None:
    log = MemoryEventLog()
    model = ScriptedModel(call("look", at="both"), "Seen.", "Again.")
    agent = Agent(model, tools=[look], log=log)
    first = await agent.run("Look.", context_id="c")
    assert (await replay(log, first.task_id).result()).messages == first.messages
    await agent.run("And now?", context_id="c")
    assert model.requests[2].messages[2].media == [CHART, REPORT]
    assert [message.content for message in model.requests[2].messages[:4]] == [m.content for m in first.messages]


async def test_resumed_run_keeps_parts_of_earlier_attempts() -> None:
    log = MemoryEventLog()
    model = ScriptedModel([call("look"), call("pause")], "Seen.")

    @tool
    async def pause(ctx: RunContext[Any]) -> str:
        return await ctx.ask("Sure?", str)

    agent = Agent(model, tools=[look, pause], log=log)
    paused = await agent.run("Look.")
    [question] = paused.pending
    result = await agent.resume(paused.task_id, inputs={question.input_id: "yes"})
    assert result.messages[2].media == [CHART]
    assert model.requests[1].messages[2].media == [CHART]


async def test_fork_can_replace_the_parts_of_a_result() -> None:
    log = MemoryEventLog()
    agent = Agent(ScriptedModel(call("look", "a"), "Seen.", "No chart.", "A report."), tools=[look], log=log)
    first = await agent.run("Look.")
    at = next(event.seq for event in await log.read(first.task_id) if event.kind == "tool-complete")
    text_fork = await agent.fork(first.task_id, at, results={"a": "nothing"})
    assert text_fork.messages[2].content == "nothing"
    file_fork = await agent.fork(first.task_id, at, results={"a": REPORT})
    assert file_fork.messages[2].media == [REPORT]


async def test_answer_of_the_model_can_have_files_and_citations() -> None:
    citation = Citation(url="https://example.org", title="Cats", text="A cat.", start=0, end=5)
    log = MemoryEventLog()
    model = ScriptedModel(turn("A cat.", files=[CHART], citations=[citation]), "Yes.")
    agent = Agent(model, log=log)
    result = await agent.run("Draw a cat.", context_id="c")
    assert result.content == result.output == "A cat."
    assert result.files == [CHART]
    assert result.citations == [citation]
    assert result.messages[1].content == [TextPart(text="A cat."), CHART]
    replayed = await replay(log, result.task_id).result()
    assert (replayed.files, replayed.citations) == ([CHART], [citation])
    assert replayed.messages == result.messages
    assert "\\x89" not in repr(result)
    await agent.run("A real one?", context_id="c")
    assert model.requests[1].messages[1].media == [CHART]
    assert "example.org" not in model.requests[1].messages[1].model_dump_json()


async def test_files_without_text_are_a_valid_answer() -> None:
    result = await Agent(ScriptedModel(turn(files=[CHART]))).run("Draw a cat.")
    assert (result.content, result.files) == ("", [CHART])
    assert result.messages[1] == Message.assistant([CHART])


async def test_files_of_earlier_messages_are_not_part_of_the_result() -> None:
    model = ScriptedModel(turn("I drew.", calls=[call("look")], files=[REPORT]), "Done.")
    result = await Agent(model, tools=[look]).run("Draw.")
    assert not result.files
    assert result.messages[1].media == [REPORT]


async def test_file_of_a_message_with_a_hidden_call_is_public() -> None:
    @tool(hidden=True)
    async def secret() -> str:
        return "x"

    model = ScriptedModel(turn(files=[CHART], calls=[call("secret")]), "Done.")
    run = Agent(model, tools=[secret]).run("Draw.")
    public_events = [event async for event in run.pipe(op.public())]
    [first, _] = [event for event in public_events if isinstance(event, ContentCompleteEvent)]
    assert (first.files, first.tool_calls) == ([CHART], [])


async def test_agent_tool_returns_the_files_of_its_agent() -> None:
    painter = Agent(ScriptedModel(turn("A cat.", files=[CHART])), name="painter")
    model = ScriptedModel(call("painter", prompt="A cat."), "There.")
    result = await Agent(model, tools=[painter.as_tool()]).run("Draw a cat.")
    assert result.messages[2].content == [TextPart(text=f"A cat.\n{PLACEHOLDER}"), CHART]
