"""Invalid answers of an MCP server, which must fail at most one call."""

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
from support.tcp_server import serve_connections

LIAR = str(Path(__file__).parents[2] / "support/mcp_servers/faulty.py")


async def call_liar(behaviour: str, *, env: dict[str, str] | None = None, **options: Any) -> Sequence[Event]:
    return await collect_events(
        [call("liar__tell")], mcp(sys.executable, LIAR, behaviour, name="liar", env=env), **options
    )


@pytest.mark.timeout(60)
async def test_slow_validation_of_a_result_does_not_block_other_runs() -> None:
    [result] = results(await call_liar("pattern"))
    assert not result.success
    assert "failed validation against the output schema of the tool: x must match" in result.content


@pytest.mark.timeout(60)
async def test_slow_validation_of_a_form_does_not_block_other_runs() -> None:
    [result] = results(await call_liar("form", on_input=lambda form: {}))
    assert result.content == "told"


async def test_call_timeout_excludes_the_time_a_user_takes_to_fill_in_a_form() -> None:  # P21
    async def person(question: Any) -> Any:
        await asyncio.sleep(1.5)
        return {"day": 3}

    server = mcp(sys.executable, LIAR, "ask", name="liar", timeout=1.0)
    [result] = results(await collect_events([call("liar__tell")], server, on_input=person))
    assert result.content == "accept"


async def test_excessive_progress_values_have_no_fraction(caplog: pytest.LogCaptureFixture) -> None:
    events = await call_liar("progress")
    assert [event.fraction for event in events if isinstance(event, ToolProgressEvent)] == [None, 0.0, None, 1.0]
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


async def test_tool_with_an_unsupported_schema_is_omitted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    [result] = results(await call_liar("number"))
    assert result.content == "told"
    assert "skipping the tool 'large'" in caplog.text


async def test_call_is_not_repeated_because_of_an_error_text(tmp_path: Path) -> None:
    [result] = results(await call_liar("session", env={"LIAR_EFFECTS": str(tmp_path / "effects")}))
    assert result.success is False
    assert (tmp_path / "effects").read_text() == "called\n"


async def test_malformed_result_is_an_error_without_secrets(caplog: pytest.LogCaptureFixture) -> None:
    [result] = results(await call_liar("shape", env={"LIAR_TOKEN": "planted-0451"}))
    assert "returned a malformed result: content" in result.content
    assert "planted-0451" not in result.content + caplog.text


async def test_invalid_bytes_on_stderr_are_ignored() -> None:
    [result] = results(await call_liar("bytes"))
    assert result.content == "told"


async def test_flood_of_progress_is_reduced() -> None:
    events = await call_liar("flood")
    assert results(events)[0].content == "told"
    assert 1_000 <= sum(isinstance(event, ToolProgressEvent) for event in events) < 1_100


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, behaviour: str) -> None:
    """Answer requests like an MCP server, with special results for calls."""
    with contextlib.closing(writer), contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
            length = re.search(r"content-length: (\d+)", head)
            body = await reader.readexactly(int(length[1]) if length else 0)
            message: dict[str, Any] = json.loads(body) if body else {}
            result: dict[str, Any] = {"tools": [{"name": "tell", "inputSchema": {"type": "object"}}]}
            status, encoding = "200 OK", ""
            match message.get("method"):
                case "initialize":
                    session = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}}
                    result = {**session, "serverInfo": {"name": "liar", "version": "1"}}
                case "tools/list":
                    pass
                case "tools/call":
                    content = (
                        "x" * (20_000_000 if behaviour == "large" else 40_000_000) if behaviour != "echo" else head
                    )
                    result = {"content": [{"type": "text", "text": content}]}
                case _:
                    status = "405 No"
            encoded = json.dumps({"jsonrpc": "2.0", "id": message.get("id"), "result": result}).encode()
            if behaviour == "compressed" and message.get("method") == "tools/call":
                encoded, encoding = gzip.compress(encoded, 1), "content-encoding: gzip\r\n"
            writer.write(
                f"HTTP/1.1 {status}\r\ncontent-type: application/json\r\n{encoding}"
                f"content-length: {len(encoded)}\r\n\r\n".encode()
            )
            writer.write(encoded)
            await writer.drain()


async def call_http_liar(behaviour: str, auth: Any = None) -> Sequence[Event]:
    async with serve_connections(partial(answer, behaviour=behaviour)) as port:
        url = f"http://127.0.0.1:{port}/mcp"
        return await collect_events([call("liar__tell")], mcp(url, name="liar", auth=auth))


async def test_size_of_an_http_answer_is_limited_also_when_compressed() -> None:
    assert results(await call_http_liar("large"))[0].success
    assert "the response is longer than 32000000 bytes" in results(await call_http_liar("too large"))[0].content
    assert not results(await call_http_liar("compressed"))[0].success


async def test_all_credential_headers_are_secret() -> None:
    events = await call_http_liar("echo", auth={"X-Customer": "planted-0451"})
    assert "x-customer: [redacted]" in results(events)[0].content
    assert not [event for event in events if b"planted-0451" in event.to_json()]


async def test_invalid_token_is_refused_without_revealing_it(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        events = await call_http_liar("echo", auth="planted-0451\n")
    [missing] = [event for event in events if isinstance(event, ToolsUnavailableEvent)]
    assert "such as a trailing line break" in missing.reason
    assert "planted-0451" not in missing.reason + caplog.text
