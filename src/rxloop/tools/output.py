"""Typed run output and the final answer tool."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, get_args

import orjson
from pydantic import PydanticUserError, TypeAdapter, ValidationError
from pydantic_core import SchemaError, to_json

from rxloop.errors import ConfigurationError, ToolError
from rxloop.pipeline.interfaces import Provider
from rxloop.pipeline.requests import ToolDefinition
from rxloop.pipeline.run_context import RunContext
from rxloop.support.json_schema import VALUE_ERROR
from rxloop.support.misuse import check_argument

FINAL_ANSWER = "final_answer"


class FinalAnswer:
    """Final answer tool. Calling it ends the run."""

    timeout: float | None = None
    idempotent = True
    approve = False

    def __init__(self, parameters: dict[str, Any], check: Callable[[dict[str, Any]], str]) -> None:
        """Create the tool.

        Args:
            parameters: JSON Schema of the arguments.
            check: Converts the arguments to the answer as JSON. Raises `ValueError` with a text for the model.
        """
        self.definition = ToolDefinition(
            FINAL_ANSWER,
            "Gives your final answer, and ends the task. Call it once, alone, when you have all that the answer needs.",
            parameters,
            answer=True,
        )
        self._check = check

    def enabled(self, ctx: RunContext[Any]) -> bool:
        """Return True, because models may answer at any time."""
        return True

    async def call(self, arguments: dict[str, Any], ctx: RunContext[Any]) -> str:
        """Return the answer as JSON.

        Raises:
            ToolError: If the answer is invalid.
        """
        try:
            return self._check(arguments)
        except ValueError as error:
            raise ToolError(f"Your answer does not fit: {error}\nCall {FINAL_ANSWER} again.") from error


OutputMode = Literal["auto", "native", "tool", "prompted"]

VALUE = "value"
"""Argument name for non-object answers."""

_BY_TOOL = f"Give your final answer by calling the tool {FINAL_ANSWER}, and not as text."

_AS_JSON = "Give your final answer as JSON alone, with no other text and no code fence. It must fit this JSON Schema:\n"


class Output(NamedTuple):
    """Output format and answer parser of a run."""

    parse: Callable[[str], Any]
    """Answer parser. Raises `ValueError` with a model-readable message."""
    mode: OutputMode = "auto"
    schema: dict[str, Any] | None = None
    """JSON Schema for providers that can enforce it."""
    instructions: str | None = None
    """Instructions on the answer for the system prompt, if needed."""
    tool: FinalAnswer | None = None
    """Tool that returns the answer, if the mode is `tool`."""
    adapter: TypeAdapter[Any] | None = None
    """Validator of the answer. None if the answer is plain text."""

    def prompt(self, model: Provider) -> str | None:
        """Return system prompt instructions for the answer, or None if the schema is sufficient.

        If it is unknown whether the model enforces the schema, the instructions are added, unless the mode is `native`.
        """
        enforces_schema = getattr(model, "enforces_schema", None)
        if self.schema is not None and (enforces_schema or (self.mode == "native" and enforces_schema is None)):
            return None
        return self.instructions

    def json_schema(self) -> dict[str, Any] | None:
        """Return the JSON Schema of the values that `as_json` returns, or None if the answer is plain text."""
        return None if self.adapter is None else self.adapter.json_schema(mode="serialization")

    def as_json(self, text: str) -> Any:
        """Parse an answer and return JSON data for programs. A plain text is returned unchanged.

        Raises:
            ValueError: If the answer is invalid.
        """
        value = self.parse(text)
        return value if self.adapter is None else self.adapter.dump_python(value, mode="json", by_alias=True)


def make_output(output_type: Any, mode: OutputMode = "auto") -> Output:
    """Return how to request and parse an answer of a type.

    Args:
        output_type: `str` for plain text. Any other type that pydantic can validate is requested as JSON.
        mode: `native` sends the schema to the provider, `tool` adds a tool for the answer, and `prompted` puts the
            schema into the system prompt. `auto` is `native` if the provider is known to enforce schemas. Otherwise it
            is `prompted`, and the schema is sent too.

    Raises:
        ConfigurationError: If the mode is unknown, or pydantic cannot validate the type.
    """
    check_argument("output_mode", mode, mode in get_args(OutputMode), f"one of {', '.join(get_args(OutputMode))}")
    if output_type is str:
        return Output(parse=str)
    is_type = output_type is not None and not inspect.isroutine(output_type)
    check_argument("output_type", output_type, is_type, "a type, such as str, list[str] or a pydantic model")
    adapter, schema = make_adapter(output_type)

    def parse(text: str) -> Any:
        try:
            return adapter.validate_json(_find_json(text))
        except ValidationError as error:
            raise ValueError(_describe_errors(error)) from error

    if mode == "tool":
        return Output(parse, mode, instructions=_BY_TOOL, tool=_make_tool(adapter, schema), adapter=adapter)
    native = mode != "prompted" and is_object(schema)
    instructions = _AS_JSON + orjson.dumps(schema).decode()
    return Output(parse, mode, schema if native else None, instructions, adapter=adapter)


def _find_json(text: str) -> str:
    """Extract JSON from plain text, a code fence or surrounding prose."""
    # Imported lazily, because most answers are plain text.
    from rxloop.protocol.lenient import find_json, is_json, unfence

    body = unfence(text)
    return body if is_json(body) else find_json(text) or body


def is_read_leniently(text: str) -> bool:
    """Return True if only a part of the text is JSON. A plain code fence around the JSON does not count."""
    from rxloop.protocol.lenient import find_json, is_json, unfence

    return not is_json(unfence(text)) and find_json(text) is not None


def make_adapter(output_type: Any) -> tuple[TypeAdapter[Any], dict[str, Any]]:
    """Return the validator and the JSON Schema of a type.

    Raises:
        ConfigurationError: If pydantic cannot validate the type.
    """
    try:
        adapter: TypeAdapter[Any] = TypeAdapter(output_type)
        return adapter, adapter.json_schema()
    except (PydanticUserError, SchemaError) as error:
        from rxloop.support.json_schema import explain_schema_error

        reason = explain_schema_error(error) if isinstance(error, SchemaError) else str(error).partition("\n")[0]
        raise ConfigurationError(f"output_type={output_type!r} cannot be validated: {reason}") from error


def is_object(schema: dict[str, Any]) -> bool:
    """Return True if the root of the schema accepts only JSON objects."""
    # Imported lazily to speed up the import of rxloop.
    from rxloop.support.json_schema import resolve_reference

    # The schema of a recursive type is a reference.
    root = resolve_reference(schema["$ref"], schema) if "$ref" in schema else schema
    return root is not None and root.get("type") == "object"


def _make_tool(adapter: TypeAdapter[Any], schema: dict[str, Any]) -> FinalAnswer:
    is_bare = is_object(schema)
    parameters = schema if is_bare else _wrap_schema(schema)

    def check(arguments: dict[str, Any]) -> str:
        if not is_bare and VALUE not in arguments:
            raise ValueError(f"{VALUE}: Field required")
        # Validate the JSON text, because the answer is parsed from this text at the end of the run.
        text = to_json(arguments if is_bare else arguments[VALUE])
        try:
            adapter.validate_json(text)
        except ValidationError as error:
            raise ValueError(_describe_errors(error)) from error
        return text.decode()

    return FinalAnswer(parameters, check)


def _wrap_schema(schema: dict[str, Any]) -> dict[str, Any]:
    inner = {key: value for key, value in schema.items() if key != "$defs"}
    shared = {"$defs": schema["$defs"]} if "$defs" in schema else {}
    return {"type": "object", "properties": {VALUE: inner}, "required": [VALUE], "additionalProperties": False} | shared


def _describe_errors(error: ValidationError) -> str:
    return "; ".join(
        f"{'.'.join(map(str, problem['loc'])) or 'the answer'}: {problem['msg'].removeprefix(VALUE_ERROR)}"
        for problem in error.errors(include_url=False)
    )
