"""Ids of runs and conversations, and cursors of the readers of a run."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import AfterValidator, WithJsonSchema
from pydantic_core import PydanticCustomError

from rxloop.errors import ConfigurationError
from rxloop.protocol.events import Event, GapEvent

MAX_LENGTH = 255
"""Maximum length of an id in characters. Email addresses always fit."""

RULE = (
    f"must be a string of 1 to {MAX_LENGTH} characters, without control characters or line ends, without whitespace at "
    "its ends, and not '.' or '..'"
)
"""Error text with the requirements. Clients resolve `.` and `..` in URLs, so such ids would be unreachable."""

REMEDY = "Choose another id, such as a UUID or an e-mail address."

_FORBIDDEN = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")

_PATTERN = r"^(?!\.{1,2}$)(?!\s)[^\u0000-\u001f\u007f-\u009f\u2028\u2029]+(?<!\s)$"
"""ECMAScript regular expression used in the JSON Schema."""

_MAX_QUOTED = 80
"""Maximum number of characters of a rejected id to include in an error."""


def is_id(value: Any) -> bool:
    """Return True if a value is a valid conversation id or message id."""
    return (
        isinstance(value, str)
        and 0 < len(value) <= MAX_LENGTH
        and value not in (".", "..")
        and value == value.strip()
        and (value.isprintable() or _FORBIDDEN.search(value) is None)
    )


def find_id_fault(name: str, value: Any) -> str | None:
    """Return an error message with a remedy, or None if the id is valid."""
    if is_id(value):
        return None
    quoted = repr(value)
    quoted = quoted if len(quoted) <= _MAX_QUOTED else f"{quoted[:_MAX_QUOTED]}..."
    length = f" of {len(value)} characters" if isinstance(value, str) and len(value) > MAX_LENGTH else ""
    return f"{name} {RULE}, got {quoted}{length}. {REMEDY}"


def validate_id(value: Any, name: str) -> str:
    """Validate an id.

    Args:
        value: The id.
        name: Name to use in errors, such as `context_id`.

    Raises:
        ConfigurationError: The id is invalid.
    """
    fault = find_id_fault(name, value)
    if fault is not None:
        raise ConfigurationError(fault)
    return value


def _validate(value: str) -> str:
    fault = find_id_fault("an id", value)
    if fault is not None:
        raise PydanticCustomError("id", "{fault}", {"fault": fault})
    return value


_SCHEMA = {"type": "string", "minLength": 1, "maxLength": MAX_LENGTH, "pattern": _PATTERN}

Id = Annotated[str, AfterValidator(_validate), WithJsonSchema(_SCHEMA)]
"""Id in a request body or query."""

_SEPARATOR = "\x1f"
"""Separator in conversation keys. Conversation ids cannot contain it."""


def make_conversation_key(context_id: str, owner: str | None) -> str:
    """Return the key of a conversation, which is different for each owner.

    Two owners can use the same conversation id independently. Without an owner, the key is the id. The schemas of SQL
    logs contain the same rule.
    """
    return f"{_SEPARATOR}{owner}{_SEPARATOR}{context_id}" if owner else context_id


def split_conversation_key(key: str) -> tuple[str, str]:
    """Return the conversation id and the owner of a conversation key. The owner may be an empty string."""
    if not key.startswith(_SEPARATOR):
        return key, ""
    owner, _, context_id = key[1:].rpartition(_SEPARATOR)
    return context_id, owner


_NAMESPACE = "0190d2c4-0c1e-7000-8000-7278d06c6f70"
"""UUID namespace for derived ids. Never change it, because existing keys would then map to new runs."""


def make_id() -> str:
    """Create a UUIDv7 for a run or conversation."""
    # Import uuid6 on first use: it loads importlib.metadata, which would slow down importing rxloop.
    import uuid6

    return str(uuid6.uuid7())


def derive_id(*parts: str) -> str:
    """Derive a run id (UUIDv5) from a key. The same parts return the same id in every process.

    Args:
        parts: Strings that identify the run, such as a batch name and an item key. Boundaries matter: `("a", "bc")` and
            `("ab", "c")` return different ids.
    """
    # Imported on first use to speed up importing rxloop.
    import json
    from uuid import UUID, uuid5

    return str(uuid5(UUID(_NAMESPACE), json.dumps(parts)))


def make_idempotency_key(task_id: str, slot: tuple[str | None, int]) -> str:
    """Return the idempotency key of a tool call, which is the same in all attempts of its run.

    Args:
        task_id: Id of the run that makes the call.
        slot: Model call that requested the tool call, and index of the call in its message.
    """
    return f"{task_id}:{slot[0]}:{slot[1]}"


def make_nested_id(task_id: str, step: str | None, index: int) -> str:
    """Derive a nested run id from its tool call, so that resumed runs use the same id.

    Args:
        task_id: Id of the run that makes the call.
        step: Model call that requested the tool call.
        index: Zero-based index of the call in its message.
    """
    return derive_id("nested", task_id, step or "", str(index))


def check_task_id(value: Any) -> str:
    """Validate a run id. It must be a canonical UUID.

    Event logs would treat different spellings of a UUID as different runs.

    Raises:
        ConfigurationError: The id is not a UUID, or it is not in canonical form.
    """
    # Imported on first use to speed up importing rxloop.
    from uuid import UUID

    try:
        canonical = str(UUID(value))
    except (ValueError, AttributeError, TypeError):
        raise ConfigurationError(
            f"task_id must be a UUID, got {value!r}. Pass a UUID such as str(uuid.uuid4()), or omit task_id."
        ) from None
    if value != canonical:
        raise ConfigurationError(f"task_id must be a canonical UUID, got {value!r}. Pass {canonical!r}.")
    return canonical


_CURSOR = re.compile(r"(?P<task>[^/]*)/(?P<attempt>\d{1,18})\.(?P<seq>\d{1,18})\.(?P<sub>\d{1,18})", re.ASCII)

UNKNOWN = "/0.0.0"
"""Cursor used to replace invalid cursors. It does not match any run."""


class Cursor(NamedTuple):
    """Parsed form of `event.cursor`."""

    task_id: str
    attempt: int
    seq: int
    sub: int


def read_cursor(text: str, *, strict: bool = True) -> Cursor:
    """Parse a cursor.

    Args:
        text: Cursor in the form `task_id/attempt.seq.sub`.
        strict: Reject invalid cursors. Otherwise, they are treated as cursors of an unknown run.

    Raises:
        ConfigurationError: The text is not a cursor, and `strict` is set.
    """
    match = _CURSOR.fullmatch(text)
    if match is not None:
        return Cursor(match["task"], int(match["attempt"]), int(match["seq"]), int(match["sub"]))
    if strict:
        raise ConfigurationError(f"a cursor must have the form task_id/attempt.seq.sub, got {text!r}")
    return Cursor("", 0, 0, 0)


def has_unread(cursor: Cursor, end: Event) -> bool:
    """Return True if a run has events after the cursor, or if the cursor belongs to another run."""
    return cursor.task_id != end.root_task_id or cursor[1:] < (end.attempt, end.seq, end.sub)


def make_gap(
    event: Event,
    reason: Literal["unknown-cursor", "lost-attempt", "trimmed", "log-went-back"],
    after: str | None,
    **fields: Any,
) -> GapEvent:
    """Return a gap event for a reader that was at cursor `after` and continues with this event."""
    run = {"context_id": event.context_id, "task_id": event.root_task_id, "attempt": event.attempt}
    return GapEvent(reason=reason, after=after, **run, **fields)
