"""Tools of MCP servers, as families of tools: `mcp(...)` for one server, `mcp_config(...)` for a file of them."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from typing_extensions import Unpack

from rxloop.errors import ConfigurationError
from rxloop.support.redaction import check_url
from rxloop.tools.mcp.options import Http, Options, Stdio
from rxloop.tools.mcp.server import MCPServer, mcp

_VARIABLE = re.compile(r"\$\{(?:env:)?([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")

_KINDS = {"stdio": "command", "http": "url", "streamable-http": "url", "streamableHttp": "url"}


def mcp_config(path: str | Path, **options: Unpack[Options]) -> list[MCPServer]:
    """Make a family of tools of each server that a file names: `Agent(tools=mcp_config("mcp.json"))`.

    The file is the one that Claude Desktop, Cursor and VS Code read: JSON with `mcpServers` (or `servers`), each with
    `command`, `args`, `env` and `cwd`, or `url` and `headers`. `${NAME}` stands for a variable of the environment, and
    `${NAME:-default}` for one that may be missing. A server with `"disabled": true` is left out.

    Args:
        path: The file.
        **options: As for `mcp`, the same for all of them.

    Raises:
        ConfigurationError: The file cannot be read, or does not say how to reach a server.
    """
    found: Any = _read(Path(path))
    known = cast("dict[str, Any]", found) if isinstance(found, dict) else {}
    servers: Any = known.get("mcpServers", known.get("servers"))
    if not isinstance(servers, dict):
        raise ConfigurationError(f'{path} has no "mcpServers": it is to be {{"mcpServers": {{"name": {{...}}}}}}')
    made: list[MCPServer] = []
    for name, described in cast("dict[str, Any]", servers).items():
        if not isinstance(described, dict):
            raise ConfigurationError(f"{path}: the server {name!r} is to be an object with command or url")
        each = cast("dict[str, Any]", described)
        if each.get("disabled") is not True:
            made.append(MCPServer(_place(f"{path}: the server {name!r}", each), **{"name": name, **options}))
    return made


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_text("utf-8-sig"))
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"{path} is not JSON: {error}") from error


def _place(where: str, described: Mapping[str, Any]) -> Stdio | Http:
    kind = described.get("type")
    if kind == "sse":
        raise ConfigurationError(f"{where} speaks the old SSE transport: ask for its streamable HTTP address")
    wanted = _KINDS.get(kind, "") if isinstance(kind, str) else "command" if "command" in described else "url"
    if wanted not in described:
        raise ConfigurationError(f'{where} is to have "command" or "url", and a "type" that fits')
    if wanted == "url":
        return Http(check_url(_text(where, described, "url")), _texts(where, described, "headers"))
    args: Any = described.get("args", [])
    if not isinstance(args, list):
        raise ConfigurationError(f'{where}: "args" is to be a list')
    cwd = _text(where, described, "cwd") if described.get("cwd") else None
    given = tuple(_filled(f"{where}, args", each) for each in cast("list[Any]", args))
    return Stdio(_text(where, described, "command"), given, _texts(where, described, "env"), cwd)


def _text(where: str, described: Mapping[str, Any], name: str) -> str:
    return _filled(f"{where}, {name}", described[name])


def _texts(where: str, described: Mapping[str, Any], name: str) -> dict[str, str]:
    given: Any = described.get(name) or {}
    if not isinstance(given, dict):
        raise ConfigurationError(f'{where}: "{name}" is to be an object of texts')
    return {key: _filled(f"{where}, {name}, {key}", value) for key, value in cast("dict[str, Any]", given).items()}


def _filled(where: str, value: Any) -> str:
    """A text with the variables of the environment in it.

    Raises:
        ConfigurationError: A variable is not set, or it is no text. What the text is is not said: it may be secret.
    """
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ConfigurationError(f"{where} is to be a text")

    def variable(found: re.Match[str]) -> str:
        name, default = found.groups()
        known = os.environ.get(name)
        if known is None and default is not None:
            return str(default)
        if known is None:
            raise ConfigurationError(f"{where} names ${{{name}}}, which is not set: export {name}=...")
        return known

    return _VARIABLE.sub(variable, str(value))


__all__ = ["MCPServer", "mcp", "mcp_config"]
