"""The extra that MCP servers as tools need."""

from __future__ import annotations

from importlib.util import find_spec

from rxloop.errors import ConfigurationError


def check_extra() -> None:
    """Say what is missing before anything is begun.

    Raises:
        ConfigurationError: The SDK is not installed.
    """
    if find_spec("mcp") is None or find_spec("mcp_types") is None:
        raise ConfigurationError("tools of MCP servers need mcp, which is not installed: pip install 'rxloop[mcp]'")
