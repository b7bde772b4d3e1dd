"""The seams: small protocols behind which parts can be exchanged. Each has a built-in that needs no server."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from reactivex import Observable

from rxloop.events import Event, State
from rxloop.messages import Message
from rxloop.requests import ModelRequest, RunContext, ToolDefinition


@runtime_checkable
class Provider(Protocol):
    """Answers model requests.

    `call` gives a cold Observable: nothing is sent before it is subscribed, each subscription is one request, and
    disposing it closes the connection. It emits deltas, then at most one `UsageEvent`, then exactly one
    `ContentCompleteEvent`, and completes; a failure is an `on_error` with a `ProviderError`.
    """

    @property
    def name(self) -> str:
        """What the model is called on the stream, such as `zai:glm-4.7`."""
        ...

    def call(self, request: ModelRequest) -> Observable[Event]:
        """The answer to one request."""
        ...

    async def aclose(self) -> None:
        """Close what the provider opened itself; may be called more than once."""
        ...


class Tool(Protocol):
    """Something that the model can call."""

    @property
    def definition(self) -> ToolDefinition:
        """Name, description and schema, as they are offered to the model."""
        ...

    @property
    def timeout(self) -> float | None:
        """Seconds until a call is cut off; None is no limit."""
        ...

    @property
    def idempotent(self) -> bool:
        """Whether a call that was interrupted may be made again."""
        ...

    @property
    def approve(self) -> bool:
        """Whether a person must agree to each call."""
        ...

    def enabled(self, ctx: RunContext[Any]) -> bool:
        """Whether the tool is offered in this run now."""
        ...

    async def call(self, arguments: dict[str, Any], ctx: RunContext[Any]) -> Any:
        """Carry out one call.

        Whatever it raises becomes a failed result that the model reads: the text of a `ToolError` as it is, the type
        and message of any other exception.
        """
        ...


@runtime_checkable
class ToolProvider(Protocol):
    """A family of tools that may differ from run to run."""

    async def tools(self, ctx: RunContext[Any]) -> Sequence[Tool]:
        """The tools of the family for this run; asked before each model request."""
        ...

    async def aclose(self) -> None:
        """Close what the family opened itself; may be called more than once."""
        ...


@dataclass(frozen=True, slots=True)
class RunRecord:
    """What a log knows of a run without reading its events."""

    task_id: str
    context_id: str
    agent_name: str
    state: State
    attempt: int
    seq: int
    created: int
    """Milliseconds since 1970."""
    updated: int
    """Milliseconds since 1970."""

    @property
    def finished(self) -> bool:
        """Whether the run has ended for good."""
        return self.state in ("completed", "failed")


class EventLog(Protocol):
    """Keeps the durable events of runs."""

    @property
    def keeps_deltas(self) -> bool:
        """Whether transient events are to be appended too; such a log gives them back on demand."""
        ...

    async def append(self, task_id: str, events: Sequence[Event], *, expected_seq: int) -> None:
        """Append a batch to a run; when it returns, the batch is durable.

        Args:
            task_id: The run.
            events: Events in order: durable ones, and transient ones if the log keeps them.
            expected_seq: The last `seq` that the log holds of the run; 0 for a new one.

        Raises:
            ConflictError: The log holds another last `seq`: somebody else writes this run.
            EventLogError: The batch could not be written.
        """
        ...

    async def read(self, task_id: str, *, after_seq: int = 0, deltas: bool = False) -> Sequence[Event]:
        """The durable events of a run behind `after_seq`, in order, and with `deltas` the transient ones.

        Raises:
            UnknownRun: The log holds no such run.
        """
        ...

    def follow(self, task_id: str, *, after_seq: int = 0) -> AsyncIterator[Event]:
        """The durable events behind `after_seq`, then those that come, until the final one of an attempt.

        Raises:
            UnknownRun: The log holds no such run; raised by the first step of the iteration.
        """
        ...

    async def runs(self, *, context_id: str | None = None, unfinished: bool = False) -> Sequence[RunRecord]:
        """The runs of a conversation, or of all, oldest first."""
        ...

    async def aclose(self) -> None:
        """Close files and connections; may be called more than once."""
        ...


@runtime_checkable
class AppendsNow(Protocol):
    """What an event log may have beside `append`, to spare a run a turn of the event loop."""

    def append_now(self, task_id: str, events: Sequence[Event], *, expected_seq: int) -> bool:
        """Append a batch if that takes no waiting, as `append` does and with its errors; False if it was not done."""
        ...


class TokenCounter(Protocol):
    """Counts the tokens of messages."""

    def count(self, messages: Sequence[Message]) -> int:
        """The number of tokens, exact or estimated."""
        ...


class Compressor(Protocol):
    """Makes a model request smaller."""

    def compress(self, request: ModelRequest) -> ModelRequest | Awaitable[ModelRequest]:
        """A smaller request, or the same one; the history in the log stays as it is."""
        ...


class Clock(Protocol):
    """Where a run takes its time from."""

    def now(self) -> int:
        """Milliseconds since 1970, for timestamps."""
        ...

    def monotonic(self) -> float:
        """Seconds that only grow, for durations."""
        ...
