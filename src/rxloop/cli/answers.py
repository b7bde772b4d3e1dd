"""What a run waits for, asked of the person at the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from rxloop.cli.render import question
from rxloop.cli.terminal import read_line, read_secret, say, write
from rxloop.errors import ConfigurationError
from rxloop.pipeline.json_schema import misfit
from rxloop.protocol.events import PendingInput

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


def ask(pending: Sequence[PendingInput]) -> dict[str, Any] | None:
    """Ask the person at the terminal; None if nobody wants to answer."""
    answers: dict[str, Any] = {}
    for asked in pending:
        say(question(asked))
        while True:
            try:
                given = _read(asked)
            except (EOFError, KeyboardInterrupt):
                say("")
                return None
            try:
                answers[asked.input_id] = read_answer(given, asked)
                break
            except ConfigurationError as error:
                say(str(error))
    return answers


def _read(asked: PendingInput) -> str:
    if asked.secret:
        return read_secret("(it is not shown; nothing declines) > ")
    write("> ", beside=True)
    return read_line()


def read_answer(given: str, pending: PendingInput) -> Any:
    """Read what a person typed, as the kind of value that was asked for.

    Raises:
        ConfigurationError: It cannot be read as that.
    """
    if pending.secret:
        # Word for word, be it digits alone.
        return given or None
    if pending.options is not None:
        for option in pending.options:
            if given in (str(option), orjson.dumps(option, default=str).decode()):
                return option
        if given.isdecimal() and 1 <= int(given) <= len(pending.options):
            return pending.options[int(given) - 1]
        raise ConfigurationError(f"{given!r} is not one of them: type one, or its number, from 1")
    if pending.input_kind == "confirmation":
        if given.lower() not in _YES_OR_NO:
            raise ConfigurationError("please answer yes or no")
        return _YES_OR_NO[given.lower()]
    if pending.input_kind == "text":
        return given
    return _read_data(given, pending)


def _read_data(given: str, pending: PendingInput) -> Any:
    """JSON, or a text where one is wanted and the quotes were left out."""
    schema = pending.answer_schema
    like = f"type something like {example(pending)}"
    try:
        value = orjson.loads(given)
    except orjson.JSONDecodeError:
        if given and misfit(given, schema) is None:
            return given
        raise ConfigurationError(f"{given!r} is not JSON; {like}" if given else like) from None
    wrong = misfit(value, schema)
    if wrong is None:
        return value
    # A house number is digits, and a text all the same.
    if misfit(given, schema) is None:
        return given
    raise ConfigurationError(f"{wrong}; {like}")


def example(pending: PendingInput) -> str:
    """Make up an answer of the right form, as JSON."""
    value = pending.options[0] if pending.options else _sample(pending.answer_schema, pending.answer_schema)
    return orjson.dumps(value, default=str).decode()


def _sample(schema: Mapping[str, Any], root: Mapping[str, Any], depth: int = 0) -> Any:
    """Make up a value that fits a schema, as far as its types go."""
    reference = schema.get("$ref")
    if isinstance(reference, str):
        schema = root.get("$defs", {}).get(reference.rpartition("/")[2], {})
    for name in ("const", "default"):
        if name in schema:
            return schema[name]
    if schema.get("enum"):
        return schema["enum"][0]
    options = schema.get("anyOf") or schema.get("oneOf")
    if options:
        return _sample(options[0], root, depth)
    kind = schema.get("type", "string")
    # A model may hold itself.
    if depth < 4 and kind == "object":
        properties = schema.get("properties", {})
        return {name: _sample(properties.get(name, {}), root, depth + 1) for name in schema.get("required", ())}
    if depth < 4 and kind == "array" and schema.get("items"):
        return [_sample(schema["items"], root, depth + 1)]
    return max(_SAMPLES[kind], schema.get("minimum", 0)) if kind in ("integer", "number") else _SAMPLES.get(kind, "...")
