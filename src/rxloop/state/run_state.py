"""The state of a run: a pure fold of its events, `fold(state, event) -> state`.

There is no other memory of a run. Live, resumed and replayed, the messages that the model is sent are `state.messages`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from rxloop.protocol.events import (
    ContentCompleteEvent,
    ContextCompressedEvent,
    Event,
    InputReceivedEvent,
    InputRequiredEvent,
    LLMCallEvent,
    LLMFailedEvent,
    MessageAddedEvent,
    PendingInput,
    State,
    StatusUpdateEvent,
    TaskEvent,
    ThinkingFailedEvent,
    ThoughtStreamEvent,
    ToolCompleteEvent,
    ToolStartEvent,
    UsageEvent,
)
from rxloop.protocol.messages import ErrorInfo, Message, ToolCall, Usage
from rxloop.protocol.unchecked import unchecked
from rxloop.state.batch import Batch
from rxloop.state.by_class import ByClass
from rxloop.state.compression import CompressionTotals
from rxloop.state.history import History, Ledger

_message = unchecked(Message)

MAIL_ID = "mail_id"
"""The key of metadata under which an event names the letter that it comes of."""
_RESTS = ("input-required", "auth-required", "canceled")
EARLIER = 1_000
"""Ids of earlier runs that are known in any case; twice as many are kept at most."""


class Measured(NamedTuple):
    """What a request took, in the provider's words."""

    step: str | None
    input_tokens: int


# Without slots: a copy is then a copy of one dict, a tenth of the cost of `dataclasses.replace`, at each event.
@dataclass(frozen=True)
class RunState:
    """What is known of a run after an event: of its main line, or of one branch of it."""

    seq: int = 0
    """The last durable event."""
    attempt: int = 0
    tries: int = 0
    """Attempts that were begun since one paused for an answer or was cancelled."""
    state: State = "submitted"
    reason: str | None = None
    error: ErrorInfo | None = None
    messages: History = field(default_factory=History)
    """The history, always well-formed: an open batch enters it when its last call is answered."""
    asked: tuple[Message, ...] = ()
    """What the run was started with."""
    usage: Usage = field(default_factory=Usage)
    """Of all model calls of the run, branches included."""
    iteration: int = 0
    """The model calls of this line that have begun."""
    open_step: str | None = None
    """The model call whose message is not complete."""
    failure: LLMFailedEvent | None = None
    """How the open model call failed, where it may be tried again."""
    batch: Batch | None = None
    """The tool calls that are not all answered."""
    held: tuple[Message, ...] = ()
    """Messages that enter the history after the open message and its batch."""
    unheard: int = 0
    """How many of the newest messages, held ones included, follow one of steering that no request has carried yet."""
    last: ContentCompleteEvent | None = None
    """The newest complete message of the model."""
    content: str = ""
    """The newest answer, or what there is of one."""
    pending: dict[str, PendingInput] = field(default_factory=dict[str, PendingInput])
    """Questions that wait for an answer, by id."""
    answers: dict[str, Any] = field(default_factory=dict[str, Any])
    """The answers to questions, by id."""
    thoughts: Ledger[str, ThoughtStreamEvent] = field(default_factory=Ledger[str, ThoughtStreamEvent])
    thought_count: int = 0
    earlier: Ledger[str, None] = field(default_factory=Ledger[str, None])
    """The ids of the thoughts and tool calls of earlier runs of the conversation: of the newest ones, where there are
    very many."""
    calls: Ledger[str, ToolCall] = field(default_factory=Ledger[str, ToolCall])
    """Every tool call so far, by id; of calls with the same id, the first."""
    failures: int = 0
    """Consecutive iterations in which every tool failed."""
    retries: int = 0
    """Answers that were sent back to the model with what was wrong with them."""
    thought_streak: int = 0
    """Consecutive iterations that only thought aloud."""
    answered: bool = False
    """The newest message of the model gave the answer by a tool call."""
    compressed: ContextCompressedEvent | None = None
    """What the newest compression left to be sent of the history."""
    compression: CompressionTotals = field(default_factory=CompressionTotals)
    """What the compressions of the run came to, branches included."""
    thinking_failures: int = 0
    """How often the thinking phase failed."""
    mail: int = 0
    """The number of the last letter that the run has taken."""
    measured: Measured | None = None
    """The last request of which the provider told what it took."""

    @property
    def thought_only(self) -> bool:
        """Whether the open message calls nothing but `think_aloud`."""
        return self.batch is not None and self.batch.thought_only

    @property
    def done(self) -> bool:
        """Whether the model has answered: its message is the last, and calls no tool but the one for the answer."""
        if self.last is None or self.batch is not None or self.open_step is not None or not self.messages:
            return False
        newest = self.messages[-1]
        if newest.role == "assistant":
            return not newest.tool_calls
        return self.answered and newest.role == "tool"

    @property
    def has_answered(self) -> bool:
        """Whether the model has answered, be it before something that it has not heard."""
        if not self.unheard or self.held or self.last is None or len(self.messages) <= self.unheard:
            return self.done
        newest = self.messages[-1 - self.unheard]
        return (newest.role == "assistant" and not newest.tool_calls) or (self.answered and newest.role == "tool")

    @property
    def finished(self) -> bool:
        """Whether the run is over: nobody goes on with it unless somebody asks for that."""
        return self.state in ("completed", "failed")

    @property
    def retryable(self) -> bool:
        """Whether the run failed with a transient error, so that it can be resumed."""
        return self.state == "failed" and self.error is not None and self.error.retryable

    def new_thought_id(self) -> str:
        """Choose the id of a thought that has none: one that is free, and that a resumed run would choose as well."""
        ids = (f"t{number}" for number in itertools.count(len(self.thoughts) + 1))
        return next(free for free in ids if free not in self.thoughts and free not in self.calls)

    def beside(self, main: RunState) -> RunState:
        """Take what belongs to the whole run from the state of the main line."""
        return self.changed(
            seq=main.seq,
            usage=main.usage,
            thoughts=main.thoughts,
            thought_count=main.thought_count,
            calls=main.calls,
            answers=main.answers,
            compression=main.compression,
            thinking_failures=main.thinking_failures,
            mail=main.mail,
        )

    def changed(self, **changes: Any) -> RunState:
        """Copy the state with some other fields."""
        return _made_of(self.__dict__ | changes)

    def branched(self) -> RunState:
        """Start a branch: the same history, and a count of its own."""
        return self.changed(
            iteration=0,
            last=None,
            batch=None,
            open_step=None,
            held=(),
            unheard=0,
            failures=0,
            answered=False,
            pending={},
        )


_set_fields: Callable[[RunState, dict[str, Any]], None] = vars(RunState)["__dict__"].__set__


def _made_of(fields: dict[str, Any]) -> RunState:
    state = object.__new__(RunState)
    _set_fields(state, fields)
    return state


# A dict that grew by one attribute after the other has room for twice as many, and so has each copy of it.
NO_RUN = _made_of({**vars(RunState())})
"""The state before the first event, which all runs share."""


def fold(state: RunState, event: Event) -> RunState:
    """Fold one more event of its line into a state."""
    if not event.durable:
        return state
    handler = None if event.parent_task_id is not None else _HANDLERS[type(event)]
    if event.metadata and MAIL_ID in event.metadata:
        state = state.changed(mail=_newest_mail(state, event))
    if handler is None:
        return state.changed(seq=event.seq or state.seq)
    return _made_of(vars(state) | {"seq": event.seq or state.seq, **handler(state, event)})


def fold_beside(state: RunState, event: Event) -> RunState:
    """Fold an event of a branch into the state of the main line: tokens, thoughts, calls, questions."""
    if isinstance(event, ThoughtStreamEvent | InputRequiredEvent | InputReceivedEvent | ThinkingFailedEvent):
        return fold(state, event)
    changes: dict[str, Any] = {}
    if isinstance(event, UsageEvent):
        changes["usage"] = state.usage + event.usage
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
    return max(state.mail, number) if isinstance(number, int) else state.mail


def fold_all(
    events: Iterable[Event], state: RunState | None = None, born: dict[str, RunState] | None = None
) -> RunState:
    """Fold events into the state of the main line.

    Args:
        events: In order.
        state: Where they begin.
        born: Filled with the state in which each branch began.
    """
    state = state or NO_RUN
    for event in events:
        if event.branch is None:
            state = fold(state, event)
            continue
        if born is not None and event.parent_task_id is None and event.branch not in born:
            born[event.branch] = state.branched()
        state = fold_beside(state, event)
    return state


def left_to_the_next(state: RunState) -> History:
    """Give the history that a run leaves to the next one of the conversation, also if it never ended."""
    open_batch = state.batch.messages(state.pending.values()) if state.batch else ()
    return state.messages.append(*open_batch, *state.held)


def _task(state: RunState, event: TaskEvent) -> dict[str, Any]:
    # What was compressed of the history stays compressed, since it only grows.
    fresh = NO_RUN.changed(
        seq=event.seq,
        attempt=event.attempt,
        tries=1,
        messages=left_to_the_next(state).append(*event.messages),
        asked=tuple(event.messages),
        compressed=state.compressed,
        measured=state.measured,
        earlier=earlier_with(state.earlier, (*state.thoughts, *state.calls)),
    )
    return vars(fresh)


def earlier_with(earlier: Ledger[str, None], names: Iterable[str]) -> Ledger[str, None]:
    """Add the ids of a run's thoughts and calls to what a thought of the next run may refer to."""
    earlier = earlier.add_all((name, None) for name in names)
    if len(earlier) <= 2 * EARLIER:
        return earlier
    return Ledger[str, None]().add_all((name, None) for name in list(earlier)[-EARLIER:])


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
    # Not `replace`, which costs three times as much.
    return {"batch": Batch(batch.step, batch.message, batch.answers, batch.begun | 1 << event.index)}


def _llm_call(state: RunState, event: LLMCallEvent) -> dict[str, Any]:
    changes = {"iteration": event.iteration, "open_step": event.step, "failure": None}
    if state.unheard and not state.held:
        changes["unheard"] = 0
    return changes


def _llm_failed(state: RunState, event: LLMFailedEvent) -> dict[str, Any]:
    return {"failure": event}


def _content_complete(state: RunState, event: ContentCompleteEvent) -> dict[str, Any]:
    if event.finish_reason == "canceled":
        return {
            "open_step": None,
            "content": event.content,
            "messages": state.messages.append(*state.held),
            "held": (),
        }
    if event.finish_reason == "interrupted":
        return _interrupted(state, event)
    message = _message(
        role="assistant",
        content=event.content,
        reasoning=event.reasoning,
        tool_calls=tuple(event.tool_calls),
        provider_state=event.provider_state,
        message_id=f"{event.task_id}:{event.step}",
    )
    changes: dict[str, Any] = {"open_step": None, "failure": None, "last": event, "answered": False}
    changes["content"] = event.content
    if not event.tool_calls:
        before, after = _around(state)
        changes.update(messages=before.append(message, *after), held=(), failures=0, thought_streak=0)
        return changes
    calls = state.calls
    for call in event.tool_calls:
        calls = calls.add(call.id, call)
    return {**changes, "batch": Batch(event.step or "", message), "calls": calls}


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
        "content": event.content,
        "messages": state.messages.append(*kept, *state.held),
        "held": (),
    }


def _tool_complete(state: RunState, event: ToolCompleteEvent) -> dict[str, Any]:
    batch = state.batch
    if batch is None or batch.step != event.step or not batch.awaits(event.index):
        return {}
    batch = Batch(batch.step, batch.message, batch.answers.add(event.index, event), batch.begun)
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


def _unasked(state: RunState, step: str | None, index: int) -> dict[str, PendingInput]:
    """Remove the questions of a call that is answered: it may have failed, or been cut off, while it asked."""
    if not state.pending:
        return state.pending
    return {
        key: question
        for key, question in state.pending.items()
        if question.call is None or (question.step, question.index) != (step, index)
    }


def _answer(state: RunState, answers: list[ToolCompleteEvent]) -> dict[str, Any]:
    """Take the answer of the run from a whole batch: its first good one stands, else a bad one is a retry."""
    given = [answer for answer in answers if answer.answer]
    good = [answer for answer in given if answer.success]
    if good:
        return {"answered": True, "content": good[0].content}
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


def _input_required(state: RunState, event: InputRequiredEvent) -> dict[str, Any]:
    return {"pending": {**state.pending, event.input_id: event.input}}


def _input_received(state: RunState, event: InputReceivedEvent) -> dict[str, Any]:
    pending = {key: value for key, value in state.pending.items() if key != event.input_id}
    return {"pending": pending, "answers": {**state.answers, event.input_id: event.value}}


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
        InputRequiredEvent: _input_required,
        InputReceivedEvent: _input_received,
        ContextCompressedEvent: _compressed,
        ThinkingFailedEvent: _thinking_failed,
    }
)
