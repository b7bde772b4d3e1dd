"""Cached tool list of a server."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from contextvars import Context
from typing import Any, cast

import mcp_types as types
import orjson
from mcp.shared.exceptions import MCPError
from pydantic import ValidationError

from rxloop.errors import RxloopError
from rxloop.pipeline.requests import ToolDefinition
from rxloop.protocol.json_data import replace_surrogates
from rxloop.support.json_limits import count_values
from rxloop.support.json_schema import find_schema_error
from rxloop.tools.mcp.calls import Connect, Link
from rxloop.tools.mcp.options import clean_name
from rxloop.tools.mcp.tool import MCPTool

log = logging.getLogger("rxloop")

_PAGES = 100

_MAX_TOOLS = 2_000

_SCHEMA = 100_000
"""Maximum number of bytes of a tool's schema."""

_VALUES = 5_000
"""Maximum number of JSON values of a tool's schema."""

_TOOLS_PER_STEP = 10
"""Maximum number of tools that are validated before other tasks of the event loop continue."""

_BYTES_PER_STEP = 20_000
"""Maximum number of bytes of schemas that are validated before other tasks of the event loop continue."""

_MAX_DESCRIPTION = 10_000
"""Maximum number of characters of a tool's description."""

_NAME = 64
"""Maximum tool name length supported by vendors."""

_TIME_LIMIT = 30.0
"""Listing timeout in seconds. Also the delay before another attempt."""

_MIN_INTERVAL = 0.1
"""Minimum number of seconds between two listings, regardless of change notifications."""

_TIMEOUT_MESSAGE = f"listing the tools timed out after {_TIME_LIMIT:g} s"


class Listing:
    """Tools of a connection."""

    def __init__(self, link: Link, connect: Connect) -> None:
        self._link = link
        self._connect = connect
        self._tools: tuple[MCPTool, ...] = ()
        self._until = 0.0
        """Time at which the cached tools expire."""
        self._listed = -_MIN_INTERVAL
        self._retry_at = 0.0
        """Earliest retry time after a timeout."""
        self._pending: asyncio.Task[tuple[MCPTool, ...]] | None = None
        self._warned: set[str] = set()

    def now(self) -> tuple[MCPTool, ...] | None:
        """Return the cached tools, or None if they have expired or are being listed."""
        is_known = self._pending is None and asyncio.get_running_loop().time() < self._until
        return self._tools if is_known else None

    async def tools(self) -> tuple[MCPTool, ...]:
        """Return the tools, and list them if necessary. Concurrent calls share one listing.

        Raises:
            ConnectionError: If the connection is closed.
            RxloopError: If the server returned an error or did not respond.
        """
        known = self.now()
        if known is not None:
            return known
        if self._retry_at > asyncio.get_running_loop().time():
            raise RxloopError(_TIMEOUT_MESSAGE)
        if self._pending is None:
            # Use an empty context, because the task is shared across runs.
            self._pending = asyncio.get_running_loop().create_task(self._list(), context=Context())
            self._pending.add_done_callback(self._finish_listing)
        return await asyncio.shield(self._pending)

    def expire(self) -> None:
        """Expire the cached tools."""
        self._until = 0.0

    def close(self) -> None:
        """Cancel a pending listing."""
        if self._pending is not None:
            self._pending.cancel()

    def _finish_listing(self, task: asyncio.Task[tuple[MCPTool, ...]]) -> None:
        self._pending = None
        if not task.cancelled():
            task.exception()

    async def _list(self) -> tuple[MCPTool, ...]:
        loop = asyncio.get_running_loop()
        await asyncio.sleep(max(0.0, self._listed + _MIN_INTERVAL - loop.time()))
        # Set the expiry before sending the request, so that concurrent changes still invalidate the list.
        self._until = loop.time() + self._link.options.ttl
        try:
            async with asyncio.timeout(_TIME_LIMIT):
                listed = await self._all()
        except TimeoutError:
            self._until, self._retry_at = 0.0, loop.time() + _TIME_LIMIT
            raise RxloopError(_TIMEOUT_MESSAGE) from None
        except MCPError as error:
            self._until = 0.0
            if self._link.closed or _is_closed(error):
                raise ConnectionError("the server closed the connection") from None
            raise RxloopError(self._link.redact(f"listing the tools failed: {error}")) from None
        except ValidationError as error:
            self._until = 0.0
            raise RxloopError(self._link.redact(f"listing the tools failed: {_summarize_error(error)}")) from None
        except BaseException:
            self._until = 0.0
            raise
        self._listed = loop.time()
        self._tools = await self._make_tools(listed)
        return self._tools

    async def _all(self) -> list[types.Tool]:
        session = self._link.client.session
        capabilities = self._link.client.server_capabilities
        if capabilities.tools is None:
            return []
        tools: list[types.Tool] = []
        cursors: set[str] = set()
        params: types.PaginatedRequestParams | None = None
        for _ in range(_PAGES):
            try:
                page = await session.list_tools(params=params)
            except (MCPError, ValidationError) as error:
                if params is None or self._link.closed or _is_closed(error):
                    raise
                # Schedule an early refresh, because the failure may be temporary.
                self._until = min(self._until, asyncio.get_running_loop().time() + _TIME_LIMIT)
                self.warn(f"skipping the tools after the first {len(tools)}: {_summarize_error(error)}")
                return tools
            tools += page.tools
            if len(tools) > _MAX_TOOLS:
                break
            # Some servers use an empty cursor for the last page.
            if not page.next_cursor:
                return tools
            if page.next_cursor in cursors:
                self.warn(f"skipping the tools after the first {len(tools)}: the server repeats a page")
                return tools
            cursors.add(page.next_cursor)
            params = types.PaginatedRequestParams(cursor=page.next_cursor)
        self.warn(f"using only the first {_MAX_TOOLS} tools of the server")
        return tools[:_MAX_TOOLS]

    async def _make_tools(self, listed: list[types.Tool]) -> tuple[MCPTool, ...]:
        options = self._link.options
        tools_by_name: dict[str, MCPTool] = {}
        count = size = 0
        for each in listed:
            if count >= _TOOLS_PER_STEP or size >= _BYTES_PER_STEP:
                await asyncio.sleep(0)
                count = size = 0
            count += 1
            if each.name in options.hide or (options.only is not None and each.name not in options.only):
                continue
            name = tool_name(options.prefix, each.name)
            if not each.name.strip():
                self._skip(each, "the name is empty")
            elif name in tools_by_name:
                self._skip(each, f"another tool is named {name!r}")
            else:
                data = _encode_schema(each.input_schema)
                size += len(data or b"")
                reason = _find_schema_problem(each.input_schema, data)
                if reason is not None:
                    self._skip(each, reason)
                    continue
                output = _encode_schema(each.output_schema)
                size += len(output or b"")
                tools_by_name[name] = self._make_tool(name, each, output)
        if options.only is not None and (absent := options.only - {each.name for each in listed}):
            self.warn(f"the server has no {', '.join(sorted(absent))}")
        return tuple(tools_by_name.values())

    def _make_tool(self, name: str, listed: types.Tool, output_data: bytes | None) -> MCPTool:
        schema, output = listed.input_schema, listed.output_schema
        is_usable = output_data is not None and _find_size_problem(output_data) is None
        description = self._link.redact(replace_surrogates(listed.description or listed.title or ""), _MAX_DESCRIPTION)
        return MCPTool(
            self._connect,
            self._link.options,
            listed.name,
            ToolDefinition(name=name, description=description, parameters=schema),
            listed.annotations or types.ToolAnnotations(),
            output if output is not None and is_usable and find_schema_error(output) is None else None,
        )

    def _skip(self, tool: types.Tool, reason: str) -> None:
        self.warn(f"skipping the tool {tool.name[:100]!r}: {reason}")

    def warn(self, text: str) -> None:
        """Log a warning about the server once."""
        text = self._link.redact(replace_surrogates(f"mcp {self._link.name}: {text}"))
        if text not in self._warned and len(self._warned) < _MAX_TOOLS:
            self._warned.add(text)
            log.warning("%s", text)


def _is_closed(error: MCPError | ValidationError) -> bool:
    return isinstance(error, MCPError) and error.code == types.CONNECTION_CLOSED


def _summarize_error(error: MCPError | ValidationError) -> str:
    if isinstance(error, MCPError):
        return str(error)
    problem = error.errors(include_url=False, include_context=False, include_input=False)[0]
    return f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}"


def _encode_schema(schema: dict[str, Any] | None) -> bytes | None:
    """Return a schema as JSON. Return None if there is none, or if it cannot be encoded."""
    try:
        return None if schema is None else orjson.dumps(schema)
    except TypeError:
        return None


def _find_size_problem(data: bytes) -> str | None:
    if len(data) > _SCHEMA:
        return f"its schema is longer than {_SCHEMA} bytes"
    return f"its schema has more than {_VALUES} values" if count_values(data, _VALUES) > _VALUES else None


def _find_schema_problem(schema: dict[str, Any], data: bytes | None) -> str | None:
    """Return the validation problem of a tool schema, or None for valid schemas.

    Args:
        schema: The schema.
        data: The schema as JSON. None if it cannot be encoded.
    """
    if data is None:
        return "its schema cannot be written as JSON"
    if size_problem := _find_size_problem(data):
        return size_problem
    # Many servers send null for unused keywords. The newest protocol only validates the type.
    for keyword in ("properties", "$defs", "definitions"):
        named = schema.get(keyword)
        if named is not None and not isinstance(named, dict):
            return f"{keyword} of its schema must be an object"
        for name, part in cast("dict[str, Any]", named or {}).items():
            if not isinstance(part, dict | bool):
                return f"{keyword}.{name[:100]} of its schema must be a JSON Schema"
    required: Any = schema.get("required")
    if required is None:
        required = []
    if not isinstance(required, list) or not all(isinstance(name, str) for name in cast("list[Any]", required)):
        return "required of its schema must be a list of names"
    return None


def tool_name(prefix: str, name: str) -> str:
    """Return the name of a tool for the model. Replaces characters and shortens names that vendors do not accept."""
    full_name = clean_name(f"{prefix}{name}") or "tool"
    if len(full_name) <= _NAME:
        return full_name
    return f"{full_name[: _NAME - 9]}_{hashlib.sha256(name.encode()).hexdigest()[:8]}"
