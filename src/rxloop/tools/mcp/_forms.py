"""The forms by which a server asks for something: as questions of a run, and their answers as the server wants them."""

from __future__ import annotations

import json
from typing import Annotated, Any, cast

import mcp_types as types
from pydantic import AfterValidator, WithJsonSchema

from rxloop.errors import ConfigurationError, ToolError
from rxloop.pipeline.json_schema import misfit
from rxloop.pipeline.run_context import RunContext
from rxloop.pipeline.schema_flaws import flaw

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
    wrong = flaw(schema)
    if wrong is not None:
        raise ToolError(f"The MCP server {who} asks with a form that is no JSON Schema: {wrong}")
    if len(json.dumps(schema)) > _SCHEMA:
        raise ToolError(f"The MCP server {who} asks with a form that is longer than {_SCHEMA} bytes.")
    given = await ctx.ask(f"{who} asks: {form.message[:_PROMPT]}", cast("type[Any]", _answer(schema)))
    return DECLINED if given is None else types.ElicitResult(action="accept", content=given)


def _answer(schema: dict[str, Any]) -> Any:
    """The type of the answer: an object that fits the schema, with the defaults that were left out, or null."""
    properties: dict[str, Any] = schema.get("properties", {})
    # A field may be no more than true: what fits it is anything.
    described = {name: cast("dict[str, Any]", field) for name, field in properties.items() if isinstance(field, dict)}
    defaults = {name: field["default"] for name, field in described.items() if "default" in field}

    def fitting(value: Any) -> dict[str, Any] | None:
        if value is None:
            return None
        if not isinstance(value, dict):
            raise ValueError("it is to be an object, or null to decline")
        filled = {**defaults, **cast("dict[str, Any]", value)}
        # The bounded check: another one has no end for a pattern like `^(a+)+$`, and a default that makes it search.
        wrong = misfit(filled, schema)
        if wrong is not None:
            raise ValueError(wrong)
        return filled

    return Annotated[Any, AfterValidator(fitting), WithJsonSchema({"anyOf": [schema, {"type": "null"}]})]
