"""Server requests to the client: elicitation, sampling and roots."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, cast

import mcp_types as types
from mcp.client.context import ClientRequestContext
from pydantic import FileUrl

from rxloop.errors import ConfigurationError, InvalidInput, Paused, RxloopError, ToolError
from rxloop.pipeline.host import get_host
from rxloop.pipeline.requests import ModelRequest
from rxloop.pipeline.run_context import RunContext
from rxloop.protocol.events import UsageEvent
from rxloop.protocol.finish import COMPLETE
from rxloop.protocol.media import make_part
from rxloop.protocol.messages import Message, Part, PendingInput, TextPart
from rxloop.protocol.settings import ModelSettings
from rxloop.stream.sources import collect_answer
from rxloop.support.json_schema import find_mismatch_off_loop, find_schema_error
from rxloop.tools.mcp.calls import Call, Link
from rxloop.tools.mcp.options import ServerOptions

_SCHEMA = 50_000
"""Maximum number of bytes of a form's schema."""

_PROMPT = 4_000
"""Maximum question length in characters."""

DECLINED = types.ElicitResult(action="decline")


async def forward_question(ctx: RunContext[Any], server: str, params: types.ElicitRequestParams) -> types.ElicitResult:
    """Forward a server question to the run's user or client.

    Returns a decline response for unsupported questions.

    Raises:
        InvalidInput: Invalid answer.
        Paused: Pending answer.
        ToolError: Invalid or oversized form.
    """
    if isinstance(params, types.ElicitRequestFormParams):
        return await _form(ctx, server, params)
    try:
        # Any answer confirms that the person visited the page. The server learns the rest from the page.
        await ctx.require_auth(server, url=params.url)
    except (ToolError, ConfigurationError):
        return DECLINED
    return types.ElicitResult(action="accept")


async def _form(ctx: RunContext[Any], server: str, form: types.ElicitRequestFormParams) -> types.ElicitResult:
    """Ask the user to complete a form. A null answer declines the request."""
    schema: dict[str, Any] = dict(form.requested_schema)
    if len(json.dumps(schema)) > _SCHEMA:
        raise ToolError(f"The MCP server {server} asks with a form that is longer than {_SCHEMA} bytes.")
    wrong = find_schema_error(schema)
    if wrong is not None:
        raise ToolError(f"The MCP server {server} asks with a form that is no JSON Schema: {wrong}")
    question = PendingInput(
        input_id="",
        prompt=f"{server} asks: {form.message[:_PROMPT]}",
        input_kind="data",
        # References inside the schema start at the root.
        answer_schema={"anyOf": [schema, {"type": "null"}], **{key: schema[key] for key in _DEFS if key in schema}},
    )
    content = await get_host(ctx).ask(ctx, question, partial(_complete_form, schema))
    return DECLINED if content is None else types.ElicitResult(action="accept", content=content)


_DEFS = ("$defs", "definitions")


async def _complete_form(schema: dict[str, Any], value: Any) -> dict[str, Any] | None:
    """Return the validated answer with default values, or None if the user declined.

    Raises:
        ValueError: The answer does not match the schema.
    """
    if value is None:
        return None
    if not isinstance(value, dict):
        raise ValueError("the answer must be an object, or null to decline")
    # JSON Schema allows `true` as a field schema, which accepts any value.
    properties: dict[str, Any] = schema.get("properties") or {}
    fields = {name: cast("dict[str, Any]", field) for name, field in properties.items() if isinstance(field, dict)}
    defaults = {name: field["default"] for name, field in fields.items() if "default" in field}
    completed: dict[str, Any] = {**defaults, **cast("dict[str, Any]", value)}
    mismatch = await find_mismatch_off_loop(completed, schema)
    if mismatch is not None:
        raise ValueError(mismatch)
    return completed


_MAX_TEXT = 200_000
"""Maximum number of characters that the model reads for the server."""

_STOP_REASONS = {**dict.fromkeys(COMPLETE, "endTurn"), "length": "maxTokens"}
"""Mapping of finish reasons to protocol stop reasons. Other values are passed through."""


async def sample(
    ctx: RunContext[Any], params: types.CreateMessageRequestParams, max_tokens: int, number: int
) -> types.CreateMessageResult | types.ErrorData:
    """Call the agent's model for a server.

    Args:
        ctx: Context of the tool call.
        params: Request of the server.
        max_tokens: Maximum number of tokens of the answer.
        number: Number of the request within the call, starting at 1.
    """
    messages = [_message(each) for each in params.messages]
    if sum(len(message.text) for message in messages) > _MAX_TEXT:
        return make_refusal(f"the messages are longer than {_MAX_TEXT} characters")
    step = f"{ctx.step}/sampling/{ctx.index}.{number}"
    request = ModelRequest(
        messages=messages,
        system=(Message.system(params.system_prompt),) if params.system_prompt else (),
        settings=ModelSettings(
            max_tokens=min(params.max_tokens, max_tokens),
            temperature=params.temperature,
            stop=list(params.stop_sequences or ()) or None,
        ),
        step=step,
        branch=ctx.branch,
        ctx=ctx,
    )
    try:
        answer, usage = await collect_answer(ctx.model.call(request))
    except RxloopError:
        # Servers must not see the error messages of vendors.
        return make_refusal("the model failed")
    if usage.total_tokens:
        ctx.emit(UsageEvent(**usage.model_dump(), step=step, branch=ctx.branch))
    return types.CreateMessageResult(
        role="assistant",
        content=types.TextContent(type="text", text=answer.content),
        model=ctx.model.name,
        stop_reason=_STOP_REASONS.get(answer.finish_reason, answer.finish_reason),
    )


def make_refusal(reason: str) -> types.ErrorData:
    """Return the error for a rejected sampling request."""
    return types.ErrorData(code=types.INVALID_REQUEST, message=f"Sampling was refused: {reason}")


def _message(message: types.SamplingMessage) -> Message:
    blocks = message.content if isinstance(message.content, list) else [message.content]
    parts = [part for block in blocks for part in _parts(block)]
    content: str | Sequence[Part] = parts
    if all(isinstance(part, TextPart) for part in parts):
        content = "\n".join(part.text for part in parts if isinstance(part, TextPart))
    if message.role == "assistant":
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
"""Maximum number of sampling requests in one call."""


def make_roots(options: ServerOptions) -> types.ListRootsResult:
    """Return the root folders accessible to the server."""
    return types.ListRootsResult(roots=[types.Root(uri=FileUrl(root)) for root in options.roots])


async def answer_sampling(
    call: Call, params: types.CreateMessageRequestParams, options: ServerOptions
) -> types.CreateMessageResult | types.ErrorData:
    """Call the agent's model for a server, if sampling is enabled."""
    call.samples += 1
    if not options.sampling:
        return make_refusal("this client does not offer its model")
    if call.samples > _SAMPLES:
        return make_refusal(f"there may be {_SAMPLES} in one call")
    return await sample(call.ctx, params, options.sampling, call.samples)


class Answers:
    """Request handler for servers with a protocol version before 2026.

    Requests arrive during a call and do not include a call id. They cannot wait for another process.
    They are answered only with inline `on_input` handling, and only if all pending calls on the connection belong to a
    single run.
    """

    def __init__(self, options: ServerOptions, link: Callable[[], Link | None]) -> None:
        self._taken = options
        self._link = link

    def callbacks(self) -> dict[str, Any]:
        """Return the callbacks for the SDK. A capability without a callback is not offered to the server."""
        result: dict[str, Any] = {"elicitation_callback": self._elicit}
        if self._taken.sampling:
            result["sampling_callback"] = self._sample
        if self._taken.roots:
            result["list_roots_callback"] = self._roots
        return result

    async def _roots(self, context: ClientRequestContext) -> types.ListRootsResult:
        return make_roots(self._taken)

    async def _sample(
        self, context: ClientRequestContext, params: types.CreateMessageRequestParams
    ) -> types.CreateMessageResult | types.ErrorData:
        call = self._call()
        if call is None:
            return make_refusal("it belongs to no call")
        answer: Any = await self._run_during_call(call, answer_sampling(call, params, self._taken))
        return answer if answer is not None else make_refusal("it failed")

    async def _elicit(self, context: ClientRequestContext, params: types.ElicitRequestParams) -> types.ElicitResult:
        call, link = self._call(), self._link()
        if call is None or link is None or not call.ctx.info.answers_inline:
            return DECLINED
        answer: Any = await self._run_during_call(call, forward_question(call.ctx, link.name, params))
        return answer if answer is not None else DECLINED

    def _call(self) -> Call | None:
        link = self._link()
        calls = [] if link is None else list(link.calls)
        return calls[0] if calls and len({call.ctx.task_id for call in calls}) == 1 else None

    async def _run_during_call(self, call: Call, work: Any) -> Any:
        """Run an awaitable in a task that is cancelled along with the call.

        Returns None on failure, because exceptions must not reach the SDK.
        """

        async def run_safely() -> Any:
            try:
                return await work
            except (RxloopError, InvalidInput, Paused):
                return None

        task = asyncio.ensure_future(run_safely())
        call.requests.add(task)
        task.add_done_callback(call.requests.discard)
        await asyncio.wait([task])
        return None if task.cancelled() or task.exception() is not None else task.result()
