"""Requests of a server to its client: forms, sampling, roots."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from typing import Annotated, Any, cast

import mcp_types as types
from mcp.client.context import ClientRequestContext
from pydantic import AfterValidator, FileUrl, WithJsonSchema

from rxloop.errors import ConfigurationError, InvalidInput, Paused, RxloopError, ToolError
from rxloop.pipeline.requests import ModelRequest
from rxloop.pipeline.run_context import RunContext
from rxloop.protocol.events import UsageEvent
from rxloop.protocol.finish import COMPLETE
from rxloop.protocol.media import make_part
from rxloop.protocol.messages import Message, Part, TextPart
from rxloop.protocol.settings import ModelSettings
from rxloop.stream.sources import collect_answer
from rxloop.support.json_schema import find_mismatch, find_schema_error
from rxloop.tools.mcp.calls import Call, Link
from rxloop.tools.mcp.options import Taken

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
    wrong = find_schema_error(schema)
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
        wrong = find_mismatch(filled, schema)
        if wrong is not None:
            raise ValueError(wrong)
        return filled

    return Annotated[Any, AfterValidator(fitting), WithJsonSchema({"anyOf": [schema, {"type": "null"}]})]


_LONGEST = 200_000
"""Characters that a server may have the model read."""

_STOP_REASONS = {**dict.fromkeys(COMPLETE, "endTurn"), "length": "maxTokens"}
"""The protocol's words; others, such as `content_filter`, are passed on as they are."""


async def sample(
    ctx: RunContext[Any], asked: types.CreateMessageRequestParams, most: int, number: int
) -> types.CreateMessageResult | types.ErrorData:
    """Have the agent's model answer a server.

    Args:
        ctx: That of the tool call in which it asks.
        asked: What it asks.
        most: The most tokens of the answer.
        number: Which question of the call it is, from 1.
    """
    messages = [_message(each) for each in asked.messages]
    if sum(len(message.text) for message in messages) > _LONGEST:
        return refused(f"the messages are longer than {_LONGEST} characters")
    step = f"{ctx.step}/sampling/{ctx.index}.{number}"
    request = ModelRequest(
        messages=messages,
        system=(Message.system(asked.system_prompt),) if asked.system_prompt else (),
        settings=ModelSettings(
            max_tokens=min(asked.max_tokens, most),
            temperature=asked.temperature,
            stop=list(asked.stop_sequences or ()) or None,
        ),
        step=step,
        branch=ctx.branch,
        ctx=ctx,
    )
    try:
        answer, usage = await collect_answer(ctx.model.call(request))
    except RxloopError:
        # The words of a vendor are not for servers.
        return refused("the model failed")
    if usage.total_tokens:
        ctx.emit(UsageEvent(**usage.model_dump(), step=step, branch=ctx.branch))
    return types.CreateMessageResult(
        role="assistant",
        content=types.TextContent(type="text", text=answer.content),
        model=ctx.model.name,
        stop_reason=_STOP_REASONS.get(answer.finish_reason, answer.finish_reason),
    )


def refused(why: str) -> types.ErrorData:
    """Say why a server gets no answer."""
    return types.ErrorData(code=types.INVALID_REQUEST, message=f"Sampling was refused: {why}")


def _message(given: types.SamplingMessage) -> Message:
    blocks = given.content if isinstance(given.content, list) else [given.content]
    parts = [part for block in blocks for part in _parts(block)]
    content: str | Sequence[Part] = parts
    if all(isinstance(part, TextPart) for part in parts):
        content = "\n".join(part.text for part in parts if isinstance(part, TextPart))
    if given.role == "assistant":
        return Message(role="assistant", content=content if isinstance(content, str) else list(content))
    return Message.user(content)


def _parts(block: Any) -> list[Part]:
    match block:
        case types.TextContent():
            return [TextPart(text=block.text)]
        case types.ImageContent():
            try:
                return [make_part(data=block.data, media_type=block.mime_type, image=True)]
            except ValueError as error:
                return [TextPart(text=f"[image, {block.mime_type}: {error}]")]
        case _:
            return [TextPart(text=f"[{getattr(block, 'type', 'something')}]")]


_SAMPLES = 10
"""How often a server may ask the model in one call."""


def roots_of(taken: Taken) -> types.ListRootsResult:
    """The folders that a server may know of."""
    return types.ListRootsResult(roots=[types.Root(uri=FileUrl(root)) for root in taken.roots])


async def sampled(
    call: Call, asked: types.CreateMessageRequestParams, taken: Taken
) -> types.CreateMessageResult | types.ErrorData:
    """Have the agent's model answer, if that is allowed."""
    call.samples += 1
    if not taken.sampling:
        return refused("this client does not offer its model")
    if call.samples > _SAMPLES:
        return refused(f"there may be {_SAMPLES} in one call")
    return await sample(call.ctx, asked, taken.sampling, call.samples)


class Answers:
    """Answers what a server asks over a connection of before 2026, in the middle of a call.

    Such a question cannot wait for another process, and does not say which call it belongs to. So it is answered only
    where `on_input` answers at once, and only if all calls that are under way on the connection are of one run.
    """

    def __init__(self, taken: Taken, link: Callable[[], Link | None]) -> None:
        self._taken = taken
        self._link = link

    def callbacks(self) -> dict[str, Any]:
        """What the SDK calls; what is not there is not offered to the server."""
        given: dict[str, Any] = {"elicitation_callback": self._elicit}
        if self._taken.sampling:
            given["sampling_callback"] = self._sample
        if self._taken.roots:
            given["list_roots_callback"] = self._roots
        return given

    async def _roots(self, context: ClientRequestContext) -> types.ListRootsResult:
        return roots_of(self._taken)

    async def _sample(
        self, context: ClientRequestContext, asked: types.CreateMessageRequestParams
    ) -> types.CreateMessageResult | types.ErrorData:
        call = self._call()
        if call is None:
            return refused("it belongs to no call")
        answer: Any = await self._during(call, sampled(call, asked, self._taken))
        return answer if answer is not None else refused("it failed")

    async def _elicit(self, context: ClientRequestContext, asked: types.ElicitRequestParams) -> types.ElicitResult:
        call, link = self._call(), self._link()
        if call is None or link is None or not call.ctx.info.answers_inline:
            return DECLINED
        answer: Any = await self._during(call, elicited(call.ctx, link.name, asked))
        return answer if answer is not None else DECLINED

    def _call(self) -> Call | None:
        link = self._link()
        calls = [] if link is None else list(link.calls)
        return calls[0] if calls and len({call.ctx.task_id for call in calls}) == 1 else None

    async def _during(self, call: Call, work: Any) -> Any:
        """Do some work in a task that ends with its call; None if it fails, since nothing may be raised to the SDK."""

        async def contained() -> Any:
            try:
                return await work
            except (RxloopError, InvalidInput, Paused):
                return None

        task = asyncio.ensure_future(contained())
        call.asking.add(task)
        task.add_done_callback(call.asking.discard)
        await asyncio.wait([task])
        return None if task.cancelled() or task.exception() is not None else task.result()
