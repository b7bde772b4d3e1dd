"""The ids of runs and conversations: new ones, ones that are made of a key, and what a chosen one has to look like."""

from __future__ import annotations

from typing import Any

from rxloop.errors import ConfigurationError

_NAMESPACE = "0190d2c4-0c1e-7000-8000-7278d06c6f70"
"""Of the ids that are made of keys. Never change it: a key has to stand for the same run for ever."""


def new_id() -> str:
    """An id for a run or a conversation, a UUIDv7."""
    # Imported here: uuid6 brings importlib.metadata, a good part of the time that importing rxloop takes.
    import uuid6

    return str(uuid6.uuid7())


def id_of_key(*parts: str) -> str:
    """The id of the run that a key stands for, a UUIDv5: the same parts are the same run, in every process.

    Args:
        parts: What tells the run apart, such as the name of a batch and the key of an item. Parts are not joined into
            one text: `("a", "bc")` and `("ab", "c")` are two runs.
    """
    # Imported here: importing rxloop is quicker without.
    import json
    from uuid import UUID, uuid5

    return str(uuid5(UUID(_NAMESPACE), json.dumps(parts)))


def nested_id(task_id: str, step: str | None, index: int) -> str:
    """The id of the run that is nested in a call: the same in each attempt.

    Args:
        task_id: The run that makes the call.
        step: The model call that asks for it.
        index: The place of the call in its message.
    """
    return id_of_key("nested", task_id, step or "", str(index))


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
