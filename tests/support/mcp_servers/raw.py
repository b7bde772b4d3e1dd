"""MCP server that sends scripted results over stdio or HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

OLD, NEW = "2025-11-25", "2026-07-28"
TOOL: dict[str, Any] = {"name": "fine", "inputSchema": {"type": "object"}}
CACHE = {"ttlMs": 0, "cacheScope": "private"}


def script(
    *tools: Any,
    version: str = OLD,
    result: Any = None,
    pages: dict[str, Any] | None = None,
    string_ids: bool = False,
    **fields: Any,
) -> dict[str, Any]:
    """Return the configuration of a server. A list of results has one for each call."""
    done = {"content": [{"type": "text", "text": "done"}]}
    return {
        "version": version,
        "pages": {"": {"tools": list(tools), **fields}} if pages is None else pages,
        "result": done if result is None else result,
        "string_ids": string_ids,
    }


def program(config: dict[str, Any]) -> list[str]:
    """Return the command line of a stdio server."""
    return [sys.executable, str(Path(__file__)), json.dumps(config)]


def respond(config: dict[str, Any], message: dict[str, Any]) -> dict[str, Any] | None:
    """Create a response, or return None for a notification."""
    if "id" not in message or "method" not in message:
        return None
    version = config["version"]
    more = {"resultType": "complete"} if version == NEW else {}
    known = {"capabilities": {"tools": {}}, "serverInfo": {"name": "raw", "version": "1"}}
    match message["method"]:
        case "server/discover" if version == NEW:
            result: Any = {**known, **CACHE, **more, "supportedVersions": [NEW]}
        case "initialize" if version == OLD:
            result = {**known, "protocolVersion": OLD}
        case "tools/list":
            result = config["pages"][(message.get("params") or {}).get("cursor", "")]
            if "error" in result:
                return {"jsonrpc": "2.0", "id": message["id"], "error": result["error"]}
            result = {**(CACHE if version == NEW else {}), **more, **result}
        case "tools/call":
            config["calls"] = config.get("calls", 0) + 1
            scripted = config["result"]
            result = {**more, **(scripted.pop(0) if isinstance(scripted, list) else scripted)}
        case _:
            return {"jsonrpc": "2.0", "id": message["id"], "error": {"code": -32601, "message": "unknown"}}
    known_id = str(message["id"]) if config["string_ids"] else message["id"]
    return {"jsonrpc": "2.0", "id": known_id, "result": result}


async def _handle_connection(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, config: dict[str, Any]
) -> None:
    with contextlib.closing(writer), contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
            length = re.search(r"content-length: (\d+)", head)
            body = await reader.readexactly(int(length[1]) if length else 0)
            answer = respond(config, json.loads(body)) if body else None
            sent = b"" if answer is None else json.dumps(answer).encode()
            status = "200 OK" if answer is not None else "202 Accepted" if body else "405 No"
            kind = "content-type: application/json\r\n" if answer is not None else ""
            writer.write(f"HTTP/1.1 {status}\r\n{kind}content-length: {len(sent)}\r\n\r\n".encode() + sent)
            await writer.drain()


@asynccontextmanager
async def serve_http(config: dict[str, Any]) -> AsyncGenerator[str]:
    """Serve over HTTP and yield the URL."""
    # The script runs without this package.
    from support.tcp_server import serve_connections

    async with serve_connections(partial(_handle_connection, config=config)) as port:
        yield f"http://127.0.0.1:{port}/mcp"


if __name__ == "__main__":
    for line in sys.stdin:
        answer = respond(json.loads(sys.argv[1]), json.loads(line))
        if answer is not None:
            sys.stdout.write(json.dumps(answer) + "\n")
            sys.stdout.flush()
