"""State changes caused by nested runs and other branches, and the pending questions of a run."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Any

from rxloop.protocol.envelope import COMMAND_ID
from rxloop.protocol.events import (
    WAITING,
    AuthRequiredEvent,
    ContentCompleteEvent,
    ContextCompressedEvent,
    Event,
    EventTable,
    GoalsUpdatedEvent,
    InputReceivedEvent,
    InputRequiredEvent,
    LLMFailedEvent,
    PendingInput,
    QuestionEvent,
    StatusUpdateEvent,
    SubtaskEvent,
    ThinkingNotedEvent,
    ThoughtStreamEvent,
    ToolCompleteEvent,
    UsageEvent,
)
from rxloop.protocol.messages import ToolCall
from rxloop.protocol.visibility import HIDDEN
from rxloop.state.history import Ledger
from rxloop.state.run_state import CallPosition, RunState

Handler = Callable[[RunState, Any], dict[str, Any]]
"""Function that returns the changed fields of a state."""


def find_nested_handler(state: RunState, event: Event) -> Handler | None:
    """Return the event handler if the event belongs to a nested run."""
    return _HANDLERS[type(event)] if event.task_id in state.subtasks else None


def find_shared_changes(state: RunState, event: Event) -> dict[str, Any]:
    """Return changes to the main branch's state caused by another branch."""
    changes: dict[str, Any] = {}
    if isinstance(event, UsageEvent):
        changes["usage"] = state.usage + event.usage
    if isinstance(event, LLMFailedEvent) and event.refused:
        changes["refused"] = state.refused.add(event.refused)
    if isinstance(event, ContextCompressedEvent | ThinkingNotedEvent):
        changes["compression"] = state.compression.add(event)
    if isinstance(event, ContentCompleteEvent) and event.tool_calls:
        changes["calls"] = add_calls(state, event)
    elif isinstance(event, ToolCompleteEvent) and state.pending:
        changes["pending"] = remove_questions(state, event.step, event.index)
    if event.metadata and COMMAND_ID in event.metadata:
        changes["last_command"] = find_last_command(state, event)
    return changes


def find_last_command(state: RunState, event: Event) -> int:
    """Return the newest applied command number."""
    number = event.metadata[COMMAND_ID]
    # Events forwarded from another run use that run's command numbers.
    own = (event.parent_task_id is None or event.task_id in state.subtasks) and isinstance(number, int)
    return max(state.last_command, number) if own else state.last_command


def add_calls(state: RunState, event: ContentCompleteEvent) -> Ledger[str, ToolCall]:
    """Return all calls, including new ones."""
    return state.calls.add_all((call.id, call) for call in event.tool_calls)


def add_thought(state: RunState, event: ThoughtStreamEvent) -> dict[str, Any]:
    """Add a thought."""
    return {"thoughts": state.thoughts.add(event.thought_id, event), "thought_count": state.thought_count + 1}


def add_goals(state: RunState, event: GoalsUpdatedEvent) -> dict[str, Any]:
    """Replace the goals. Programs and other processes change them outside of steps."""
    return {"goals": tuple(event.goals), "planned": state.planned or event.step is not None}


def add_subtask(state: RunState, event: SubtaskEvent) -> dict[str, Any]:
    """Record the call that started a nested run."""
    if event.subtask_id in state.subtasks:
        return {}
    above = event.task_id if event.task_id in state.subtasks else None
    return {"subtasks": state.subtasks.add(event.subtask_id, CallPosition(above, event.step, event.index))}


def add_question(state: RunState, event: QuestionEvent) -> dict[str, Any]:
    """Add a pending question."""
    return {"pending": {**state.pending, event.input_id: event.input}}


def add_answer(state: RunState, event: InputReceivedEvent) -> dict[str, Any]:
    """Remove a question and store its answer. Credentials are not stored."""
    pending = {key: value for key, value in state.pending.items() if key != event.input_id}
    question = state.pending.get(event.input_id)
    if question is not None and question.secret:
        return {"pending": pending}
    return {"pending": pending, "answers": {**state.answers, event.input_id: event.value}}


def discard_questions(state: RunState, input_ids: Collection[str]) -> dict[str, Any]:
    """Remove questions of copied events and their answers, because a fork asks them again."""
    return {
        "pending": {key: value for key, value in state.pending.items() if key not in input_ids},
        "answers": {key: value for key, value in state.answers.items() if key not in input_ids},
    }


def remove_questions(
    state: RunState, step: str | None, index: int, task_id: str | None = None
) -> dict[str, PendingInput]:
    """Return pending questions, excluding questions asked by a completed call.

    Args:
        state: State of the run.
        step: Model call that requested the tool call.
        index: Index of the call in its message.
        task_id: Nested run that made the call, or None for the run itself.
    """
    if not state.pending:
        return state.pending
    call = CallPosition(task_id, step, index)
    return {key: question for key, question in state.pending.items() if call not in _list_askers(state, question)}


def _list_askers(state: RunState, question: PendingInput) -> Iterator[CallPosition]:
    """Yield the asking call and its parent calls, starting with the innermost one."""
    if question.call is not None:
        yield CallPosition(question.task_id, question.step, question.index)
    task_id = question.task_id
    while task_id is not None and (above := state.subtasks.get(task_id)) is not None:
        yield above
        task_id = above.task_id


def _add_usage(state: RunState, event: UsageEvent) -> dict[str, Any]:
    return {"usage": state.usage + event.usage}


def _add_nested_question(state: RunState, event: QuestionEvent) -> dict[str, Any]:
    changes = {"task_id": event.task_id, "agent_path": event.agent_path, "hidden": HIDDEN in event.metadata}
    return {"pending": {**state.pending, event.input_id: event.input.model_copy(update=changes)}}


def _complete_call(state: RunState, event: ToolCompleteEvent) -> dict[str, Any]:
    return {"pending": remove_questions(state, event.step, event.index, event.task_id)} if state.pending else {}


def _end_run(state: RunState, event: StatusUpdateEvent) -> dict[str, Any]:
    if not state.pending or not event.final or event.state in WAITING:
        return {}
    ended = event.task_id
    return {
        "pending": {
            key: question
            for key, question in state.pending.items()
            if question.task_id != ended and all(call.task_id != ended for call in _list_askers(state, question))
        }
    }


_HANDLERS = EventTable[Handler](
    {
        UsageEvent: _add_usage,
        InputRequiredEvent: _add_nested_question,
        AuthRequiredEvent: _add_nested_question,
        InputReceivedEvent: add_answer,
        SubtaskEvent: add_subtask,
        ToolCompleteEvent: _complete_call,
        StatusUpdateEvent: _end_run,
    }
)
