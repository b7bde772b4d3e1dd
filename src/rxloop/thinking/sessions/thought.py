"""Thought input model, JSON schema and tool description."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cached_property
from typing import Annotated, Any, ClassVar, cast

from pydantic import BeforeValidator, ConfigDict, Field, ValidationError
from pydantic_core import PydanticCustomError

from rxloop.errors import InvalidThought
from rxloop.protocol.json_data import replace_surrogates
from rxloop.protocol.messages import Wire
from rxloop.support.text import to_short_repr

# Match numbers accepted by JavaScript's Number(), for compatibility with clients of the reference server.
_DECIMAL = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")

_OTHER_BASE = re.compile(r"0([xX][0-9a-fA-F]+|[oO][0-7]+|[bB][01]+)")

_MAX_INTEGER = 2**53 - 1
"""Largest integer that all JSON parsers read exactly."""

_MAX_NAME = 200
"""Maximum length of ids and stage names, in characters."""

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")


def _parse_integer(value: object) -> object:
    """Parse a positive integer.

    Strings, integral floats and single-item lists are accepted for compatibility.
    """
    number = value
    while isinstance(number, list) and len(items := cast("list[object]", number)) == 1:
        number = items[0]
    if isinstance(number, str):
        number = _parse_number(number.strip().strip("\ufeff").strip())
    if isinstance(number, float) and number.is_integer():
        number = int(number)
    if isinstance(number, bool) or not isinstance(number, int) or not 1 <= number <= _MAX_INTEGER:
        raise PydanticCustomError("whole", "must be a whole number, 1 or more")
    return number


def _parse_number(text: str) -> float | None:
    if _OTHER_BASE.fullmatch(text):
        return int(text, 0)
    # Floats are exact for all allowed integers.
    return float(text) if _DECIMAL.fullmatch(text) else None


def _parse_bool(value: object) -> object:
    """Parse a boolean value or a case-insensitive boolean string."""
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in ("true", "false"):
        return value.lower() == "true"
    raise PydanticCustomError("truth", "must be true or false")


def find_name_problem(name: str) -> str | None:
    """Return the validation error of a name, or None for valid names."""
    if len(name) > _MAX_NAME:
        return f"is {len(name)} characters long, and {_MAX_NAME} are allowed"
    return "has a line end or another control character in it" if _CONTROL.search(name) else None


def _parse_name(value: object) -> object:
    """Parse a name. A number is converted to a string, and an empty string to None."""
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) <= _MAX_INTEGER:
        return str(value)
    if isinstance(value, str):
        return replace_surrogates(value) or None
    return value


def _parse_label(value: object) -> object:
    """Validate names that are displayed verbatim, for example stage names."""
    if isinstance(value, str) and (errors := find_name_problem(value)) is not None:
        raise PydanticCustomError("label", "{wrong}", {"wrong": errors})
    return _parse_name(value)


def _parse_session_id(value: object) -> object:
    """Parse the id of a session. A blank string is converted to None."""
    return None if isinstance(value, str) and not value.strip() else _parse_name(value)


def _clean_text(value: object) -> object:
    return replace_surrogates(value) if isinstance(value, str) else value


def _allow_null(check: Any) -> BeforeValidator:
    return BeforeValidator(lambda value: None if value is None else check(value))


Count = Annotated[int, BeforeValidator(_parse_integer)]

OptionalCount = Annotated[int | None, _allow_null(_parse_integer)]

Truth = Annotated[bool, BeforeValidator(_parse_bool)]

OptionalTruth = Annotated[bool | None, _allow_null(_parse_bool)]

Name = Annotated[str | None, _allow_null(_parse_name)]

Label = Annotated[str | None, _allow_null(_parse_label)]

SessionId = Annotated[str | None, _allow_null(_parse_session_id)]


class ThoughtInput(Wire):
    """A thought as sent by a model or client.

    Parsing is lenient if no information is lost: numbers and bools may be strings, null fields are treated as absent,
    and unknown fields are ignored.
    """

    # Without `from_attributes`: accept only the wire names and the Python names.
    model_config: ClassVar[ConfigDict] = ConfigDict(extra="ignore", strict=True)

    thought: Annotated[str, BeforeValidator(_clean_text)]
    next_thought_needed: Truth
    thought_number: Count
    total_thoughts: Count
    session_id: SessionId = None
    is_revision: OptionalTruth = None
    revises_thought: OptionalCount = None
    branch_from_thought: OptionalCount = None
    branch_id: Name = None
    needs_more_thoughts: OptionalTruth = None
    clear_session: OptionalTruth = None

    @classmethod
    def of(cls, thought: ThoughtInput | Mapping[str, Any]) -> ThoughtInput:
        """Validate a thought.

        Raises:
            InvalidThought: If the thought is invalid. The message lists the invalid fields.
        """
        if isinstance(thought, ThoughtInput):
            return thought
        try:
            return cls.model_validate(dict(thought))
        except ValidationError as error:
            errors = {".".join(map(str, fault["loc"])): _reason(fault) for fault in error.errors(include_url=False)}
            raise InvalidThought("; ".join(f"{field}: {reason}" for field, reason in errors.items()), errors) from None


def _reason(error: Any) -> str:
    if error["type"] == "missing":
        return "required, but missing"
    reason = "must be text" if error["type"] == "string_type" else error["msg"]
    return f"{reason} (got {to_short_repr(error['input'])})"


class ThoughtWarning(Wire):
    """A warning about an accepted thought, for its author."""

    code: str
    """Stable machine-readable code, for example `dangling_revision`."""
    message: str
    """Description in one sentence."""


class SequentialThought(Wire):
    """Thought stored in a session."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="ignore", ignored_types=(cached_property,))

    thought: str
    thought_number: int
    total_thoughts: int
    """Expected number of thoughts. At least the number of this thought."""
    next_thought_needed: bool
    is_revision: bool | None = None
    revises_thought: int | None = None
    branch_from_thought: int | None = None
    branch_id: str | None = None
    needs_more_thoughts: bool | None = None
    at: int = 0
    """Acceptance time in milliseconds since 1970."""
    call_id: str | None = None
    """Id of the originating tool call. Repeating the call does not add the thought again."""
    warnings: tuple[ThoughtWarning, ...] = Field(default_factory=tuple[ThoughtWarning, ...])
    flow: dict[str, Any] | None = None
    """Strategy data, such as the stage, possible next stages and branch results."""

    @cached_property
    def echo(self) -> dict[str, Any]:
        """Thought fields for `thoughtHistory`."""
        return {
            "thoughtNumber": self.thought_number,
            "thought": self.thought,
            "isRevision": bool(self.is_revision),
            "revisesThought": self.revises_thought,
            "branchId": self.branch_id,
            **({"stage": self.flow["stage"]} if self.flow is not None else {}),
        }


DESCRIPTION = """\
Think a problem through in numbered steps, one call a thought, before you act or answer. Use it for problems of \
several steps, for plans, and where the first idea may be wrong.
- Begin with a guess of totalThoughts, and change it as you see more. Let each thought build on those before it: doubt \
an assumption, check a hypothesis against the facts.
- REVISE as soon as an earlier thought turns out wrong. Example: {"thought": "Thought 2 was wrong: the prices include \
tax.", "thoughtNumber": 4, "totalThoughts": 6, "nextThoughtNeeded": true, "isRevision": true, "revisesThought": 2}
- BRANCH to try a second way and compare both: set branchFromThought to the number of the thought where the ways part, \
and repeat a short branchId in each thought of the branch. Example: {..., "branchFromThought": 2, "branchId": "queue"}
- When the last thought is not enough, set needsMoreThoughts to true and go on.
- Set nextThoughtNeeded to false only when the answer is found and checked; then give the answer itself."""
"""Tool description, limited to 1,024 characters by some vendors."""

_BOOLEAN = {"type": "boolean"}

_NUMBER = {"type": "integer", "minimum": 1}

PROPERTIES: dict[str, dict[str, Any]] = {
    "thought": {"type": "string", "description": "This thought, in plain sentences."},
    "nextThoughtNeeded": {**_BOOLEAN, "description": "Whether another thought is needed."},
    "thoughtNumber": {**_NUMBER, "description": "The number of this thought: 1, 2, 3 and so on."},
    "totalThoughts": {**_NUMBER, "description": "How many thoughts you expect to need; change it as you see more."},
    "isRevision": {**_BOOLEAN, "description": "Whether this thought replaces an earlier one."},
    "revisesThought": {**_NUMBER, "description": "With isRevision: the number of the thought that it replaces."},
    "branchFromThought": {**_NUMBER, "description": "The number of the thought that this branch leaves from."},
    "branchId": {"type": "string", "description": "A short name for the branch, the same in each thought of it."},
    "needsMoreThoughts": {**_BOOLEAN, "description": "At the end: more thoughts are needed than you expected."},
}
"""JSON Schema properties of a thought."""

SESSION_PROPERTIES: dict[str, dict[str, Any]] = {
    "sessionId": {
        "type": "string",
        "description": "The session to go on in: the sessionId of an earlier answer. Leave it out to begin a new one.",
    },
    "clearSession": {**_BOOLEAN, "description": "Forget the thoughts so far: this one is the first of a new session."},
}
"""JSON Schema properties for session selection."""

REQUIRED = ["thought", "nextThoughtNeeded", "thoughtNumber", "totalThoughts"]


def make_parameters(*, has_session: bool) -> dict[str, Any]:
    """Return the JSON Schema of the tool's arguments.

    Args:
        has_session: True if the tool belongs to one session, so that the model does not pass its id.
    """
    own = {name: field for name, field in SESSION_PROPERTIES.items() if not (has_session and name == "sessionId")}
    return {"type": "object", "properties": {**PROPERTIES, **own}, "required": REQUIRED}
