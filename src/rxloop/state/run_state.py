"""State of a run after an event, and its limits."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple

from rxloop.errors import RxloopError
from rxloop.protocol.events import (
    ContentCompleteEvent,
    ContextCompressedEvent,
    LLMFailedEvent,
    PendingInput,
    State,
    ThoughtStreamEvent,
)
from rxloop.protocol.finish import is_filtered
from rxloop.protocol.messages import Citation, ErrorInfo, Media, Message, ToolCall, Usage
from rxloop.protocol.settings import Limits
from rxloop.state.history import Batch, History, Ledger
from rxloop.state.refused_media import RefusedMedia


@dataclass(frozen=True, slots=True, kw_only=True)
class CompressionTotals:
    """The sums over the compressions of a run."""

    count: int = 0
    tokens_before: int = 0
    tokens_after: int = 0
    dropped: int = 0
    """Messages that were left out."""
    shortened: int = 0
    """Tool results of which a part was left out."""
    stable_tokens: int = 0
    """Tokens at the front of the requests that stayed the same."""
    thinking: Usage = field(default_factory=Usage)
    """What the thinking model used; not part of the run's usage."""
    seconds: float = 0.0

    @property
    def ratio(self) -> float:
        """Tokens after, as a part of those before."""
        return self.tokens_after / self.tokens_before if self.tokens_before else 1.0

    def add(self, event: ContextCompressedEvent) -> CompressionTotals:
        """Add one compression."""
        return CompressionTotals(
            count=self.count + 1,
            tokens_before=self.tokens_before + event.tokens_before,
            tokens_after=self.tokens_after + event.tokens_after,
            dropped=self.dropped + event.dropped,
            shortened=self.shortened + event.shortened,
            stable_tokens=self.stable_tokens + event.stable_tokens,
            thinking=self.thinking + event.thinking,
            seconds=self.seconds + event.seconds,
        )


MAIL_ID = "mail_id"
"""The key of metadata under which an event names the letter that it comes of."""

EARLIER = 1_000
"""Ids of earlier runs that are known in any case; twice as many are kept at most."""


class Measured(NamedTuple):
    """What a request took, in the provider's words."""

    step: str | None
    input_tokens: int


class Asker(NamedTuple):
    """A call of the run itself, or of one that is nested in it."""

    task_id: str | None
    """The nested run that makes the call, if one does."""
    step: str | None
    place: int


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
    files: Sequence[Media] = ()
    """Images and files of that answer."""
    citations: Sequence[Citation] = ()
    """What its text rests on."""
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
    subtasks: Ledger[str, Asker] = field(default_factory=Ledger[str, Asker])
    """The runs of agents that were nested in it, at any depth, by id: the calls that they are nested in."""
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
    refused: RefusedMedia = field(default_factory=RefusedMedia)
    """The images and files of the conversation that a vendor refused."""
    measured: Measured | None = None
    """The last request of which the provider told what it took."""

    @property
    def thought_only(self) -> bool:
        """Whether the open message calls nothing but `think_aloud`."""
        return self.batch is not None and self.batch.thought_only

    @property
    def done(self) -> bool:
        """Whether the model has answered: its message is the last, and calls no tool but the one for the answer.

        A message that was filtered is the last one too: its calls are closed, and the run ends with what there is.
        """
        if self.last is None or self.batch is not None or self.open_step is not None or not self.messages:
            return False
        newest = self.messages[-1]
        if newest.role == "assistant":
            return not newest.tool_calls and not self.to_be_continued
        return (self.answered or is_filtered(self.last)) and newest.role == "tool"

    @property
    def to_be_continued(self) -> bool:
        """Whether the model's newest message is a piece of an answer: it goes on when it is sent the history again."""
        return self.last is not None and self.last.finish_reason == "pause" and not self.last.tool_calls

    @property
    def has_answered(self) -> bool:
        """Whether the model has answered, be it before something that it has not heard."""
        if not self.unheard or self.held or self.last is None or len(self.messages) <= self.unheard:
            return self.done
        newest = self.messages[-1 - self.unheard]
        if self.to_be_continued:
            return False
        answered = self.answered or is_filtered(self.last)
        return (newest.role == "assistant" and not newest.tool_calls) or (answered and newest.role == "tool")

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
        return made_of(self.__dict__ | changes)

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


def made_of(fields: dict[str, Any]) -> RunState:
    """Make a state of all its fields, whose dict it keeps."""
    state = object.__new__(RunState)
    _set_fields(state, fields)
    return state


# Not made when rxloop is imported: pydantic makes the validator of `Usage` for it, which takes a tenth of that.
@cache
def no_run() -> RunState:
    """The state before the first event, which all runs share."""
    # A dict that grew by one attribute after the other has room for twice as many, and so has each copy of it.
    return made_of({**vars(RunState())})


def left_to_the_next(state: RunState) -> History:
    """Give the history that a run leaves to the next one of the conversation, also if it never ended."""
    open_batch = state.batch.messages(state.pending.values()) if state.batch else ()
    return state.messages.append(*open_batch, *state.held)


def earlier_with(earlier: Ledger[str, None], names: Iterable[str]) -> Ledger[str, None]:
    """Add the ids of a run's thoughts and calls to what a thought of the next run may refer to."""
    earlier = earlier.add_all((name, None) for name in names)
    if len(earlier) <= 2 * EARLIER:
        return earlier
    return Ledger[str, None]().add_all((name, None) for name in list(earlier)[-EARLIER:])


class LimitHit(RxloopError):
    """A limit of the run is reached; inside a pipeline, where it ends the run."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


def check_limits(state: RunState, limits: Limits, thought_limit: int) -> LimitHit | None:
    """Find the limit that forbids another iteration, if one does.

    Args:
        state: The run after its last iteration.
        limits: Those of the run.
        thought_limit: Thought-only iterations in a row. One more is refused by the tool, and the one after that ends
            the run, so that a model that only ever thinks is called `thought_limit + 2` times.
    """
    if limits.tool_failures is not None and state.failures >= limits.tool_failures:
        return LimitHit(
            "tool_failures", f"every tool failed in {state.failures} iterations in a row (limits.tool_failures)"
        )
    if state.thought_streak >= thought_limit + 2:
        return LimitHit(
            "max_iterations",
            f"the model only thought aloud in {state.thought_streak} iterations in a row (Thoughts.limit)",
        )
    if limits.tokens is not None and state.usage.total_tokens >= limits.tokens:
        return LimitHit("tokens", f"{state.usage.total_tokens} of {limits.tokens} tokens are spent (limits.tokens)")
    if limits.iterations is not None and state.iteration >= limits.iterations:
        return LimitHit("max_iterations", f"no answer after {state.iteration} iterations (limits.iterations)")
    return None


def check_attempts(state: RunState, limits: Limits) -> LimitHit | None:
    """Find out whether the limit forbids another attempt.

    Args:
        state: The run after its last attempt.
        limits: Those of the run.
    """
    if limits.attempts is None or state.tries < limits.attempts:
        return None
    return LimitHit("attempts", f"{state.tries} attempts in a row came to no end (limits.attempts)")


@dataclass(frozen=True, slots=True)
class RunFold:
    """What runs of a conversation that follow one another add to it, as whoever folded them wrote it down.

    A log need not understand it.
    """

    first: str
    """The id of the first of these runs."""
    last: str
    """The id of the last one."""
    runs: int
    """How many they are."""
    events: int
    """How many durable events they have."""
    summary: bytes
    """What has to be known at once; JSON."""
    messages: bytes
    """The messages; JSON."""
