"""Typed output and the tool that returns it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple, get_args

import orjson
from pydantic import PydanticUserError, TypeAdapter, ValidationError
from pydantic_core import SchemaError, to_json

from rxloop.errors import ConfigurationError, ToolError
from rxloop.pipeline.interfaces import Provider
from rxloop.pipeline.requests import ToolDefinition
from rxloop.pipeline.run_context import RunContext

FINAL_ANSWER = "final_answer"


class FinalAnswer:
    """Takes the answer of a run as the arguments of a call, and ends the run with it."""

    timeout: float | None = None
    idempotent = True
    approve = False

    def __init__(self, parameters: dict[str, Any], check: Callable[[dict[str, Any]], str]) -> None:
        """Make the tool.

        Args:
            parameters: JSON Schema of the arguments.
            check: Gives the answer that the arguments are, as JSON; raises ValueError with a text for the model.
        """
        self.definition = ToolDefinition(
            FINAL_ANSWER,
            "Gives your final answer, and ends the task. Call it once, alone, when you have all that the answer needs.",
            parameters,
            answer=True,
        )
        self._check = check

    def enabled(self, ctx: RunContext[Any]) -> bool:
        """Always: a run may be answered at any time."""
        return True

    async def call(self, arguments: dict[str, Any], ctx: RunContext[Any]) -> str:
        """Take the answer.

        Raises:
            ToolError: It does not fit.
        """
        try:
            return self._check(arguments)
        except ValueError as error:
            raise ToolError(f"Your answer does not fit: {error}\nCall {FINAL_ANSWER} again.") from error


OutputMode = Literal["auto", "native", "tool", "prompted"]

VALUE = "value"
"""The argument by which the tool for the answer takes one that is not an object."""

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
        able = getattr(model, "enforces_schema", None)
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
        try:
            return adapter.validate_json(_json_in(text))
        except ValidationError as error:
            raise ValueError(_for_the_model(error)) from error

    if mode == "tool":
        return Output(parse, mode, instructions=_BY_TOOL, tool=_tool(adapter, schema), adapter=adapter)
    native = mode != "prompted" and is_object(schema)
    words = _AS_JSON + orjson.dumps(schema).decode()
    return Output(parse, mode, schema if native else None, words, adapter=adapter)


def _json_in(text: str) -> str:
    """Return the JSON of an answer: the text, or the body of the code fence that it is, or the only value in it."""
    # Imported here: most answers are text, and importing rxloop is quicker without.
    from rxloop.protocol.lenient import find_json, unfence

    body = unfence(text)
    return body if _is_json(body) else find_json(text) or body


def is_read_leniently(text: str) -> bool:
    """True if a text is neither JSON nor JSON in a plain code fence, so that an answer is only a part of it."""
    from rxloop.protocol.lenient import find_json, unfence

    return not _is_json(unfence(text)) and find_json(text) is not None


def _is_json(text: str) -> bool:
    try:
        orjson.loads(text)
    except orjson.JSONDecodeError:
        return False
    return True


def adapter_of(output_type: Any) -> tuple[TypeAdapter[Any], dict[str, Any]]:
    """Make what validates a type, and its JSON Schema.

    Raises:
        ConfigurationError: Pydantic cannot validate it.
    """
    try:
        adapter: TypeAdapter[Any] = TypeAdapter(output_type)
        return adapter, adapter.json_schema()
    except (PydanticUserError, SchemaError) as error:
        from rxloop.support.json_schema import explain_schema_error

        reason = explain_schema_error(error) if isinstance(error, SchemaError) else str(error).partition("\n")[0]
        raise ConfigurationError(f"output_type={output_type!r} cannot be the type of an answer: {reason}") from error


def is_object(schema: dict[str, Any]) -> bool:
    """Tell whether everything that fits the schema is a JSON object, by its root."""
    # Imported here, because importing rxloop is quicker without.
    from rxloop.support.json_schema import resolve_reference

    # A type that contains itself is a reference.
    root = resolve_reference(schema["$ref"], schema) if "$ref" in schema else schema
    return root is not None and root.get("type") == "object"


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
