"""The forms by which a server asks for something: as questions of a run, and their answers as the server wants them."""

from __future__ import annotations

from typing import Annotated, Any, cast

import mcp_types as types
import orjson
from jsonschema import Draft202012Validator
from pydantic import AfterValidator, WithJsonSchema
from referencing import Registry

from rxloop.errors import ConfigurationError, ToolError
from rxloop.pipeline.run_context import RunContext

_SCHEMA = 50_000
"""Bytes of the schema of a form."""
_PROMPT = 4_000
"""Characters of a question."""

DECLINED = types.ElicitResult(action="decline")


async def elicited(ctx: RunContext[Any], who: str, asked: types.ElicitRequestParams) -> types.ElicitResult:
    """Ask the person or client behind a run what a server wants to know; what cannot be asked is declined.

    Raises:
        InvalidInput: The answer does not fit.
        Paused: There is no answer yet.
        ToolError: It cannot be shown.
    """
    if isinstance(asked, types.ElicitRequestFormParams):
        return await _form(ctx, who, asked)
    try:
        # Whatever is answered says that the person was there: the server hears of the rest at its page.
        await ctx.require_auth(who, url=asked.url)
    except (ToolError, ConfigurationError):
        return DECLINED
    return types.ElicitResult(action="accept")


async def _form(ctx: RunContext[Any], who: str, form: types.ElicitRequestFormParams) -> types.ElicitResult:
    """Ask to have a form filled in; an answer of null declines it."""
    schema: dict[str, Any] = dict(form.requested_schema)
    if len(orjson.dumps(schema)) > _SCHEMA:
        raise ToolError(f"The MCP server {who} asks with a form that is longer than {_SCHEMA} bytes.")
    given = await ctx.ask(f"{who} asks: {form.message[:_PROMPT]}", cast("type[Any]", _answer(schema)))
    return DECLINED if given is None else types.ElicitResult(action="accept", content=given)


def _answer(schema: dict[str, Any]) -> Any:
    """The type of the answer: an object that fits the schema, with the defaults that were left out, or null."""
    # A registry that has nothing, so that no reference is ever fetched.
    validator: Any = Draft202012Validator(schema, registry=Registry[Any]())
    properties: dict[str, Any] = schema.get("properties", {})
    defaults = {name: field["default"] for name, field in properties.items() if "default" in field}

    def fitting(value: Any) -> dict[str, Any] | None:
        if value is None:
            return None
        if not isinstance(value, dict):
            raise ValueError("it is to be an object, or null to decline")
        filled = {**defaults, **cast("dict[str, Any]", value)}
        wrong = next(iter(validator.iter_errors(filled)), None)
        if wrong is not None:
            raise ValueError(wrong.message)
        return filled

    return Annotated[Any, AfterValidator(fitting), WithJsonSchema({"anyOf": [schema, {"type": "null"}]})]
