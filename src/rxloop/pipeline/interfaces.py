"""Interfaces for custom models, tools, queues, compressors, token counters and workspaces."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, Protocol, runtime_checkable

from reactivex import Observable
from typing_extensions import TypeVar

from rxloop.pipeline.requests import ModelRequest, ToolDefinition
from rxloop.pipeline.run_context import RunContext
from rxloop.pipeline.thinking_result import ThinkingResult
from rxloop.protocol.events import Event
from rxloop.protocol.messages import Message

D_contra = TypeVar("D_contra", contravariant=True, default=Any)


@runtime_checkable
class Provider(Protocol):
    """Interface for model providers.

    `call` returns a cold Observable. Each subscription sends one request, and disposing it closes the connection. The
    Observable emits deltas, at most one `UsageEvent`, and exactly one `ContentCompleteEvent` before it completes.
    Failures are reported by `on_error` with a `ProviderError`.
    """

    @property
    def name(self) -> str:
        """Model name used in events, such as `zai:glm-4.7`."""
        ...

    def call(self, request: ModelRequest) -> Observable[Event]:
        """Send a request and return its events."""
        ...

    async def aclose(self) -> None:
        """Close resources opened by the provider. This method is idempotent."""
        ...


@runtime_checkable
class MakesModels(Protocol):
    """Optional interface for providers that create other providers from model strings."""

    async def aclose_made(self) -> None:
        """Close providers created from model strings, but not the original provider. Called when an agent is closed."""
        ...


class Tool(Protocol[D_contra]):
    """Interface for tools."""

    @property
    def definition(self) -> ToolDefinition:
        """Name, description and schema sent to the model."""
        ...

    @property
    def timeout(self) -> float | None:
        """Timeout in seconds. None disables the timeout."""
        ...

    @property
    def idempotent(self) -> bool:
        """True if an interrupted call may be repeated."""
        ...

    @property
    def approve(self) -> bool | str:
        """True if calls require approval. A string is the question, with parameters in braces."""
        ...

    def enabled(self, ctx: RunContext[D_contra]) -> bool:
        """Return True if the tool is currently available in this run."""
        ...

    async def call(self, arguments: dict[str, Any], ctx: RunContext[D_contra]) -> Any:
        """Execute a call.

        Exceptions become failed results for the model. `ToolError` messages are passed unchanged, and other exceptions
        with their type and message.
        """
        ...


@runtime_checkable
class Toolset(Protocol[D_contra]):
    """Interface for a set of tools that may change between runs.

    A toolset may also be an async context manager. The agent enters it when its tools are first needed, shares it
    between all runs in an event loop, and exits it in the same task when the agent is closed. If this task ends early,
    or `tools` raises `ConnectionError`, the toolset is exited and entered again for the next model request.

    If entering or listing fails, the run continues without these tools. An optional `name` attribute identifies the
    toolset in the `tools-unavailable` event and in messages for the model.
    """

    async def tools(self, ctx: RunContext[D_contra]) -> Sequence[Tool[D_contra]]:
        """Return the tools available in this run. Called before each model request."""
        ...


class ListsNow(Protocol[D_contra]):
    """Optional interface for toolsets that usually have a cached tool list."""

    def tools_now(self, ctx: RunContext[D_contra]) -> Sequence[Tool[D_contra]] | None:
        """Return the tools without waiting, or None if this is not possible.

        If the tools have not changed, the sequence must be the identical object. Called only in an entered toolset.
        """
        ...


class Queue(Protocol):
    """Interface for job queues. The log alone determines the pending work.

    Jobs may be late, duplicated, reordered or lost. Workers read the log when they receive a job, and also scan it for
    unstarted runs. A queue provides low latency and priorities, which a log cannot.
    """

    async def enqueue(
        self,
        task_id: str,
        *,
        priority: int = 0,
        at: datetime | None = None,
        tenant: str | None = None,
        agent: str | None = None,
        version: str | None = None,
    ) -> None:
        """Add a job for a run. Nothing needs to be added if a job for the run is already waiting.

        Args:
            task_id: Run ID.
            priority: Higher numbers are processed first.
            at: Earliest time to process the job.
            tenant: Tenant name for limits.
            agent: Agent name required for the job, or None for any worker.
            version: Worker version required for the job, or None for any worker.
        """
        ...

    async def serve(
        self,
        execute: Callable[[str], Awaitable[None]],
        *,
        concurrency: int,
        agents: Collection[str] | None = None,
        version: str | None = None,
    ) -> None:
        """Process jobs until cancelled, each at least once.

        Args:
            execute: Function called with the run ID of each job. A job is repeated if its call is cancelled. If the
                call fails, the job is repeated after about a second, possibly by another worker.
            concurrency: Maximum number of concurrent calls.
            agents: Agent names supported by this worker. Jobs without an agent are always accepted. None accepts all
                jobs.
            version: Version of this worker. Jobs without a version are always accepted.
        """
        ...

    async def waiting(self, version: str | None = None) -> int:
        """Return the number of jobs waiting for a worker.

        Args:
            version: Count only jobs accepted by workers of this version, excluding jobs for other versions.
        """
        ...

    async def aclose(self) -> None:
        """Close connections. This method is idempotent."""
        ...


@dataclass(frozen=True, slots=True)
class WorkspacePart:
    """Section of a workspace."""

    text: str
    title: str = ""
    """Heading, such as a file name."""
    kind: Literal["static", "live"] = "live"
    """Position in the request. `static` parts follow the system prompt, where providers can cache them. `live` parts
    are at the end."""


Rendered = str | Sequence[WorkspacePart]


class TokenCounter(Protocol):
    """Interface for counting tokens in messages and tool definitions."""

    def count(self, messages: Sequence[Message], tools: Sequence[ToolDefinition] = ()) -> int:
        """Return the exact or estimated token count.

        The count for several messages must be the sum of their individual counts.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Limits and context for a compressor."""

    tokens: int
    """Maximum tokens for messages. System prompt, tools and workspace are already deducted from the request limit."""
    target: int
    """Target size in tokens, which leaves room for new messages."""
    counter: TokenCounter
    pinned: frozenset[int] = frozenset()
    """Indexes of messages that must remain, in addition to the first user message."""
    sent: Sequence[Message] = ()
    """Messages sent without further compression: the previous result, followed by new messages."""
    dropped: Sequence[Message] = ()
    """Messages removed by a previous compressor. Summaries need to include them."""
    messages: int | None = None
    """Maximum number of messages, for windows based on message counts."""

    def count(self, *messages: Message) -> int:
        """Return the token count."""
        return self.counter.count(messages)


class Compressor(Protocol):
    """Interface for compressing a history that no longer fits.

    The result is validated and repaired. New messages are appended until the limit is exceeded again. Compressors store
    no run state, so one object can serve several runs.
    """

    @property
    def max_tokens(self) -> int:
        """Maximum tokens for a complete request."""
        ...

    def compress(self, messages: Sequence[Message], budget: Budget) -> Sequence[Message] | Awaitable[Sequence[Message]]:
        """Return the compressed messages in order. Unchanged messages must be the same objects.

        Args:
            messages: Complete history, oldest first, including messages removed by previous compressions.
            budget: Limits and context.
        """
        ...


class Workspace(Protocol):
    """Interface for data included in each request, but not in the history."""

    def render(self) -> Rendered | Awaitable[Rendered]:
        """Return the current content as text or parts. Called before each model call. Sync code runs in a thread."""
        ...


class Think(Protocol):
    """Interface for custom thinking, called between the compressor and the request."""

    def __call__(
        self, history: Sequence[Message], workspace: str, results: Sequence[Message], budget: Budget, /
    ) -> ThinkingResult | Awaitable[ThinkingResult]:
        """Return a note, a summary of the removed messages, or the messages to send. Sync code runs in a thread.

        Args:
            history: Complete history, oldest first.
            workspace: Text of the workspaces and goals in the request.
            results: Tool results of the last iteration.
            budget: `tokens` is the limit of the note and of the summary, each. `sent` contains the compressed messages,
                and `dropped` the messages that were removed in this cycle.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """Growth of requests since the last compression or thinking, as input of a `Trigger`."""

    calls: int
    """Number of model calls."""
    messages: int
    """Number of new messages."""
    tokens: int
    """Tokens of the new messages."""
    sent: int
    """Tokens of all messages in the next request."""
    target: int
    """Tokens of these messages after a compression."""
    limit: int
    """Maximum tokens of these messages."""
    cached: float
    """Fraction of the run's input tokens that the provider read from its cache, or 1.0 if no usage was reported."""
    model: str
    """Name of the model."""


Trigger = Callable[[Growth], bool]
"""Function that decides whether a compression or thinking is due, such as `lambda since: since.tokens > 20_000`.

It is called before each model call. If it raises an error, the run fails."""
