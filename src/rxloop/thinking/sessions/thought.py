"""A thought as the model sends it, its schema and its description."""

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

# A number as JavaScript's Number() reads it: clients of the reference server may send any of these.
_DECIMAL = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")

_OTHER_BASE = re.compile(r"0([xX][0-9a-fA-F]+|[oO][0-7]+|[bB][01]+)")

_MOST = 2**53 - 1
"""The largest whole number that every reader of JSON keeps as it is."""

_LONGEST = 200
"""Characters of an id, or of the name of a stage."""

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")


def _whole(value: object) -> object:
    """Read a whole number of at least 1, however a client has written it: 2, "2", " 2 ", "2.0", 2.0 or ["2"]."""
    number = value
    while isinstance(number, list) and len(found := cast("list[object]", number)) == 1:
        number = found[0]
    if isinstance(number, str):
        number = _read(number.strip().strip("\ufeff").strip())
    if isinstance(number, float) and number.is_integer():
        number = int(number)
    if isinstance(number, bool) or not isinstance(number, int) or not 1 <= number <= _MOST:
        raise PydanticCustomError("whole", "must be a whole number, 1 or more")
    return number


def _read(text: str) -> float | None:
    if _OTHER_BASE.fullmatch(text):
        return int(text, 0)
    # A float holds every whole number up to the largest that is allowed.
    return float(text) if _DECIMAL.fullmatch(text) else None


def _truth(value: object) -> object:
    """Read a truth value, which may be written as text: true, "true", "FALSE"."""
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in ("true", "false"):
        return value.lower() == "true"
    raise PydanticCustomError("truth", "must be true or false")


def wrong_with_name(name: str) -> str | None:
    """Say why a text is not a valid name; None if it is one."""
    if len(name) > _LONGEST:
        return f"is {len(name)} characters long, and {_LONGEST} are allowed"
    return "has a line end or another control character in it" if _CONTROL.search(name) else None


def _name(value: object) -> object:
    """Read a name: a number counts as a name, an empty text does not."""
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) <= _MOST:
        return str(value)
    if isinstance(value, str):
        return replace_surrogates(value) or None
    return value


def _label(value: object) -> object:
    """Read a name that people and programs see unchanged, such as that of a stage."""
    if isinstance(value, str) and (wrong := wrong_with_name(value)) is not None:
        raise PydanticCustomError("label", "{wrong}", {"wrong": wrong})
    return _name(value)


def _id(value: object) -> object:
    """Read the id of a session; a blank text is not an id."""
    return None if isinstance(value, str) and not value.strip() else _name(value)


def _text(value: object) -> object:
    return replace_surrogates(value) if isinstance(value, str) else value


def _or_absent(check: Any) -> BeforeValidator:
    return BeforeValidator(lambda value: None if value is None else check(value))


Count = Annotated[int, BeforeValidator(_whole)]

OptionalCount = Annotated[int | None, _or_absent(_whole)]

Truth = Annotated[bool, BeforeValidator(_truth)]

OptionalTruth = Annotated[bool | None, _or_absent(_truth)]

Name = Annotated[str | None, _or_absent(_name)]

Label = Annotated[str | None, _or_absent(_label)]

SessionId = Annotated[str | None, _or_absent(_id)]


class ThoughtInput(Wire):
    """A thought as a model or a client sends it.

    Reading is lenient where nothing is lost: numbers and truth values may be text, null counts as absent, and unknown
    fields are ignored.
    """

    # Not `from_attributes`: only the wire names and those of Python.
    model_config: ClassVar[ConfigDict] = ConfigDict(extra="ignore", strict=True)

    thought: Annotated[str, BeforeValidator(_text)]
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
    def of(cls, given: ThoughtInput | Mapping[str, Any]) -> ThoughtInput:
        """Validate what was sent.

        Raises:
            InvalidThought: It does not fit; the message names each field and what is wrong with it.
        """
        if isinstance(given, ThoughtInput):
            return given
        try:
            return cls.model_validate(dict(given))
        except ValidationError as error:
            wrong = {".".join(map(str, fault["loc"])): _reason(fault) for fault in error.errors(include_url=False)}
            raise InvalidThought("; ".join(f"{field}: {reason}" for field, reason in wrong.items()), wrong) from None


def _reason(error: Any) -> str:
    if error["type"] == "missing":
        return "required, but missing"
    reason = "must be text" if error["type"] == "string_type" else error["msg"]
    return f"{reason} (got {to_short_repr(error['input'])})"


class ThoughtWarning(Wire):
    """Something about a thought that was accepted, and that its author should know."""

    code: str
    """A stable name for programs, such as `dangling_revision`."""
    message: str
    """What is odd, in a sentence."""


class SequentialThought(Wire):
    """A thought as it is kept: one entry of a session."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="ignore", ignored_types=(cached_property,))

    thought: str
    thought_number: int
    total_thoughts: int
    """How many thoughts its author expects; never less than its own number."""
    next_thought_needed: bool
    is_revision: bool | None = None
    revises_thought: int | None = None
    branch_from_thought: int | None = None
    branch_id: str | None = None
    needs_more_thoughts: bool | None = None
    at: int = 0
    """When it was accepted, in milliseconds since 1970."""
    call_id: str | None = None
    """The tool call that it came from: the same call does not make another thought."""
    warnings: tuple[ThoughtWarning, ...] = Field(default_factory=tuple[ThoughtWarning, ...])
    flow: dict[str, Any] | None = None
    """What a strategy keeps of it: the stage, what may follow, and what became of the branches."""

    @cached_property
    def echo(self) -> dict[str, Any]:
        """The thought as it stands in `thoughtHistory`."""
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
"""Under 1,024 characters, which is all that some vendors accept."""

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
"""The fields of a thought, as JSON Schema."""

SESSION_PROPERTIES: dict[str, dict[str, Any]] = {
    "sessionId": {
        "type": "string",
        "description": "The session to go on in: the sessionId of an earlier answer. Leave it out to begin a new one.",
    },
    "clearSession": {**_BOOLEAN, "description": "Forget the thoughts so far: this one is the first of a new session."},
}
"""The fields that say which session a thought belongs to."""

REQUIRED = ["thought", "nextThoughtNeeded", "thoughtNumber", "totalThoughts"]


def parameters(*, bound: bool) -> dict[str, Any]:
    """Make the JSON Schema of the tool's arguments.

    Args:
        bound: The tool has a session of its own, and the model need not know of ids.
    """
    own = {name: field for name, field in SESSION_PROPERTIES.items() if not (bound and name == "sessionId")}
    return {"type": "object", "properties": {**PROPERTIES, **own}, "required": REQUIRED}
