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

_KEYWORDS: dict[str, frozenset[str]] = {
    "string": frozenset({"minLength", "maxLength", "format", "enum", "enumNames", "oneOf"}),
    "number": frozenset({"minimum", "maximum"}),
    "integer": frozenset({"minimum", "maximum"}),
    "boolean": frozenset(),
}
"""Supported schema keywords per type. MCP forms support only this subset of JSON Schema."""
_COMMON = frozenset({"type", "title", "description", "default"})
_DEFS = "#/$defs/"
_MAX_DEPTH = 8
"""Maximum depth of references in a field schema."""
_FORMATS = ("date", "date-time", "email", "uri")


class InvalidResponse(Exception):
    """Raised for a form response that cannot be parsed. The message contains the reason."""


@dataclass(frozen=True, slots=True)
class Form:
    """Form for a question, including a response parser."""

    schema: dict[str, Any]
    parse: Callable[[Mapping[str, Any]], Any]
    """Response parser, which raises `InvalidResponse` for invalid responses."""


@dataclass(frozen=True, slots=True)
class Elicitation:
    """Elicitation modes supported by a client."""

    form: bool = False
    url: bool = False

    @classmethod
    def from_capabilities(cls, capabilities: types.ClientCapabilities | None) -> Elicitation:
        """Read client capabilities. Elicitation without further details means forms."""
        elicitation = None if capabilities is None else capabilities.elicitation
        if elicitation is None:
            return cls()
        return cls(elicitation.form is not None or elicitation.url is None, elicitation.url is not None)

    def make_request(
        self, question: PendingInput, error: str = "", *, with_id: bool = False
    ) -> types.ElicitRequest | None:
        """Convert a question to an elicitation request, or None if the client does not support it.

        Args:
            question: Public version of the question.
            error: Error message for the previous answer.
            with_id: Whether to include an elicitation id, as required before protocol 2026.
        """
        message = f"{error}\n{question.prompt}" if error else question.prompt
        if question.secret:
            if not self.url or question.url is None or question.public_key is not None:
                return None
            elicitation_id = question.input_id if with_id else None
            params = types.ElicitRequestURLParams(message=message, url=question.url, elicitation_id=elicitation_id)
            return types.ElicitRequest(params=params)
        if not self.form or question.input_kind == "tool":
            return None
        form = make_form(question)
        return types.ElicitRequest(params=types.ElicitRequestFormParams(message=message, requested_schema=form.schema))


def make_form(question: PendingInput) -> Form:
    """Create a flat form for a question, using a JSON text field for nested data."""
    schema, options = question.answer_schema, question.options
    if question.input_kind == "confirmation":
        return _make_single({"type": "boolean"})
    if options:
        labels = {option if isinstance(option, str) else json.dumps(option): option for option in options}
        return _make_single({"type": "string", "enum": [*labels]}, lambda value: _parse_option(labels, value))
    if not schema and question.input_kind in ("text", "selection"):
        return _make_single({"type": "string"})
    field = _make_field(schema, schema)
    if field is not None:
        return _make_single(field)
    fields = _make_fields(schema)
    if fields is not None:
        required = [name for name in schema.get("required", ()) if name in fields]
        return Form({"type": "object", "properties": fields, "required": required}, dict)
    condition = f" It must fit {json.dumps(schema)}" if schema else ""
    return _make_single({"type": "string", "description": f"As JSON.{condition}"[:4_000]}, _parse_json)


def parse_response(question: PendingInput, response: types.ElicitResult) -> tuple[bool, Any]:
    """Parse an elicitation response.

    Returns:
        Whether the response is an answer, and its value. Declining a confirmation counts as the answer no.

    Raises:
        InvalidResponse: If the response cannot be parsed.
    """
    if question.secret:
        # The only information is that the person opened the page. Declining is answered with None.
        return response.action != "cancel", True if response.action == "accept" else None
    if response.action == "accept":
        return True, make_form(question).parse(response.content or {})
    return response.action == "decline" and question.input_kind == "confirmation", False


def check_credential(question: PendingInput, answer: Any) -> None:
    """Reject credentials, which must not pass through the client's model. Confirming a visit to the page is allowed.

    Raises:
        ToolError: If the answer contains a credential.
    """
    if not question.secret or answer is None or question.public_key is not None:
        return
    if question.url is None or answer is not True:
        raise ToolError(
            f"{question.input_id} asks for a credential. Credentials must not be sent through this conversation. The "
            "person enters it on the page of the agent. Answer true after the page was opened, or null to decline."
        )


def _make_single(field: dict[str, Any], parse: Callable[[Any], Any] = lambda value: value) -> Form:
    def parse_content(content: Mapping[str, Any]) -> Any:
        if ANSWER not in content:
            raise InvalidResponse("The answer is missing.")
        return parse(content[ANSWER])

    return Form({"type": "object", "properties": {ANSWER: field}, "required": [ANSWER]}, parse_content)


def _parse_option(options: Mapping[str, Any], value: Any) -> Any:
    if not isinstance(value, str) or value not in options:
        raise InvalidResponse("The answer is not one of the options.")
    return options[value]


def _parse_json(value: Any) -> Any:
    try:
        return orjson.loads(value)
    except (orjson.JSONDecodeError, TypeError):
        raise InvalidResponse("The answer is not valid JSON.") from None


def _make_fields(schema: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return form fields for a flat object schema, otherwise None."""
    properties: Any = schema.get("properties")
    if schema.get("type") != "object" or not properties or not isinstance(properties, dict):
        return None
    fields = {name: _make_field(each, schema) for name, each in cast("dict[str, Any]", properties).items()}
    return None if None in fields.values() else fields


def _make_field(schema: Any, root: Mapping[str, Any], depth: int = 0) -> dict[str, Any] | None:
    """Convert a schema to a form field, or return None if it is nested or recursive."""
    if not isinstance(schema, dict) or depth > _MAX_DEPTH:
        return None
    field = cast("dict[str, Any]", schema)
    target = _resolve(field, root)
    if target is not None:
        return _make_field({**target, **_copy_description(field)}, root, depth + 1)
    if field.get("type") == "array":
        return _make_list_field(field, root, depth)
    kind = field.get("type")
    if not isinstance(kind, str) or kind not in _KEYWORDS:
        return None
    result = {name: value for name, value in field.items() if name in _KEYWORDS[kind] | _COMMON and value is not None}
    if result.get("format") not in _FORMATS:
        result.pop("format", None)
    return result if all(isinstance(each, str) for each in result.get("enum", ())) else None


def _resolve(field: Mapping[str, Any], root: Mapping[str, Any]) -> dict[str, Any] | None:
    """Resolve a reference or an optional type, returning None for other schemas."""
    reference, alternatives = field.get("$ref"), field.get("anyOf")
    target: Any = None
    if isinstance(reference, str) and reference.startswith(_DEFS):
        target = root.get("$defs", {}).get(reference.removeprefix(_DEFS))
    elif isinstance(alternatives, list):
        non_null = [each for each in cast("list[Any]", alternatives) if each != {"type": "null"}]
        target = non_null[0] if len(non_null) == 1 else None
    return cast("dict[str, Any]", target) if isinstance(target, dict) else None


def _make_list_field(field: dict[str, Any], root: Mapping[str, Any], depth: int) -> dict[str, Any] | None:
    """Convert a list of enum strings. Forms support no other list types."""
    item: Any = field.get("items")
    titled: Any = cast("dict[str, Any]", item).get("anyOf") if isinstance(item, dict) else None
    if isinstance(titled, list) and all("const" in each for each in cast("list[Any]", titled)):
        items: dict[str, Any] = {"anyOf": titled}
    else:
        plain = _make_field(item, root, depth + 1)
        if plain is None or "enum" not in plain:
            return None
        items = {"type": "string", "enum": plain["enum"]}
    same = {name: field[name] for name in ("title", "description", "default", "minItems", "maxItems") if name in field}
    return {"type": "array", "items": items, **same}


def _copy_description(field: Mapping[str, Any]) -> dict[str, Any]:
    return {name: field[name] for name in ("title", "description", "default") if name in field}


class Questions:
    """Pending questions of a run during elicitation."""

    def __init__(
        self, pending: Sequence[PendingInput], may_answer: Callable[[PendingInput], bool] = lambda question: True
    ) -> None:
        """Initialize with the public questions. Only those that the client may answer are elicited."""
        self.unanswered = list(pending)
        """Unanswered questions."""
        self._to_ask: dict[str, str] = {each.input_id: "" for each in pending if may_answer(each)}
        """Questions to ask, with the error message for the previous answer or an empty string."""

    def make_requests(self, elicitation: Elicitation, *, with_id: bool) -> dict[str, types.ElicitRequest]:
        """Return elicitation requests by question id, skipping questions that the client does not support."""
        asked = [each for each in self.unanswered if each.input_id in self._to_ask]
        make, errors = elicitation.make_request, self._to_ask
        requests = {each.input_id: make(each, errors[each.input_id], with_id=with_id) for each in asked}
        return {name: request for name, request in requests.items() if request is not None}

    def parse_responses(self, responses: Mapping[str, Any]) -> dict[str, Any]:
        """Parse responses and return the valid answers. Questions with invalid responses are asked again."""
        answers: dict[str, Any] = {}
        for question in self.unanswered:
            response = responses.get(question.input_id)
            if not isinstance(response, types.ElicitResult):
                continue
            self._to_ask.pop(question.input_id, None)
            try:
                is_answer, value = parse_response(question, response)
            except InvalidResponse as error:
                self._to_ask[question.input_id] = str(error)
                continue
            if is_answer:
                answers[question.input_id] = value
        return answers

    def mark_answered(self, answers: Mapping[str, Any]) -> None:
        """Mark questions as answered."""
        self.unanswered = [each for each in self.unanswered if each.input_id not in answers]

    def reject_answers(self, answers: Mapping[str, Any], reason: str) -> None:
        """Ask questions again after rejected answers."""
        self._to_ask |= dict.fromkeys(answers, reason)
