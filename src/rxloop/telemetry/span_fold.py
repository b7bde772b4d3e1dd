"""Fold of events into spans. Spans have the times of the events, so recorded runs have the same spans as live runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from opentelemetry.context import Context
from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from rxloop.protocol.events import (
    RELEASED,
    CheckpointEvent,
    ContentCompleteEvent,
    Event,
    EventTable,
    LLMCallEvent,
    LLMFailedEvent,
    StatusUpdateEvent,
    SubtaskEvent,
    TaskEvent,
    ToolCompleteEvent,
    ToolStartEvent,
    UsageEvent,
)
from rxloop.telemetry import names
from rxloop.telemetry.open_spans import Key, OpenAttempt, OpenSpan, SpanOptions

_NANOSECONDS = 1_000_000
"""Nanoseconds per millisecond."""


class SpanFold:
    """Spans of a stream of events, which may contain several runs and nested runs.

    Args:
        options: Options, shared by all streams.
        parent: Context of the spans of outermost runs.
        emit: Function called with each span after its end.
    """

    def __init__(self, options: SpanOptions, parent: Context, emit: Callable[[Span], None]) -> None:
        self._options, self._parent, self._emit = options, parent, emit
        self._tracer, self._metrics = options.tracer, options.metrics
        self._attempts: dict[str, OpenAttempt] = {}
        self._tasks: dict[str, TaskEvent] = {}
        """First events of unfinished runs."""
        self._subtasks: dict[str, tuple[Key, str]] = {}
        """Tool calls and agent names of nested runs."""
        self._copied: dict[str, int] = {}
        """Last copied `seq` of forks."""
        self._now = 0
        """Time of the newest event."""

    def add(self, event: Event) -> None:
        """Start or end the spans of an event."""
        handle = self._HANDLERS[type(event)]
        if handle is None:
            if event.durable:
                self._now = event.timestamp
        elif not self._copied or event.seq > self._copied.get(event.root_task_id, 0):
            # An interrupted attempt ends at its last event, so do not update the time before.
            handle(self, event)
            self._now = event.timestamp

    def close(self) -> None:
        """End the open spans at the time of the newest event, because there is no event that ends them."""
        for task_id in [*self._attempts]:
            if task_id in self._attempts:
                self._end_attempt(task_id, self._now, names.INTERRUPTED)

    # -- attempts

    def _add_task(self, event: TaskEvent) -> None:
        self._tasks[event.task_id] = event
        if event.fork_seq and event.parent_task_id is None:
            self._copied[event.task_id] = event.fork_seq

    def _add_status(self, event: StatusUpdateEvent) -> None:
        if event.final:
            error = event.error if event.state == "failed" else None
            cause = error.code if error is not None else event.reason if event.state == "failed" else None
            self._end_attempt(event.task_id, event.timestamp, cause, event)
            if event.state in ("completed", "failed"):
                self._forget(event)
        elif event.reason == RELEASED:
            self._end_attempt(event.task_id, event.timestamp, None, event)
        elif event.state == "working":
            if event.resumed:
                # The earlier attempt has no final event if its process died.
                self._end_attempt(event.task_id, self._now, names.INTERRUPTED)
            if event.task_id not in self._attempts:
                self._start_attempt(event)

    def _forget(self, event: StatusUpdateEvent) -> None:
        self._tasks.pop(event.task_id, None)
        self._subtasks.pop(event.task_id, None)
        self._copied.pop(event.task_id, None)
        if event.error is None or not event.error.retryable:
            self._options.first_attempts.pop(event.task_id, None)

    def _start_attempt(self, event: StatusUpdateEvent) -> None:
        task_id, task = event.task_id, self._tasks.get(event.task_id)
        call, agent = self._subtasks.get(task_id, (None, event.agent_name))
        if task is not None:
            agent = task.agent_name
        caller = self._options.open_calls.get(call) if call is not None else None
        attributes = {names.OPERATION: "invoke_agent", **({names.AGENT: agent} if agent else {})}
        first = self._options.first_attempts.get(task_id)
        span = self._start(
            f"invoke_agent {agent}" if agent else "invoke_agent",
            # The first event of a run also describes the request for it.
            event if task is None or event.resumed else task,
            caller.context() if caller is not None else self._find_parent(task),
            attributes,
            {
                names.CONVERSATION: event.context_id,
                names.TASK: task_id,
                names.ATTEMPT: event.attempt,
                **({names.INPUT_MESSAGES: names.format_messages(task.messages)} if self._content and task else {}),
            },
            links=[Link(first)] if first is not None else None,
        )
        attempt = self._attempts[task_id] = OpenAttempt(span, event.parent_task_id)
        if first is None:
            self._options.remember(task_id, span.span.get_span_context())
        if task is not None and task.strategy:
            workflow = {names.OPERATION: "invoke_workflow", names.WORKFLOW: task.strategy}
            attempt.workflow = self._start(f"invoke_workflow {task.strategy}", event, attempt.context, workflow, {})
            attempt.context = attempt.workflow.context()

    @property
    def _content(self) -> bool:
        return self._options.content

    def _find_parent(self, task: TaskEvent | None) -> Context:
        """Return the context of the caller, which is recorded in the metadata if it is another process."""
        traceparent = task.metadata.get("traceparent") if task is not None else None
        if not isinstance(traceparent, str):
            return self._parent
        return TraceContextTextMapPropagator().extract({"traceparent": traceparent}, self._parent)

    def _end_attempt(self, task_id: str, now: int, cause: str | None, final: StatusUpdateEvent | None = None) -> None:
        attempt = self._attempts.pop(task_id, None)
        if attempt is None:
            return
        for child in [child for child, each in self._attempts.items() if each.parent_task_id == task_id]:
            self._end_attempt(child, now, names.INTERRUPTED)
        # Calls that wait for an answer have not failed.
        is_paused = final is not None and final.state in ("input-required", "auth-required", "working")
        call_error = None if is_paused else cause or names.INTERRUPTED
        for key, call in [*attempt.calls.items()]:
            self._forget_call(attempt, key)
            self._end(call, now, call_error, {})
        state: dict[str, Any] = {names.STATE: "working" if final is None else final.state}
        if final is not None and final.reason:
            state[names.REASON] = final.reason
        for span in (attempt.iteration, attempt.workflow):
            if span is not None:
                self._end(span, now, cause, {})
        attributes: dict[str, Any] = state
        if attempt.usage is not None:
            attributes |= names.usage_attributes(attempt.usage, "gen_ai.aggregated_usage")
        message = None
        if final is not None:
            message = final.error.message if final.error is not None else None
            if final.finish_reason is not None:
                attributes[names.FINISH_REASONS] = (final.finish_reason,)
            if self._content and final.content is not None:
                attributes[names.OUTPUT_MESSAGES] = names.format_answer(
                    final.content, None, (), final.finish_reason or ""
                )
        self._end(attempt.agent, now, cause, attributes, message)

    # -- model calls

    def _add_call(self, event: LLMCallEvent) -> None:
        attempt = self._attempts.get(event.task_id)
        if attempt is None:
            return
        if self._options.iterations and event.branch is None:
            self._start_iteration(attempt, event)
        key = (event.task_id, event.branch, event.step, None)
        if key in attempt.calls:
            # The provider has refused the first request of the step, for example because it was too long.
            self._end_call(attempt, key, event.timestamp, names.INTERRUPTED, {})
        provider, model = names.split_model(event.model)
        details: dict[str, Any] = {names.STEP: event.step or ""}
        if event.branch:
            details[names.BRANCH] = event.branch
        if event.settings:
            details |= names.settings_attributes(event.settings)
        attributes = {names.OPERATION: "chat", names.PROVIDER: provider, names.REQUEST_MODEL: model}
        span = self._start(
            f"chat {model}",
            event,
            attempt.call_context(event.branch),
            attributes,
            details,
            kind=SpanKind.CLIENT,
        )
        attempt.calls[key] = self._options.open_calls[key] = span

    def _add_failure(self, event: LLMFailedEvent) -> None:
        call = self._options.open_calls.get((event.task_id, event.branch, event.step, None))
        if call is not None:
            call.failure = event.error
            call.failures += 1
            attributes: dict[str, Any] = {names.ERROR_TYPE: event.error.code}
            if event.status is not None:
                attributes[names.STATUS_CODE] = event.status
            call.span.add_event("rxloop.request_failed", attributes, event.timestamp * _NANOSECONDS)

    def _add_usage(self, event: UsageEvent) -> None:
        attempt = self._attempts.get(event.task_id)
        if attempt is None:
            return
        usage = event.usage
        attempt.usage = usage if attempt.usage is None else attempt.usage + usage
        call = attempt.calls.get((event.task_id, event.branch, event.step, None))
        if call is not None:
            # Several models can answer one step, for example with `hedge`.
            call.usage = usage if call.usage is None else call.usage + usage

    def _complete_message(self, event: ContentCompleteEvent) -> None:
        attempt, key = self._attempts.get(event.task_id), (event.task_id, event.branch, event.step, None)
        call = attempt.calls.get(key) if attempt is not None else None
        if attempt is None or call is None:
            return
        attributes: dict[str, Any] = {names.FINISH_REASONS: (event.finish_reason,)}
        if call.usage is not None:
            attributes |= names.usage_attributes(call.usage)
        if event.first_token is not None:
            attributes[names.FIRST_CHUNK] = event.first_token
        if self._content:
            answer = names.format_answer(event.content, event.reasoning, event.tool_calls, event.finish_reason)
            attributes[names.OUTPUT_MESSAGES] = answer
        is_canceled = event.finish_reason == "canceled"
        self._end_call(attempt, key, event.timestamp, "canceled" if is_canceled else None, attributes)
        if self._metrics is not None:
            self._metrics.record_answer(call.attributes, call.usage, event.first_token)

    def _end_call(
        self, attempt: OpenAttempt, key: Key, now: int, cause: str | None, attributes: dict[str, Any]
    ) -> None:
        call = self._forget_call(attempt, key)
        failure = call.failure if cause is not None else None
        if call.failures:
            attributes[names.RETRIES] = call.failures - (failure is not None)
        self._end(call, now, failure.code if failure else cause, attributes, failure.message if failure else None)

    def _start_iteration(self, attempt: OpenAttempt, event: LLMCallEvent) -> None:
        self._end_iteration(attempt, event.timestamp)
        number = {names.ITERATION: event.iteration}
        attempt.iteration = self._start(f"iteration {event.iteration}", event, attempt.context, {}, number)

    def _end_iteration(self, attempt: OpenAttempt, now: int) -> None:
        if attempt.iteration is not None:
            self._end(attempt.iteration, now, None, {})
            attempt.iteration = None

    def _add_checkpoint(self, event: CheckpointEvent) -> None:
        attempt = self._attempts.get(event.task_id)
        if attempt is not None:
            self._end_iteration(attempt, event.timestamp)

    # -- tool calls

    def _start_tool(self, event: ToolStartEvent) -> None:
        attempt = self._attempts.get(event.task_id)
        if attempt is None:
            return
        call = event.call
        details: dict[str, Any] = {names.TOOL_CALL: call.id, names.STEP: event.step or ""}
        if self._content:
            details[names.TOOL_ARGUMENTS] = names.to_json(call.arguments)
        attributes = {names.OPERATION: "execute_tool", names.TOOL: call.name, names.TOOL_TYPE: "function"}
        span = self._start(f"execute_tool {call.name}", event, attempt.call_context(event.branch), attributes, details)
        key = (event.task_id, event.branch, event.step, event.index)
        attempt.calls[key] = self._options.open_calls[key] = span

    def _complete_tool(self, event: ToolCompleteEvent) -> None:
        attempt, key = self._attempts.get(event.task_id), (event.task_id, event.branch, event.step, event.index)
        # Refused calls and recorded answers have no span, because no tool was executed.
        if attempt is None or key not in attempt.calls:
            return
        result: dict[str, Any] = {names.TOOL_RESULT: event.content} if self._content else {}
        error = None if event.success else names.tool_error(event)
        self._end(self._forget_call(attempt, key), event.timestamp, error, result, event.error)

    def _add_subtask(self, event: SubtaskEvent) -> None:
        self._subtasks[event.subtask_id] = ((event.task_id, event.branch, event.step, event.index), event.agent_name)

    # -- spans

    def _forget_call(self, attempt: OpenAttempt, key: Key) -> OpenSpan:
        self._options.open_calls.pop(key, None)
        return attempt.calls.pop(key)

    def _start(
        self,
        name: str,
        event: Event,
        parent: Context,
        attributes: Mapping[str, Any],
        details: Mapping[str, Any],
        *,
        kind: SpanKind = SpanKind.INTERNAL,
        links: list[Link] | None = None,
    ) -> OpenSpan:
        start = event.timestamp
        span = self._tracer.start_span(
            name, parent, kind, {**attributes, **details}, links, start_time=start * _NANOSECONDS
        )
        return OpenSpan(span, start, parent, attributes)

    def _end(
        self, each: OpenSpan, now: int, error: str | None, attributes: dict[str, Any], message: str | None = None
    ) -> None:
        # Clocks of several machines may differ.
        now, span = max(now, each.start), each.span
        if error is not None:
            attributes[names.ERROR_TYPE] = error
            # Messages may contain content.
            span.set_status(Status(StatusCode.ERROR, message if self._content else None))
        if attributes:
            span.set_attributes(attributes)
        span.end(now * _NANOSECONDS)
        if self._metrics is not None and each.attributes:
            self._metrics.record_duration(each.attributes, (now - each.start) / 1000, error)
        self._emit(span)

    _HANDLERS: ClassVar = EventTable[Callable[[Any, Any], None]](
        {
            TaskEvent: _add_task,
            StatusUpdateEvent: _add_status,
            LLMCallEvent: _add_call,
            LLMFailedEvent: _add_failure,
            UsageEvent: _add_usage,
            ContentCompleteEvent: _complete_message,
            CheckpointEvent: _add_checkpoint,
            ToolStartEvent: _start_tool,
            ToolCompleteEvent: _complete_tool,
            SubtaskEvent: _add_subtask,
        }
    )
