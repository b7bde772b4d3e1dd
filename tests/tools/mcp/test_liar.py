"""Against a server that mis-speaks: what it may cost is one call."""

import asyncio
import contextlib
import gzip
import json
import logging
import re
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from rxloop.protocol.events import Event, ToolProgressEvent, ToolsUnavailableEvent
from rxloop.testing import call
from rxloop.tools.mcp import mcp
from support.mcp_servers.runs import collect_events, results

LIAR = str(Path(__file__).parents[2] / "support/mcp_servers/faulty.py")


async def told(how: str, *, env: dict[str, str] | None = None, **options: Any) -> Sequence[Event]:
    return await collect_events([call("liar__tell")], mcp(sys.executable, LIAR, how, name="liar", env=env), **options)


@pytest.mark.timeout(60)
async def test_a_result_that_takes_forever_to_check_does_not_hold_up_all_runs() -> None:
    [result] = results(await told("pattern"))
    assert not result.success
    assert "failed validation against the output schema of the tool: x must match" in result.content


@pytest.mark.timeout(60)
async def test_a_form_that_takes_forever_to_check_does_not_hold_up_all_runs() -> None:
    [result] = results(await told("form", on_input=lambda asked: {}))
    assert result.content == "told"


async def test_timeout_of_a_call_does_not_count_a_form_of_an_older_server() -> None:  # P21
    async def person(question: Any) -> Any:
        await asyncio.sleep(1.5)
        return {"day": 3}

    server = mcp(sys.executable, LIAR, "ask", name="liar", timeout=1.0)
    [result] = results(await collect_events([call("liar__tell")], server, on_input=person))
    assert result.content == "accept"


async def test_progress_beyond_all_measure_is_progress_without_a_part(caplog: pytest.LogCaptureFixture) -> None:
    events = await told("progress")
    assert [event.fraction for event in events if isinstance(event, ToolProgressEvent)] == [None, 0.0, None, 1.0]
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


async def test_a_tool_whose_schema_no_vendor_reads_is_left_out_and_the_others_stay(
    caplog: pytest.LogCaptureFixture,
) -> None:
    [result] = results(await told("number"))
    assert result.content == "told"
    assert "the tool 'large' is left out" in caplog.text


async def test_a_call_is_not_made_again_because_of_the_words_of_an_error(tmp_path: Path) -> None:
    [result] = results(await told("session", env={"LIAR_EFFECTS": str(tmp_path / "effects")}))
    assert (result.success, (tmp_path / "effects").read_text()) == (False, "called\n")


async def test_what_is_no_result_is_an_error_without_what_is_secret(caplog: pytest.LogCaptureFixture) -> None:
    [result] = results(await told("shape", env={"LIAR_TOKEN": "planted-0451"}))
    assert "returned a malformed result: content" in result.content
    assert "planted-0451" not in result.content + caplog.text


async def test_bytes_that_are_no_text_cost_nothing() -> None:
    # Not even the closing of the agent, which told of them.
    [result] = results(await told("bytes"))
    assert result.content == "told"


async def test_a_flood_of_progress_is_not_a_flood_of_events() -> None:
    events = await told("flood")
    assert results(events)[0].content == "told"
    assert 1_000 <= sum(isinstance(event, ToolProgressEvent) for event in events) < 1_100


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, how: str) -> None:
    """Speak HTTP as a server of tools does, but for the result of a call."""
    with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
            length = re.search(r"content-length: (\d+)", head)
            body = await reader.readexactly(int(length[1]) if length else 0)
            message: dict[str, Any] = json.loads(body) if body else {}
            result: dict[str, Any] = {"tools": [{"name": "tell", "inputSchema": {"type": "object"}}]}
            status, encoding = "200 OK", ""
            match message.get("method"):
                case "initialize":
                    known = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}}
                    result = {**known, "serverInfo": {"name": "liar", "version": "1"}}
                case "tools/list":
                    pass
                case "tools/call":
                    told = "x" * (20_000_000 if how == "large" else 40_000_000) if how != "echo" else head
                    result = {"content": [{"type": "text", "text": told}]}
                case _:
                    status = "405 No"
            sent = json.dumps({"jsonrpc": "2.0", "id": message.get("id"), "result": result}).encode()
            if how == "compressed" and message.get("method") == "tools/call":
                sent, encoding = gzip.compress(sent, 1), "content-encoding: gzip\r\n"
            writer.write(
                f"HTTP/1.1 {status}\r\ncontent-type: application/json\r\n{encoding}"
                f"content-length: {len(sent)}\r\n\r\n".encode()
            )
            writer.write(sent)
            await writer.drain()
    writer.close()


async def told_by_http(how: str, auth: Any = None) -> Sequence[Event]:
    server = await asyncio.start_server(partial(answer, how=how), "127.0.0.1", 0)
    async with server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/mcp"
        return await collect_events([call("liar__tell")], mcp(url, name="liar", auth=auth))


async def test_an_answer_by_http_has_a_bound_and_no_compression_goes_around_it() -> None:
    assert results(await told_by_http("large"))[0].success
    assert "it is longer than 32000000 bytes" in results(await told_by_http("too large"))[0].content
    assert not results(await told_by_http("compressed"))[0].success


async def test_headers_of_a_credential_are_secret_whatever_they_are_called() -> None:
    events = await told_by_http("echo", auth={"X-Customer": "planted-0451"})
    assert "x-customer: [redacted]" in results(events)[0].content
    assert not [event for event in events if b"planted-0451" in event.to_json()]


async def test_a_token_that_cannot_be_sent_is_refused_without_telling_it(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        events = await told_by_http("echo", auth="planted-0451\n")
    [missing] = [event for event in events if isinstance(event, ToolsUnavailableEvent)]
    assert "such as a line break at its end" in missing.reason
    assert "planted-0451" not in missing.reason + caplog.text
