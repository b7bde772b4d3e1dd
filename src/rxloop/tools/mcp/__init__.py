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
    config: Any = _read(Path(path))
    known = cast("dict[str, Any]", config) if isinstance(config, dict) else {}
    entries: Any = known.get("mcpServers", known.get("servers"))
    if not isinstance(entries, dict):
        raise ConfigurationError(f'{path} must have "mcpServers", such as {{"mcpServers": {{"name": {{...}}}}}}')
    servers: list[MCPServer] = []
    for name, described in cast("dict[str, Any]", entries).items():
        if not isinstance(described, dict):
            raise ConfigurationError(f"{path}: the server {name!r} must be an object with command or url")
        each = cast("dict[str, Any]", described)
        if each.get("disabled") is not True:
            address = _parse_address(f"{path}: the server {name!r}", each)
            servers.append(MCPServer(address, **{"name": name, **options}))
    return servers


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_text("utf-8-sig"))
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"{path} is not JSON: {error}") from error


def _parse_address(entry: str, described: Mapping[str, Any]) -> Stdio | Http:
    kind = described.get("type")
    if kind == "sse":
        raise ConfigurationError(f"{entry} uses the old SSE transport; use its streamable HTTP URL")
    required = _KINDS.get(kind, "") if isinstance(kind, str) else "command" if "command" in described else "url"
    if required not in described:
        raise ConfigurationError(f'{entry} must have "command" or "url", and a matching "type"')
    if required == "url":
        return Http(check_url(_get_text(entry, described, "url")), _get_texts(entry, described, "headers"))
    args: Any = described.get("args", [])
    if not isinstance(args, list):
        raise ConfigurationError(f'{entry}: "args" must be a list')
    cwd = _get_text(entry, described, "cwd") if described.get("cwd") else None
    arguments = tuple(_expand(f"{entry}, args", each) for each in cast("list[Any]", args))
    return Stdio(_get_text(entry, described, "command"), arguments, _get_texts(entry, described, "env"), cwd)


def _get_text(entry: str, described: Mapping[str, Any], name: str) -> str:
    return _expand(f"{entry}, {name}", described[name])


def _get_texts(entry: str, described: Mapping[str, Any], name: str) -> dict[str, str]:
    values: Any = described.get(name) or {}
    if not isinstance(values, dict):
        raise ConfigurationError(f'{entry}: "{name}" must be an object with string values, got {type(values).__name__}')
    return {key: _expand(f"{entry}, {name}, {key}", value) for key, value in cast("dict[str, Any]", values).items()}


def _expand(subject: str, value: Any) -> str:
    """Return a string with environment variables expanded.

    Raises:
        ConfigurationError: If a variable is not set, or the value is not a string. The message omits the value, which
            may be secret.
    """
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ConfigurationError(f"{subject} must be a string")

    def get_value(match: re.Match[str]) -> str:
        name, default = match.groups()
        known = os.environ.get(name)
        if known is None and default is not None:
            return str(default)
        if known is None:
            raise ConfigurationError(f"{subject} refers to ${{{name}}}, which is not set; export {name}=...")
        return known

    return _VARIABLE.sub(get_value, str(value))


__all__ = ["MCPServer", "mcp", "mcp_config"]
