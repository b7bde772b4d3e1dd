"""Fold of run events into a state: `fold(state, event) -> state`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
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
    LLMCallEvent,
    LLMFailedEvent,
    MessageAddedEvent,
    QuestionEvent,
    StatusUpdateEvent,
    SubtaskEvent,
    TaskEvent,
    ThinkingFailedEvent,
    ThinkingNotedEvent,
    ThoughtStreamEvent,
    ToolCompleteEvent,
    ToolStartEvent,
    UsageEvent,
)
from rxloop.protocol.messages import Message, mark_private
from rxloop.protocol.model import make_unchecked
from rxloop.protocol.visibility import PREDICTED
from rxloop.state.attempt_counts import count_attempt, count_progress
from rxloop.state.history import Batch, History, make_content
from rxloop.state.run_state import RequestSize, RunState, add_earlier_ids, get_final_history, initial_state, make_state
from rxloop.state.side_events import (
    Handler,
    add_answer,
    add_calls,
    add_goals,
    add_question,
    add_subtask,
    add_thought,
    discard_questions,
    find_last_command,
    find_nested_handler,
    find_shared_changes,
    remove_questions,
)

_message = make_unchecked(Message)

_SHARED = (ThoughtStreamEvent, QuestionEvent, InputReceivedEvent, SubtaskEvent, ThinkingFailedEvent, GoalsUpdatedEvent)
"""Events that also update the main branch if they occur on other branches."""

_WORK = (ContentCompleteEvent, ToolCompleteEvent)
"""Events that may be progress of an attempt."""


def fold(state: RunState, event: Event) -> RunState:
    """Fold the next event into a branch state. Nested run events are supported."""
    if not event.durable:
        return state
    handler = _HANDLERS[type(event)] if event.parent_task_id is None else find_nested_handler(state, event)
    if event.metadata and COMMAND_ID in event.metadata:
        state = state.replace(last_command=find_last_command(state, event))
    changes = {} if handler is None else handler(state, event)
    if state.starts and type(event) in _WORK:
        changes |= count_progress(state, event)
    return make_state(vars(state) | {"seq": event.seq or state.seq, **changes})


def fold_other_branch(state: RunState, event: Event) -> RunState:
    """Update the main branch's usage, thoughts, calls and questions from another branch."""
    if isinstance(event, _SHARED):
        return fold(state, event)
    changes = find_shared_changes(state, event)
    if state.starts and type(event) in _WORK:
        changes |= count_progress(state, event)
    return state.replace(seq=event.seq or state.seq, **changes)


def fold_all(
    events: Iterable[Event], state: RunState | None = None, branch_states: dict[str, RunState] | None = None
) -> RunState:
    """Fold events into the main branch's state. If set, `branch_states` receives initial states of branches."""
    state = state or initial_state()
    for event in events:
        if event.branch is None or event.parent_task_id is not None:
            state = fold(state, event)
            continue
        if branch_states is not None and event.branch not in branch_states:
            branch_states[event.branch] = state.create_branch()
        state = fold_other_branch(state, event)
    return state


def _fold_task(state: RunState, event: TaskEvent) -> dict[str, Any]:
    # Compressed messages stay compressed, because the history only grows.
    fresh = initial_state().replace(
        seq=event.seq,
        attempt=event.attempt,
        messages=get_final_history(state).append(*event.messages),
        initial_messages=tuple(event.messages),
        compressed=state.compressed,
        measured=state.measured,
        refused=state.refused,
        goals=state.goals,
        planned=state.goals is not None,
        earlier=add_earlier_ids(state.earlier, (*state.thoughts, *state.calls)),
    )
    return vars(fresh)


def _fold_status(state: RunState, event: StatusUpdateEvent) -> dict[str, Any]:
    changes: dict[str, Any] = {
        "state": event.state,
        "reason": event.reason,
        "error": event.error,
        "attempt": event.attempt or state.attempt,
    }
    changes |= count_attempt(state, event)
    if event.resumed and state.open_step is not None and state.held:
        changes.update(messages=state.messages.append(*state.held), held=())
    if event.discarded:
        changes.update(discard_questions(state, event.discarded))
    if state.batch is not None and state.pending and (event.final or event.resumed):
        batch = state.batch
        changes["batch"] = replace(batch, started=batch.started & ~batch.find_waiting_calls(state.pending.values()))
    if event.final and event.state not in (*WAITING, "working"):
        # Questions of calls were removed with their calls, but guards and strategies can also ask outside a call.
        changes["pending"] = {}
    return changes


def _fold_tool_start(state: RunState, event: ToolStartEvent) -> dict[str, Any]:
    batch = state.batch
    if batch is None or batch.step != event.step:
        return {}
    index = batch.find_index(event.index)
    if index < 0:
        return {}
    # `replace` would be three times slower.
    return {"batch": Batch(batch.step, batch.message, batch.answers, batch.started | 1 << index, batch.left_out)}


def _fold_llm_call(state: RunState, event: LLMCallEvent) -> dict[str, Any]:
    changes = {"iteration": event.iteration, "open_step": event.step, "failure": None}
    if state.unread_count and not state.held:
        changes["unread_count"] = 0
    return changes


def _fold_llm_failed(state: RunState, event: LLMFailedEvent) -> dict[str, Any]:
    return {"failure": event, "refused": state.refused.add(event.refused)} if event.refused else {"failure": event}


def _fold_content_complete(state: RunState, event: ContentCompleteEvent) -> dict[str, Any]:
    if event.finish_reason == "canceled":
        messages = state.messages.append(*state.held)
        return {"open_step": None, **_content_changes(event), "messages": messages, "held": ()}
    if event.finish_reason == "interrupted":
        return _keep_partial_text(state, event)
    message = _message(
        role="assistant",
        content=make_content(event.content, event.files) if event.files else event.content,
        reasoning=event.reasoning,
        tool_calls=tuple(event.tool_calls),
        provider_state=event.provider_state,
        message_id=f"{event.task_id}:{event.step}",
    )
    changes: dict[str, Any] = {
        "open_step": None,
        "failure": None,
        "last": event,
        "answered": False,
        **_content_changes(event),
    }
    if not event.tool_calls:
        if event.left_out and not (event.content or event.files or event.reasoning):
            return changes
        before, after = _split_messages(state)
        changes.update(messages=before.append(message, *after), held=(), failures=0, thought_streak=0)
        return changes
    batch = Batch(event.step or "", message, left_out=tuple(event.left_out))
    return {**changes, "batch": batch, "calls": add_calls(state, event)}


def _content_changes(event: ContentCompleteEvent) -> dict[str, Any]:
    return {"content": event.content, "files": event.files, "citations": event.citations}


def _split_messages(state: RunState) -> tuple[History, Sequence[Message]]:
    """Split messages so that the new answer only follows messages already read by the model."""
    if state.open_step is not None or not state.unread_count:
        return state.messages, state.held
    # Strategies can publish an answer without sending a request on the main branch.
    return History(state.messages[: -state.unread_count]), state.messages[-state.unread_count :]


def _keep_partial_text(state: RunState, event: ContentCompleteEvent) -> dict[str, Any]:
    # Vendors refuse half a thought and its signature, so keep only the text.
    message = _message(role="assistant", content=event.content, message_id=f"{event.task_id}:{event.step}")
    kept = [message] if event.content.strip() else []
    changes = {"open_step": None, "failure": None, "last": event, "answered": False, **_content_changes(event)}
    return {**changes, "messages": state.messages.append(*kept, *state.held), "held": ()}


def _fold_tool_complete(state: RunState, event: ToolCompleteEvent) -> dict[str, Any]:
    batch = state.batch
    if batch is None or batch.step != event.step or not batch.is_open(index := batch.find_index(event.index)):
        return {}
    batch = Batch(batch.step, batch.message, batch.answers.add(index, event), batch.started, batch.left_out)
    pending = remove_questions(state, batch.step, event.index)
    if len(batch.answers) < len(batch.calls):
        return {"batch": batch, "pending": pending}
    answers = [batch.answers[index] for index in range(len(batch.calls))]
    # The model has not failed if predicted calls fail.
    all_failed = PREDICTED not in (state.last or event).metadata and not any(answer.success for answer in answers)
    return {
        **_select_answer(state, answers),
        "batch": None,
        "pending": pending,
        "held": (),
        "messages": state.messages.append(*batch.messages(), *state.held),
        "failures": state.failures + 1 if all_failed else 0,
        "thought_streak": state.thought_streak + 1 if batch.thought_only else 0,
    }


def _select_answer(state: RunState, answers: list[ToolCompleteEvent]) -> dict[str, Any]:
    """Select the first valid answer. If all answers are invalid, increment the retry counter."""
    proposed = [answer for answer in answers if answer.answer]
    valid = [answer for answer in proposed if answer.success]
    if valid:
        return {"answered": True, "content": valid[0].content, "files": valid[0].parts, "citations": ()}
    return {"retries": state.retries + 1} if proposed else {}


def _fold_message_added(state: RunState, event: MessageAddedEvent) -> dict[str, Any]:
    message_id = event.message_id or f"{event.task_id}:added:{event.seq}"
    message = Message(role=event.role, content=event.content, message_id=message_id)
    if not event.public:
        mark_private(message)
    changes: dict[str, Any] = {"retries": state.retries + 1} if event.cause == "retry" else {}
    if state.unread_count or event.cause == "steering":
        changes["unread_count"] = state.unread_count + 1
    if state.batch is not None or state.open_step is not None:
        return {**changes, "held": (*state.held, message)}
    return {**changes, "messages": state.messages.append(message)}


def _fold_usage(state: RunState, event: UsageEvent) -> dict[str, Any]:
    measured = RequestSize(event.step, event.input_tokens) if event.input_tokens else state.measured
    return {"usage": state.usage + event.usage, "measured": measured}


def _fold_thinking_failed(state: RunState, event: ThinkingFailedEvent) -> dict[str, Any]:
    name = "thinking_failures" if event.thinking else "compression_failures"
    return {name: getattr(state, name) + 1}


_HANDLERS = EventTable[Handler](
    {
        TaskEvent: _fold_task,
        StatusUpdateEvent: _fold_status,
        LLMCallEvent: _fold_llm_call,
        LLMFailedEvent: _fold_llm_failed,
        ContentCompleteEvent: _fold_content_complete,
        ToolStartEvent: _fold_tool_start,
        ToolCompleteEvent: _fold_tool_complete,
        MessageAddedEvent: _fold_message_added,
        UsageEvent: _fold_usage,
        ThoughtStreamEvent: add_thought,
        InputRequiredEvent: add_question,
        AuthRequiredEvent: add_question,
        InputReceivedEvent: add_answer,
        SubtaskEvent: add_subtask,
        ContextCompressedEvent: lambda state, event: {"compressed": event, "compression": state.compression.add(event)},
        ThinkingNotedEvent: lambda state, event: {"noted": event, "compression": state.compression.add(event)},
        ThinkingFailedEvent: _fold_thinking_failed,
        GoalsUpdatedEvent: add_goals,
    }
)
