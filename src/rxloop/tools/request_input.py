"""A question to the user, as a tool."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, create_model

from rxloop.errors import ToolError
from rxloop.pipeline.run_context import RunContext
from rxloop.tools.function import tool

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
