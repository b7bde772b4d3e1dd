"""The fold of a run's events into its state, `fold(state, event) -> state`: what each kind of event changes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from rxloop.protocol.events import (
    AskingEvent,
    AuthRequiredEvent,
    ByClass,
    ContentCompleteEvent,
    ContextCompressedEvent,
    Event,
    InputReceivedEvent,
    InputRequiredEvent,
    LLMCallEvent,
    LLMFailedEvent,
    MessageAddedEvent,
    PendingInput,
    StatusUpdateEvent,
    SubtaskEvent,
    TaskEvent,
    ThinkingFailedEvent,
    ThoughtStreamEvent,
    ToolCompleteEvent,
    ToolStartEvent,
    UsageEvent,
)
from rxloop.protocol.messages import Message
from rxloop.protocol.model import unchecked
from rxloop.protocol.visibility import HIDDEN
from rxloop.state.history import Batch, History, content_with
from rxloop.state.run_state import MAIL_ID, Asker, Measured, RunState, earlier_with, left_to_the_next, made_of, no_run

_message = unchecked(Message)

PAUSED = ("input-required", "auth-required")
_ALSO_OF_THE_RUN = (
    *(ThoughtStreamEvent, InputRequiredEvent, AuthRequiredEvent, InputReceivedEvent, SubtaskEvent),
    ThinkingFailedEvent,
)
_RESTS = (*PAUSED, "canceled")


def fold(state: RunState, event: Event) -> RunState:
    """Fold one more event of its line, or of a run that is nested in its run, into a state."""
    if not event.durable:
        return state
    handler = _HANDLERS[type(event)] if event.parent_task_id is None else _below(state, event)
    if event.metadata and MAIL_ID in event.metadata:
        state = state.changed(mail=_newest_mail(state, event))
    if handler is None:
        return state.changed(seq=event.seq or state.seq)
    return made_of(vars(state) | {"seq": event.seq or state.seq, **handler(state, event)})


def fold_beside(state: RunState, event: Event) -> RunState:
    """Fold an event of a branch into the state of the main line: tokens, thoughts, calls, questions."""
    if isinstance(event, _ALSO_OF_THE_RUN):
        return fold(state, event)
    changes: dict[str, Any] = {}
    if isinstance(event, UsageEvent):
        changes["usage"] = state.usage + event.usage
    if isinstance(event, LLMFailedEvent) and event.refused:
        changes["refused"] = state.refused.add(event.refused)
    if isinstance(event, ContextCompressedEvent):
        changes["compression"] = state.compression.add(event)
    if isinstance(event, ContentCompleteEvent) and event.tool_calls:
        calls = state.calls
        for call in event.tool_calls:
            calls = calls.add(call.id, call)
        changes["calls"] = calls
    elif isinstance(event, ToolCompleteEvent) and state.pending:
        changes["pending"] = _unasked(state, event.step, event.index)
    if event.metadata and MAIL_ID in event.metadata:
        changes["mail"] = _newest_mail(state, event)
    return state.changed(seq=event.seq or state.seq, **changes)


def _newest_mail(state: RunState, event: Event) -> int:
    number = event.metadata[MAIL_ID]
    # A letter to a run that somebody passes on is none of this one's.
    own = (event.parent_task_id is None or event.task_id in state.subtasks) and isinstance(number, int)
    return max(state.mail, number) if own else state.mail


def fold_all(
    events: Iterable[Event], state: RunState | None = None, born: dict[str, RunState] | None = None
) -> RunState:
    """Fold events into the state of the main line.

    Args:
        events: In order.
        state: Where they begin.
        born: Filled with the state in which each branch began.
    """
    state = state or no_run()
    for event in events:
        if event.branch is None or event.parent_task_id is not None:
            state = fold(state, event)
            continue
        if born is not None and event.branch not in born:
            born[event.branch] = state.branched()
        state = fold_beside(state, event)
    return state


def _task(state: RunState, event: TaskEvent) -> dict[str, Any]:
    # What was compressed of the history stays compressed, since it only grows.
    fresh = no_run().changed(
        seq=event.seq,
        attempt=event.attempt,
        tries=1,
        messages=left_to_the_next(state).append(*event.messages),
        asked=tuple(event.messages),
        compressed=state.compressed,
        measured=state.measured,
        refused=state.refused,
        earlier=earlier_with(state.earlier, (*state.thoughts, *state.calls)),
    )
    return vars(fresh)


def _status(state: RunState, event: StatusUpdateEvent) -> dict[str, Any]:
    changes: dict[str, Any] = {
        "state": event.state,
        "reason": event.reason,
        "error": event.error,
        "attempt": event.attempt or state.attempt,
    }
    if event.attempt > state.attempt:
        changes["tries"] = state.tries + 1
    elif event.final and event.state in _RESTS:
        changes["tries"] = 0
    if event.resumed and state.open_step is not None and state.held:
        # The answer that was being written is lost with its attempt: the next one hears what was said meanwhile.
        changes.update(messages=state.messages.append(*state.held), held=())
    if state.batch is not None and state.pending and (event.final or event.resumed):
        # A call that waits for an answer was left at its question, and begins once more when the answer is there.
        batch = state.batch
        changes["batch"] = replace(batch, begun=batch.begun & ~batch.asking(state.pending.values()))
    return changes


def _tool_start(state: RunState, event: ToolStartEvent) -> dict[str, Any]:
    batch = state.batch
    if batch is None or batch.step != event.step:
        return {}
    index = batch.index_of(event.index)
    if index < 0:
        return {}
    # Not `replace`, which costs three times as much.
    return {"batch": Batch(batch.step, batch.message, batch.answers, batch.begun | 1 << index, batch.left_out)}


def _llm_call(state: RunState, event: LLMCallEvent) -> dict[str, Any]:
    changes = {"iteration": event.iteration, "open_step": event.step, "failure": None}
    if state.unheard and not state.held:
        changes["unheard"] = 0
    return changes


def _llm_failed(state: RunState, event: LLMFailedEvent) -> dict[str, Any]:
    return {"failure": event, "refused": state.refused.add(event.refused)} if event.refused else {"failure": event}


def _content_complete(state: RunState, event: ContentCompleteEvent) -> dict[str, Any]:
    if event.finish_reason == "canceled":
        return {
            "open_step": None,
            **_said(event),
            "messages": state.messages.append(*state.held),
            "held": (),
        }
    if event.finish_reason == "interrupted":
        return _interrupted(state, event)
    message = _message(
        role="assistant",
        content=content_with(event.content, event.files) if event.files else event.content,
        reasoning=event.reasoning,
        tool_calls=tuple(event.tool_calls),
        provider_state=event.provider_state,
        message_id=f"{event.task_id}:{event.step}",
    )
    changes: dict[str, Any] = {"open_step": None, "failure": None, "last": event, "answered": False, **_said(event)}
    if not event.tool_calls:
        if event.left_out and not (event.content or event.files or event.reasoning):
            # To clients it says nothing.
            return changes
        before, after = _around(state)
        changes.update(messages=before.append(message, *after), held=(), failures=0, thought_streak=0)
        return changes
    calls = state.calls
    for call in event.tool_calls:
        calls = calls.add(call.id, call)
    return {**changes, "batch": Batch(event.step or "", message, left_out=tuple(event.left_out)), "calls": calls}


def _said(event: ContentCompleteEvent) -> dict[str, Any]:
    return {"content": event.content, "files": event.files, "citations": event.citations}


def _around(state: RunState) -> tuple[History, Sequence[Message]]:
    """What comes before a new answer, and what after it: an answer is never to what its author has not heard."""
    if state.open_step is not None or not state.unheard:
        return state.messages, state.held
    # A strategy gives an answer that no request of the main line has led to.
    return History(state.messages[: -state.unheard]), state.messages[-state.unheard :]


def _interrupted(state: RunState, event: ContentCompleteEvent) -> dict[str, Any]:
    """Keep what was said of an answer that was cut off; half a thought, and its signature, nobody takes back."""
    kept: list[Message] = []
    if event.content.strip():
        message_id = f"{event.task_id}:{event.step}"
        kept.append(_message(role="assistant", content=event.content, message_id=message_id))
    return {
        "open_step": None,
        "failure": None,
        "last": event,
        "answered": False,
        **_said(event),
        "messages": state.messages.append(*kept, *state.held),
        "held": (),
    }


def _tool_complete(state: RunState, event: ToolCompleteEvent) -> dict[str, Any]:
    batch = state.batch
    if batch is None or batch.step != event.step or not batch.awaits(index := batch.index_of(event.index)):
        return {}
    batch = Batch(batch.step, batch.message, batch.answers.add(index, event), batch.begun, batch.left_out)
    pending = _unasked(state, batch.step, event.index)
    if len(batch.answers) < len(batch.calls):
        return {"batch": batch, "pending": pending}
    answers = [batch.answers[index] for index in range(len(batch.calls))]
    all_failed = not any(answer.success for answer in answers)
    return {
        **_answer(state, answers),
        "batch": None,
        "pending": pending,
        "held": (),
        "messages": state.messages.append(*batch.messages(), *state.held),
        "failures": state.failures + 1 if all_failed else 0,
        "thought_streak": state.thought_streak + 1 if batch.thought_only else 0,
    }


def _unasked(state: RunState, step: str | None, index: int, task_id: str | None = None) -> dict[str, PendingInput]:
    """Remove the questions of a call that is answered: it may have failed, or been cut off, while it asked.

    Args:
        state: The run.
        step: The model call that asked for it.
        index: Its place in the message.
        task_id: The nested run that made it, if one did.
    """
    if not state.pending:
        return state.pending
    call = Asker(task_id, step, index)
    return {key: asked for key, asked in state.pending.items() if call not in _askers(state, asked)}


def _askers(state: RunState, question: PendingInput) -> Iterator[Asker]:
    """Find the call that has asked, and the calls that its run is nested in: the innermost first."""
    if question.call is not None:
        yield Asker(question.task_id, question.step, question.index)
    task_id = question.task_id
    while task_id is not None and (above := state.subtasks.get(task_id)) is not None:
        yield above
        task_id = above.task_id


def _answer(state: RunState, answers: list[ToolCompleteEvent]) -> dict[str, Any]:
    """Take the answer of the run from a whole batch: its first good one stands, else a bad one is a retry."""
    given = [answer for answer in answers if answer.answer]
    good = [answer for answer in given if answer.success]
    if good:
        return {"answered": True, "content": good[0].content, "files": good[0].parts, "citations": ()}
    return {"retries": state.retries + 1} if given else {}


def _message_added(state: RunState, event: MessageAddedEvent) -> dict[str, Any]:
    message_id = event.message_id or f"{event.task_id}:added:{event.seq}"
    message = Message(role=event.role, content=event.content, message_id=message_id)
    changes: dict[str, Any] = {"retries": state.retries + 1} if event.cause == "retry" else {}
    if state.unheard or event.cause == "steering":
        changes["unheard"] = state.unheard + 1
    if state.batch is not None or state.open_step is not None:
        return {**changes, "held": (*state.held, message)}
    return {**changes, "messages": state.messages.append(message)}


def _usage(state: RunState, event: UsageEvent) -> dict[str, Any]:
    measured = Measured(event.step, event.input_tokens) if event.input_tokens else state.measured
    return {"usage": state.usage + event.usage, "measured": measured}


def _compressed(state: RunState, event: ContextCompressedEvent) -> dict[str, Any]:
    return {"compressed": event, "compression": state.compression.add(event)}


def _thinking_failed(state: RunState, event: ThinkingFailedEvent) -> dict[str, Any]:
    return {"thinking_failures": state.thinking_failures + 1}


def _thought(state: RunState, event: ThoughtStreamEvent) -> dict[str, Any]:
    return {
        "thoughts": state.thoughts.add(event.thought_id, event),
        "thought_count": state.thought_count + 1,
    }


def _asked(state: RunState, event: AskingEvent) -> dict[str, Any]:
    return {"pending": {**state.pending, event.input_id: event.input}}


def _input_received(state: RunState, event: InputReceivedEvent) -> dict[str, Any]:
    pending = {key: value for key, value in state.pending.items() if key != event.input_id}
    question = state.pending.get(event.input_id)
    if question is not None and question.secret:
        return {"pending": pending}
    return {"pending": pending, "answers": {**state.answers, event.input_id: event.value}}


def _subtask(state: RunState, event: SubtaskEvent) -> dict[str, Any]:
    """Note which call a nested run belongs to."""
    if event.subtask_id in state.subtasks:
        return {}
    above = event.task_id if event.task_id in state.subtasks else None
    return {"subtasks": state.subtasks.add(event.subtask_id, Asker(above, event.step, event.index))}


def _below(state: RunState, event: Event) -> Callable[[RunState, Any], dict[str, Any]] | None:
    """Find what an event of another run changes: nothing, if that is not of an agent which is nested in this one."""
    return _NESTED[type(event)] if event.task_id in state.subtasks else None


def _usage_below(state: RunState, event: UsageEvent) -> dict[str, Any]:
    return {"usage": state.usage + event.usage}


def _asked_below(state: RunState, event: AskingEvent) -> dict[str, Any]:
    changes = {"task_id": event.task_id, "agent_path": event.agent_path, "hidden": HIDDEN in event.metadata}
    return {"pending": {**state.pending, event.input_id: event.input.model_copy(update=changes)}}


def _answered_below(state: RunState, event: ToolCompleteEvent) -> dict[str, Any]:
    return {"pending": _unasked(state, event.step, event.index, event.task_id)} if state.pending else {}


def _status_below(state: RunState, event: StatusUpdateEvent) -> dict[str, Any]:
    if not state.pending or not event.final or event.state in PAUSED:
        return {}
    ended = event.task_id
    return {
        "pending": {
            key: asked
            for key, asked in state.pending.items()
            if asked.task_id != ended and all(call.task_id != ended for call in _askers(state, asked))
        }
    }


_HANDLERS = ByClass[Callable[[RunState, Any], dict[str, Any]]](
    {
        TaskEvent: _task,
        StatusUpdateEvent: _status,
        LLMCallEvent: _llm_call,
        LLMFailedEvent: _llm_failed,
        ContentCompleteEvent: _content_complete,
        ToolStartEvent: _tool_start,
        ToolCompleteEvent: _tool_complete,
        MessageAddedEvent: _message_added,
        UsageEvent: _usage,
        ThoughtStreamEvent: _thought,
        InputRequiredEvent: _asked,
        AuthRequiredEvent: _asked,
        InputReceivedEvent: _input_received,
        SubtaskEvent: _subtask,
        ContextCompressedEvent: _compressed,
        ThinkingFailedEvent: _thinking_failed,
    }
)
_NESTED = ByClass[Callable[[RunState, Any], dict[str, Any]]](
    {
        UsageEvent: _usage_below,
        InputRequiredEvent: _asked_below,
        AuthRequiredEvent: _asked_below,
        InputReceivedEvent: _input_received,
        SubtaskEvent: _subtask,
        ToolCompleteEvent: _answered_below,
        StatusUpdateEvent: _status_below,
    }
)
"""What a run has of those that are nested in it: their tokens and their questions."""
