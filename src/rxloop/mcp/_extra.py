"""The extra that the servers for MCP need."""

from __future__ import annotations

from rxloop.errors import ConfigurationError

_PACKAGES = {"mcp", "mcp_types", "rich", "starlette", "uvicorn"}


def missing(error: ModuleNotFoundError) -> Exception:
    """The error to raise for a failed import: one that names the extra, or the same if another package is missing."""
    package = (error.name or "").partition(".")[0]
    if package not in _PACKAGES:
        return error
    package = package.removesuffix("_types")
    return ConfigurationError(f"the MCP server needs {package}, which is not installed: pip install 'rxloop[mcp]'")
