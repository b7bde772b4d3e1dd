"""Messages for invalid command lines, in one line with the value and the expectation."""

from __future__ import annotations

import re
from typing import Any

from pydantic import ValidationError

_KINDS = {"int_parsing": "an integer", "int_from_float": "an integer", "float_parsing": "a number"}
_LIMITS = {"greater_than_equal": ("at least", "ge"), "less_than_equal": ("at most", "le")}
_CHOICE = " is not one of "
_EXTRA_ARGUMENT = "unexpected extra argument"
_OPTIONS = re.compile(r" \(Possible options: ([^)]*)\)")


def explain_usage_error(error: Any) -> str:
    """Return a message for a usage error of Typer.

    Args:
        error: Usage error. Depending on its version, Typer uses click's exception classes or a vendored copy.
    """
    cause = error.__cause__ or error.__context__
    name = _name_parameter(getattr(error, "param", None))
    if name and isinstance(cause, ValidationError):
        message = _explain_value(name, cause)
    else:
        message = _to_clause(" ".join(error.format_message().split()))
    command = _get_command(error)
    if command.endswith("keys set") and _EXTRA_ARGUMENT in message:
        # Keys are not repeated on the screen or in log files.
        return "the key must not be an argument, because shells store it in their history; type it, or use a pipe"
    return f"{message}; see {command} --help"


def _get_command(error: Any) -> str:
    return error.ctx.command_path if getattr(error, "ctx", None) is not None else "rxloop"


def _name_parameter(parameter: Any) -> str:
    """Return the longest name of an option, or the placeholder of an argument. Returns "" if it is unknown."""
    if parameter is None:
        return ""
    if parameter.param_type_name == "option":
        return max(parameter.opts, key=len)
    return parameter.metavar or str(parameter.name).upper()


def _explain_value(name: str, cause: ValidationError) -> str:
    details = cause.errors()[0]
    kind, value = details["type"], details["input"]
    if kind in _KINDS:
        expected = _KINDS[kind]
    elif kind in _LIMITS:
        words, key = _LIMITS[kind]
        expected = f"{words} {details.get('ctx', {})[key]:g}"
    elif _CHOICE in details["msg"]:
        # Some Typer versions append a full stop.
        expected = f"one of {details['msg'].partition(_CHOICE)[2].replace(chr(39), '').rstrip('.')}"
    else:
        return f"invalid value for {name}: {details['msg']}, got {value!r}"
    return f"{name} must be {expected}, got {value!r}"


def _to_clause(message: str) -> str:
    """Return a sentence of Typer as a clause, with its hints joined by semicolons."""
    message = message.rstrip(".").replace(". Did you mean ", "; did you mean ").replace(". Choose from: ", ": ")
    message = _OPTIONS.sub(lambda found: f"; did you mean {found[1].replace(', ', ' or ')}?", message)
    return message[:1].lower() + message[1:]
