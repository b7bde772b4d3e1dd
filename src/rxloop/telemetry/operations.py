"""Fold of events into operations: attempts, strategies, iterations, model calls and tool calls."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from operator import add
from typing import Any, ClassVar

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
from rxloop.protocol.messages import ErrorInfo
from rxloop.support.trace_context import get_trace_context
from rxloop.telemetry import names

Attributes = dict[str, Any]
Identity = Mapping[str, Any]
Key = tuple[str | None, str | None, int | None]
"""Branch, step and call index of a model call (index None) or a tool call."""


@dataclass(slots=True, eq=False)
class Operation:
    """Operation of a run. Its times are those of the events, in milliseconds."""

    name: str
    identity: Identity
    """Attributes of its metrics. Empty if it has no metrics."""
    start: int
    parent: Operation | None
    attributes: dict[str, Any]
    """Further attributes. They are replaced by the attributes of the end when the operation ends."""
    task_id: str = ""
    """Run id, if the operation is an attempt."""
    carrier: Mapping[str, str] | None = None
    """W3C trace context of the caller, if it is another process."""
    end: int = 0
    error: str | None = None
    message: str | None = None
    """Error message. It may contain content."""
    is_over: bool = False
    """True if the operation is the last attempt of its run."""
    usage: names.TokenCounts | None = None
    first_chunk: float | None = None
    failure: ErrorInfo | None = None
    """Failure of the last request."""
    failures: int = 0
    span: Any = None
    parent_context: Any = None
    """OpenTelemetry context of the span's parent."""
    context: Any = None
    """OpenTelemetry context in which the span is the current one, or None if it is not needed yet."""


class Recorder:
    """Receiver of operations. By default, it ignores them."""

    def start(self, operation: Operation) -> None:
        """Record the start of an operation."""

    def fail(self, operation: Operation, event: LLMFailedEvent) -> None:
        """Record a failed request of a model call."""

    def end(self, operation: Operation) -> None:
        """Record the end of an operation."""


OpenCalls = dict[str, dict[Key, Operation]]
"""Open calls of each run with an open attempt."""


@dataclass(slots=True)
class _Attempt:
    """Open operations of an attempt."""

    agent: Operation
    parent_task_id: str | None
    workflow: Operation | None = None
    iteration: Operation | None = None
    calls: dict[Key, Operation] = field(default_factory=dict[Key, Operation])

    def get_parent(self, branch: str | None) -> Operation:
        """Return the parent of a call."""
        return (self.iteration if branch is None else None) or self.workflow or self.agent


class OperationFold:
    """Operations of a stream of events, which may contain several runs and nested runs."""

    def __init__(
        self,
        recorder: Recorder,
        *,
        content: bool = False,
        iterations: bool = False,
        open_calls: OpenCalls | None = None,
    ) -> None:
        """Create a fold.

        Args:
            recorder: Receiver of the operations.
            content: Whether operations contain messages, arguments and results.
            iterations: Whether iterations are operations.
            open_calls: Dictionary to which the fold adds its open calls. Several folds can use it.
        """
        self._recorder, self._content, self._iterations = recorder, content, iterations
        self._open_calls: OpenCalls = {} if open_calls is None else open_calls
        self._attempts: dict[str, _Attempt] = {}
        self._tasks: dict[str, TaskEvent] = {}
        """First events of unfinished runs."""
        self._subtasks: dict[str, SubtaskEvent] = {}
        """Events that announced the nested runs."""
        self._copied: dict[str, int] = {}
        """Last copied `seq` of forks."""
        self._now = 0
        """Time of the newest event."""

    def add(self, event: Event) -> None:
        """Start or end the operations of an event."""
        handle, handle_call = self._HANDLERS[type(event)], self._CALL_HANDLERS[type(event)]
        if self._copied and event.seq <= self._copied.get(event.root_task_id, 0):
            return
        # An interrupted attempt ends at its last event, so update the time afterwards.
        if handle is not None:
            handle(self, event)
        elif handle_call is not None and (attempt := self._attempts.get(event.task_id)) is not None:
            handle_call(self, attempt, event)
        if event.durable:
            self._now = event.timestamp

    def close(self) -> None:
        """End the open operations at the time of the newest event, because there is no event that ends them."""
        for task_id in [*self._attempts]:
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
                for values in (self._tasks, self._subtasks, self._copied):
                    values.pop(event.task_id, None)
        elif event.reason == RELEASED:
            self._end_attempt(event.task_id, event.timestamp, None, event)
        elif event.state == "working":
            if event.resumed:
                # The earlier attempt has no final event if its process died.
                self._end_attempt(event.task_id, self._now, names.INTERRUPTED)
            if event.task_id not in self._attempts:
                self._start_attempt(event)

    def _start_attempt(self, event: StatusUpdateEvent) -> None:
        task = self._tasks.get(event.task_id)
        subtask = self._subtasks.get(event.task_id)
        agent = (task or subtask or event).agent_name
        details = {names.CONVERSATION: event.context_id, names.TASK: event.task_id, names.ATTEMPT: event.attempt}
        if self._content and task is not None:
            details[names.INPUT_MESSAGES] = names.format_messages(task.messages)
        # The first event of a run also describes the request for it.
        start = event if task is None or event.resumed else task
        caller = None
        if subtask is not None:
            key = (subtask.branch, subtask.step, subtask.index)
            caller = self._open_calls.get(subtask.task_id, {}).get(key)
        # A resumed attempt repeats the trace context.
        carrier = get_trace_context(event.metadata if task is None else task.metadata) or None
        name, identity = _agent_identity(agent)
        operation = Operation(name, identity, start.timestamp, caller, details, event.task_id, carrier)
        self._recorder.start(operation)
        attempt = self._attempts[event.task_id] = _Attempt(operation, event.parent_task_id)
        self._open_calls[event.task_id] = attempt.calls
        if task is not None and task.strategy:
            identity = {names.OPERATION: "invoke_workflow", names.WORKFLOW: task.strategy}
            name = f"invoke_workflow {task.strategy}"
            attempt.workflow = self._start(name, identity, event, operation, {})

    def _end_attempt(self, task_id: str, now: int, cause: str | None, final: StatusUpdateEvent | None = None) -> None:
        attempt = self._attempts.pop(task_id, None)
        if attempt is None:
            return
        for child in [child for child, each in self._attempts.items() if each.parent_task_id == task_id]:
            self._end_attempt(child, now, names.INTERRUPTED)
        # Calls that wait for an answer have not failed.
        is_paused = final is not None and final.state in ("input-required", "auth-required", "working")
        self._open_calls.pop(task_id, None)
        for call in attempt.calls.values():
            self._end(call, now, None if is_paused else cause or names.INTERRUPTED, {})
        for operation in (attempt.iteration, attempt.workflow):
            if operation is not None:
                self._end(operation, now, cause, {})
        agent = attempt.agent
        attributes: Attributes = {names.STATE: "working" if final is None else final.state}
        if agent.usage is not None:
            attributes |= names.usage_attributes(agent.usage, names.AGGREGATED_USAGE)
        if final is None:
            self._end(agent, now, cause, attributes)
            return
        if final.reason:
            attributes[names.REASON] = final.reason
        if final.finish_reason is not None:
            attributes[names.FINISH_REASONS] = (final.finish_reason,)
        if self._content and final.content is not None:
            finish = final.finish_reason or ""
            attributes[names.OUTPUT_MESSAGES] = names.format_answer(final.content, None, (), finish)
        agent.is_over = final.state in ("completed", "failed") and not (final.error and final.error.retryable)
        self._end(agent, now, cause, attributes, final.error.message if final.error is not None else None)

    # -- model calls

    def _add_call(self, attempt: _Attempt, event: LLMCallEvent) -> None:
        if self._iterations and event.branch is None:
            self._end_iteration(attempt, event)
            number = {names.ITERATION: event.iteration}
            parent = attempt.workflow or attempt.agent
            attempt.iteration = self._start(f"iteration {event.iteration}", {}, event, parent, number)
        key = (event.branch, event.step, None)
        if key in attempt.calls:
            # The provider has refused the first request of the step, for example because it was too long.
            self._end_call(attempt, key, event.timestamp, names.INTERRUPTED, {})
        details: Attributes = {names.CONVERSATION: event.context_id, names.STEP: event.step or ""}
        if event.branch:
            details[names.BRANCH] = event.branch
        if event.settings:
            details |= names.settings_attributes(event.settings)
        name, identity = _chat_identity(event.model)
        attempt.calls[key] = self._start(name, identity, event, attempt.get_parent(event.branch), details)

    def _add_failure(self, attempt: _Attempt, event: LLMFailedEvent) -> None:
        call = attempt.calls.get((event.branch, event.step, None))
        if call is not None:
            call.failure = event.error
            call.failures += 1
            self._recorder.fail(call, event)

    def _add_usage(self, attempt: _Attempt, event: UsageEvent) -> None:
        # Several models can answer one step, for example with `hedge`. Nested runs have their own operations, so no
        # token is counted twice.
        counts = names.get_counts(event)
        for operation in (attempt.agent, attempt.calls.get((event.branch, event.step, None))):
            if operation is not None:
                operation.usage = counts if operation.usage is None else tuple(map(add, operation.usage, counts))

    def _complete_message(self, attempt: _Attempt, event: ContentCompleteEvent) -> None:
        key = (event.branch, event.step, None)
        call = attempt.calls.get(key)
        if call is None:
            return
        attributes: Attributes = {names.FINISH_REASONS: (event.finish_reason,)}
        if call.usage is not None:
            attributes |= names.usage_attributes(call.usage)
        if event.first_token is not None:
            call.first_chunk = attributes[names.FIRST_CHUNK] = event.first_token
        if event.response is not None:
            attributes |= names.response_attributes(event.response)
        if self._content:
            answer = names.format_answer(event.content, event.reasoning, event.tool_calls, event.finish_reason)
            attributes[names.OUTPUT_MESSAGES] = answer
        is_canceled = event.finish_reason == "canceled"
        self._end_call(attempt, key, event.timestamp, "canceled" if is_canceled else None, attributes)

    def _end_call(self, attempt: _Attempt, key: Key, now: int, cause: str | None, attributes: Attributes) -> None:
        call = attempt.calls.pop(key)
        failure = call.failure if cause is not None else None
        if call.failures:
            attributes[names.RETRIES] = call.failures - (failure is not None)
        self._end(call, now, failure.code if failure else cause, attributes, failure.message if failure else None)

    def _end_iteration(self, attempt: _Attempt, event: LLMCallEvent | CheckpointEvent) -> None:
        if attempt.iteration is not None:
            self._end(attempt.iteration, event.timestamp, None, {})
            attempt.iteration = None

    # -- tool calls

    def _start_tool(self, attempt: _Attempt, event: ToolStartEvent) -> None:
        call = event.call
        details: Attributes = {names.TOOL_CALL: call.id, names.STEP: event.step or ""}
        if self._content:
            details[names.TOOL_ARGUMENTS] = names.to_json(call.arguments)
        name, identity = _tool_identity(call.name)
        operation = self._start(name, identity, event, attempt.get_parent(event.branch), details)
        attempt.calls[event.branch, event.step, event.index] = operation

    def _complete_tool(self, attempt: _Attempt, event: ToolCompleteEvent) -> None:
        call = attempt.calls.pop((event.branch, event.step, event.index), None)
        # Refused calls and recorded answers are no operations, because no tool was executed.
        if call is None:
            return
        result: Attributes = {names.TOOL_RESULT: event.content} if self._content else {}
        error = None if event.success else names.tool_error(event)
        self._end(call, event.timestamp, error, result, event.error)

    def _add_subtask(self, event: SubtaskEvent) -> None:
        self._subtasks[event.subtask_id] = event

    # -- operations

    def _start(self, name: str, identity: Identity, event: Event, parent: Operation, details: Attributes) -> Operation:
        operation = Operation(name, identity, event.timestamp, parent, details)
        self._recorder.start(operation)
        return operation

    def _end(self, each: Operation, now: int, error: str | None, details: Attributes, text: str | None = None) -> None:
        # Clocks of several machines may differ.
        each.end = max(now, each.start)
        each.error, each.message, each.attributes = error, text, details
        self._recorder.end(each)

    _HANDLERS: ClassVar = EventTable[Any](
        {TaskEvent: _add_task, StatusUpdateEvent: _add_status, SubtaskEvent: _add_subtask}
    )
    _CALL_HANDLERS: ClassVar = EventTable[Any](
        {
            LLMCallEvent: _add_call,
            LLMFailedEvent: _add_failure,
            UsageEvent: _add_usage,
            ContentCompleteEvent: _complete_message,
            CheckpointEvent: _end_iteration,
            ToolStartEvent: _start_tool,
            ToolCompleteEvent: _complete_tool,
        }
    )


@lru_cache(maxsize=256)
def _agent_identity(agent: str) -> tuple[str, Identity]:
    operation = {names.OPERATION: "invoke_agent"}
    return (f"invoke_agent {agent}", {**operation, names.AGENT: agent}) if agent else ("invoke_agent", operation)


@lru_cache(maxsize=256)
def _chat_identity(model: str) -> tuple[str, Identity]:
    provider, name = names.split_model(model)
    return f"chat {name}", {names.OPERATION: "chat", names.PROVIDER: provider, names.REQUEST_MODEL: name}


@lru_cache(maxsize=256)
def _tool_identity(tool: str) -> tuple[str, Identity]:
    identity = {names.OPERATION: "execute_tool", names.TOOL: tool, names.TOOL_TYPE: "function"}
    return f"execute_tool {tool}", identity
