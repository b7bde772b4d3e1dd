"""The tools that the vendor carries out itself, as events of the stream."""

from __future__ import annotations

from typing import Any

from rxloop.providers.reading._draft import Draft
from rxloop.providers.reading._fields import text_of
from rxloop.providers.responses._output import OutputItem

SERVER_TOOLS = frozenset(
    (
        "web_search_call",
        "file_search_call",
        "code_interpreter_call",
        "image_generation_call",
        "mcp_call",
        "mcp_list_tools",
        "tool_search_call",
        "shell_call",
        "program",
    )
)
"""The items that are such a tool at work."""
OTHERS = frozenset(
    (
        "additional_tools",
        "compaction",
        "program_output",
        "shell_call_output",
        "tool_search_output",
    )
)
"""Items that only go back as they are."""
NOT_HERE = frozenset(("computer_call", "local_shell_call", "shell_call", "apply_patch_call", "mcp_approval_request"))
"""The items that ask for something that nobody here does, unless the vendor itself has answered them."""
_ARGUMENTS = ("action", "arguments", "queries", "code")
_RESULTS = ("output", "outputs", "results", "tools", "error")


def tell_start(draft: Draft, item: OutputItem) -> None:
    """Tell that such a tool is at work, once."""
    if not item.started:
        item.started = True
        draft.server_tool(item.id, _name(item), "start", arguments=_first(item.fields, _ARGUMENTS))


def tell_end(draft: Draft, item: OutputItem) -> None:
    """Tell that it has ended."""
    fields = item.fields
    failed = fields.get("status") in ("failed", "incomplete") or bool(fields.get("error"))
    draft.server_tool(
        item.id,
        _name(item),
        "complete",
        arguments=_first(fields, _ARGUMENTS),
        result=_first(fields, _RESULTS),
        success=not failed,
    )


def _name(item: OutputItem) -> str:
    if item.type == "mcp_call":
        return text_of(item.fields.get("name")) or item.type
    return item.type.removesuffix("_call")


def _first(fields: dict[str, Any], names: tuple[str, ...]) -> Any:
    return next((fields[name] for name in names if fields.get(name)), None)
