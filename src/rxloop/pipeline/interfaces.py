"""Interfaces that users implement: models, tools, queues, compressors, token counters and workspaces."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, Protocol, runtime_checkable

from reactivex import Observable
from typing_extensions import TypeVar

from rxloop.pipeline.requests import ModelRequest, ToolDefinition
from rxloop.pipeline.run_context import RunContext
from rxloop.protocol.events import Event
from rxloop.protocol.messages import Message

D_contra = TypeVar("D_contra", contravariant=True, default=Any)


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
        """Answer one request."""
        ...

    async def aclose(self) -> None:
        """Close what the provider opened itself; may be called more than once."""
        ...


@runtime_checkable
class MakesModels(Protocol):
    """What a provider may have beside `aclose`, if it makes others of model strings."""

    async def aclose_made(self) -> None:
        """Close what it opened for model strings, and nothing that it was given; an agent calls it at its end."""
        ...


class Tool(Protocol[D_contra]):
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
    def approve(self) -> bool | str:
        """Whether a person must agree to each call; a text is the question, with parameters in braces."""
        ...

    def enabled(self, ctx: RunContext[D_contra]) -> bool:
        """Tell whether the tool is offered in this run now."""
        ...

    async def call(self, arguments: dict[str, Any], ctx: RunContext[D_contra]) -> Any:
        """Carry out one call.

        Whatever it raises becomes a failed result that the model reads: the text of a `ToolError` as it is, the type
        and message of any other exception.
        """
        ...


@runtime_checkable
class Toolset(Protocol[D_contra]):
    """A family of tools that may differ from run to run.

    One that is an async context manager too has a life. The agent enters it when its tools are wanted first, for all
    its runs in an event loop, and leaves it in the same task when it is closed. If that task ends before, or `tools`
    raises a `ConnectionError`, it broke, and is left and entered again for the next model request.

    A family that fails, when it is entered or asked, costs the run no more than its tools. Its `name`, if it has one,
    is what `tools-unavailable` and the model call it.
    """

    async def tools(self, ctx: RunContext[D_contra]) -> Sequence[Tool[D_contra]]:
        """Return the tools of the family for this run; asked before each model request."""
        ...


class ListsNow(Protocol[D_contra]):
    """What a family with a life may have beside `tools`, if it mostly knows its tools already."""

    def tools_now(self, ctx: RunContext[D_contra]) -> Sequence[Tool[D_contra]] | None:
        """Return what `tools` would, without waiting, and the identical sequence for the same tools; None if it cannot.

        Called only while the family is entered.
        """
        ...


class Queue(Protocol):
    """Rings for runs that workers are to bring to rest. The log alone says what is to be done.

    A bell may come late, twice, in another order or not at all: who answers it reads the log, and workers look for runs
    that nobody has begun. So what a queue is for is what the log cannot do: to be quick, and to say who comes first.
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
        """Ring for a run. One for which a bell waits already needs no second one.

        Args:
            task_id: The run.
            priority: A whole number; greater ones come first.
            at: Not before this time.
            tenant: Whose it is, for limits.
            agent: Only workers that have this agent can go on with it; None is for whoever hears it.
            version: Only workers of this version can go on with it; None is one that has no version.
        """
        ...

    async def serve(
        self,
        settle: Callable[[str], Awaitable[None]],
        *,
        concurrency: int,
        agents: Collection[str] | None = None,
        version: str | None = None,
    ) -> None:
        """Answer bells until it is cancelled, each at least once.

        Args:
            settle: Called with the run of a bell. A bell whose call is cancelled rings once more, and so does one whose
                call fails, a second or so later: it may be for another worker.
            concurrency: How many calls go on at once.
            agents: Those of this worker: it answers the bells for these, and those for none. None is all.
            version: That of this worker: it answers the bells for this version, and those for none.
        """
        ...

    async def waiting(self, version: str | None = None) -> int:
        """Count the bells that ring, and that nobody has answered yet.

        Args:
            version: Those that a worker of this version answers, and so not what waits for a version that is gone.
        """
        ...

    async def aclose(self) -> None:
        """Close connections; may be called more than once."""
        ...


@dataclass(frozen=True, slots=True)
class WorkspacePart:
    """A piece of a workspace."""

    text: str
    title: str = ""
    """A line above it, such as the name of a file."""
    kind: Literal["static", "live"] = "live"
    """`static` parts stand after the system prompt, where the provider's cache keeps them; `live` ones at the end."""


Rendered = str | Sequence[WorkspacePart]


class TokenCounter(Protocol):
    """Counts the tokens of messages, and of the tools that are offered with them."""

    def count(self, messages: Sequence[Message], tools: Sequence[ToolDefinition] = ()) -> int:
        """Count the tokens, exactly or by estimate; what a list of messages takes is the sum of what each takes."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """What a compressor is to keep to."""

    tokens: int
    """What the messages may take: the request's limit less what goes with them (system prompt, tools, workspace)."""
    target: int
    """What they are to be cut to, so that it is a while until the next cut."""
    counter: TokenCounter
    pinned: frozenset[int] = frozenset()
    """The places of messages that must stay, beside the first user message."""
    sent: Sequence[Message] = ()
    """What goes out if nothing is cut: the history as the last cut left it, and what came since."""
    dropped: Sequence[Message] = ()
    """What another compressor before this one left out: a summary is to cover it too."""
    messages: int | None = None
    """How many messages there are to be after the cut, for a window that counts them."""

    def count(self, *messages: Message) -> int:
        """Count the tokens of these messages."""
        return self.counter.count(messages)


class Compressor(Protocol):
    """Makes a history smaller when it does not fit any more.

    It is asked only then. What it returns is checked and repaired, and later messages are appended until it overflows
    again; so a compressor keeps no state of a run and may serve many side by side.
    """

    @property
    def max_tokens(self) -> int:
        """What a whole request may take."""
        ...

    def compress(self, messages: Sequence[Message], budget: Budget) -> Sequence[Message] | Awaitable[Sequence[Message]]:
        """Return the messages to send instead, in order; those that stay are the same objects.

        Args:
            messages: The whole history, oldest first, with nothing left out by earlier cuts.
            budget: What to keep to.
        """
        ...


class Workspace(Protocol):
    """What a model has before its eyes in each request; it never enters the history."""

    def render(self) -> Rendered | Awaitable[Rendered]:
        """Show what there is now, a text or parts. Called before each model call; if not async, in a thread."""
        ...
