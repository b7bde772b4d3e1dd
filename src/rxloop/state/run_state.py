"""Run state and limit checks."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, NamedTuple

from rxloop.errors import ContextLengthExceeded, RxloopError
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
from rxloop.protocol.tool_events import Goal, ThinkingNotedEvent
from rxloop.state.history import Batch, History, Ledger
from rxloop.state.refused_media import RefusedMedia


@dataclass(frozen=True, slots=True, kw_only=True)
class CompressionTotals:
    """Compression totals of a run."""

    count: int = 0
    tokens_before: int = 0
    tokens_after: int = 0
    dropped: int = 0
    """Number of messages removed."""
    shortened: int = 0
    """Number of tool results shortened."""
    stable_tokens: int = 0
    """Number of unchanged leading tokens."""
    thinking: Usage = field(default_factory=Usage)
    """Tokens used by thinking. They are not part of the run's usage."""
    seconds: float = 0.0
    """Duration of all compressions and thinking in seconds."""

    @property
    def ratio(self) -> float:
        """Tokens after compression, relative to the tokens before."""
        return self.tokens_after / self.tokens_before if self.tokens_before else 1.0

    def add(self, event: ContextCompressedEvent | ThinkingNotedEvent) -> CompressionTotals:
        """Return the totals including one more compression or note."""
        if isinstance(event, ThinkingNotedEvent):
            return replace(self, thinking=self.thinking + event.thinking, seconds=self.seconds + event.seconds)
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


MAX_EARLIER_IDS = 1_000
"""Minimum number of retained ids from earlier runs. If twice as many accumulate, the oldest are dropped."""


class RequestSize(NamedTuple):
    """Request size reported by the provider."""

    step: str | None
    input_tokens: int


class CallPosition(NamedTuple):
    """Position of a tool call."""

    task_id: str | None
    """Nested run id. If None, the run itself made the call."""
    step: str | None
    place: int


# Do not use slots: copying the instance dict is ten times faster than `dataclasses.replace`.
@dataclass(frozen=True)
class RunState:
    """State of a single branch."""

    seq: int = 0
    """Last durable `seq`."""
    attempt: int = 0
    tries: int = 0
    """Number of attempts since the last progress, pause or cancellation, excluding released attempts."""
    starts: int = 0
    """Number of attempts since the last one that ended itself, excluding released attempts. Before the next attempt,
    this is the number of attempts in a row that ended with their process. An attempt that makes progress after a minute
    resets the count."""
    attempt_began: int = 0
    """Time of the first event of the attempt in milliseconds since 1970."""
    state: State = "submitted"
    reason: str | None = None
    error: ErrorInfo | None = None
    messages: History = field(default_factory=History)
    """History, always valid. An open batch is only added when all of its calls are answered."""
    initial_messages: tuple[Message, ...] = ()
    """Messages that started the run."""
    usage: Usage = field(default_factory=Usage)
    """Total usage on all branches."""
    iteration: int = 0
    """Number of model calls started on this branch."""
    open_step: str | None = None
    """Step of the open model call, if any."""
    failure: LLMFailedEvent | None = None
    """Last failure of the open model call."""
    batch: Batch | None = None
    """Open batch of tool calls, if any."""
    held: tuple[Message, ...] = ()
    """Messages to add to the history after the open message and its batch."""
    unread_count: int = 0
    """Number of newest messages, including held ones, since the first steering message that no request contains yet."""
    last: ContentCompleteEvent | None = None
    """Newest complete message of the model."""
    content: str = ""
    """Newest answer, possibly partial."""
    files: Sequence[Media] = ()
    """Media in this answer."""
    citations: Sequence[Citation] = ()
    """Sources of this answer's text."""
    pending: dict[str, PendingInput] = field(default_factory=dict[str, PendingInput])
    """Unanswered questions by id."""
    answers: dict[str, Any] = field(default_factory=dict[str, Any])
    """Answers by question id."""
    thoughts: Ledger[str, ThoughtStreamEvent] = field(default_factory=Ledger[str, ThoughtStreamEvent])
    thought_count: int = 0
    earlier: Ledger[str, None] = field(default_factory=Ledger[str, None])
    """Ids of thoughts and tool calls in earlier runs of the conversation. In long conversations, only the newest ids
    are retained."""
    calls: Ledger[str, ToolCall] = field(default_factory=Ledger[str, ToolCall])
    """Tool calls by id. The first call is kept if ids repeat."""
    subtasks: Ledger[str, CallPosition] = field(default_factory=Ledger[str, CallPosition])
    """Starting call of each nested run, by run id."""
    failures: int = 0
    """Number of consecutive iterations in which all tools failed."""
    retries: int = 0
    """Number of rejected answers."""
    thought_streak: int = 0
    """Number of consecutive thought-only iterations."""
    answered: bool = False
    """True if the model's newest message answered with a tool call."""
    compressed: ContextCompressedEvent | None = None
    """Newest compression, used to build the next request."""
    compression: CompressionTotals = field(default_factory=CompressionTotals)
    """Compression totals on all branches."""
    thinking_failures: int = 0
    """Number of failed thinking phases."""
    compression_failures: int = 0
    """Number of failed compressions."""
    noted: ThinkingNotedEvent | None = None
    """Newest note of a thinking phase."""
    last_command: int = 0
    """Number of the last applied command."""
    refused: RefusedMedia = field(default_factory=RefusedMedia)
    """Media refused by a vendor."""
    measured: RequestSize | None = None
    """Last request whose size the provider reported."""
    goals: tuple[Goal, ...] | None = None
    """Goals, or None if there were never any. The next run of the conversation inherits them."""
    planned: bool = False
    """True if earlier runs had goals, or an operator or a tool of this run has updated them."""

    @property
    def thought_only(self) -> bool:
        """True if the open message only calls `think_aloud`."""
        return self.batch is not None and self.batch.thought_only

    @property
    def done(self) -> bool:
        """True if the model has answered. Its message is the last one and calls no tools except for answer tools.

        A filtered message also counts, because its calls are closed and the run ends with the partial answer.
        """
        if self.last is None or self.batch is not None or self.open_step is not None or not self.messages:
            return False
        newest = self.messages[-1]
        if newest.role == "assistant":
            return not newest.tool_calls and not self.is_partial
        return (self.answered or is_filtered(self.last)) and newest.role == "tool"

    @property
    def is_partial(self) -> bool:
        """True if the model paused its answer, and continues when it receives the history again."""
        return self.last is not None and self.last.finish_reason == "pause" and not self.last.tool_calls

    @property
    def has_answered(self) -> bool:
        """True if the model has answered, even if it has not read newer messages yet."""
        if not self.unread_count or self.held or self.last is None or len(self.messages) <= self.unread_count:
            return self.done
        newest = self.messages[-1 - self.unread_count]
        if self.is_partial:
            return False
        answered = self.answered or is_filtered(self.last)
        return (newest.role == "assistant" and not newest.tool_calls) or (answered and newest.role == "tool")

    @property
    def finished(self) -> bool:
        """True if the run has ended and only continues on request."""
        return self.state in ("completed", "failed")

    @property
    def retryable(self) -> bool:
        """True if the run failed with a temporary error, so it can be resumed."""
        return self.state == "failed" and self.error is not None and self.error.retryable

    def make_thought_id(self) -> str:
        """Return an unused thought id. A resumed run would choose the same id."""
        ids = (f"t{number}" for number in itertools.count(len(self.thoughts) + 1))
        return next(free for free in ids if free not in self.thoughts and free not in self.calls)

    def with_run_values(self, main: RunState) -> RunState:
        """Return this branch's state, with values that belong to the whole run taken from the main branch."""
        return self.replace(
            seq=main.seq,
            usage=main.usage,
            thoughts=main.thoughts,
            thought_count=main.thought_count,
            calls=main.calls,
            answers=main.answers,
            compression=main.compression,
            thinking_failures=main.thinking_failures,
            compression_failures=main.compression_failures,
            last_command=main.last_command,
            goals=main.goals,
            planned=main.planned,
        )

    def replace(self, **changes: Any) -> RunState:
        """Return a copy with changed fields."""
        return make_state(self.__dict__ | changes)

    def create_branch(self) -> RunState:
        """Return a new branch state with the same history and reset counters."""
        return self.replace(
            iteration=0,
            last=None,
            batch=None,
            open_step=None,
            held=(),
            unread_count=0,
            failures=0,
            answered=False,
            pending={},
        )


_set_fields: Callable[[RunState, dict[str, Any]], None] = vars(RunState)["__dict__"].__set__


def make_state(fields: dict[str, Any]) -> RunState:
    """Create a state from a dict of all fields. The dict is not copied."""
    state = object.__new__(RunState)
    _set_fields(state, fields)
    return state


# Create it on first use, because building pydantic's validator for `Usage` would slow down importing rxloop.
@cache
def initial_state() -> RunState:
    """Return the shared state before the first event."""
    # Copying the dict halves its capacity, because it grew while attributes were being set.
    return make_state({**vars(RunState())})


def get_final_history(state: RunState) -> History:
    """Return the history for the next run of the conversation. The current run may be unfinished."""
    open_batch = state.batch.messages(state.pending.values()) if state.batch else ()
    return state.messages.append(*open_batch, *state.held)


def add_earlier_ids(earlier: Ledger[str, None], names: Iterable[str]) -> Ledger[str, None]:
    """Add the thought and call ids of a run, so that later thoughts can refer to them."""
    earlier = earlier.add_all((name, None) for name in names)
    if len(earlier) <= 2 * MAX_EARLIER_IDS:
        return earlier
    return Ledger[str, None]().add_all((name, None) for name in list(earlier)[-MAX_EARLIER_IDS:])


class LimitHit(RxloopError):
    """Exceeded limit, raised in the pipeline to end the run."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


def needs_change(failure: LLMFailedEvent) -> bool:
    """Return True if `iterate` changes and repeats the request. It was too long, or the vendor refused media."""
    return bool(failure.refused) or failure.error.code == ContextLengthExceeded.code


def check_limits(state: RunState, limits: Limits, thought_limit: int) -> LimitHit | None:
    """Check whether another iteration is allowed. Return the exceeded limit, if any.

    Args:
        state: State after the last iteration.
        limits: Limits of the run.
        thought_limit: Maximum number of consecutive thought-only iterations. The tool refuses the next one, and the run
            ends after the one after that, so a model that only thinks is called `thought_limit + 2` times.
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
        return make_token_limit(state.usage.total_tokens, limits.tokens)
    if limits.iterations is not None and state.iteration >= limits.iterations:
        return LimitHit("max_iterations", f"no answer after {state.iteration} iterations (limits.iterations)")
    return None


def make_token_limit(used: int, limit: int) -> LimitHit:
    """Create the error for a reached token limit."""
    return LimitHit("tokens", f"{used} of {limit} tokens are spent (limits.tokens)")


@dataclass(frozen=True, slots=True)
class RunFold:
    """Effect of consecutive runs on their conversation, as stored by an event log.

    The log need not understand its contents.
    """

    first: str
    """First run id."""
    last: str
    """Last run id."""
    runs: int
    """Number of runs."""
    events: int
    """Number of durable events."""
    summary: bytes
    """Values needed immediately, as JSON."""
    messages: bytes
    """Messages as JSON, parsed on demand."""
