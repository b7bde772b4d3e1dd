"""Typed output: how an answer becomes a value."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, get_args

import orjson
from pydantic import PydanticUserError, TypeAdapter, ValidationError
from pydantic_core import to_json

from rxloop.errors import ConfigurationError
from rxloop.pipeline.seams import Provider
from rxloop.tools import FINAL_ANSWER, FinalAnswer

OutputMode = Literal["auto", "native", "tool", "prompted"]

VALUE = "value"
"""The argument by which the tool for the answer takes one that is not an object."""

_FENCE = re.compile(r"\A\s*```[a-zA-Z]*\s*\n(?P<body>.*?)\n?\s*```\s*\Z", re.DOTALL)
_BY_TOOL = f"Give your final answer by calling the tool {FINAL_ANSWER}, and not as text."
_AS_JSON = "Give your final answer as JSON alone, with no other text and no code fence. It must fit this JSON Schema:\n"


class Output(NamedTuple):
    """How the answer is asked for, and read."""

    parse: Callable[[str], Any]
    """Raises ValueError with a text for the model."""
    mode: OutputMode = "auto"
    schema: dict[str, Any] | None = None
    """What a provider that can makes the model keep to."""
    instructions: str | None = None
    """What the system prompt says of the answer, where it has to."""
    tool: FinalAnswer | None = None
    """What the model gives the answer by, where that is a tool."""
    adapter: TypeAdapter[Any] | None = None
    """Validates the answer; None where that is text."""

    def prompt(self, model: Provider) -> str | None:
        """Say what the system prompt tells this model about the answer.

        Nothing, if the model keeps to the schema in every request. If that is unknown it gets both, schema and words,
        unless the mode is `native`; if it does not keep to it, it gets the words in any case.
        """
        able = getattr(model, "keeps_to_schema", None)
        if self.schema is not None and (able or (self.mode == "native" and able is None)):
            return None
        return self.instructions

    def json_schema(self) -> dict[str, Any] | None:
        """Make the JSON Schema of the answer as `as_json` gives it; None where the answer is text."""
        return None if self.adapter is None else self.adapter.json_schema(mode="serialization")

    def as_json(self, text: str) -> Any:
        """Read the text of an answer as JSON, as programs get it; the text itself where the answer is text.

        Raises:
            ValueError: It is no such answer.
        """
        value = self.parse(text)
        return value if self.adapter is None else self.adapter.dump_python(value, mode="json", by_alias=True)


def output_of(output_type: Any, mode: OutputMode = "auto") -> Output:
    """Say how an answer of a type is asked for and read.

    Args:
        output_type: `str` takes the answer as it is; anything else that pydantic validates is asked for as JSON.
        mode: `native` leaves the schema to the provider, `tool` takes the answer as the call of a tool, `prompted` puts
            the schema into the system prompt. `auto` is `native` if the provider is known to keep to a schema, and
            otherwise `prompted`, with what the provider can add.

    Raises:
        ConfigurationError: The mode is unknown, or pydantic cannot validate the type.
    """
    if mode not in get_args(OutputMode):
        raise ConfigurationError(f"output_mode must be one of {', '.join(get_args(OutputMode))}, not {mode!r}")
    if output_type is str:
        return Output(parse=str)
    adapter, schema = adapter_of(output_type)

    def parse(text: str) -> Any:
        fenced = _FENCE.match(text)
        try:
            return adapter.validate_json(fenced["body"] if fenced else text)
        except ValidationError as error:
            raise ValueError(_for_the_model(error)) from error

    if mode == "tool":
        return Output(parse, mode, instructions=_BY_TOOL, tool=_tool(adapter, schema), adapter=adapter)
    native = mode != "prompted" and is_object(schema)
    words = _AS_JSON + orjson.dumps(schema).decode()
    return Output(parse, mode, schema if native else None, words, adapter=adapter)


def adapter_of(output_type: Any) -> tuple[TypeAdapter[Any], dict[str, Any]]:
    """Make what validates a type, and its JSON Schema.

    Raises:
        ConfigurationError: Pydantic cannot validate it.
    """
    try:
        adapter: TypeAdapter[Any] = TypeAdapter(output_type)
        return adapter, adapter.json_schema()
    except PydanticUserError as error:
        reason = str(error).partition("\n")[0]
        raise ConfigurationError(f"output_type={output_type!r} cannot be the type of an answer: {reason}") from error


def is_object(schema: dict[str, Any]) -> bool:
    """Tell whether everything that fits the schema is a JSON object, by its root."""
    return schema.get("type") == "object"


def _tool(adapter: TypeAdapter[Any], schema: dict[str, Any]) -> FinalAnswer:
    whole = is_object(schema)
    parameters = schema if whole else _wrapped(schema)

    def check(arguments: dict[str, Any]) -> str:
        if not whole and VALUE not in arguments:
            raise ValueError(f"{VALUE}: Field required")
        # Validated as the JSON that the run has it as: that is how it is read again at the end.
        text = to_json(arguments if whole else arguments[VALUE])
        try:
            adapter.validate_json(text)
        except ValidationError as error:
            raise ValueError(_for_the_model(error)) from error
        return text.decode()

    return FinalAnswer(parameters, check)


def _wrapped(schema: dict[str, Any]) -> dict[str, Any]:
    inner = {key: value for key, value in schema.items() if key != "$defs"}
    shared = {"$defs": schema["$defs"]} if "$defs" in schema else {}
    return {"type": "object", "properties": {VALUE: inner}, "required": [VALUE], "additionalProperties": False} | shared


def _for_the_model(error: ValidationError) -> str:
    return "; ".join(
        f"{'.'.join(map(str, problem['loc'])) or 'the answer'}: {problem['msg']}"
        for problem in error.errors(include_url=False)
    )
