"""Convert the tool calls of a complete message to requests, and refuse those of an incomplete message."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rxloop.pipeline.requests import Signal, ToolDefinition, ToolRequest
from rxloop.pipeline.run_context import RunContext
from rxloop.protocol.events import ContentCompleteEvent, Event
from rxloop.protocol.finish import CUT_OFF, explain_refused_call, is_complete
from rxloop.protocol.messages import ToolCall
from rxloop.state.history import INTERRUPTED


def tool_requests(
    message: ContentCompleteEvent,
    calls: Iterable[tuple[int, ToolCall]],
    ctx: RunContext[Any],
    offered: tuple[ToolDefinition, ...] | None,
) -> list[Signal]:
    """Return a `ToolRequest` for each tool call of a complete message, or a failed `tool-complete` otherwise.

    The arguments of an incomplete message may be truncated, so guards, tools and people never get requests for them.

    Args:
        message: The message that calls the tools.
        calls: Its unanswered calls, with their indexes.
        ctx: The context of the model call.
        offered: The tools offered to the model, or None for all tools of the run.
    """
    if message.finish_reason in CUT_OFF:
        return []
    requests = [ToolRequest(call, ctx.bind(call=call, index=index), offered) for index, call in calls]
    return list(requests) if is_complete(message) else [_refuse(request, message) for request in requests]


def _refuse(request: ToolRequest, message: ContentCompleteEvent) -> Event:
    host = request.ctx.host
    earlier = host.earlier.results.get(request.slot)
    if earlier is not None:
        return earlier
    tool = host.tools.find(request)
    if not isinstance(tool, str):
        request = request.of(tool.definition)
        if request.slot in host.earlier.interrupted and not tool.idempotent:
            return request.refuse(INTERRUPTED)
    return request.refuse(explain_refused_call(message, request.call.name))
