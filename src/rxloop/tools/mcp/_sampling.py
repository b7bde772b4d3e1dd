"""A server that asks the agent's model: one call, with a limit of its own, counted in the run."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Sequence
from typing import Any

import mcp_types as types

from rxloop.errors import RxloopError
from rxloop.pipeline.requests import ModelRequest
from rxloop.pipeline.run_context import RunContext
from rxloop.protocol.events import UsageEvent
from rxloop.protocol.messages import ImagePart, Message, Part, TextPart
from rxloop.protocol.settings import ModelSettings
from rxloop.stream.one_answer import one_answer

_LONGEST = 200_000
"""Characters that a server may have the model read."""


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
        answer, usage = await one_answer(ctx.model, request)
    except RxloopError:
        # The words of a vendor are not for servers.
        return refused("the model failed")
    if usage.total_tokens:
        ctx.emit(UsageEvent(**usage.model_dump(), step=step, branch=ctx.branch))
    return types.CreateMessageResult(
        role="assistant",
        content=types.TextContent(type="text", text=answer.content),
        model=ctx.model.name,
        stop_reason="maxTokens" if answer.finish_reason == "length" else "endTurn",
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
            return [ImagePart(data=b64decode(block.data), media_type=block.mime_type)]
        case _:
            return [TextPart(text=f"[{getattr(block, 'type', 'something')}]")]
