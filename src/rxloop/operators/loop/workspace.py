from __future__ import annotations

from collections.abc import Sequence

from reactivex import Observable

from rxloop.operators.loop.answer_requests import answer_requests
from rxloop.pipeline.interfaces import Workspace, WorkspacePart
from rxloop.pipeline.requests import ModelRequest, Operator, Signal
from rxloop.pipeline.sent.texts import mark_origin
from rxloop.pipeline.time_limits import limit_time
from rxloop.protocol.messages import Message
from rxloop.stream.sources import from_awaitable
from rxloop.support.misuse import check_method


def workspace(source: Workspace) -> Operator[object]:
    """Add the current content of a workspace to each model request, but not to the history.

    ::

        in   --M--|     --M--|
        out  --M1-|     --M2-|

    M1 is the request with the workspace at that time, and M2 the next one. Static parts come after the system prompt,
    so that the provider can cache them. Live parts come last, after the newest tool results, so that changes to them do
    not invalidate the cache of other messages.

    Put this operator before `compress` and `thinking_phase`, because they count its tokens.

    Args:
        source: The workspace. It is rendered before each model call.

    Raises:
        ConfigurationError: The source has no method `render`.
    """
    check_method("source", source, "render", "a workspace, such as rxloop.context.TextWorkspace('text')")

    def answer(request: ModelRequest) -> Observable[Signal] | ModelRequest:
        # Lazy import, because workspaces are rarely used.
        from rxloop.context.workspaces import as_parts, is_quick

        if is_quick(source):
            return _add_parts(request, as_parts(source, source.render()))
        return from_awaitable(lambda: _render_and_add(request, source), request.ctx, name="rxloop-workspace")

    operator = answer_requests(ModelRequest, answer)
    operator.__qualname__ = f"workspace({type(source).__name__})"
    return operator


async def _render_and_add(request: ModelRequest, source: Workspace) -> ModelRequest:
    from rxloop.context.workspaces import render_parts

    return _add_parts(
        request, await limit_time(request.ctx, lambda: render_parts(source), f"the workspace {type(source).__name__}")
    )


def _add_parts(request: ModelRequest, parts: Sequence[WorkspacePart]) -> ModelRequest:
    from rxloop.context.workspaces import join_parts

    static, live = join_parts(parts, "static"), join_parts(parts, "live")
    system, tail = request.system, request.tail
    if static:
        system = (*system, mark_origin(Message.system(static), "workspace"))
    if live:
        tail = (*tail, mark_origin(Message.user(f"[Workspace, as it is now]\n{live}"), "workspace"))
    return request.replace(system=system, tail=tail)
