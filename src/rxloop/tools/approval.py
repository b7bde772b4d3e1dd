"""The question that a person is asked before a tool is called."""

from __future__ import annotations

import json
from collections.abc import Collection
from string import Formatter
from typing import Any

from rxloop.errors import ConfigurationError
from rxloop.protocol.messages import ToolCall

_LONGEST = 500


def check_approve(name: str, approve: object, parameters: Collection[str]) -> None:
    """Refuse what is not the text of a question about the parameters of a tool.

    Raises:
        ConfigurationError: It is not.
    """
    if not isinstance(approve, str) or not approve.strip():
        raise ConfigurationError(
            f"tool {name!r}: approve={approve!r} is neither True, False nor a question such as 'Refund {{amount}}?'"
        )
    try:
        fields = [field for _, field, _, _ in Formatter().parse(approve) if field is not None]
    except ValueError as error:
        raise ConfigurationError(f"tool {name!r}: approve={approve!r} cannot be filled in: {error}") from error
    for field in fields:
        if field not in parameters:
            known = ", ".join(f"{{{parameter}}}" for parameter in parameters) or "none"
            raise ConfigurationError(
                f"tool {name!r}: approve={approve!r} names {{{field}}}, which is not a parameter; there are: {known}"
            )


def approval_question(approve: bool | str, call: ToolCall) -> str:
    """Make the question that a person is asked before a call.

    Args:
        approve: The question of the tool, with its parameters in braces, or True for the usual one.
        call: The call.
    """
    if isinstance(approve, str):
        try:
            return Formatter().vformat(approve, (), {key: _plain(value) for key, value in call.arguments.items()})
        except (KeyError, ValueError, TypeError):
            # A parameter that the model left out, or one that is not of the kind that the question expects.
            pass
    return f"Call {described(call)}?"


def described(call: ToolCall) -> str:
    """Say what a call is, as `show_map with city: "Oslo"`."""
    given = ", ".join(f"{key}: {_shown(value)}" for key, value in call.arguments.items())
    return f"{call.name} with {given}" if given else call.name


def _plain(value: Any) -> Any:
    """Prepare a value for a question: numbers stay as they are, so that the question may format them."""
    if isinstance(value, str):
        return _cut(value)
    return value if isinstance(value, int | float) and not isinstance(value, bool) else _shown(value)


def _shown(value: Any) -> str:
    """Show a value as JSON, in a form that no other value can imitate."""
    return _cut(json.dumps(value, ensure_ascii=False, default=str))


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
