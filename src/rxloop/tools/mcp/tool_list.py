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
from rxloop.support.json_schema import find_schema_error
from rxloop.tools.mcp.calls import Connect, Link
from rxloop.tools.mcp.options import clean
from rxloop.tools.mcp.tool import MCPTool

log = logging.getLogger("rxloop")

_PAGES = 100

_TOOLS = 2_000

_SCHEMA = 100_000
"""Bytes of the schema of one tool."""

_DESCRIPTION = 10_000
"""Characters of the description of one tool."""

_NAME = 64
"""Characters of a name that vendors take."""

_PATIENCE = 30.0
"""Seconds that a listing may take; one that takes longer is not tried again for as long."""

_GAP = 0.1
"""Seconds between two listings, however often the server says that something has changed."""

_SILENT = f"the server does not list its tools within {_PATIENCE:g} s"


class Listing:
    """The tools of one connection."""

    def __init__(self, link: Link, connect: Connect) -> None:
        self._link = link
        self._connect = connect
        self._tools: tuple[MCPTool, ...] = ()
        self._until = 0.0
        """Until when they are good."""
        self._listed = -_GAP
        self._again = 0.0
        """When a server that did not answer may be asked again."""
        self._flight: asyncio.Task[tuple[MCPTool, ...]] | None = None
        self._warned: set[str] = set()

    def now(self) -> tuple[MCPTool, ...] | None:
        """The tools, if they are known; None if they have to be listed, or are being listed now."""
        is_known = self._flight is None and asyncio.get_running_loop().time() < self._until
        return self._tools if is_known else None

    async def tools(self) -> tuple[MCPTool, ...]:
        """The tools, listed if they are not known; one listing for all who ask meanwhile.

        Raises:
            ConnectionError: The server is gone.
            RxloopError: It refused.
        """
        known = self.now()
        if known is not None:
            return known
        if self._again > asyncio.get_running_loop().time():
            raise RxloopError(_SILENT)
        if self._flight is None:
            # Nothing of the run that asks first: the others are not that run.
            self._flight = asyncio.get_running_loop().create_task(self._list(), context=Context())
            self._flight.add_done_callback(self._landed)
        return await asyncio.shield(self._flight)

    def changed(self) -> None:
        """The tools have changed: who asks next gets new ones."""
        self._until = 0.0

    def close(self) -> None:
        """Ask no more."""
        if self._flight is not None:
            self._flight.cancel()

    def _landed(self, flight: asyncio.Task[tuple[MCPTool, ...]]) -> None:
        self._flight = None
        if not flight.cancelled():
            flight.exception()

    async def _list(self) -> tuple[MCPTool, ...]:
        loop = asyncio.get_running_loop()
        await asyncio.sleep(max(0.0, self._listed + _GAP - loop.time()))
        # Before it asks: what changes while it does is another reason to ask.
        self._until = loop.time() + self._link.taken.ttl
        try:
            async with asyncio.timeout(_PATIENCE):
                listed = await self._all()
        except TimeoutError:
            self._until, self._again = 0.0, loop.time() + _PATIENCE
            raise RxloopError(_SILENT) from None
        except MCPError as error:
            self._until = 0.0
            if self._link.closed or _is_closed(error):
                raise ConnectionError("the server closed the connection") from None
            raise RxloopError(self._link.shown(f"the server does not list its tools: {error}")) from None
        except ValidationError as error:
            self._until = 0.0
            raise RxloopError(self._link.shown(f"the server does not list its tools: {_short(error)}")) from None
        except BaseException:
            self._until = 0.0
            raise
        self._listed = loop.time()
        self._tools = self._made(listed)
        return self._tools

    async def _all(self) -> list[types.Tool]:
        session = self._link.client.session
        capabilities = self._link.client.server_capabilities
        if capabilities.tools is None:
            return []
        found: list[types.Tool] = []
        cursors: set[str] = set()
        params: types.PaginatedRequestParams | None = None
        for _ in range(_PAGES):
            try:
                page = await session.list_tools(params=params)
            except (MCPError, ValidationError) as error:
                if params is None or self._link.closed or _is_closed(error):
                    raise
                # Asked again soon: the page may be readable then.
                self._until = min(self._until, asyncio.get_running_loop().time() + _PATIENCE)
                self.warn(f"the tools after the first {len(found)} are left out: {_short(error)}")
                return found
            found += page.tools
            if len(found) > _TOOLS:
                break
            # Some servers end with an empty cursor.
            if not page.next_cursor:
                return found
            if page.next_cursor in cursors:
                self.warn(f"the tools after the first {len(found)} are left out: the server repeats a page")
                return found
            cursors.add(page.next_cursor)
            params = types.PaginatedRequestParams(cursor=page.next_cursor)
        self.warn(f"only the first {_TOOLS} tools of the server are taken")
        return found[:_TOOLS]

    def _made(self, listed: list[types.Tool]) -> tuple[MCPTool, ...]:
        taken = self._link.taken
        made: dict[str, MCPTool] = {}
        for each in listed:
            if each.name in taken.hide or (taken.only is not None and each.name not in taken.only):
                continue
            name = tool_name(taken.prefix, each.name)
            if not each.name.strip():
                self._leave_out(each, "its name is empty")
            elif name in made:
                self._leave_out(each, f"another tool is called {name!r}")
            elif (why := _unfit(each.input_schema)) is not None:
                self._leave_out(each, why)
            else:
                made[name] = self._tool(name, each)
        if taken.only is not None and (absent := taken.only - {each.name for each in listed}):
            self.warn(f"the server has no {', '.join(sorted(absent))}")
        return tuple(made.values())

    def _tool(self, name: str, listed: types.Tool) -> MCPTool:
        schema, output = listed.input_schema, listed.output_schema
        description = self._link.shown(replace_surrogates(listed.description or listed.title or ""), _DESCRIPTION)
        return MCPTool(
            self._connect,
            self._link.taken,
            listed.name,
            ToolDefinition(name=name, description=description, parameters=schema),
            listed.annotations or types.ToolAnnotations(),
            None if output is None or find_schema_error(output) is not None else output,
        )

    def _leave_out(self, tool: types.Tool, why: str) -> None:
        self.warn(f"the tool {tool.name[:100]!r} is left out: {why}")

    def warn(self, text: str) -> None:
        """Log a warning about the server once."""
        text = self._link.shown(replace_surrogates(f"mcp {self._link.name}: {text}"))
        if text not in self._warned and len(self._warned) < _TOOLS:
            self._warned.add(text)
            log.warning("%s", text)


def _is_closed(error: MCPError | ValidationError) -> bool:
    return isinstance(error, MCPError) and error.code == types.CONNECTION_CLOSED


def _short(error: MCPError | ValidationError) -> str:
    if isinstance(error, MCPError):
        return str(error)
    problem = error.errors(include_url=False, include_context=False, include_input=False)[0]
    return f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}"


def _unfit(schema: dict[str, Any]) -> str | None:
    """Why a schema can be sent to no vendor."""
    # Many servers send null for a keyword that they do not use. The newest protocol checks only the type.
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
    try:
        size = len(orjson.dumps(schema))
    except TypeError as error:
        return f"its schema cannot be written as JSON: {error}"
    return f"its schema is longer than {_SCHEMA} bytes" if size > _SCHEMA else None


def tool_name(prefix: str, name: str) -> str:
    """The name of a tool for the model: in the characters and the length that vendors take, always the same."""
    made = clean(f"{prefix}{name}") or "tool"
    if len(made) <= _NAME:
        return made
    return f"{made[: _NAME - 9]}_{hashlib.sha256(name.encode()).hexdigest()[:8]}"
