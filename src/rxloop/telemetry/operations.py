"""Fold of events into operations: attempts, strategies, iterations, model calls and tool calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import add
from typing import Any, ClassVar

from rxloop.protocol.events import (
    RELEASED,
    WAITING,
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
from rxloop.protocol.messages import ErrorInfo, Message, ToolCall
from rxloop.telemetry import names

_INTERRUPTED = ErrorInfo(code="interrupted", message="")
"""Error of operations without a recorded end, for example after a crash."""
_CANCELED = ErrorInfo(code="canceled", message="")
OPEN_OPERATIONS = "rxloop_open_operations"
"""Attribute of the views created by `op.spans`, with their open operations."""

_AGENT, _WORKFLOW, _ITERATION = "agent", "workflow", "iteration"
Key = str | tuple[str | None, str | None, int | None]
"""Name of an operation of the attempt, or branch, step and call index of a model call (index None) or a tool call."""
Attributes = Mapping[str, Any]


@dataclass(slots=True, eq=False)
class Operation:
    """Operation of a run. Its times are those of the events, in milliseconds."""

    name: str
    event: Event
    """First event."""
    parent: Operation | None
    attributes: dict[str, Any]
    """Attributes without a value are omitted. The end of the operation adds further attributes."""
    end: int = 0
    usage: names.TokenCounts | None = None
    failures: list[LLMFailedEvent] = field(default_factory=list[LLMFailedEvent])
    """Failed requests of a model call."""
    model: Attributes | None = None
    """Attributes of the model that has answered, if several models can answer."""
    span: Any = None
    context: Any = None
    """OpenTelemetry context of the spans below this one, or None if it is not needed yet."""


class Recorder:
    """Receiver of operations. By default, it ignores them."""

    def start(self, operation: Operation) -> None:
        """Record the start of an operation."""

    def end(self, operation: Operation, changes: Attributes, message: str | None) -> None:
        """Record the end of an operation.

        Args:
            operation: Operation with all attributes.
            changes: Attributes that were added at the end.
            message: Error message, if it may be recorded.
        """


Operations = dict[Key, Operation]
OpenOperations = dict[str, Operations]
"""Open operations of each run with an open attempt. The first one is the agent."""
_NONE: Operations = {}


def find_operation(
    operations: Operations, branch: str | None, step: str | None = None, index: int | None = None
) -> Operation | None:
    """Return an open call, or else the operation that contains the calls of its branch."""
    for key in ((branch, step, index), _ITERATION, _WORKFLOW, _AGENT):
        if key in operations and (key != _ITERATION or branch is None):
            return operations[key]
    return None


class OperationFold:
    """Operations of a stream of events, which may contain several runs and nested runs."""

    def __init__(
        self,
        recorder: Recorder,
        *,
        content: bool = False,
        iterations: bool = False,
        shared: OpenOperations | None = None,
    ) -> None:
        """Create a fold.

        Args:
            recorder: Receiver of the operations.
            content: Whether operations contain messages, arguments and results.
            iterations: Whether iterations are operations.
            shared: Dictionary to which the fold adds its open operations. Several folds can use it. They ignore the
                attempts in it, so that a view that is subscribed twice creates one span.
        """
        self._recorder, self._content, self._iterations = recorder, content, iterations
        self._shared: OpenOperations = {} if shared is None else shared
        self._open: OpenOperations = {}
        self._tasks: dict[str, TaskEvent] = {}
        """First events of unfinished runs."""
        self._callers: dict[str, Operation | None] = {}
        """Tool calls of the nested runs."""
        self._now = 0
        """Time of the newest event."""

    def add(self, event: Event) -> None:
        """Start or end the operations of an event."""
        handle = self._HANDLERS[type(event)]
        if handle is not None:
            handle(self, event, self._open.get(event.task_id, _NONE))
        # An interrupted attempt ends at its last event, so update the time afterwards.
        if event.durable:
            self._now = event.timestamp

    def close(self) -> None:
        """End the open operations at the time of the newest event, because there is no event that ends them."""
        for task_id in [*self._open]:
            self._end_attempt(task_id)

    # -- attempts

    def _add_task(self, event: TaskEvent, _: Operations) -> None:
        self._tasks[event.task_id] = event

    def _add_subtask(self, event: SubtaskEvent, _: Operations) -> None:
        caller = self._shared.get(event.task_id, _NONE).get((event.branch, event.step, event.index))
        self._callers[event.subtask_id] = caller

    def _add_status(self, event: StatusUpdateEvent, _: Operations) -> None:
        task_id, root = event.task_id, self._tasks.get(event.root_task_id)
        if root is not None and root.fork_seq and event.seq <= root.fork_seq:
            # Without attempt, the other events that a fork has copied have no effect.
            return
        if event.final or event.reason == RELEASED:
            self._end_attempt(task_id, event)
            if event.state in ("completed", "failed"):
                self._tasks.pop(task_id, None)
                self._callers.pop(task_id, None)
        elif event.state == "working":
            if event.resumed:
                # The earlier attempt has no final event if its process died.
                self._end_attempt(task_id)
            if task_id not in self._shared:
                self._start_attempt(event)

    def _start_attempt(self, event: StatusUpdateEvent) -> None:
        task_id = event.task_id
        task = self._tasks.get(task_id)
        agent = (task or event).agent_name or ""
        operations = self._open[task_id] = self._shared[task_id] = {}
        # The first event of a run also describes the request for it.
        first = event if task is None or event.resumed else task
        attributes = {
            names.OPERATION: "invoke_agent",
            names.AGENT: agent or None,
            "gen_ai.conversation.id": event.context_id,
            "gen_ai.input.messages": names.format_messages(task.messages) if self._content and task else None,
            names.TASK: task_id,
            "rxloop.attempt": event.attempt,
        }
        name, caller = f"invoke_agent {agent}".rstrip(), self._callers.get(task_id)
        self._start(operations, _AGENT, name, first, attributes, caller)
        if task is not None and task.strategy:
            attributes = {names.OPERATION: "invoke_workflow", names.WORKFLOW: task.strategy}
            self._start(operations, _WORKFLOW, f"invoke_workflow {task.strategy}", event, attributes)

    def _end_attempt(self, task_id: str, final: StatusUpdateEvent | None = None) -> None:
        """End the operations of an attempt. Without a final event, they end at the time of the newest event."""
        operations = self._open.pop(task_id, None)
        if operations is None:
            return
        self._shared.pop(task_id, None)
        for child in [each for each, open_ in self._open.items() if open_[_AGENT].event.parent_task_id == task_id]:
            self._end_attempt(child)
        error, now, call_error = _INTERRUPTED, self._now, _INTERRUPTED
        attributes: dict[str, Any] = {names.STATE: "working"}
        if final is not None:
            now, reason = final.timestamp, final.finish_reason
            failure = final.error or ErrorInfo(code=final.reason or "", message="")
            error = failure if final.state == "failed" else None
            # Calls that wait for an answer have not failed.
            call_error = None if final.state in WAITING or final.reason == RELEASED else error or _INTERRUPTED
            attributes = {
                names.STATE: final.state,
                "rxloop.reason": final.reason or None,
                names.FINISH_REASONS: None if reason is None else (reason,),
                names.OUTPUT_MESSAGES: self._format_answer(final.content, reason or ""),
            }
        for key in [*operations][:0:-1]:
            self._end(operations, key, now, call_error if isinstance(key, tuple) else error, {})
        self._end(operations, _AGENT, now, error, attributes)

    # -- model calls

    def _start_call(self, event: LLMCallEvent, operations: Operations) -> None:
        if self._iterations and event.branch is None:
            self._end_iteration(event, operations)
            number = {"rxloop.iteration": event.iteration}
            self._start(operations, _ITERATION, f"iteration {event.iteration}", event, number)
        key = (event.branch, event.step, None)
        # The provider has refused the first request of the step, for example because it was too long.
        self._end(operations, key, event.timestamp, _CANCELED, {})
        attributes: dict[str, Any] = {
            names.OPERATION: "chat",
            **names.split_model(event.model),
            "gen_ai.conversation.id": event.context_id,
            names.STEP: event.step,
            "rxloop.branch": event.branch,
        }
        for name, value in (event.settings or {}).items():
            attributes["gen_ai.request." + {"stop": "stop_sequences"}.get(name, name)] = value
        self._start(operations, key, f"chat {attributes[names.REQUEST_MODEL]}", event, attributes)

    def _add_failure(self, event: LLMFailedEvent, operations: Operations) -> None:
        key = (event.branch, event.step, None)
        if key in operations:
            operations[key].failures.append(event)

    def _add_usage(self, event: UsageEvent, operations: Operations) -> None:
        # Several models can answer one step, for example with `hedge`. Nested runs have their own operations, so no
        # token is counted twice.
        counts, model = names.get_counts(event), event.metadata.get("model")
        for each in (_AGENT, (event.branch, event.step, None)):
            if each in operations:
                operation = operations[each]
                operation.usage = counts if operation.usage is None else tuple(map(add, operation.usage, counts))
                if isinstance(model, str) and each != _AGENT:
                    operation.model = names.split_model(model)

    def _end_call(self, event: ContentCompleteEvent, operations: Operations) -> None:
        reason, response = event.finish_reason, event.response
        attributes: dict[str, Any] = {
            names.FINISH_REASONS: (reason,),
            names.FIRST_CHUNK: event.first_token,
            names.OUTPUT_MESSAGES: self._format_answer(event.content, reason, event.reasoning, event.tool_calls),
        }
        if response is not None:
            attributes |= {
                "gen_ai.response.id": response.id,
                "gen_ai.response.model": response.model,
                "gen_ai.request.stream": response.streamed or None,
                "server.address": response.server_address,
                "server.port": response.server_port,
            }
        error = _CANCELED if reason == "canceled" else None
        self._end(operations, (event.branch, event.step, None), event.timestamp, error, attributes)

    def _format_answer(
        self, text: str | None, finish_reason: str, reasoning: str | None = None, calls: Sequence[ToolCall] = ()
    ) -> str | None:
        if text is None or not self._content:
            return None
        message = Message(role="assistant", content=text, reasoning=reasoning, tool_calls=tuple(calls))
        return names.format_messages([message], finish_reason=finish_reason)

    def _end_iteration(self, event: LLMCallEvent | CheckpointEvent, operations: Operations) -> None:
        self._end(operations, _ITERATION, event.timestamp, None, {})

    # -- tool calls

    def _start_tool(self, event: ToolStartEvent, operations: Operations) -> None:
        call = event.call
        attributes = {
            names.OPERATION: "execute_tool",
            names.TOOL: call.name,
            names.TOOL_TYPE: "function",
            "gen_ai.tool.call.id": call.id,
            "gen_ai.tool.call.arguments": names.to_json(call.arguments) if self._content else None,
            names.STEP: event.step,
        }
        key = (event.branch, event.step, event.index)
        self._start(operations, key, f"execute_tool {call.name}", event, attributes)

    def _end_tool(self, event: ToolCompleteEvent, operations: Operations) -> None:
        # Refused calls and recorded answers are no operations, because no tool was executed.
        error = None
        if not event.success:
            # Events of earlier versions have no code.
            code = "canceled" if event.error == "canceled" else event.code or "error"
            error = ErrorInfo(code="tool_error" if code == "error" else code, message=event.error or "")
        result = {"gen_ai.tool.call.result": event.content if self._content else None}
        self._end(operations, (event.branch, event.step, event.index), event.timestamp, error, result)

    # -- operations

    def _start(
        self,
        operations: Operations,
        key: Key,
        name: str,
        event: Event,
        attributes: Attributes,
        parent: Operation | None = None,
    ) -> None:
        if not operations and key != _AGENT:
            return  # The stream does not contain the start of the attempt.
        known = {name: value for name, value in attributes.items() if value is not None}
        operation = Operation(name, event, find_operation(operations, event.branch) or parent, known)
        self._recorder.start(operation)
        operations[key] = operation

    def _end(self, operations: Operations, key: Key, now: int, error: ErrorInfo | None, attributes: Attributes) -> None:
        operation = operations.pop(key, None)
        if operation is None:
            return
        if error is _CANCELED and operation.failures:
            error = operation.failures[-1].error
        changes = {name: value for name, value in attributes.items() if value is not None}
        if operation.model is not None:
            changes |= operation.model
            operation.name = f"chat {operation.model[names.REQUEST_MODEL]}"
        if operation.usage is not None:
            changes |= names.usage_attributes(operation.usage, names.AGGREGATED_USAGE if key == _AGENT else names.USAGE)
        if operation.failures:
            changes["rxloop.retries"] = len(operation.failures) - (error is not None)
        if error is not None:
            changes[names.ERROR_TYPE] = error.code
        # Clocks of several machines may differ.
        operation.end = max(now, operation.event.timestamp)
        operation.attributes |= changes
        self._recorder.end(operation, changes, error.message if self._content and error else None)

    _HANDLERS: ClassVar = EventTable[Callable[[Any, Any, Operations], None]](
        {
            TaskEvent: _add_task,
            SubtaskEvent: _add_subtask,
            StatusUpdateEvent: _add_status,
            LLMCallEvent: _start_call,
            LLMFailedEvent: _add_failure,
            UsageEvent: _add_usage,
            ContentCompleteEvent: _end_call,
            CheckpointEvent: _end_iteration,
            ToolStartEvent: _start_tool,
            ToolCompleteEvent: _end_tool,
        }
    )
