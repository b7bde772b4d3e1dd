"""The seams: small protocols, each for a part that can be exchanged. Each has a built-in that needs no server."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from reactivex import Observable
from typing_extensions import TypeVar

from rxloop.pipeline.requests import ModelRequest, ToolDefinition
from rxloop.pipeline.run_context import RunContext
from rxloop.protocol.events import Event
from rxloop.protocol.messages import Message

if TYPE_CHECKING:
    from rxloop.pipeline.values import ArtifactChunk, ArtifactRecord, Rendered, SessionChange, SessionRecord

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
class ToolProvider(Protocol[D_contra]):
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


class SessionStore(Protocol):
    """Keeps thinking sessions: of each owner, by id, a record and entries that are only ever appended."""

    async def load(self, owner: str, session_id: str) -> SessionRecord | None:
        """Load the record of a session; None if there is none."""
        ...

    async def entries(self, owner: str, session_id: str, *, first: int = 0) -> Sequence[bytes]:
        """Read the entries of a session from that one on, counted from 0."""
        ...

    async def of_call(self, owner: str, call_id: str) -> str | None:
        """Find the session that a tool call has changed already."""
        ...

    async def commit(self, changes: Sequence[SessionChange]) -> None:
        """Make these changes, all of them or none. A session that is cleared or expired loses its entries.

        Raises:
            SessionConflict: A session has another version than the one before its change: somebody else was first.
        """
        ...

    async def records(self, owner: str | None = None) -> Sequence[SessionRecord]:
        """List all sessions, or those of an owner, the least recently used first."""
        ...

    async def find(self, session_id: str) -> Sequence[SessionRecord]:
        """Find the records of that id, whoever they belong to."""
        ...

    async def delete(self, sessions: Sequence[tuple[str, str]]) -> None:
        """Remove sessions, each named by its owner and its id; those that are gone already are passed over."""
        ...

    async def aclose(self) -> None:
        """Close files and connections; may be called more than once."""
        ...


@runtime_checkable
class ArtifactStore(Protocol):
    """Keeps artifacts, the files that runs make: by conversation and id, in versions that are only ever appended to.

    Each write is made as a whole or not at all, and has a key. A write whose key the artifact has already is not made
    again: it gives what the first one gave, and an `ArtifactError` if it writes something else. The rules are functions
    in `rxloop.pipeline.artifact_rules`.
    """

    async def create(
        self,
        context_id: str,
        artifact_id: str,
        *,
        name: str,
        media_type: str,
        override: bool,
        key: str,
        now: int,
    ) -> ArtifactRecord:
        """Begin an artifact, or with `override` its next version, without content.

        Args:
            context_id: The conversation, whose artifacts no other one sees.
            artifact_id: A name that is safe for a file.
            name: What people call it.
            media_type: Such as `text/markdown`.
            override: Begin the next version, if there is one; the time of the first version stays that of all.
            key: Tells this write from others, the same each time that it is tried.
            now: Milliseconds since 1970.

        Raises:
            ArtifactExists: There is one, and no `override`.
        """
        ...

    async def append(
        self, context_id: str, artifact_id: str, data: bytes, *, version: int | None, last: bool, key: str, now: int
    ) -> ArtifactChunk:
        """Append a chunk to the newest version, which has to be `version` if that is given.

        Args:
            context_id: The conversation.
            artifact_id: The artifact.
            data: The chunk; may be empty where it is the last.
            version: The version that is meant; None for the newest.
            last: The version is complete with it.
            key: As for `create`.
            now: Milliseconds since 1970.

        Raises:
            UnknownArtifact: There is none.
            ArtifactError: It is complete, or begun anew.
        """
        ...

    async def read(
        self,
        context_id: str,
        artifact_id: str,
        *,
        version: int | None = None,
        offset: int = 0,
        limit: int | None = None,
    ) -> bytes:
        """Read a range of a version, by default the newest: up to `limit` bytes from `offset`, none beyond the end.

        Raises:
            UnknownArtifact: There is none.
        """
        ...

    async def versions(self, context_id: str, artifact_id: str) -> Sequence[ArtifactRecord]:
        """List the versions of an artifact, the newest last; none if there is no such artifact."""
        ...

    async def list(self, context_id: str) -> Sequence[ArtifactRecord]:
        """List the newest version of each artifact of a conversation, by id."""
        ...

    async def aclose(self) -> None:
        """Close files and connections; may be called more than once."""
        ...


@runtime_checkable
class KeepsArtifacts(Protocol):
    """What an event log may have beside its methods: a store for the artifacts of the runs that it keeps."""

    @property
    def artifacts(self) -> ArtifactStore:
        """Where an agent with this log keeps artifacts, if it is not told otherwise; closed with the log."""
        ...


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


class Clock(Protocol):
    """Where a run takes its time from."""

    def now(self) -> int:
        """Milliseconds since 1970, for timestamps."""
        ...

    def monotonic(self) -> float:
        """Seconds that only grow, for durations."""
        ...
