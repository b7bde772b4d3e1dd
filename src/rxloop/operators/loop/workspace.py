from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from reactivex import Observable

from rxloop.operators.loop.answering import answering
from rxloop.pipeline.interfaces import Rendered, Workspace, WorkspacePart
from rxloop.pipeline.requests import ModelRequest, Operator, Signal
from rxloop.pipeline.time_limits import limit_time
from rxloop.protocol.messages import Message
from rxloop.stream.sources import emit, from_awaitable


def workspace(shown: Workspace) -> Operator[object]:
    """Add the current content of a workspace to each model request, but not to the history.

    ::

        in   --M--|     --M--|
        out  --M1-|     --M2-|

    M1 is the request with the workspace at that time, and M2 the next one. Static parts come after the system prompt,
    so
    that the provider can cache them. Live parts come last, after the newest tool results, so that changes to them do
    not
    invalidate the cache of other messages.

    Put this operator before `compress` and `thinking_phase`, because they count its tokens.

    Args:
        shown: The workspace. It is rendered before each model call.
    """

    def answer(request: ModelRequest) -> Observable[Signal]:
        # Imported here because most programs have no workspace.
        from rxloop.context.workspaces import as_parts, is_quick

        if is_quick(shown):
            return emit(_with_parts(request, as_parts(cast("Rendered", shown.render()))))
        return from_awaitable(lambda: _with_parts_of(request, shown), request.ctx, name="rxloop-workspace")

    operator = answering(ModelRequest, answer)
    operator.__qualname__ = f"workspace({type(shown).__name__})"
    return operator


async def _with_parts_of(request: ModelRequest, shown: Workspace) -> ModelRequest:
    from rxloop.context.workspaces import parts_of

    return _with_parts(
        request, await limit_time(request.ctx, lambda: parts_of(shown), f"the workspace {type(shown).__name__}")
    )


def _with_parts(request: ModelRequest, found: Sequence[WorkspacePart]) -> ModelRequest:
    from rxloop.context.workspaces import text_of_parts

    static, live = text_of_parts(found, "static"), text_of_parts(found, "live")
    system = (*request.system, Message.system(static)) if static else request.system
    tail = (*request.tail, Message.user(f"[Workspace, as it is now]\n{live}")) if live else request.tail
    return request.replace(system=system, tail=tail)
