from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from reactivex import Observable

from rxloop.operators.loop.answer_requests import answer_with_permits
from rxloop.operators.loop.checks import declare_handler
from rxloop.pipeline.active_call import ActiveCall, Permit
from rxloop.pipeline.edited_calls import add_edit_note
from rxloop.pipeline.host import get_host
from rxloop.pipeline.interfaces import Tool
from rxloop.pipeline.requests import Operator, Signal, ToolRequest
from rxloop.pipeline.run_context import RunContext
from rxloop.protocol.events import ToolCompleteEvent, ToolStartEvent
from rxloop.protocol.json_data import freeze_json, freeze_model
from rxloop.protocol.model import make_unchecked, thaw
from rxloop.stream.sources import Push, emit, from_task, never
from rxloop.tools.execution import call_with_limit, public_name, to_failure, watch_steps
from rxloop.tools.result import (
    MAX_RESULT_CHARS,
    encode_with_parts,
    make_failure,
    make_messages_field,
    make_parts_field,
    report_unawaited,
    truncate_text,
)

_start = make_unchecked(ToolStartEvent, normalised=True)
_complete = make_unchecked(ToolCompleteEvent, normalised=True)


def run_tools(concurrency: int = 5, *, early: bool = False) -> Operator[object]:
    """Answer each `ToolRequest` by calling the tool.

    ::

        in   --T1-T2------------------------------|
        out  --s1-s2--progress2--x2---thought1-x1-|

    T is a `ToolRequest`, s a `tool-start` and x a `tool-complete`. Events of the tool come between them. Every failure
    becomes a failed result for the model: an unknown tool, invalid arguments, a timeout, an exception. A refused call
    has no `tool-start`. A call that is requested twice is executed once.

    With a log, a tool that is not idempotent is only called after its `tool-start` is durable.

    With `early=True`, a call of a read-only tool starts as soon as its arguments are complete, while the model still
    streams the rest of its message. Its events are held until the `ToolRequest` arrives, so the stream, the log and a
    resume do not change. If the request does not arrive or differs, the call is cancelled and only an internal
    `tool-voided` event is published. Guards see the request after the call has started.

    Args:
        concurrency: Maximum number of tools that run at once in one iteration, not counting calls that wait for a
            person.
        early: Start calls early on the main branch, for tools with `read_only=True` that need no approval.
    """
    operator = answer_with_permits(ToolRequest, _answer, concurrency)
    if early:
        # Imported here because it is rarely needed.
        from rxloop.operators.loop.early_tools import start_early

        operator = start_early(_execute, _answer, concurrency)
    operator.__qualname__ = "run_tools"
    return declare_handler(operator, ToolRequest, ends=True)


def _answer(request: ToolRequest, permit: Permit | None = None) -> Observable[Signal]:
    host, slot = get_host(request.ctx), request.slot
    earlier = host.earlier.results.get(slot)
    if earlier is not None:
        return emit(earlier)
    if not host.claim(request):
        # Duplicate requests from operators must not cause duplicate tool calls. Ending runs must not start any calls.
        return never() if host.is_ending else emit()
    tool = host.tools.find(request)
    if not isinstance(tool, str):
        request = request.of(tool.definition)
    recorded = host.find_recorded_outcome(request, tool)
    if recorded is not None:
        return emit(recorded)
    if isinstance(tool, str):
        return emit(request.refuse(tool, code="unavailable"))
    if request.call.error is not None:
        text = f"{request.call.error}. Call {request.call.name} again with valid JSON."
        return emit(request.refuse(text, code="invalid_arguments"))
    reason = host.earlier.explain_no_repeat(request.ctx.task_id, slot, idempotent=tool.idempotent)
    if reason is not None:
        return emit(request.refuse(reason, code="interrupted"))

    return _execute(tool, request, ActiveCall(permit), lambda: host.close_abandoned(request.ctx))


def _execute(
    tool: Tool, request: ToolRequest, active: ActiveCall, abandoned: Callable[[], None] | None = None
) -> Observable[Signal]:
    async def work(push: Push[Signal]) -> None:
        active.task = asyncio.current_task()
        await _run_tool(tool, request, push, active)

    return from_task(work, request.ctx, name=f"rxloop-tool-{public_name(request.ctx)}", on_abandoned=abandoned)


async def _run_tool(tool: Tool, request: ToolRequest, push: Push[Signal], active: ActiveCall) -> None:
    ctx: RunContext[Any] = request.ctx.bind(out=push, questions=[], active_call=active)
    call = request.call
    if tool.approve:
        # Imported here to make `import rxloop` faster.
        from rxloop.tools.approval import approval_question

        if not await ctx.ask(approval_question(tool.approve, call)):
            push(request.refuse(f"The call of {call.name} was not approved."))
            return
    call_fields: dict[str, Any] = {**ctx.call_fields, "call": freeze_model(call, "tool-start: call")}
    started = _start(idempotency_key=ctx.idempotency_key, **call_fields)
    push(started)
    # Publishing sets the attempt. Events of a call that was started early may be held.
    if not started.attempt and ctx.until_requested is None:
        ctx.info.budget.note_unpublished(started)
    # A call that may end the process must not discard the message that requests it.
    if ctx.log is not None and (not tool.idempotent or ctx.state.tries > 1):
        await ctx.port.durable()
    monotonic = ctx.info.clock.monotonic
    start = monotonic()
    fields = await _result(tool, ctx)
    if not (ctx.answer and fields["success"]):
        fields["content"] = add_edit_note(fields["content"], ctx, call)
    duration = monotonic() - start
    complete = _complete(answer=ctx.answer, duration=duration, **call_fields, **fields)
    push(complete)
    if not complete.attempt and ctx.until_requested is None:
        ctx.info.budget.note_unpublished(complete)


async def _result(tool: Tool, ctx: RunContext[Any]) -> dict[str, Any]:
    """Execute the tool and return the result event fields."""
    call = ctx.call
    assert call is not None
    deadline = None if tool.timeout is None else asyncio.timeout(None)
    try:
        if deadline is None or tool.timeout is None:
            value = await watch_steps(tool.call(thaw(call.arguments), ctx), call.name)
        else:
            value = await call_with_limit(tool, tool.timeout, deadline, ctx)
        result, content, parts = encode_with_parts(value)
        result = freeze_json(result, "the result")
        extra_fields = {**make_messages_field(value), **make_parts_field(parts)}
        unawaited = [question for question in ctx.questions or () if question.forgotten]
        if unawaited:
            return make_failure(report_unawaited(unawaited, call.name, public_name(ctx)))
    except BaseException as error:
        failure = to_failure(error, tool, ctx, timed_out=deadline is not None and deadline.expired())
        if failure is None:
            raise
        return failure
    limit = getattr(tool, "max_result", MAX_RESULT_CHARS)
    if limit is not None and len(content) > limit and not ctx.answer:
        # Imported here to make `import rxloop` faster.
        from rxloop.tools.artifacts import store_long_result

        content = truncate_text(content, limit, await store_long_result(content, ctx))
    return {"success": True, "result": result, "content": content, **extra_fields}
