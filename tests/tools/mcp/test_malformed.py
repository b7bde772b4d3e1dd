"""MCP servers with malformed tools, pages and content blocks."""

import logging
from collections.abc import Sequence
from typing import Any

import mcp_types as types
import pytest

from rxloop import Agent, Limits
from rxloop.protocol.events import Event, ToolCompleteEvent, ToolsUnavailableEvent
from rxloop.providers.codecs.schemas import adapt_schema
from rxloop.providers.codecs.schemas.dialects import GEMINI
from rxloop.testing import ScriptedModel, call
from rxloop.tools.mcp import mcp
from rxloop.tools.mcp import repair as _repair
from rxloop.tools.mcp.repair import ResultRepair
from support.mcp_servers.raw import NEW, OLD, TOOL, program, script, serve_http
from support.mcp_servers.runs import results

BAD = {**TOOL, "name": "bad"}

MALFORMED: dict[str, Any] = {
    "null schema": {**BAD, "inputSchema": None},
    "missing schema": {"name": "bad"},
    "schema is true": {**BAD, "inputSchema": True},
    "schema is a list": {**BAD, "inputSchema": []},
    "schema is a string": {**BAD, "inputSchema": "object"},
    "schema of another type": {**BAD, "inputSchema": {"type": "string"}},
    "schema without a type": {**BAD, "inputSchema": {"properties": {}}},
    "schema with $schema that is no string": {**BAD, "inputSchema": {"type": "object", "$schema": 5}},
    "output schema is true": {**BAD, "outputSchema": True},
    "output schema is a list": {**BAD, "outputSchema": []},
    "no name": {"inputSchema": {"type": "object"}},
    "null name": {**BAD, "name": None},
    "name is a number": {**BAD, "name": 7},
    "empty name": {**BAD, "name": ""},
    "blank name": {**BAD, "name": " "},
    "same name": TOOL,
    "description is a list": {**BAD, "description": ["a"]},
    "description is a number": {**BAD, "description": 7},
    "title is an object": {**BAD, "title": {}},
    "annotations are a list": {**BAD, "annotations": []},
    "annotations are malformed": {**BAD, "annotations": {"readOnlyHint": "perhaps"}},
    "icons are an object": {**BAD, "icons": {}},
    "icon without a source": {**BAD, "icons": [{"sizes": ["48x48"]}]},
    "_meta is a list": {**BAD, "_meta": []},
    "properties are a list": {**BAD, "inputSchema": {"type": "object", "properties": []}},
    "property is null": {**BAD, "inputSchema": {"type": "object", "properties": {"x": None}}},
    "property is a string": {**BAD, "inputSchema": {"type": "object", "properties": {"x": "string"}}},
    "definitions are a list": {**BAD, "inputSchema": {"type": "object", "$defs": []}},
    "required is a string": {**BAD, "inputSchema": {"type": "object", "required": "x"}},
    "required is a list of numbers": {**BAD, "inputSchema": {"type": "object", "required": [1]}},
    "null": None,
    "string": "bad",
    "number": 5,
    "list": [TOOL],
}
OLD_ONLY: dict[str, Any] = {
    "output schema without a type": {**BAD, "outputSchema": {"properties": {}}},
    "output schema of another type": {**BAD, "outputSchema": {"type": "string"}},
    "execution is a string": {**BAD, "execution": "x"},
}
CASES = [
    *((version, name, MALFORMED[name]) for name in MALFORMED for version in (OLD, NEW)),
    *((OLD, name, OLD_ONLY[name]) for name in OLD_ONLY),
]


async def run_agent(config: dict[str, Any], *, by_http: bool = True) -> tuple[list[str], Sequence[Event]]:
    """Run an agent that calls `fine`, and return the offered tools and all events."""

    async def run(*address: str) -> tuple[list[str], Sequence[Event]]:
        model = ScriptedModel(call("raw__fine"), "done")
        async with Agent(model, tools=[mcp(*address, name="raw")], thoughts=False) as agent:
            run = agent.run("Go.", limits=Limits(tool_failures=None))
            events = [event async for event in run.events]
            await run
        return [each.name for each in model.requests[0].tools], events

    if not by_http:
        return await run(*program(config))
    async with serve_http(config) as url:
        return await run(url)


@pytest.mark.parametrize(("version", "name", "tool"), CASES, ids=[f"{name} {version}" for version, name, _ in CASES])
async def test_malformed_tool_is_omitted(  # P5
    version: str, name: str, tool: Any, caplog: pytest.LogCaptureFixture
) -> None:
    second = {**TOOL, "name": "second"}
    names, events = await run_agent(script(TOOL, tool, second, version=version))
    assert names == ["raw__fine", "raw__second"]
    assert [result.content for result in results(events)] == ["done"]
    [warning] = [record.message for record in caplog.records if "skipping" in record.message]
    assert "mcp raw" in warning
    label = tool.get("name") if isinstance(tool, dict) else None
    assert (repr(label) if isinstance(label, str) else "number 2") in warning
    assert not [event for event in events if isinstance(event, ToolsUnavailableEvent)]


@pytest.mark.parametrize("version", [OLD, NEW])
async def test_malformed_tool_is_omitted_over_stdio(version: str, caplog: pytest.LogCaptureFixture) -> None:  # P5
    config = script(
        *(MALFORMED[name] for name in ("null schema", "null", "icons are an object")), TOOL, version=version
    )
    names, events = await run_agent(config, by_http=False)
    assert names == ["raw__fine"]
    assert results(events)[0].success
    assert sum("skipping" in record.message for record in caplog.records) == 3


async def test_newest_protocol_accepts_an_output_schema_without_a_type() -> None:  # P5
    names, _ = await run_agent(script({**BAD, "outputSchema": {"properties": {}}}, TOOL, version=NEW))
    assert names == ["raw__bad", "raw__fine"]


async def test_number_of_checked_items_is_limited(  # P5
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("rxloop.tools.mcp.repair._MAX_ITEMS", 5)
    tools = [{**TOOL, "name": f"t{number}"} for number in range(10)]
    content = [None, *({"type": "text", "text": "x"} for _ in range(10))]
    names, events = await run_agent(script(TOOL, None, *tools, result={"content": content}))
    assert names == ["raw__fine", "raw__t0", "raw__t1", "raw__t2"]
    assert "skipping the tools after the first 5 of a page" in caplog.text
    assert (results(events)[0].content or "").endswith("the blocks after the first 5 of this result are left out]")


async def test_long_name_is_shortened() -> None:  # P5
    names, _ = await run_agent(script({**TOOL, "name": "x" * 200}, TOOL))
    assert len(names[0]) == 64
    assert names[1] == "raw__fine"


PAGES: dict[str, Any] = {
    "cursor is a number": {"nextCursor": 5},
    "cursor is an object": {"nextCursor": {}},
    "cursor is empty": {"nextCursor": ""},
    "_meta is a list": {"_meta": []},
}


@pytest.mark.parametrize("version", [OLD, NEW])
@pytest.mark.parametrize("fields", PAGES.values(), ids=PAGES)
async def test_malformed_page_fields_do_not_hide_its_tools(version: str, fields: dict[str, Any]) -> None:  # P5
    names, _ = await run_agent(script(TOOL, None, version=version, **fields))
    assert names == ["raw__fine"]


async def test_invalid_cache_hints_do_not_hide_the_tools() -> None:  # P5
    names, _ = await run_agent(script(TOOL, version=NEW, ttlMs="soon", cacheScope=None, resultType=None))
    assert names == ["raw__fine"]


BROKEN: dict[str, Any] = {
    "error": {"error": {"code": -32602, "message": "invalid cursor"}},
    "no list": {"tools": None},
    "repeated": {"tools": [{**TOOL, "name": "second"}], "nextCursor": "2"},
}


@pytest.mark.parametrize("page", BROKEN.values(), ids=BROKEN)
async def test_broken_page_does_not_hide_earlier_pages(  # P5
    page: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    names, events = await run_agent(script(pages={"": {"tools": [TOOL], "nextCursor": "2"}, "2": page}))
    assert names[0] == "raw__fine"
    assert len(names) == len(set(names))
    assert results(events)[0].success
    assert "mcp raw: skipping the tools after the first" in caplog.text


async def test_invalid_first_page_is_reported_with_the_field(caplog: pytest.LogCaptureFixture) -> None:  # P5
    _, events = await run_agent(script(pages={"": {"tools": 5}}))
    [missing] = [event for event in events if isinstance(event, ToolsUnavailableEvent)]
    assert "listing the tools failed: tools: Input should be a valid list" in missing.reason


PICTURE = {"type": "image", "data": "iVBORw0=", "mimeType": "image/png"}
BLOCKS: dict[str, Any] = {
    "null": None,
    "unknown type": {"type": "hologram", "text": "x"},
    "text without text": {"type": "text"},
    "text is a number": {"type": "text", "text": 5},
    "image without data": {"type": "image", "mimeType": "image/png"},
    "image without a type": {"type": "image", "data": "AAAA"},
    "resource without an address": {"type": "resource", "resource": {"text": "x"}},
    "annotations": {"type": "text", "text": "x", "annotations": {"priority": 5}},
    "_meta": {"type": "text", "text": "x", "_meta": 5},
}


@pytest.mark.parametrize("version", [OLD, NEW])
@pytest.mark.parametrize("block", BLOCKS.values(), ids=BLOCKS)
async def test_malformed_content_block_is_omitted(  # P5
    version: str, block: Any, caplog: pytest.LogCaptureFixture
) -> None:
    result = await call_result([{"type": "text", "text": "order 17 placed"}, block, PICTURE], version)
    assert result.success
    assert result.content is not None
    assert "order 17 placed\n[block 2" in result.content
    assert "of this result is malformed and is left out]" in result.content
    assert len(result.parts) == 1
    assert "mcp raw: block 2" in caplog.text


async def test_block_without_a_type_is_omitted_in_the_old_protocol() -> None:  # P5
    result = await call_result([{"type": "text", "text": "placed"}, {"text": "x"}])
    assert (result.content or "").startswith("placed\n[block 2 of this result is malformed")


async def test_invalid_error_flag_fails_the_call() -> None:  # P5
    result = await call_result([{"type": "text", "text": "placed"}], isError=[])
    assert not result.success
    assert "isError" in (result.error or "")


async def call_result(content: Any, version: str = OLD, **fields: Any) -> ToolCompleteEvent:
    _, events = await run_agent(script(TOOL, version=version, result={"content": content, **fields}))
    [result] = results(events)
    return result


@pytest.mark.parametrize("version", [OLD, NEW])
async def test_structured_content_alone_is_a_result(version: str) -> None:  # P5
    for missing in ({}, {"content": None}):
        _, events = await run_agent(script(TOOL, version=version, result={**missing, "structuredContent": {"n": 1}}))
        [result] = results(events)
        assert result.success is True
        assert result.result == {"n": 1}
        assert result.content == '{"n":1}'


async def test_structured_content_that_is_not_an_object_keeps_the_text() -> None:  # P5
    result = await call_result([{"type": "text", "text": "order 17 placed"}], structuredContent=[1])
    assert result.success
    assert "order 17 placed" in (result.content or "")
    assert "the structured content of this result is not an object]\n[1]" in (result.content or "")


async def test_malformed_metadata_of_a_result_is_ignored(caplog: pytest.LogCaptureFixture) -> None:  # P5
    caplog.set_level(logging.WARNING)
    result = await call_result([{"type": "text", "text": "placed"}], _meta=[], isError=None)
    assert result.success is True
    assert result.content == "placed"
    assert "ignoring malformed _meta in a result of tools/call" in caplog.text


@pytest.mark.parametrize("version", [OLD, NEW])
@pytest.mark.parametrize(
    ("content", "structured", "expected_text", "value", "parts"),
    [
        ([], {"code": 7}, 'says that the call failed:\n{"code":7}', {"code": 7}, 0),
        ([{"type": "text", "text": "no"}], {"code": 7}, 'no\n{"code":7}', {"code": 7}, 0),
        ([{"type": "text", "text": '{\n "code": 7\n}'}], {"code": 7}, '{\n "code": 7\n}', {"code": 7}, 0),
        ([{"type": "text", "text": "no"}], None, "no", "no", 0),
        ([{"type": "text", "text": "no"}, PICTURE], None, "no\n[image/png, 5 bytes]", None, 1),
        ([PICTURE], {"code": 7}, '[image/png, 5 bytes]\n{"code":7}', {"code": 7}, 1),
        ([{"type": "audio", "data": "UklGRg==", "mimeType": "audio/wav"}], None, "[audio/wav, 4 bytes]", None, 1),
        (
            [{"type": "resource", "resource": {"uri": "file:///log", "mimeType": "text/x-log", "blob": "AAAA"}}],
            None,
            "[file:///log, text/x-log, 3 bytes]",
            None,
            1,
        ),
        ([], None, "The MCP server raw says that the call failed.", None, 0),
    ],
)
async def test_failed_call_keeps_its_content(  # P6
    version: str, content: Any, structured: Any, expected_text: str, value: Any, parts: int
) -> None:
    more = {} if structured is None else {"structuredContent": structured}
    result = await call_result(content, version, isError=True, **more)
    assert not result.success
    assert (result.content or "").endswith(expected_text)
    assert len(result.parts) == parts
    if value is not None:
        assert result.result == value


ORDER = {
    **TOOL,
    "annotations": {"readOnlyHint": True},
    "outputSchema": {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]},
}


@pytest.mark.parametrize("version", [OLD, NEW])
@pytest.mark.parametrize(
    ("structured", "violation"),
    [({"n": "x"}, "n must be"), ({}, "the value must have 'n'"), (None, "there is no structured content")],
)
async def test_result_that_violates_its_schema_is_returned_with_the_violation(  # P13
    version: str, structured: Any, violation: str
) -> None:
    more = {} if structured is None else {"structuredContent": structured}
    result = {"content": [{"type": "text", "text": "order 17 placed"}, PICTURE], **more}
    config = script(ORDER, version=version, result=result)
    _, events = await run_agent(config)
    [event] = results(events)
    assert not event.success
    assert event.content is not None
    assert "failed validation" in (event.error or "")
    assert violation in (event.error or "")
    assert "executed the call, so do not repeat it" in event.content
    assert "order 17 placed" in event.content
    assert len(event.parts) == 1
    if structured is not None:
        assert event.result == structured
    assert config["calls"] == 1


async def test_valid_result_and_failure_without_structured_content_pass_validation() -> None:  # P13
    done = {"content": [], "structuredContent": {"n": 1}}
    for result, success in ((done, True), ({"content": [{"type": "text", "text": "no"}], "isError": True}, False)):
        _, events = await run_agent(script(ORDER, result=result))
        [event] = results(events)
        assert event.success == success
        assert "validation" not in (event.content or "")


@pytest.mark.parametrize("version", [OLD, NEW])
@pytest.mark.parametrize("result", [{"content": 17}, {}, {"task": {"taskId": "1"}}, {"content": [], "isError": []}])
async def test_unreadable_result_reports_that_the_call_may_have_had_an_effect(  # P13
    version: str, result: Any
) -> None:
    _, events = await run_agent(script(TOOL, version=version, result=result))
    [event] = results(events)
    assert not event.success
    assert "The call may have taken effect." in (event.content or "")


@pytest.mark.parametrize("version", [OLD, NEW])
@pytest.mark.parametrize(
    "content", ["order 17 placed", {"type": "text", "text": "order 17 placed"}, ["order 17 placed"]]
)
@pytest.mark.parametrize("failed", [False, True])
async def test_content_that_is_a_string_or_a_single_block_is_read(
    version: str, content: Any, failed: bool
) -> None:  # P6 P13
    result = await call_result(content, version, isError=failed)
    assert result.success == (not failed)
    assert result.content == "order 17 placed"


@pytest.mark.parametrize("version", [OLD, NEW])
async def test_failure_without_content_or_with_a_list_is_read(version: str) -> None:  # P6
    config = script(TOOL, version=version, result={"isError": True})
    [result] = results((await run_agent(config))[1])
    assert result.content == "The MCP server raw says that the call failed."
    result = await call_result([], version, isError=True, structuredContent=["sold out"])
    assert not result.success
    assert '["sold out"]' in (result.content or "")


async def test_invalid_fields_of_the_newest_protocol_keep_the_result() -> None:  # P6
    result = await call_result(["placed", None], NEW, resultType=None, _meta=[], structuredContent={"n": 1})
    assert result.success is True
    assert result.result == {"n": 1}
    assert (result.content or "").startswith("placed\n[block 2")


async def test_deferred_call_is_awaited() -> None:  # P5
    done = {"content": [{"type": "text", "text": "placed"}]}
    config = script(TOOL, version=NEW, result=[{"resultType": "input_required", "requestState": "s"}, done])
    [result] = results((await run_agent(config))[1])
    assert result.content == "placed"
    assert config["calls"] == 2


@pytest.mark.parametrize("version", [OLD, NEW])
async def test_results_with_string_request_ids_are_repaired(version: str) -> None:  # P5
    config = script(TOOL, None, version=version, result={"content": [None]}, string_ids=True)
    names, events = await run_agent(config)
    assert names == ["raw__fine"]
    assert results(events)[0].success


def test_work_on_a_malformed_message_is_limited() -> None:  # P5
    validated: list[int] = []
    repair = ResultRepair()
    validate = _repair._errors  # pyright: ignore[reportPrivateUsage]

    def count_items(method: str, version: str, result: dict[str, Any]) -> list[Any]:
        validated.append(len(result.get("tools", result.get("content", ()))))
        return validate(method, version, result)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("rxloop.tools.mcp.repair._MAX_ITEMS", 50)
        patch.setattr("rxloop.tools.mcp.repair._errors", count_items)
        for method, name in (("tools/list", "tools"), ("tools/call", "content")):
            repair.record_request(types.JSONRPCRequest(jsonrpc="2.0", id=1, method=method))
            message = types.JSONRPCResponse(jsonrpc="2.0", id=1, result={name: [None] * 10_000})
            repair.repair_result(message, OLD, print)
            assert len(message.result[name]) <= 51
    assert sum(validated) < 500


@pytest.mark.parametrize("version", [OLD, NEW])
async def test_schema_with_null_properties_is_accepted(version: str) -> None:  # P5
    schema: dict[str, Any] = {"type": "object", "properties": None, "required": None}
    bad = {**BAD, "inputSchema": schema}
    names, _ = await run_agent(script(TOOL, bad, version=version))
    assert names == ["raw__fine", "raw__bad"]
    assert not adapt_schema(schema, GEMINI).schema.get("properties")
