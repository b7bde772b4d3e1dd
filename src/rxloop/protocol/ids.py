"""Ids of runs and conversations: their rule, and how they are made."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import AfterValidator, WithJsonSchema
from pydantic_core import PydanticCustomError

from rxloop.errors import ConfigurationError

MAX_LENGTH = 255
"""Characters of an id: enough for every e-mail address."""

RULE = (
    f"must be a string of 1 to {MAX_LENGTH} characters, without control characters or line ends, without whitespace at "
    "its ends, and not '.' or '..'"
)
"""What an id must be. Clients resolve `.` and `..` in addresses, so that nothing by these names could be reached."""

REMEDY = "Choose another id, such as a UUID or an e-mail address."

_FORBIDDEN = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")

_PATTERN = r"^(?!\.{1,2}$)(?!\s)[^\u0000-\u001f\u007f-\u009f\u2028\u2029]+(?<!\s)$"
"""The rule as a regular expression of ECMAScript, for the JSON Schema."""

_SHOWN = 80
"""Characters of a refused id that an error shows."""


def is_id(value: Any) -> bool:
    """Tell whether a value may be the id of a conversation or of a message."""
    return (
        isinstance(value, str)
        and 0 < len(value) <= MAX_LENGTH
        and value not in (".", "..")
        and value == value.strip()
        and (value.isprintable() or _FORBIDDEN.search(value) is None)
    )


def find_id_fault(name: str, value: Any) -> str | None:
    """Return what is wrong with an id, with the rule and a remedy; None if nothing is."""
    if is_id(value):
        return None
    shown = repr(value)
    shown = shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]}..."
    length = f" of {len(value)} characters" if isinstance(value, str) and len(value) > MAX_LENGTH else ""
    return f"{name} {RULE}, got {shown}{length}. {REMEDY}"


def check_name(value: Any, name: str) -> str:
    """Return an id that follows the rule.

    Args:
        value: The id.
        name: What an error calls it, such as `context_id`.

    Raises:
        ConfigurationError: The id breaks the rule.
    """
    wrong = find_id_fault(name, value)
    if wrong is not None:
        raise ConfigurationError(wrong)
    return value


def _validate(value: str) -> str:
    wrong = find_id_fault("an id", value)
    if wrong is not None:
        raise PydanticCustomError("id", "{wrong}", {"wrong": wrong})
    return value


_SCHEMA = {"type": "string", "minLength": 1, "maxLength": MAX_LENGTH, "pattern": _PATTERN}

Id = Annotated[str, AfterValidator(_validate), WithJsonSchema(_SCHEMA)]
"""An id in the body or the query of a request."""

_NAMESPACE = "0190d2c4-0c1e-7000-8000-7278d06c6f70"
"""Of the ids that are made of keys. Never change it: a key has to stand for the same run for ever."""


def make_id() -> str:
    """An id for a run or a conversation, a UUIDv7."""
    # Imported here: uuid6 brings importlib.metadata, a good part of the time that importing rxloop takes.
    import uuid6

    return str(uuid6.uuid7())


def derive_id(*parts: str) -> str:
    """The id of the run that a key stands for, a UUIDv5: the same parts are the same run, in every process.

    Args:
        parts: What tells the run apart, such as the name of a batch and the key of an item. Parts are not joined into
            one text: `("a", "bc")` and `("ab", "c")` are two runs.
    """
    # Imported here: importing rxloop is quicker without.
    import json
    from uuid import UUID, uuid5

    return str(uuid5(UUID(_NAMESPACE), json.dumps(parts)))


def make_nested_id(task_id: str, step: str | None, index: int) -> str:
    """The id of the run that is nested in a call: the same in each attempt.

    Args:
        task_id: The run that makes the call.
        step: The model call that asks for it.
        index: The place of the call in its message.
    """
    return derive_id("nested", task_id, step or "", str(index))


def check_task_id(value: Any) -> str:
    """Check that the id of a run is a UUID as it is usually written.

    One that can be written in several ways would be several runs to a log.

    Raises:
        ConfigurationError: It is something else.
    """
    # Imported here: importing rxloop is quicker without.
    from uuid import UUID

    try:
        canonical = str(UUID(value))
    except (ValueError, AttributeError, TypeError):
        raise ConfigurationError(
            f"task_id={value!r} cannot be used: give a UUID, such as str(uuid.uuid4()), or leave it out"
        ) from None
    if value != canonical:
        raise ConfigurationError(f"task_id={value!r} cannot be used: write that UUID as {canonical!r}")
    return canonical
