"""The door for clients of the Model Context Protocol: agents as tools, over streamable HTTP or pipes."""

from importlib import import_module

from rxloop.mcp import missing

try:
    import_module("mcp_types")
except ModuleNotFoundError as error:
    raise missing(error) from error
