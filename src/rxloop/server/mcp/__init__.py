"""The MCP adapter: agents and sequential thinking as tools, over streamable HTTP or pipes."""

from importlib import import_module

from rxloop.errors import ConfigurationError

try:
    import_module("mcp_types")
except ModuleNotFoundError as error:
    if error.name != "mcp_types":
        raise
    raise ConfigurationError("the MCP server needs mcp, which is not installed: pip install 'rxloop[mcp]'") from error
