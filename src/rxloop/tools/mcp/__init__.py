"""Toolsets of MCP servers: `mcp(...)` for one server, `mcp_config(...)` for a configuration file."""

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
    """Create a toolset for each server in a configuration file: `Agent(tools=mcp_config("mcp.json"))`.

    The format is that of Claude Desktop, Cursor and VS Code: JSON with `mcpServers` (or `servers`), each with
    `command`, `args`, `env` and `cwd`, or `url` and `headers`. `${NAME}` is replaced by an environment variable, and
    `${NAME:-default}` by its default if the variable is not set. Servers with `"disabled": true` are skipped.

    Args:
        path: Path of the file.
        **options: Options of `mcp`, used for all servers.

    Raises:
        ConfigurationError: If the file cannot be read, or the description of a server is invalid.
    """
    found: Any = _read(Path(path))
    known = cast("dict[str, Any]", found) if isinstance(found, dict) else {}
    servers: Any = known.get("mcpServers", known.get("servers"))
    if not isinstance(servers, dict):
        raise ConfigurationError(f'{path} must have "mcpServers", such as {{"mcpServers": {{"name": {{...}}}}}}')
    made: list[MCPServer] = []
    for name, described in cast("dict[str, Any]", servers).items():
        if not isinstance(described, dict):
            raise ConfigurationError(f"{path}: the server {name!r} must be an object with command or url")
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
        raise ConfigurationError(f"{where} uses the old SSE transport; use its streamable HTTP URL")
    wanted = _KINDS.get(kind, "") if isinstance(kind, str) else "command" if "command" in described else "url"
    if wanted not in described:
        raise ConfigurationError(f'{where} must have "command" or "url", and a matching "type"')
    if wanted == "url":
        return Http(check_url(_text(where, described, "url")), _texts(where, described, "headers"))
    args: Any = described.get("args", [])
    if not isinstance(args, list):
        raise ConfigurationError(f'{where}: "args" must be a list')
    cwd = _text(where, described, "cwd") if described.get("cwd") else None
    given = tuple(_filled(f"{where}, args", each) for each in cast("list[Any]", args))
    return Stdio(_text(where, described, "command"), given, _texts(where, described, "env"), cwd)


def _text(where: str, described: Mapping[str, Any], name: str) -> str:
    return _filled(f"{where}, {name}", described[name])


def _texts(where: str, described: Mapping[str, Any], name: str) -> dict[str, str]:
    given: Any = described.get(name) or {}
    if not isinstance(given, dict):
        raise ConfigurationError(f'{where}: "{name}" must be an object with string values')
    return {key: _filled(f"{where}, {name}, {key}", value) for key, value in cast("dict[str, Any]", given).items()}


def _filled(where: str, value: Any) -> str:
    """Return a string with environment variables expanded.

    Raises:
        ConfigurationError: If a variable is not set, or the value is not a string. The message omits the value, which
            may be secret.
    """
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ConfigurationError(f"{where} must be a string")

    def variable(found: re.Match[str]) -> str:
        name, default = found.groups()
        known = os.environ.get(name)
        if known is None and default is not None:
            return str(default)
        if known is None:
            raise ConfigurationError(f"{where} refers to ${{{name}}}, which is not set; export {name}=...")
        return known

    return _VARIABLE.sub(variable, str(value))


__all__ = ["MCPServer", "mcp", "mcp_config"]
