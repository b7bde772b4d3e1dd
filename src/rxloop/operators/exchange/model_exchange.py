"""Preparation of model requests, and events of model messages and failures."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from rxloop.errors import ContextLengthExceeded, MediaRefused, PipelineError, ProviderError
from rxloop.operators.exchange.request_records import RequestRecorder
from rxloop.pipeline.host import Host, OfferedTools, get_host
from rxloop.pipeline.requests import ModelRequest, Signal, ToolDefinition, ToolRequest
from rxloop.pipeline.run_context import RunContext
from rxloop.protocol.events import (
    ContentCompleteEvent,
    Event,
    LLMCallEvent,
    LLMFailedEvent,
    LLMNoticeEvent,
    normalise,
)
from rxloop.protocol.finish import CUT_OFF, explain_refused_call, is_complete
from rxloop.protocol.json_data import freeze_model, replace_surrogates
from rxloop.protocol.messages import ErrorInfo, Message, ToolCall
from rxloop.protocol.model import FrozenList, mutable_fields
from rxloop.state.history import History
from rxloop.state.refused_media import select_refused, vendor_reason
from rxloop.state.run_state import RunState

if TYPE_CHECKING:
    from rxloop.context.repair import RequestRepair

_UNSTAMPED: dict[str, Any] = {
    "step": None,
    "branch": None,
    "task_id": "",
    "context_id": "",
    "attempt": 0,
    "timestamp": 0,
}


# -- requests


class RequestChecks:
    """Final request validation, including late messages, history repair and removal of refused media."""

    def __init__(self) -> None:
        self._repair: RequestRepair | None = None
        self._recorder = RequestRecorder()

    def prepare(self, request: ModelRequest, host: Host) -> tuple[LLMCallEvent, ModelRequest]:
        """Return the request to send and its `llm-call` event, which lists the repaired problems."""
        state = request.ctx.state
        request = _add_late_messages(request, state.messages)
        problems: Sequence[str] = ()
        if request.messages is not state.messages or request.system is not host.system:
            request, problems = self._repair_request(request)
        if state.refused:
            request = _omit_refused_media(request, state)
        return self._recorder.describe(request, problems, state, host.sent_requests), request

    def _repair_request(self, request: ModelRequest) -> tuple[ModelRequest, Sequence[str]]:
        if self._repair is None:
            # Imported here because it is rarely needed.
            from rxloop.context.repair import RequestRepair

            self._repair = RequestRepair()
        return self._repair.checked(request)


def _add_late_messages(request: ModelRequest, history: History) -> ModelRequest:
    """Append history messages added after request creation."""
    if request.history is None or len(history) == request.history:
        return request
    messages: Sequence[Message] = request.messages
    if history.extends(messages):
        return request.replace(messages=history, history=len(history))
    if not isinstance(messages, Sequence):  # pyright: ignore[reportUnnecessaryIsInstance]
        return request
    late = history[request.history :]
    return request.replace(messages=[*messages, *late], history=len(history))


def _omit_refused_media(request: ModelRequest, state: RunState) -> ModelRequest:
    omit = state.refused.omit
    return request.replace(
        messages=omit(request.messages), system=tuple(omit(request.system)), tail=tuple(omit(request.tail))
    )


# -- failures


def find_refused_media(request: ModelRequest, error: MediaRefused) -> tuple[dict[str, str], list[LLMNoticeEvent]]:
    """Return refused media with the vendor's reason, along with a notice event."""
    reason = vendor_reason(replace_surrogates(str(error)))
    media = select_refused((*request.system, *request.tail), request.messages, error.media, error.scope)
    if not media:
        return {}, []
    names = ", ".join(media.values())
    text = replace_surrogates(f"{request.ctx.model.name} refused {names}, which is omitted from now on: {reason}")
    notice = LLMNoticeEvent(code="left_out", message=text, step=request.step, branch=request.branch)
    return dict.fromkeys(media, reason), [notice]


def describe_failure(request: ModelRequest, error: Exception, refused: dict[str, str], tries: int) -> LLMFailedEvent:
    """Return the `llm-failed` event of the last request of a call. Retried requests have their own events.

    Args:
        request: The failed request.
        error: The error raised by the provider.
        refused: Images and files that the vendor refused.
        tries: Number of requests sent.
    """
    provider_error = error if isinstance(error, ProviderError) else None
    code = provider_error.code if provider_error else "error"
    return LLMFailedEvent(
        error=ErrorInfo(code=code, message=replace_surrogates(str(error))),
        retryable=isinstance(error, ContextLengthExceeded)
        or bool(refused)
        or (provider_error is not None and provider_error.retryable),
        status=provider_error and provider_error.status,
        tries=tries,
        refused=refused,
        step=request.step,
        branch=request.branch,
    )


# -- provider events


def copy_unstamped(event: Event) -> Event:
    """Return a copy for publishing again, without ids and timestamps."""
    return event.model_copy(update=_UNSTAMPED)


def make_event_error(value: object, request: ModelRequest) -> PipelineError:
    """Create an error for providers that emit invalid values."""
    return PipelineError(
        f"provider {request.ctx.model.name} must emit events, got {value!r} of type {type(value).__qualname__}"
    )


class DeltaTimes:
    """Times of the deltas of a message in milliseconds.

    For each delta, the caller compares the time since `newest` with `silence`, and only calls `add` if it is longer.
    """

    __slots__ = ("_first_token", "_requested", "newest", "silence")

    def __init__(self, requested: int) -> None:
        """Start measuring.

        Args:
            requested: Timestamp of the request.
        """
        self._requested = requested
        self.reset()

    def reset(self) -> None:
        """Discard the measurements, because the request has failed and may be sent again."""
        self.newest = self._requested
        """Timestamp of the newest delta. Before the first delta, timestamp of the request."""
        self.silence = -1
        """Longest time between two deltas, or -1 before the first delta."""
        self._first_token: int | None = None

    def add(self, timestamp: int) -> None:
        """Add the first delta, or a delta after a new longest silence."""
        silence = timestamp - self.newest
        if self._first_token is None:
            self._first_token, silence = silence, 0
        self.silence = silence

    def apply(self, message: ContentCompleteEvent) -> None:
        """Set the times of an unpublished message, unless it had no deltas."""
        if self._first_token is not None:
            times = {"first_token": self._first_token / 1000, "longest_silence": self.silence / 1000}
            mutable_fields(message).update(times)


def complete_message(message: ContentCompleteEvent, request: ModelRequest) -> None:
    """Mark hidden calls and add the offered tools and the token limit before a message is published."""
    if message.tool_calls:
        name = "content-complete: tool_calls"
        tools = get_host(request.ctx).tools
        calls = [freeze_model(mark_hidden(call, tools), name) for call in message.tool_calls]
        mutable_fields(message).update(tool_calls=FrozenList(calls), offered=list_offered(request.tools, calls, tools))
    if message.finish_reason == "length" and message.max_tokens is None:
        mutable_fields(message)["max_tokens"] = request.settings.max_tokens
    # Normalise before tool execution to ensure consistency between tool arguments and the log.
    normalise(message)


def mark_hidden(call: ToolCall, tools: OfferedTools) -> ToolCall:
    """Return the call, marked as hidden if its tool is hidden from clients."""
    return call.model_copy(update={"hidden": True}) if not call.hidden and tools.hides(call.name) else call


def list_offered(tools: Sequence[ToolDefinition], calls: Sequence[ToolCall], offered: OfferedTools) -> list[str] | None:
    """Return the tool names offered for a message, or None if the run's tools were all offered.

    A resumed run uses them to find the tools that the calls of the message can reach.
    """
    names = {tool.name for tool in tools}
    if names.issuperset(call.name for call in calls) and not offered.has_others(names):
        return None
    return [tool.name for tool in tools]


def make_tool_requests(
    message: ContentCompleteEvent,
    calls: Iterable[tuple[int, ToolCall]],
    ctx: RunContext[Any],
    offered: tuple[ToolDefinition, ...] | None,
) -> list[Signal]:
    """Create tool requests for unanswered calls of a message.

    Calls of incomplete messages fail immediately with a `tool-complete` event, because their arguments may be
    truncated.

    Args:
        message: Message with tool calls.
        calls: Unanswered calls with their indices.
        ctx: Model call context.
        offered: Tools offered to the model, or None for all tools.
    """
    if message.finish_reason in CUT_OFF:
        return []
    requests = [ToolRequest(call, ctx.bind(call=call, index=index), offered) for index, call in calls]
    return list(requests) if is_complete(message) else [_refuse(request, message) for request in requests]


def _refuse(request: ToolRequest, message: ContentCompleteEvent) -> Event:
    host = get_host(request.ctx)
    earlier = host.earlier.results.get(request.slot)
    if earlier is not None:
        return earlier
    tool = host.tools.find(request)
    if not isinstance(tool, str):
        request = request.of(tool.definition)
        reason = host.earlier.explain_no_repeat(request.ctx.task_id, request.slot, idempotent=tool.idempotent)
        if reason is not None:
            return request.refuse(reason, code="interrupted")
    return request.refuse(explain_refused_call(message, request.call.name), code="incomplete")
