"""Questions asked by runs, with answers typed on the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from rxloop.cli.render import format_question
from rxloop.cli.terminal import notify, read_line, read_secret, write
from rxloop.errors import ConfigurationError
from rxloop.protocol.events import PendingInput
from rxloop.support.json_schema import Schema, find_mismatch, resolve_reference

_YES_OR_NO = {"y": True, "yes": True, "true": True, "n": False, "no": False, "false": False}
_SAMPLES: Mapping[str, Any] = {
    "boolean": True,
    "integer": 1,
    "number": 1.5,
    "array": [],
    "object": {},
    "string": "...",
    "null": None,
}
_MAX_DEPTH = 5
"""Maximum nesting depth for examples."""


def ask_user(pending: Sequence[PendingInput]) -> dict[str, Any] | None:
    """Ask the user to answer pending questions. Returns None if the user cancels."""
    answers: dict[str, Any] = {}
    for question in pending:
        notify(format_question(question))
        while True:
            try:
                text = _read_input(question)
            except (EOFError, KeyboardInterrupt):
                notify("")
                return None
            try:
                answers[question.input_id] = parse_answer(text, question)
                break
            except ConfigurationError as error:
                notify(str(error))
    return answers


def _read_input(question: PendingInput) -> str:
    if question.secret:
        return read_secret("(hidden input; press Enter to decline) > ")
    write("> ", to_stderr=True)
    return read_line()


def parse_answer(text: str, pending: PendingInput) -> Any:
    """Parse an answer using the question's type.

    Raises:
        ConfigurationError: The answer does not match.
    """
    if pending.secret:
        # Secrets are used verbatim, even if they look like numbers.
        return text or None
    if pending.options is not None:
        for option in pending.options:
            if text in (str(option), orjson.dumps(option, default=str).decode()):
                return option
        for number, option in enumerate(pending.options, 1):
            if text == str(number):
                return option
        raise ConfigurationError(f"{text!r} is not an option; type an option or its number, starting at 1")
    if pending.input_kind == "confirmation":
        if text.lower() not in _YES_OR_NO:
            raise ConfigurationError("the answer must be yes or no")
        return _YES_OR_NO[text.lower()]
    if pending.input_kind == "text":
        return text
    return _parse_data(text, pending)


def _parse_data(text: str, pending: PendingInput) -> Any:
    """Parse JSON data, or accept an unquoted string if the schema allows it."""
    schema = pending.answer_schema
    hint = f"example: {make_example(pending)}"
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:
        if text and find_mismatch(text, schema) is None:
            return text
        raise ConfigurationError(f"{text!r} is not JSON; {hint}" if text else hint) from None
    mismatch = find_mismatch(value, schema)
    if mismatch is None:
        return value
    # Values such as house numbers look like numbers but may be strings.
    if find_mismatch(text, schema) is None:
        return text
    raise ConfigurationError(f"{mismatch}; {hint}")


def make_example(pending: PendingInput) -> str:
    """Return an example answer as JSON."""
    value = pending.options[0] if pending.options else _make_sample(pending.answer_schema, pending.answer_schema)
    return orjson.dumps(value, default=str).decode()


def _make_sample(schema: Schema | bool, root: Schema, depth: int = 0) -> Any:
    """Generate an example value for a JSON schema, based on its types."""
    # Limit the depth for recursive schemas. Programs and MCP servers can declare any schema.
    if isinstance(schema, bool) or depth > _MAX_DEPTH:
        return _SAMPLES["string"]
    if isinstance(schema.get("$ref"), str):
        return _make_sample(resolve_reference(schema["$ref"], root) or {}, root, depth + 1)
    for name in ("const", "default"):
        if name in schema:
            return schema[name]
    if schema.get("enum"):
        return schema["enum"][0]
    options = schema.get("anyOf") or schema.get("oneOf")
    if options:
        return _make_sample(options[0], root, depth + 1)
    kinds = schema.get("type", "string")
    kind = kinds if isinstance(kinds, str) else kinds[0]
    if kind == "object":
        properties = schema.get("properties", {})
        return {name: _make_sample(properties.get(name, {}), root, depth + 1) for name in schema.get("required", ())}
    if kind == "array" and schema.get("items"):
        return [_make_sample(schema["items"], root, depth + 1)]
    return max(_SAMPLES[kind], schema.get("minimum", 0)) if kind in ("integer", "number") else _SAMPLES.get(kind, "...")
