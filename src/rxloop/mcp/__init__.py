"""Sequential thinking as an MCP server, and transports. Agents as one: `server/mcp/`. The MCP client: `tools/mcp/`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from rxloop.errors import ConfigurationError

_PACKAGES = {"mcp", "mcp_types", "rich", "starlette", "uvicorn"}


def missing(error: ModuleNotFoundError) -> Exception:
    """The error to raise for a failed import: one that names the extra, or the same if another package is missing."""
    package = (error.name or "").partition(".")[0]
    if package not in _PACKAGES:
        return error
    package = package.removesuffix("_types")
    return ConfigurationError(f"the MCP server needs {package}, which is not installed: pip install 'rxloop[mcp]'")


Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]


def with_body(body: bytes, receive: Receive) -> Receive:
    """A request that is there already, and whatever comes after it."""
    waiting = [body]

    async def replay() -> Message:
        if waiting:
            return {"type": "http.request", "body": waiting.pop(), "more_body": False}
        return await receive()

    return replay
