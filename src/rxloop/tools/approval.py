"""Approval questions for tool calls."""

from __future__ import annotations

import json
from collections.abc import Collection
from string import Formatter
from typing import Any

from rxloop.errors import ConfigurationError
from rxloop.protocol.messages import ToolCall
from rxloop.support.misuse import check_argument

_MAX_CHARACTERS = 500


def check_approve(name: str, approve: Any, parameters: Collection[str]) -> None:
    """Validate an approval question template.

    Raises:
        ConfigurationError: Blank or malformed template, or unknown parameter.
    """
    is_valid = isinstance(approve, str) and bool(approve.strip())
    check_argument(f"tool {name!r}: approve", approve, is_valid, "a bool or a question such as 'Refund {amount}?'")
    try:
        fields = [field for _, field, _, _ in Formatter().parse(approve) if field is not None]
    except ValueError as error:
        raise ConfigurationError(f"tool {name!r}: approve={approve!r} is not a valid template: {error}") from error
    for field in fields:
        if field not in parameters:
            known = ", ".join(f"{{{parameter}}}" for parameter in parameters) or "none"
            raise ConfigurationError(
                f"tool {name!r}: approve={approve!r} uses the unknown parameter {{{field}}}; expected: {known}"
            )


def approval_question(approve: bool | str, call: ToolCall) -> str:
    """Format the approval question for a tool call.

    Args:
        approve: Question template, or True for the default question.
        call: Tool call requiring approval.
    """
    if isinstance(approve, str):
        try:
            return Formatter().vformat(approve, (), {key: _prepare(value) for key, value in call.arguments.items()})
        except (KeyError, ValueError, TypeError):
            # Models may omit parameters or send values that are incompatible with the format string.
            pass
    return f"Call {describe_call(call)}?"


def describe_call(call: ToolCall) -> str:
    """Format a call with arguments, for example `show_map with city: "Oslo"`."""
    arguments = ", ".join(f"{key}: {_to_json(value)}" for key, value in call.arguments.items())
    return f"{call.name} with {arguments}" if arguments else call.name


def _prepare(value: Any) -> Any:
    """Prepare a value for a template. Numbers are not converted, so that the template can format them."""
    if isinstance(value, str):
        return _truncate(value)
    return value if isinstance(value, int | float) and not isinstance(value, bool) else _to_json(value)


def _to_json(value: Any) -> str:
    """Format a value as JSON. The quotes prevent a string from imitating another value."""
    return _truncate(json.dumps(value, ensure_ascii=False, default=str))


def _truncate(text: str) -> str:
    return text if len(text) <= _MAX_CHARACTERS else f"{text[:_MAX_CHARACTERS]}..."
