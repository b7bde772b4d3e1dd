"""`RunContext`, the access of tools, instructions and operators to their run."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence, Set
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypedDict

from typing_extensions import TypeVar, Unpack

from rxloop.errors import InvalidEvent, RxloopError
from rxloop.protocol.events import Event, ToolCompleteEvent, ToolProgressEvent, normalise
from rxloop.protocol.messages import Message, PendingInput, ToolCall, Usage
from rxloop.protocol.settings import Limits

if TYPE_CHECKING:
    from rxloop.pipeline.active_call import ActiveCall
    from rxloop.pipeline.artifacts import RunArtifacts, Writes
    from rxloop.pipeline.ask import Asked
    from rxloop.pipeline.event_log import EventLog
    from rxloop.pipeline.interfaces import Provider, Tool
    from rxloop.pipeline.requests import ModelRequest, ToolDefinition, ToolRequest
    from rxloop.state.earlier_attempts import EarlierAttempts
    from rxloop.state.run_state import RunState
    from rxloop.stream.scope import Scope, TimeScope
    from rxloop.support.tasks import Clock

D = TypeVar("D", default=None)
D_co = TypeVar("D_co", covariant=True, default=object)
T = TypeVar("T")


class ModelCall(Protocol):
    """Model call whose answer is streaming."""

    request: ModelRequest
    """Request that was sent."""

    def interrupt(self, ends: Sequence[Event]) -> None:
        """Stop the answer.

        Args:
            ends: Events that close the message, with the text so far.
        """
        ...


class OfferedTools(Protocol):
    """Tools that were offered to the model."""

    def find(self, request: ToolRequest) -> Tool | str:
        """Return the requested tool, or the reason why it cannot be called."""
        ...

    def narrow(self, step: str, tools: tuple[ToolDefinition, ...] | None = None) -> tuple[ToolDefinition, ...] | None:
        """Return those of `tools` that were also offered when an earlier attempt executed the step.

        Return `tools` unchanged if the message of the step does not record withheld tools. None means all tools.
        """
        ...

    def offers(self, name: str) -> bool:
        """Return True if a tool with this name was offered to the model."""
        ...

    def hides(self, name: str) -> bool:
        """Return True if the tool with this name is hidden from clients."""
        ...

    def has_others(self, names: Set[str]) -> bool:
        """Return True if the run has tools with other names, whether they are offered now or not."""
        ...


class Host(Protocol):
    """Interface of a run for its operators and tools."""

    open_call: ModelCall | None
    """Model call of the main branch whose answer is streaming."""

    @property
    def tools(self) -> OfferedTools:
        """Tools that were offered to the model."""
        ...

    @property
    def earlier(self) -> EarlierAttempts:
        """State of earlier attempts of the run, including their unfinished work."""
        ...

    @property
    def context_id(self) -> str: ...
    @property
    def task_id(self) -> str: ...
    @property
    def attempt(self) -> int: ...
    @property
    def agent_name(self) -> str: ...
    @property
    def model(self) -> Provider: ...
    @property
    def log(self) -> EventLog | None: ...
    @property
    def limits(self) -> Limits: ...
    @property
    def thought_limit(self) -> int: ...
    @property
    def metadata(self) -> dict[str, Any]: ...
    @property
    def clock(self) -> Clock: ...
    @property
    def scope(self) -> Scope: ...
    @property
    def time_scope(self) -> TimeScope: ...

    @property
    def writes(self) -> Writes:
        """State shared by all writes to artifacts."""
        ...

    @property
    def system(self) -> tuple[Message, ...]:
        """System messages of the run itself."""
        ...

    def provider(self, model: Provider | str) -> Provider:
        """Return the provider for a model string. It is created once and closed with the agent."""
        ...

    @property
    def loop_name(self) -> str:
        """Description of the loop, for error messages."""
        ...

    def state(self, branch: str | None) -> RunState:
        """Return the state of a branch."""
        ...

    def publish(self, event: Event) -> None:
        """Stamp an event, fold it into the state and publish it on the stream."""
        ...

    def emit(self, event: Event, out: Callable[[Event], None] | None) -> None:
        """Pass an event to `out`, or to `publish` if `out` is None. Safe to call from any thread."""
        ...

    async def durable(self) -> int | None:
        """Wait until all published events are in the log, and return its last `seq`; None without a log."""
        ...

    def durable_now(self) -> int | None:
        """Return the last `seq` like `durable`, but None if this requires waiting."""
        ...

    async def ask(self, ctx: RunContext[Any], question: PendingInput, read: Callable[[Any], Any]) -> Any:
        """Ask the user or client of the run a question, and return the answer converted by `read`."""
        ...

    def build_request(
        self, ctx: RunContext[Any], iteration: int, pressure: int
    ) -> ModelRequest | Awaitable[ModelRequest]:
        """Return the request for the next model call, whose step and branch are in `ctx`."""
        ...

    def recorded_outcome(self, request: ToolRequest, tool: Tool | str) -> ToolCompleteEvent | None:
        """Return the tool result for an unused recorded answer, or None."""
        ...

    @property
    def answers_now(self) -> bool:
        """True if questions are answered during the attempt and do not end it."""
        ...

    def claim(self, slot: tuple[str, int]) -> bool:
        """Claim a call for execution, or return False if this attempt must not execute it."""
        ...

    def close_abandoned(self, ctx: RunContext[Any]) -> None:
        """Close the open message or call of a subscription that was disposed early."""
        ...


class ContextChanges(TypedDict, total=False):
    """Arguments of `RunContext.bind`: fields that differ between the calls, steps and branches of a run."""

    call: ToolCall | None
    index: int
    step: str | None
    branch: str | None
    answer: bool
    asked_by: str
    out: Callable[[Event], None] | None
    questions: list[Asked[Any]] | None
    active_call: ActiveCall | None
    asked_for: Callable[[], Awaitable[object]] | None
    first_step: str | None
    time_scope: TimeScope | None


# Slots would break `RunContext[Deps](deps)`, which users write in tests of their tools.
@dataclass(frozen=True)
class RunContext(Generic[D_co]):
    """Access of a tool, an instruction or an operator to its run.

    `RunContext[Deps]` is for agents with `deps_type=Deps`. `RunContext` without a type argument is for every agent.

    Attributes:
        deps: Value of `agent.run(deps=...)`.
        call: Current tool call, if any.
        index: Zero-based index of the call in its message.
        step: Current model call.
        branch: Current branch of a strategy, or None for the main branch.
        asked_by: Name of the operator that asks questions outside a tool call.
        answer: True if the call returns the answer of the run.
    """

    deps: D_co = field(default=None)  # pyright: ignore[reportAssignmentType]
    run: Host | None = field(default=None, repr=False)
    call: ToolCall | None = None
    index: int = 0
    step: str | None = None
    branch: str | None = None
    answer: bool = False
    asked_by: str = "run"
    out: Callable[[Event], None] | None = field(default=None, repr=False)
    """Target of `emit`: the pipeline for a tool, or None for the stream."""
    questions: list[Asked[Any]] | None = field(default=None, repr=False, compare=False)
    """Questions that the tool created in this call."""
    asked_for: Callable[[], Awaitable[object]] | None = field(default=None, repr=False, compare=False)
    """Waits until the model has requested a call that was started early. The call asks no questions before."""
    first_step: str | None = field(default=None, repr=False, compare=False)
    """Original step of a call that a strategy repeats after a cancelled attempt."""
    time_scope: TimeScope | None = field(default=None, repr=False, compare=False)
    """Time limit of the tool call, if any."""
    active_call: ActiveCall | None = field(default=None, repr=False, compare=False)
    """Running tool call, in the context of a tool."""

    @property
    def host(self) -> Host:
        """The run. Raises `RxloopError` if the context was created outside a run."""
        if self.run is None:
            raise RxloopError("this RunContext belongs to no run: it was made by hand, outside agent.run()")
        return self.run

    @property
    def hidden(self) -> bool:
        """True if the call is hidden from clients."""
        return self.call is not None and self.call.hidden

    @property
    def call_fields(self) -> dict[str, Any]:
        """Fields of every event of the call."""
        return {
            "call": self.call,
            "index": self.index,
            "hidden": self.hidden,
            "step": self.step,
            "branch": self.branch,
        }

    @property
    def context_id(self) -> str:
        """Id of the conversation."""
        return self.host.context_id

    @property
    def task_id(self) -> str:
        """Id of the run."""
        return self.host.task_id

    @property
    def attempt(self) -> int:
        """Number of the attempt, starting from 1."""
        return self.host.attempt

    @property
    def agent_name(self) -> str:
        """Name of the agent."""
        return self.host.agent_name

    @property
    def model(self) -> Provider:
        """Model of the run."""
        return self.host.model

    @property
    def log(self) -> EventLog | None:
        """Event log of the agent, if any."""
        return self.host.log

    @property
    def limits(self) -> Limits:
        """Limits of the run."""
        return self.host.limits

    @property
    def metadata(self) -> dict[str, Any]:
        """Value of `agent.run(metadata=...)`."""
        return self.host.metadata

    @property
    def clock(self) -> Clock:
        """Clock of the run."""
        return self.host.clock

    @property
    def scope(self) -> Scope:
        """Owner of the run's tasks."""
        return self.host.scope

    def owner_scope(self) -> Scope | None:
        """Return the scope of the run, or None if the context was created outside a run."""
        return None if self.run is None else self.run.scope

    @property
    def state(self) -> RunState:
        """State of the run on the current branch."""
        return self.host.state(self.branch)

    @property
    def usage(self) -> Usage:
        """Token usage of the run so far."""
        return self.state.usage

    @property
    def artifacts(self) -> RunArtifacts:
        """Artifacts of the conversation, which can be created, extended, read and listed.

        Outside a tool call, the step and `asked_by` identify the writer.
        """
        # Imported here, because `import rxloop` is faster without this module.
        from rxloop.pipeline.artifacts import RunArtifacts, Writer

        place = self.index if self.call is not None else self.asked_by
        return RunArtifacts(
            self.host.writes,
            self.context_id,
            Writer(
                name=f"{self.task_id}:{self.step or 'run'}:{place}",
                hidden=self.hidden,
                emit=self.emit,
                now=self.clock.now,
                ready=self.asked_for,
            ),
        )

    @property
    def idempotency_key(self) -> str:
        """Key of the tool call for external services. It is the same in every attempt to execute the call."""
        if self.call is None:
            raise RxloopError("ctx.idempotency_key belongs in a tool: this context has no tool call")
        return f"{self.task_id}:{self.step}:{self.index}"

    def emit(self, event: Event) -> None:
        """Publish an event on the stream of the run. Safe to call from any thread.

        Raises:
            InvalidEvent: The object is not an event, is not JSON, or only the run itself may publish it.
        """
        if not isinstance(event, Event):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidEvent(
                f"ctx.emit() takes an event, such as CustomEvent(name='found', data={{'a': 1}}), and not {event!r}"
            )
        # The run stamps the copy, so that the caller can emit the same object again.
        unset = event.step is None and self.step is not None
        event = event.model_copy(update={"step": self.step, "branch": self.branch} if unset else None)
        # The run does the same, but too late to raise the error in the caller.
        normalise(event)
        self.host.emit(event, self.out)

    def progress(self, message: str, fraction: float | None = None) -> None:
        """Report the progress of the tool.

        Args:
            message: Message for the user.
            fraction: Completed fraction, from 0 to 1.
        """
        if self.call is None:
            raise RxloopError("ctx.progress() belongs in a tool: this context has no tool call")
        self.emit(ToolProgressEvent(message=message, fraction=fraction, **self.call_fields))

    def ask(self, prompt: str, answer: type[T] = bool, *, options: Sequence[T] | None = None) -> Asked[T]:
        """Ask the user or client of the run a question and wait for the answer: `await ctx.ask(...)`.

        A tool that does not await the result fails, because nothing is asked and the result has no truth value. With
        `agent.run(on_input=...)`, the answer is available immediately. Otherwise the attempt ends as `input-required`,
        and this call returns the answer when `agent.resume(task_id, inputs={input_id: value})` runs the tool again.

        Args:
            prompt: The question.
            answer: Type of the answer, which is validated.
            options: Allowed answers.

        Raises:
            InvalidInput: The answer is invalid.
        """
        # Imported here, because `import rxloop` is faster without this module.
        from rxloop.pipeline.ask import Asked, question_of

        asked: Asked[T] = Asked(prompt, lambda: self.host.ask(self, *question_of(prompt, answer, options)))
        if self.questions is not None:
            self.questions.append(asked)
        return asked

    def require_auth(self, provider: str, *, url: str | None = None, public_key: str | None = None) -> Asked[Any]:
        """Ask the user for a credential and wait for it: `token = await ctx.require_auth("github")`.

        With `agent.run(on_input=...)`, the credential is available immediately. Otherwise the attempt ends as
        `auth-required`, and this call returns the credential when a resume with `inputs={input_id: credential}` runs
        the tool again. Streams, logs and errors never contain it, so it is requested again after a crash.

        Args:
            provider: Name of the service, such as `github`. A credential is only valid for this name.
            url: Sign-in page.
            public_key: Key with which the client encrypts the credential. This call then returns the ciphertext, which
                the tool decrypts. A ciphertext may also be sent by `RemoteRun.answer` and is then stored in the log.

        Raises:
            ToolError: The user declined by answering None.
        """
        # Imported here, because `import rxloop` is faster without this module.
        from rxloop.pipeline.ask import Asked, given_credential, sign_in

        question = sign_in(provider, url, public_key)

        async def put() -> Any:
            return given_credential(provider, await self.host.ask(self, question, lambda credential: credential))

        asked: Asked[Any] = Asked(provider, put, "ctx.require_auth")
        if self.questions is not None:
            self.questions.append(asked)
        return asked

    def bind(self, **changes: Unpack[ContextChanges]) -> RunContext[D_co]:
        """Return a copy of the context with other fields, for another call, step or branch."""
        # Every iteration calls this several times, and `replace` is five times slower.
        if not changes.keys() <= vars(self).keys():
            raise TypeError(f"RunContext has no {', '.join(sorted(changes.keys() - vars(self).keys()))}")
        ctx = object.__new__(type(self))
        fields = vars(ctx)
        fields.update(vars(self))
        fields.update(changes)
        return ctx
