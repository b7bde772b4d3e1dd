"""Client-side tools and user input requests."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PydanticUserError, TypeAdapter, create_model
from pydantic_core import SchemaError

from rxloop.errors import ConfigurationError, InvalidEvent, ToolError
from rxloop.pipeline.host import get_host
from rxloop.pipeline.requests import ToolDefinition
from rxloop.pipeline.run_context import RunContext
from rxloop.protocol.json_data import freeze_json
from rxloop.protocol.messages import PendingInput, get_tool_error
from rxloop.support.json_schema import (
    MAX_STEPS,
    StepBudget,
    explain_schema_error,
    find_mismatch_off_loop,
    find_schema_error,
    quote_value,
)
from rxloop.support.misuse import check_positive, check_type
from rxloop.tools.approval import describe_call
from rxloop.tools.function import check_name, tool
from rxloop.tools.signature import json_schema, validate

_NO_PARAMETERS: dict[str, Any] = {"type": "object", "properties": {}}


class ClientTool:
    """Client-side tool, see `client_tool`."""

    definition: ToolDefinition
    """Name, description and schema for the model."""
    timeout: float | None
    """Time limit in seconds if `on_input` answers. None for no limit."""
    idempotent = True
    """Calls can be repeated after a crash, because the question id stays the same."""
    approve = False
    can_redact = False
    """The log records the answer of the client before the call returns."""

    def __init__(
        self,
        name: str,
        parameters: Mapping[str, Any] | type[BaseModel] | None = None,
        *,
        description: str = "",
        result: Mapping[str, Any] | type[Any] | None = None,
        strict: bool = False,
        timeout: float | None = None,
        _budget: StepBudget | None = None,
    ) -> None:
        """Initialize the tool. See `client_tool` for argument documentation.

        `_budget` limits the validation of several definitions.
        """
        _check_strings(name, description)
        seconds: Any = timeout
        check_positive(optional=True, **{f"tool {name!r}: timeout in seconds": seconds})
        check_type(f"tool {name!r}: strict", strict, bool, "a bool")
        self._model = parameters if isinstance(parameters, type) else None
        self._result, self._validate = _make_result(name, result, _budget)
        self.definition = ToolDefinition(name, description, _make_parameters(name, parameters, _budget), strict=strict)
        self.timeout = timeout

    def __repr__(self) -> str:
        return f"<client tool {self.definition.name}>"

    def enabled(self, ctx: RunContext[Any]) -> bool:
        """Return True for client tools."""
        return True

    async def call(self, arguments: dict[str, Any], ctx: RunContext[Any]) -> Any:
        """Ask the client to execute the call, and return its result.

        Raises:
            ToolError: Invalid arguments or error reported by the client.
        """
        call = ctx.call
        assert call is not None
        arguments = freeze_json(await self._check_arguments(arguments, ctx), "the arguments")
        question = PendingInput(
            input_id="",
            # Built from the arguments of the model, so that all attempts ask the same question even if the schema
            # changes.
            prompt=f"Carry out {describe_call(call)}.",
            input_kind="tool",
            answer_schema=self._result,
            call=call.model_copy(update={"arguments": arguments}),
        )
        answer = await get_host(ctx).ask(ctx, question, self._validate)
        error = get_tool_error(answer)
        if error is not None:
            raise ToolError(error)
        return answer

    def to_definition(self) -> dict[str, Any]:
        """Return the tool as JSON data for `client_tools=`."""
        definition = self.definition
        data = {"name": definition.name, "description": definition.description, "parameters": definition.parameters}
        optional = {"result": self._result, "strict": definition.strict, "timeout": self.timeout}
        return data | {name: value for name, value in optional.items() if value}

    async def _check_arguments(self, arguments: dict[str, Any], ctx: RunContext[Any]) -> dict[str, Any]:
        name, schema = self.definition.name, self.definition.parameters
        if self._model is not None:
            values = validate(self._model, arguments, name, schema.get("properties", {}))
            return values.model_dump(mode="json", by_alias=True)
        # The calls of a message have equal parts of its steps, so that the result does not depend on their order.
        batch = ctx.state.batch
        budget = StepBudget(MAX_STEPS // max(1, 0 if batch is None else len(batch.calls)))
        problem = await find_mismatch_off_loop(arguments, schema, budget)
        if problem is not None:
            raise ToolError(f"The arguments of {name} do not fit, and it was not called: {problem}.")
        return arguments


def client_tool(
    name: str,
    parameters: Mapping[str, Any] | type[BaseModel] | None = None,
    *,
    description: str = "",
    result: Mapping[str, Any] | type[Any] | None = None,
    strict: bool = False,
    timeout: float | None = None,
) -> ClientTool:
    """Create a tool that is executed by the client of a run, for example to show a map in a browser.

    Each call pauses the run with the state `input-required` and a question of the kind `tool`. The client finds the
    arguments in the question's `call`, and answers with the result, or with `{"error": "..."}` after a failure. If
    `agent.run(on_input=...)` is used, the function answers instead and the run is not paused.

    Example::

        show_map = client_tool(
            "show_map",
            {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
            description="Show a city on the user's map.",
        )

    Args:
        name: Name of the tool for the model.
        parameters: JSON Schema of the arguments, or a pydantic model. None for no arguments. The client only receives
            valid arguments.
        description: Description for the model.
        result: JSON Schema or type of the result. None accepts any JSON value.
        strict: True if the vendor should enforce the schema. It must conform to the vendor's rules for strict decoding.
        timeout: Time limit in seconds if `on_input` answers. A paused run has no limit.

    Raises:
        ConfigurationError: If vendors do not accept the name, or a schema is invalid.
    """
    return ClientTool(name, parameters, description=description, result=result, strict=strict, timeout=timeout)


def _check_strings(name: Any, description: Any) -> None:
    if not isinstance(name, str):
        raise ConfigurationError(f"a tool name must be a string, got {quote_value(name)}")
    check_name(name)
    if not isinstance(description, str):
        raise ConfigurationError(f"tool {name!r}: description must be a string, got {quote_value(description)}")


def _make_parameters(name: str, parameters: Any, budget: StepBudget | None) -> dict[str, Any]:
    if parameters is None or parameters == {}:
        return _NO_PARAMETERS
    if isinstance(parameters, type) and issubclass(parameters, BaseModel):
        return json_schema(parameters)
    return _check_schema(name, "parameters", parameters, "object", budget)


def _make_result(
    name: str, result: Any, budget: StepBudget | None
) -> tuple[dict[str, Any], Callable[[Any], Awaitable[Any]]]:
    """Create the result schema and a validation function."""
    adapter: TypeAdapter[Any] | None = None
    if result is None or isinstance(result, Mapping):
        schema = {} if result is None else _check_schema(name, "result", result, None, budget)
    elif isinstance(result, str):
        raise ConfigurationError(f"tool {name!r}: result must be a type or a JSON Schema, got the string {result!r}")
    else:
        try:
            adapter = TypeAdapter(result)
            schema = adapter.json_schema()
        except PydanticUserError as error:
            raise ConfigurationError(
                f"tool {name!r}: result must be a JSON Schema or a type, got {result!r}"
            ) from error
        except SchemaError as error:
            raise ConfigurationError(
                f"tool {name!r}: result={result!r} cannot be validated: {explain_schema_error(error)}"
            ) from error

    async def check_result(value: Any) -> Any:
        if get_tool_error(value) is None:
            problem = await find_mismatch_off_loop(value, schema)
            if problem is not None:
                raise ValueError(problem)
            if adapter is not None:
                adapter.validate_python(value)
        return value

    return schema, check_result


def _check_schema(
    name: str, field: str, schema: Any, root_type: str | None, budget: StepBudget | None
) -> dict[str, Any]:
    problem = find_schema_error(schema, root_type, budget)
    if problem is not None:
        raise ConfigurationError(f"tool {name!r}: {field} must be a JSON Schema: {problem}")
    try:
        frozen = freeze_json(schema, field)
    except InvalidEvent as error:
        raise ConfigurationError(f"tool {name!r}: {error}") from error
    # Numbers that JSON cannot represent were converted to strings.
    problem = None if frozen == schema else find_schema_error(frozen, root_type, budget)
    if problem is not None:
        raise ConfigurationError(f"tool {name!r}: {field} cannot be stored as JSON: {problem}")
    return frozen


FieldType = Literal["string", "number", "integer", "boolean"]

_TYPES: dict[FieldType, Any] = {"string": str, "number": float, "integer": int, "boolean": bool}


@tool(idempotent=True)
async def request_input(
    ctx: RunContext[Any],
    prompt: Annotated[str, Field(description="Complete question.", min_length=1)],
    kind: Annotated[Literal["text", "confirmation"], Field(description="Free text, or yes or no.")] = "text",
    options: Annotated[list[str], Field(description="Allowed answers, if there is a fixed set.")] = [],  # noqa: B006
    fields: Annotated[
        dict[str, FieldType], Field(description="Names and types of the requested values, if there are several.")
    ] = {},  # noqa: B006
) -> Any:
    """Ask the user a question and return the answer.

    Use it if you cannot continue without information or a decision from the user, such as a missing detail, a choice or
    a permission. Do not ask for information that another tool provides.
    """
    if options and fields:
        raise ToolError("options and fields cannot be used together. Ask two questions instead.")
    if options:
        return await ctx.ask(prompt, answer=str, options=options)
    if not fields:
        return await ctx.ask(prompt, answer=bool if kind == "confirmation" else str)
    answer = await ctx.ask(prompt, answer=_form(fields))
    return answer.model_dump()


def _form(fields: dict[str, FieldType]) -> type[BaseModel]:
    invalid = [name for name in fields if not name.isidentifier() or name.startswith("_") or name in dir(BaseModel)]
    if invalid:
        raise ToolError(f"{', '.join(map(repr, invalid))} must not be used as field names. Use words in snake_case.")
    definitions: dict[str, Any] = {name: (_TYPES[kind], ...) for name, kind in fields.items()}
    return create_model("Answer", __config__=ConfigDict(extra="forbid"), **definitions)
