"""Elicitation of pending inputs with forms and URLs."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import mcp_types as types
import orjson

from rxloop.errors import ToolError
from rxloop.protocol.messages import PendingInput

ANSWER = "answer"
"""Name of the only field in a single-value form."""

_PRIMITIVE: dict[str, frozenset[str]] = {
    "string": frozenset({"minLength", "maxLength", "format", "enum", "enumNames", "oneOf"}),
    "number": frozenset({"minimum", "maximum"}),
    "integer": frozenset({"minimum", "maximum"}),
    "boolean": frozenset(),
}
"""Supported schema keywords per type. MCP forms support only this subset of JSON Schema."""
_ALWAYS = frozenset({"type", "title", "description", "default"})
_DEFS = "#/$defs/"
_DEEPEST = 8
"""Maximum depth of references in a field schema."""
_FORMATS = ("date", "date-time", "email", "uri")


class NoAnswer(Exception):
    """Raised for a form response that cannot be parsed. The message contains the reason."""


@dataclass(frozen=True, slots=True)
class Form:
    """Form for a question, including a response parser."""

    schema: dict[str, Any]
    read: Callable[[Mapping[str, Any]], Any]
    """Response parser, which raises `NoAnswer` for invalid responses."""


@dataclass(frozen=True, slots=True)
class Asks:
    """Elicitation capabilities of a client."""

    form: bool = False
    page: bool = False

    @classmethod
    def of(cls, capabilities: types.ClientCapabilities | None) -> Asks:
        """Read client capabilities. Elicitation without further details means forms."""
        can = None if capabilities is None else capabilities.elicitation
        if can is None:
            return cls()
        return cls(can.form is not None or can.url is None, can.url is not None)

    def put(self, question: PendingInput, wrong: str = "", *, by_id: bool = False) -> types.ElicitRequest | None:
        """Convert a question to an elicitation request, or None if the client does not support it.

        Args:
            question: Public version of the question.
            wrong: Error message for the previous answer.
            by_id: Whether to include an elicitation id, as required before protocol 2026.
        """
        message = f"{wrong}\n{question.prompt}" if wrong else question.prompt
        if question.secret:
            if not self.page or question.url is None or question.public_key is not None:
                return None
            name = question.input_id if by_id else None
            params = types.ElicitRequestURLParams(message=message, url=question.url, elicitation_id=name)
            return types.ElicitRequest(params=params)
        if not self.form or question.input_kind == "tool":
            return None
        form = form_of(question)
        return types.ElicitRequest(params=types.ElicitRequestFormParams(message=message, requested_schema=form.schema))


def form_of(question: PendingInput) -> Form:
    """Create a flat form for a question, using a JSON text field for nested data."""
    schema, options = question.answer_schema, question.options
    if question.input_kind == "confirmation":
        return _one({"type": "boolean"})
    if options:
        shown = {option if isinstance(option, str) else json.dumps(option): option for option in options}
        return _one({"type": "string", "enum": [*shown]}, lambda given: _chosen(shown, given))
    if not schema and question.input_kind in ("text", "selection"):
        return _one({"type": "string"})
    field = _field(schema, schema)
    if field is not None:
        return _one(field)
    fields = _fields(schema)
    if fields is not None:
        required = [name for name in schema.get("required", ()) if name in fields]
        return Form({"type": "object", "properties": fields, "required": required}, dict)
    wanted = f" It must fit {json.dumps(schema)}" if schema else ""
    return _one({"type": "string", "description": f"As JSON.{wanted}"[:4_000]}, _as_json)


def answer_of(question: PendingInput, said: types.ElicitResult) -> tuple[bool, Any]:
    """Parse an elicitation response.

    Returns:
        Whether the response is an answer, and its value. Declining a confirmation counts as the answer no.

    Raises:
        NoAnswer: If the response cannot be parsed.
    """
    if question.secret:
        # The only information is that the person opened the page. Declining is answered with None.
        return said.action != "cancel", True if said.action == "accept" else None
    if said.action == "accept":
        return True, form_of(question).read(said.content or {})
    return said.action == "decline" and question.input_kind == "confirmation", False


def check_credential(question: PendingInput, answer: Any) -> None:
    """Reject credentials, which must not pass through the client's model. Confirming a visit to the page is allowed.

    Raises:
        ToolError: If the answer contains a credential.
    """
    if not question.secret or answer is None or question.public_key is not None:
        return
    if question.url is None or answer is not True:
        raise ToolError(
            f"{question.input_id} asks for a credential, which is not to go through here. The person gives it where "
            "the agent is at home; here true says that the page was opened, and null declines."
        )


def _one(field: dict[str, Any], read: Callable[[Any], Any] = lambda given: given) -> Form:
    def content(given: Mapping[str, Any]) -> Any:
        if ANSWER not in given:
            raise NoAnswer("There was no answer.")
        return read(given[ANSWER])

    return Form({"type": "object", "properties": {ANSWER: field}, "required": [ANSWER]}, content)


def _chosen(options: Mapping[str, Any], given: Any) -> Any:
    if not isinstance(given, str) or given not in options:
        raise NoAnswer("That is none of the options.")
    return options[given]


def _as_json(given: Any) -> Any:
    try:
        return orjson.loads(given)
    except (orjson.JSONDecodeError, TypeError):
        raise NoAnswer("That is not JSON.") from None


def _fields(schema: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return form fields for a flat object schema, otherwise None."""
    properties: Any = schema.get("properties")
    if schema.get("type") != "object" or not properties or not isinstance(properties, dict):
        return None
    found = {name: _field(each, schema) for name, each in cast("dict[str, Any]", properties).items()}
    return None if None in found.values() else found


def _field(given: Any, root: Mapping[str, Any], depth: int = 0) -> dict[str, Any] | None:
    """Convert a schema to a form field, or return None if it is nested or recursive."""
    if not isinstance(given, dict) or depth > _DEEPEST:
        return None
    field = cast("dict[str, Any]", given)
    inner = _behind(field, root)
    if inner is not None:
        return _field({**inner, **_described(field)}, root, depth + 1)
    if field.get("type") == "array":
        return _several(field, root, depth)
    kind = field.get("type")
    if not isinstance(kind, str) or kind not in _PRIMITIVE:
        return None
    known = {name: value for name, value in field.items() if name in _PRIMITIVE[kind] | _ALWAYS and value is not None}
    if known.get("format") not in _FORMATS:
        known.pop("format", None)
    return known if all(isinstance(each, str) for each in known.get("enum", ())) else None


def _behind(field: Mapping[str, Any], root: Mapping[str, Any]) -> dict[str, Any] | None:
    """Resolve a reference or an optional type, returning None for other schemas."""
    reference, either = field.get("$ref"), field.get("anyOf")
    found: Any = None
    if isinstance(reference, str) and reference.startswith(_DEFS):
        found = root.get("$defs", {}).get(reference.removeprefix(_DEFS))
    elif isinstance(either, list):
        others = [each for each in cast("list[Any]", either) if each != {"type": "null"}]
        found = others[0] if len(others) == 1 else None
    return cast("dict[str, Any]", found) if isinstance(found, dict) else None


def _several(field: dict[str, Any], root: Mapping[str, Any], depth: int) -> dict[str, Any] | None:
    """Convert a list of enum strings. Forms support no other list types."""
    given: Any = field.get("items")
    titled: Any = cast("dict[str, Any]", given).get("anyOf") if isinstance(given, dict) else None
    if isinstance(titled, list) and all("const" in each for each in cast("list[Any]", titled)):
        items: dict[str, Any] = {"anyOf": titled}
    else:
        plain = _field(given, root, depth + 1)
        if plain is None or "enum" not in plain:
            return None
        items = {"type": "string", "enum": plain["enum"]}
    kept = {name: field[name] for name in ("title", "description", "default", "minItems", "maxItems") if name in field}
    return {"type": "array", "items": items, **kept}


def _described(field: Mapping[str, Any]) -> dict[str, Any]:
    return {name: field[name] for name in ("title", "description", "default") if name in field}


class Questions:
    """Pending questions of a run during elicitation."""

    def __init__(self, pending: Sequence[PendingInput]) -> None:
        """Initialize with the public questions."""
        self.left = list(pending)
        """Unanswered questions."""
        self._again: dict[str, str] = {each.input_id: "" for each in pending}
        """Questions to ask, with error messages for previous answers."""

    def requests(self, asks: Asks, *, by_id: bool) -> dict[str, types.ElicitRequest]:
        """Return elicitation requests by question id, skipping questions that the client does not support."""
        wanted = [each for each in self.left if each.input_id in self._again]
        made = {each.input_id: asks.put(each, self._again[each.input_id], by_id=by_id) for each in wanted}
        return {name: request for name, request in made.items() if request is not None}

    def read(self, said: Mapping[str, Any]) -> dict[str, Any]:
        """Parse responses and return the valid answers. Questions with invalid responses are asked again."""
        answers: dict[str, Any] = {}
        for question in self.left:
            heard = said.get(question.input_id)
            if not isinstance(heard, types.ElicitResult):
                continue
            self._again.pop(question.input_id, None)
            try:
                there, value = answer_of(question, heard)
            except NoAnswer as error:
                self._again[question.input_id] = str(error)
                continue
            if there:
                answers[question.input_id] = value
        return answers

    def taken(self, answers: Mapping[str, Any]) -> None:
        """Mark questions as answered."""
        self.left = [each for each in self.left if each.input_id not in answers]

    def misfit(self, answers: Mapping[str, Any], why: str) -> None:
        """Ask questions again after rejected answers."""
        self._again |= dict.fromkeys(answers, why)
