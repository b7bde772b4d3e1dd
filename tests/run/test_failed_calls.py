"""Failed tool calls with values and parts."""

from collections.abc import Iterator, Sequence
from typing import Any

import orjson
import pytest

from rxloop import (
    Agent,
    FilePart,
    ImagePart,
    MemoryEventLog,
    RunContext,
    TextPart,
    ToolCompleteEvent,
    ToolError,
    ToolResult,
    from_json,
    op,
    tool,
)
from rxloop.testing import ScriptedModel, call

CHART = ImagePart(data=b"\x89PNG" * 1_000, media_type="image/png")
SOUND = FilePart(data=b"RIFF", media_type="audio/wav")
PLACEHOLDER = "[image/png, 4.0 kB]"
VALUE = {"code": "sold_out", "left": 0}
JSON = '{"code":"sold_out","left":0}'


def make_failing_tool(error: Exception) -> Any:
    @tool
    async def buy() -> None:
        raise error

    return buy


CASES: dict[str, tuple[Any, Any, str, str, Sequence[Any]]] = {
    "text": (ToolError("no"), None, "no", "no", []),
    "value": (ToolError("no", value=VALUE), VALUE, "no", f"no\n{JSON}", []),
    "false": (ToolError("no", value=False), False, "no", "no\nfalse", []),
    "value alone": (ToolError(value=VALUE), VALUE, "", JSON, []),
    "value in the text": (ToolError(f"no: {JSON}", value=VALUE), VALUE, f"no: {JSON}", f"no: {JSON}", []),
    "text is the value": (
        ToolError(orjson.dumps(VALUE, option=orjson.OPT_INDENT_2).decode(), value=VALUE),
        VALUE,
        orjson.dumps(VALUE, option=orjson.OPT_INDENT_2).decode(),
        orjson.dumps(VALUE, option=orjson.OPT_INDENT_2).decode(),
        [],
    ),
    "parts": (
        ToolError("no", parts=[CHART, SOUND]),
        None,
        "no",
        f"no\n{PLACEHOLDER}\n[audio/wav, 4 bytes]",
        [CHART, SOUND],
    ),
    "value and parts": (
        ToolError("no", value=VALUE, parts=[CHART]),
        VALUE,
        "no",
        f"no\n{JSON}\n{PLACEHOLDER}",
        [CHART],
    ),
    "result": (
        ToolError("no", value=ToolResult(VALUE, "Sold out.", parts=[CHART])),
        VALUE,
        "no",
        f"no\nSold out.\n{PLACEHOLDER}",
        [CHART],
    ),
}


@pytest.mark.parametrize(("error", "value", "message", "content", "parts"), CASES.values(), ids=CASES)
async def test_tool_error_carries_value_and_parts(  # P6
    error: ToolError, value: Any, message: str, content: str, parts: Sequence[Any]
) -> None:
    log = MemoryEventLog()
    model = ScriptedModel(call("buy"), "Sorry.")
    agent = Agent(model, tools=[make_failing_tool(error)], log=log)
    run = agent.run("Buy.")
    [event] = [event async for event in run.events if isinstance(event, ToolCompleteEvent)]
    result = await run
    assert not event.success
    assert (event.result, event.error, event.content) == (value, message, content)
    assert event.parts == parts
    sent = model.requests[1].messages[-1]
    assert (sent.text, sent.media) == (content, parts)
    if parts:
        assert sent.content == [TextPart(text=content), *parts]
    assert result.messages[:-1] == [*model.requests[1].messages]
    later = ScriptedModel("Still sold out.")
    await Agent(later, log=log).run("And now?", context_id=result.context_id)
    assert sent.text in [message.text for message in later.requests[0].messages]
    assert [part for message in later.requests[0].messages for part in message.media] == parts


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ToolError("no", value=object()), "cannot be written as JSON"),
        (ToolError("no", parts=[CHART] * 200), "more than 100 images and files"),
        (ToolError("no", parts=["text"]), "is not an image or a file"),
    ],
)
async def test_invalid_value_or_parts_do_not_hide_the_message_of_a_tool_error(  # P6
    error: ToolError, reason: str
) -> None:
    model = ScriptedModel(call("buy"), "Sorry.")
    await Agent(model, tools=[make_failing_tool(error)]).run("Buy.")
    text = model.requests[1].messages[-1].text
    assert text.startswith("no\n[The value or the parts of this failure are left out:")
    assert reason in text


class CodeError(ToolError):
    def __init__(self, code: Any) -> None:
        super().__init__(str(code))
        # Subclasses of a program may use the name for another value.
        self.code = code  # pyright: ignore[reportAttributeAccessIssue]


def yield_then_fail() -> Iterator[int]:
    yield 1
    raise OSError("disk")


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (CodeError(7), "7"),
        (ToolError("no", parts=None), "no"),
        (ToolError("no", parts=5), "no\n[The value or the parts of this failure are left out: 'int' object"),  # pyright: ignore[reportArgumentType]
        (ToolError("no", value=yield_then_fail()), "no\n[The value or the parts of this failure are left out: disk]"),
    ],
)
async def test_malformed_tool_error_does_not_end_the_run(error: ToolError, text: str) -> None:  # P6
    model, log = ScriptedModel(call("buy"), "Sorry."), MemoryEventLog()
    result = await Agent(model, tools=[make_failing_tool(error)], log=log).run("Buy.")
    assert model.requests[1].messages[-1].text.startswith(text)
    [failed] = [each for each in await log.read(result.task_id) if isinstance(each, ToolCompleteEvent)]
    assert from_json(failed.to_json()) == failed


@pytest.mark.parametrize(
    ("code", "expected"),
    [("sold_out", "sold_out"), (7, "error"), ("", "error"), ("\ud800", "\ufffd"), ("x" * 65, "x" * 64)],
)
async def test_code_of_a_tool_error_is_a_short_text(code: Any, expected: str) -> None:
    run = Agent(ScriptedModel(call("buy"), "Sorry."), tools=[make_failing_tool(CodeError(code))]).run("Buy.")
    [failed] = [each async for each in run.pipe(op.of_type(ToolCompleteEvent))]
    assert failed.code == expected
    assert from_json(failed.to_json()) == failed


async def test_long_value_of_a_failure_is_truncated_but_its_message_is_kept() -> None:  # P6
    @tool(max_result=100)
    async def buy() -> str:
        raise ToolError("sold out " * 50, value={"log": "x" * 10_000})

    model = ScriptedModel(call("buy"), "Sorry.")
    await Agent(model, tools=[buy]).run("Buy.")
    text = model.requests[1].messages[-1].text
    assert text.startswith("sold out " * 50 + '\n{"log":"xxx')
    assert "characters of this result are left out" in text
    assert len(text) < 800


async def test_fork_can_replace_a_result_by_a_failure_with_value_and_parts() -> None:  # P6
    @tool
    async def buy() -> str:
        return "bought"

    log = MemoryEventLog()
    agent = Agent(ScriptedModel(call("buy"), "Bought."), tools=[buy], log=log)
    run = agent.run("Buy.")
    [completion] = [event async for event in run.events if isinstance(event, ToolCompleteEvent)]
    result = await run
    model = ScriptedModel("Sorry.")
    error = ToolError("no", value=VALUE, parts=[CHART])
    fork = Agent(model, tools=[buy], log=log).fork(result.task_id, at=completion.seq, results={"call_1": error})
    await fork
    sent = model.requests[0].messages[-1]
    assert (sent.text, sent.media) == (f"no\n{JSON}\n{PLACEHOLDER}", [CHART])


async def test_prompt_function_of_agent_tool_can_fail_with_value_and_parts() -> None:  # P6
    def prompt(ctx: RunContext[Any]) -> str:
        raise ToolError("no", value=VALUE, parts=[CHART])

    helper = Agent(ScriptedModel("done"), name="helper").as_tool(prompt=prompt)
    model = ScriptedModel(call("helper"), "Sorry.")
    await Agent(model, tools=[helper]).run("Buy.")
    sent = model.requests[1].messages[-1]
    assert (sent.text, sent.media) == (f"no\n{JSON}\n{PLACEHOLDER}", [CHART])


async def test_client_tool_can_fail_with_value_and_parts() -> None:  # P6
    from rxloop import client_tool

    async def fail_to_show(question: Any) -> Any:
        raise ToolError("no", value=VALUE, parts=[CHART])

    model = ScriptedModel(call("show"), "Sorry.")
    await Agent(model, tools=[client_tool("show")]).run("Show.", on_input=fail_to_show)
    sent = model.requests[1].messages[-1]
    assert (sent.text, sent.media) == (f"no\n{JSON}\n{PLACEHOLDER}", [CHART])
