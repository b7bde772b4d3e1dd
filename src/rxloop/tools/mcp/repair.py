"""Repair of malformed server results."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from typing import Any, cast

import mcp_types as types
from mcp.shared.dispatcher import coerce_request_id
from mcp_types import methods
from pydantic import TypeAdapter, ValidationError

_LIST, _CALL = "tools/list", "tools/call"

_MODELS: dict[str, TypeAdapter[Any]] = {
    _LIST: TypeAdapter(types.ListToolsResult),
    _CALL: TypeAdapter(types.CallToolResult),
}

_DEFAULTS = {"ttlMs": 0, "cacheScope": "private", "resultType": "complete"}
"""Safe default values for required protocol fields."""

_MAX_ITEMS = 5_000
"""Maximum number of tools in a page and of blocks in a result. The event loop validates them."""

_MAX_ERRORS = 100
"""Maximum number of validation errors to read. Reading a million errors blocks the event loop."""

_BLOCKS = {"text", "image", "audio", "resource", "resource_link"}

Warn = Callable[[str], None]


class ResultRepair:
    """Repair of malformed results of one connection.

    The SDK rejects a whole result if one tool or one content block is invalid.
    """

    def __init__(self) -> None:
        self._methods: dict[str | int, str] = {}
        """Method names of pending requests by request id."""

    def record_request(self, message: object) -> None:
        """Store the method of an outgoing request."""
        if isinstance(message, types.JSONRPCRequest) and message.method in _MODELS:
            self._methods[coerce_request_id(message.id)] = message.method
        elif isinstance(message, types.JSONRPCNotification) and message.method == "notifications/cancelled":
            self._methods.pop(coerce_request_id((message.params or {}).get("requestId", "")), None)

    def repair_result(self, message: object, version: str, warn: Warn) -> None:
        """Repair a result in place.

        Args:
            message: A message from the server.
            version: The negotiated protocol version.
            warn: Logs a warning about an omitted item.
        """
        if isinstance(message, types.JSONRPCError):
            self._methods.pop(coerce_request_id("" if message.id is None else message.id), None)
        if not isinstance(message, types.JSONRPCResponse):
            return
        # Some servers return string ids, which the SDK also accepts.
        method = self._methods.pop(coerce_request_id(message.id), None)
        if method == _LIST:
            message.result = _repair_page(message.result, version, warn)
        elif method == _CALL and message.result.get("resultType") != "input_required":
            message.result = _repair_call(message.result, version, warn)


def _repair_page(page: dict[str, Any], version: str, warn: Warn) -> dict[str, Any]:
    tools = page.get("tools")
    if not isinstance(tools, list):
        return page
    entries = cast("list[Any]", tools)
    if len(entries) > _MAX_ITEMS:
        warn(f"skipping the tools after the first {_MAX_ITEMS} of a page")
        entries = entries[:_MAX_ITEMS]
        page = {**page, "tools": entries}
    if not _errors(_LIST, version, page):
        return page
    rest = _repair_fields(_LIST, {**page, "tools": []}, version, warn)
    if rest is None:
        return page
    frame, valid = _frame(rest), list[Any]()
    for number, entry in enumerate(entries, 1):
        errors = _errors(_LIST, version, {**frame, "tools": [entry]})
        if not errors:
            valid.append(entry)
            continue
        name: Any = cast("dict[str, Any]", entry).get("name") if isinstance(entry, dict) else None
        label = repr(name[:100]) if isinstance(name, str) else f"number {number}"
        warn(f"skipping the tool {label}: {_reason(errors[0], skip=2)}")
    return {**rest, "tools": valid}


def _repair_call(result: dict[str, Any], version: str, warn: Warn) -> dict[str, Any]:
    blocks = _blocks(result)
    if blocks is None:
        return result
    if len(blocks) > _MAX_ITEMS:
        text = f"the blocks after the first {_MAX_ITEMS} of this result are left out"
        blocks = [*blocks[:_MAX_ITEMS], _placeholder(text)]
    result = {**result, "content": blocks}
    if not _errors(_CALL, version, result):
        return result
    rest = _repair_fields(_CALL, {**result, "content": []}, version, warn)
    if rest is None:
        return result
    valid: list[Any] = []
    if "structuredContent" in result and "structuredContent" not in rest:
        written = json.dumps(result["structuredContent"], ensure_ascii=False)
        valid.append(_placeholder("the structured content of this result is not an object", f"\n{written}"))
    frame = _frame(rest)
    for number, block in enumerate(blocks, 1):
        if not _errors(_CALL, version, {**frame, "content": [block]}):
            valid.append(block)
            continue
        kind: Any = cast("dict[str, Any]", block).get("type") if isinstance(block, dict) else None
        label = f" ({kind})" if isinstance(kind, str) and kind in _BLOCKS else ""
        text = f"block {number}{label} of this result is malformed and is left out"
        warn(text)
        valid.append(_placeholder(text))
    return {**rest, "content": valid}


def _blocks(result: dict[str, Any]) -> list[Any] | None:
    """Return result content as a list, or None for unreadable content."""
    content: Any = result.get("content")
    if content is None and ("structuredContent" in result or result.get("isError")):
        # Some servers only send structured content.
        return []
    if isinstance(content, str | dict):
        content = [content]
    if not isinstance(content, list):
        return None
    return [_text_block(block) if isinstance(block, str) else block for block in cast("list[Any]", content)]


def _frame(result: dict[str, Any]) -> dict[str, Any]:
    """Return required result fields for item validation."""
    return {name: value for name, value in result.items() if name in _DEFAULTS}


def _repair_fields(method: str, result: dict[str, Any], version: str, warn: Warn) -> dict[str, Any] | None:
    """Remove malformed fields next to the list or replace them by defaults. Return None if this is not possible."""
    repaired = dict(result)
    # Repeat validation, because the SDK validates twice and the first failure hides the second.
    while errors := _errors(method, version, repaired):
        error = errors[0]
        name = str(error["loc"][0]) if error["loc"] else ""
        if name in _DEFAULTS and repaired.get(name) != _DEFAULTS[name]:
            repaired[name] = _DEFAULTS[name]
        elif name in repaired and name not in _DEFAULTS and not (name == "isError" and repaired[name] is not None):
            # Keep a malformed `isError`, so that the SDK rejects the result.
            del repaired[name]
            warn(f"ignoring malformed {name} in a result of {method}: {_reason(error, skip=1)}")
        else:
            return None
    return repaired


def _errors(method: str, version: str, result: dict[str, Any]) -> list[Any]:
    """Return validation errors using the same checks as the SDK."""
    try:
        # The SDK does not include schemas for some older protocol versions.
        with suppress(KeyError):
            methods.validate_server_result(method, version, result)
        _MODELS[method].validate_python(result, by_name=False)
    except ValidationError as error:
        if error.error_count() > _MAX_ERRORS:
            return [{"loc": (), "msg": f"{error.error_count()} errors"}]
        errors = error.errors(include_url=False, include_context=False, include_input=False)
        # The latest protocol validates a union of results and questions.
        return [
            {**each, "loc": each["loc"][1:] if each["loc"][:1] == ("CallToolResult",) else each["loc"]}
            for each in errors
            if each["loc"][:1] != ("InputRequiredResult",)
        ]
    return []


def _reason(error: Any, skip: int) -> str:
    path = ".".join(map(str, error["loc"][skip:]))
    return f"{path}: {error['msg']}" if path else str(error["msg"])


def _placeholder(text: str, more: str = "") -> dict[str, Any]:
    return _text_block(f"[{text}]{more}")


def _text_block(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}
