"""Pending inputs as elicitations: forms and pages."""

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
"""The field of a form that asks for one value."""

_PRIMITIVE: dict[str, frozenset[str]] = {
    "string": frozenset({"minLength", "maxLength", "format", "enum", "enumNames", "oneOf"}),
    "number": frozenset({"minimum", "maximum"}),
    "integer": frozenset({"minimum", "maximum"}),
    "boolean": frozenset(),
}
"""What a field of a form may have, by its type; forms know no more of JSON Schema."""
_ALWAYS = frozenset({"type", "title", "description", "default"})
_DEFS = "#/$defs/"
_DEEPEST = 8
"""How far a field may say elsewhere what it is."""
_FORMATS = ("date", "date-time", "email", "uri")


class NoAnswer(Exception):
    """What somebody has filled in cannot be read; the text says why."""


@dataclass(frozen=True, slots=True)
class Form:
    """A question as a form, and what reads its answer."""

    schema: dict[str, Any]
    read: Callable[[Mapping[str, Any]], Any]
    """Raises `NoAnswer`."""


@dataclass(frozen=True, slots=True)
class Asks:
    """Which questions a client can put to a person."""

    form: bool = False
    page: bool = False

    @classmethod
    def of(cls, capabilities: types.ClientCapabilities | None) -> Asks:
        """What a client says of itself; one that names neither can show forms."""
        can = None if capabilities is None else capabilities.elicitation
        if can is None:
            return cls()
        return cls(can.form is not None or can.url is None, can.url is not None)

    def put(self, question: PendingInput, wrong: str = "", *, by_id: bool = False) -> types.ElicitRequest | None:
        """Write a question for the client; None if it cannot put it to anybody.

        Args:
            question: As clients may see it.
            wrong: What was wrong with the last answer.
            by_id: Name a page, as clients before 2026 want it.
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
    """Make the form of a question: flat, as clients can show it; what is not flat is asked for as JSON."""
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
    """Read what a person has said.

    Returns:
        Whether that is an answer, and the answer. Who declines has answered a question that can be answered with no.

    Raises:
        NoAnswer: It cannot be read.
    """
    if question.secret:
        # That the person was at the page is all there is to know; one who declines gives nothing.
        return said.action != "cancel", True if said.action == "accept" else None
    if said.action == "accept":
        return True, form_of(question).read(said.content or {})
    return said.action == "decline" and question.input_kind == "confirmation", False


def check_credential(question: PendingInput, answer: Any) -> None:
    """See that no credential goes through somebody's model: it may say that the person was at the page.

    Raises:
        ToolError: It is one.
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
    """The fields of an object whose values are all plain; None for anything else."""
    properties: Any = schema.get("properties")
    if schema.get("type") != "object" or not properties or not isinstance(properties, dict):
        return None
    found = {name: _field(each, schema) for name, each in cast("dict[str, Any]", properties).items()}
    return None if None in found.values() else found


def _field(given: Any, root: Mapping[str, Any], depth: int = 0) -> dict[str, Any] | None:
    """A plain value as the field of a form; None for what is not plain, and for what goes in a circle."""
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
    """What a field is that says so elsewhere, or that may also be null."""
    reference, either = field.get("$ref"), field.get("anyOf")
    found: Any = None
    if isinstance(reference, str) and reference.startswith(_DEFS):
        found = root.get("$defs", {}).get(reference.removeprefix(_DEFS))
    elif isinstance(either, list):
        others = [each for each in cast("list[Any]", either) if each != {"type": "null"}]
        found = others[0] if len(others) == 1 else None
    return cast("dict[str, Any]", found) if isinstance(found, dict) else None


def _several(field: dict[str, Any], root: Mapping[str, Any], depth: int) -> dict[str, Any] | None:
    """Several of given texts: the only list that forms know."""
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
    """The questions that a run waits with, while a client puts them to somebody."""

    def __init__(self, pending: Sequence[PendingInput]) -> None:
        """Take the questions, as clients may see them."""
        self.left = list(pending)
        """Those that have no answer yet."""
        self._again: dict[str, str] = {each.input_id: "" for each in pending}
        """Those that are to be put, with what was wrong with the last answer."""

    def requests(self, asks: Asks, *, by_id: bool) -> dict[str, types.ElicitRequest]:
        """What is to be put to somebody now, by the ids of the questions; nothing where the client cannot."""
        wanted = [each for each in self.left if each.input_id in self._again]
        made = {each.input_id: asks.put(each, self._again[each.input_id], by_id=by_id) for each in wanted}
        return {name: request for name, request in made.items() if request is not None}

    def read(self, said: Mapping[str, Any]) -> dict[str, Any]:
        """Read what was said, and give the answers among it; what cannot be read is to be put once more."""
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
        """Take note that the run has these answers."""
        self.left = [each for each in self.left if each.input_id not in answers]

    def misfit(self, answers: Mapping[str, Any], why: str) -> None:
        """Put these questions once more, since the run does not take the answers."""
        self._again |= dict.fromkeys(answers, why)
