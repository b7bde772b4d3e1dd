"""Tools that are answered from outside the run: by the client, or by the user."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal, cast

import orjson
from pydantic import BaseModel, ConfigDict, Field, PydanticUserError, TypeAdapter, create_model
from pydantic_core import SchemaError

from rxloop.errors import ConfigurationError, InvalidEvent, ToolError
from rxloop.pipeline.host import get_host
from rxloop.pipeline.requests import ToolDefinition
from rxloop.pipeline.run_context import RunContext
from rxloop.protocol.json_data import freeze_json
from rxloop.protocol.messages import PendingInput, get_tool_error
from rxloop.support.json_schema import explain_schema_error, find_mismatch, find_schema_error, quote_value
from rxloop.tools.approval import described
from rxloop.tools.function import check_name, tool
from rxloop.tools.signature import json_schema, validate

MOST = 128
"""How many definitions may come with one run."""

LONGEST = 200_000
"""How long they may be together, as JSON: all of them go with each request to the model."""

_NOTHING: dict[str, Any] = {"type": "object", "properties": {}}

_FIELDS = ("name", "description", "parameters", "result", "strict", "timeout")


class ClientTool:
    """A tool that the client carries out; see `client_tool`."""

    definition: ToolDefinition
    """Name, description and schema, as they are offered to the model."""
    timeout: float | None
    """Seconds that the client has where `on_input` asks it."""
    idempotent = True
    """It is never carried out here: after a crash the client is asked for the result once more, under the same id."""
    approve = False

    def __init__(
        self,
        name: str,
        parameters: Mapping[str, Any] | type[BaseModel] | None = None,
        *,
        description: str = "",
        result: Mapping[str, Any] | type[Any] | None = None,
        strict: bool = False,
        timeout: float | None = None,
    ) -> None:
        """Make a tool; `client_tool` is the usual way, and explains the arguments."""
        _check_texts(name, description)
        given: Any = timeout
        if given is not None and (isinstance(given, bool) or not isinstance(given, int | float) or not given > 0):
            raise ConfigurationError(f"tool {name!r}: timeout must be more than 0 seconds, not {given!r}")
        if not isinstance(cast("Any", strict), bool):
            raise ConfigurationError(f"tool {name!r}: strict={strict!r} is neither True nor False")
        self._model = parameters if isinstance(parameters, type) else None
        self._result, self._read = _result_of(name, result)
        self.definition = ToolDefinition(name, description, _parameters_of(name, parameters), strict=strict)
        self.timeout = timeout

    def __repr__(self) -> str:
        return f"<client tool {self.definition.name}>"

    def enabled(self, ctx: RunContext[Any]) -> bool:
        """Always: the client has said that it can."""
        return True

    async def call(self, arguments: dict[str, Any], ctx: RunContext[Any]) -> Any:
        """Have the client carry out one call, and give its result.

        Raises:
            ToolError: The arguments do not fit, so that the client was not asked; or the client could not do it.
        """
        call = ctx.call
        assert call is not None
        checked = freeze_json(self._checked(arguments), "the arguments")
        question = PendingInput(
            input_id="",
            # Made of what the model wrote: it is the same in each attempt, though the schema has changed since.
            prompt=f"Carry out {described(call)}.",
            input_kind="tool",
            answer_schema=self._result,
            call=call.model_copy(update={"arguments": checked}),
        )
        answer = await get_host(ctx).ask(ctx, question, self._read)
        error = get_tool_error(answer)
        if error is not None:
            raise ToolError(error)
        return answer

    def as_definition(self) -> dict[str, Any]:
        """Write it as JSON data, for `client_tools=`."""
        definition = self.definition
        data = {"name": definition.name, "description": definition.description, "parameters": definition.parameters}
        more = {"result": self._result, "strict": definition.strict, "timeout": self.timeout}
        return data | {name: value for name, value in more.items() if value}

    def _checked(self, arguments: dict[str, Any]) -> dict[str, Any]:
        name, schema = self.definition.name, self.definition.parameters
        if self._model is not None:
            values = validate(self._model, arguments, name, schema.get("properties", {}))
            return values.model_dump(mode="json", by_alias=True)
        wrong = find_mismatch(arguments, schema)
        if wrong is not None:
            raise ToolError(f"The arguments of {name} do not fit, and it was not called: {wrong}.")
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
    """Make a tool that the client of a run carries out, such as a browser that shows a map.

    A call pauses the run as `input-required`, with a question of the kind `tool` whose `call` has the arguments; its
    answer is the result of the call, and `{"error": "..."}` says that the client could not do it. With
    `agent.run(on_input=...)` that function carries it out, and the run waits.

    Example::

        show_map = client_tool(
            "show_map",
            {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
            description="Show a city on the user's map.",
        )

    Args:
        name: What the model calls it.
        parameters: JSON Schema of the arguments, or a pydantic model of them; None for none. The client is asked only
            for what fits.
        description: What it is for, for the model.
        result: JSON Schema of what the client has to answer, or its type; None takes anything.
        strict: Ask the vendor for arguments that fit; the schema has to be one that it takes for that.
        timeout: Seconds that the client has where `on_input` asks it. A pause may last.

    Raises:
        ConfigurationError: The name is not one that vendors take, or a schema is none.
    """
    return ClientTool(name, parameters, description=description, result=result, strict=strict, timeout=timeout)


def client_tools(given: Sequence[ClientTool | Mapping[str, Any]]) -> tuple[ClientTool, ...]:
    """Make tools of the definitions that come with a run, which its client may have written.

    Args:
        given: A list of tools and of dicts with `name`, `description` and `parameters`, also in OpenAI's shape
            `{"type": "function", "function": {...}}`.

    Raises:
        ConfigurationError: One of them is wrong; it says which, and what is.
    """
    if len(given) > MOST:
        raise ConfigurationError(f"client_tools has {len(given)} definitions: give {MOST} at most")
    made: dict[str, ClientTool] = {}
    for place, each in enumerate(given):
        try:
            tool = each if isinstance(each, ClientTool) else _of(each)
        except ConfigurationError as error:
            raise ConfigurationError(f"client_tools[{place}]: {error}") from error
        name = tool.definition.name
        if name in made:
            raise ConfigurationError(f"client_tools[{place}]: another one before it is called {name!r}")
        made[name] = tool
    size = sum(len(orjson.dumps(tool.as_definition())) for tool in made.values())
    if size > LONGEST:
        raise ConfigurationError(f"client_tools takes {size:,} characters as JSON: give {LONGEST:,} at most")
    return tuple(made.values())


def _of(definition: Any) -> ClientTool:
    if not isinstance(definition, Mapping):
        raise ConfigurationError(f"{quote_value(definition)} is not a definition: give a dict with name and parameters")
    fields: dict[Any, Any] = dict(cast("Mapping[Any, Any]", definition))
    if "type" in fields and fields.pop("type") != "function":
        raise ConfigurationError(f"its type is to be 'function', not {quote_value(definition['type'])}")
    if "function" in fields:
        inner = fields.pop("function")
        if fields or not isinstance(inner, Mapping):
            raise ConfigurationError(f"its function is to be a dict, and stand alone, not {quote_value(definition)}")
        fields = dict(cast("Mapping[Any, Any]", inner))
    for name in fields:
        if name not in _FIELDS:
            raise ConfigurationError(f"a definition has no {name!r}: it takes {', '.join(_FIELDS)}")
    if "name" not in fields:
        raise ConfigurationError("it has no name")
    # Vendors write what is not there as null.
    given = {name: value for name, value in fields.items() if value is not None}
    # A type is for those who write the program: pydantic evaluates a text as the name of one.
    if not isinstance(given.get("result", {}), Mapping):
        raise ConfigurationError(f"its result is to be a JSON Schema, not {quote_value(given['result'])}")
    return ClientTool(given.pop("name", ""), given.pop("parameters", None), **given)


def _check_texts(name: Any, description: Any) -> None:
    if not isinstance(name, str):
        raise ConfigurationError(f"the name of a tool is to be a text, not {quote_value(name)}")
    check_name(name)
    if not isinstance(description, str):
        raise ConfigurationError(f"tool {name!r}: its description is to be a text, not {quote_value(description)}")


def _parameters_of(name: str, given: Any) -> dict[str, Any]:
    if given is None or given == {}:
        return _NOTHING
    if isinstance(given, type) and issubclass(given, BaseModel):
        return json_schema(given)
    return _schema(name, "parameters", given, "object")


def _result_of(name: str, given: Any) -> tuple[dict[str, Any], Callable[[Any], Any]]:
    """The JSON Schema of the result of a tool, and what sees whether a result fits."""
    adapter: TypeAdapter[Any] | None = None
    if given is None or isinstance(given, Mapping):
        schema = {} if given is None else _schema(name, "result", given, None)
    elif isinstance(given, str):
        raise ConfigurationError(f"tool {name!r}: result={given!r} is a text: give the type itself, or a JSON Schema")
    else:
        try:
            adapter = TypeAdapter(given)
            schema = adapter.json_schema()
        except PydanticUserError as error:
            raise ConfigurationError(f"tool {name!r}: result={given!r} is neither a JSON Schema nor a type") from error
        except SchemaError as error:
            raise ConfigurationError(
                f"tool {name!r}: result={given!r} cannot be checked: {explain_schema_error(error)}"
            ) from error

    def read(value: Any) -> Any:
        if get_tool_error(value) is None:
            wrong = find_mismatch(value, schema)
            if wrong is not None:
                raise ValueError(wrong)
            if adapter is not None:
                adapter.validate_python(value)
        return value

    return schema, read


def _schema(name: str, what: str, given: Any, kind: str | None) -> dict[str, Any]:
    wrong = find_schema_error(given, kind)
    if wrong is not None:
        raise ConfigurationError(f"tool {name!r}: its {what} are no JSON Schema: {wrong}")
    try:
        kept = freeze_json(given, what)
    except InvalidEvent as error:
        raise ConfigurationError(f"tool {name!r}: {error}") from error
    # The run is read back with what was kept: a number that JSON cannot hold has become a text.
    wrong = find_schema_error(kept, kind)
    if wrong is not None:
        raise ConfigurationError(f"tool {name!r}: its {what} cannot be kept as JSON: {wrong}")
    return kept


FieldType = Literal["string", "number", "integer", "boolean"]

_TYPES: dict[FieldType, Any] = {"string": str, "number": float, "integer": int, "boolean": bool}


@tool(idempotent=True)
async def request_input(
    ctx: RunContext[Any],
    prompt: Annotated[str, Field(description="The question, complete in itself.", min_length=1)],
    kind: Annotated[
        Literal["text", "confirmation"], Field(description="Whether the answer is free text, or yes or no.")
    ] = "text",
    options: Annotated[list[str], Field(description="The answers to choose from, where there are only these.")] = [],  # noqa: B006
    fields: Annotated[
        dict[str, FieldType], Field(description="The values to fill in, by name, where several are needed.")
    ] = {},  # noqa: B006
) -> Any:
    """Asks the user, and gives the answer.

    Use it when you cannot go on without something that only the user knows or may decide: a missing detail, a choice, a
    permission. Do not ask for what you can find out with another tool.
    """
    if options and fields:
        raise ToolError("Give options or fields, not both: a choice and a form are two questions.")
    if options:
        return await ctx.ask(prompt, answer=str, options=options)
    if not fields:
        return await ctx.ask(prompt, answer=bool if kind == "confirmation" else str)
    answer = await ctx.ask(prompt, answer=_form(fields))
    return answer.model_dump()


def _form(fields: dict[str, FieldType]) -> type[BaseModel]:
    bad = [name for name in fields if not name.isidentifier() or name.startswith("_") or name in dir(BaseModel)]
    if bad:
        raise ToolError(f"{', '.join(map(repr, bad))} cannot be the name of a field: use plain words in snake_case.")
    definitions: dict[str, Any] = {name: (_TYPES[kind], ...) for name, kind in fields.items()}
    return create_model("Answer", __config__=ConfigDict(extra="forbid"), **definitions)
