"""Run access for tools, instructions and operators."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypedDict

from typing_extensions import TypeVar, Unpack

from rxloop.errors import InvalidEvent, RxloopError
from rxloop.pipeline.budget import Budget
from rxloop.protocol.events import Event, ToolProgressEvent, normalise
from rxloop.protocol.ids import make_conversation_key
from rxloop.protocol.messages import PendingInput, ToolCall, Usage
from rxloop.protocol.settings import Limits
from rxloop.support.misuse import ExplainedAttributes

if TYPE_CHECKING:
    from reactivex import Observable

    from rxloop.pipeline.active_call import ActiveCall
    from rxloop.pipeline.artifacts import RunArtifacts, Writes
    from rxloop.pipeline.ask import Question
    from rxloop.pipeline.event_log import EventLog
    from rxloop.state.run_state import RunState
    from rxloop.stream.scope import Scope, TimeScope
    from rxloop.support.tasks import Clock

D = TypeVar("D", default=None)
D_co = TypeVar("D_co", covariant=True, default=object)
T = TypeVar("T")


class Model(Protocol):
    """Model of a run. This is the `Provider` interface without its request type."""

    @property
    def name(self) -> str:
        """Name of the model on the stream."""
        ...

    def call(self, request: Any) -> Observable[Event]:
        """Answer one request."""
        ...

    async def aclose(self) -> None:
        """Close resources opened by the model."""
        ...


@dataclass(slots=True, eq=False)
class AttemptInfo:
    """Metadata and services for one attempt."""

    ids: Mapping[str, Any]
    """Run, attempt and conversation IDs in event format."""
    agent_name: str
    """Name of the agent."""
    model: Model
    """Model of the run."""
    log: EventLog | None
    """Agent's event log, if any."""
    limits: Limits
    """Limits of the run."""
    thought_limit: int
    """Maximum number of consecutive thinking-only iterations."""
    metadata: dict[str, Any]
    """Value of `agent.run(metadata=...)`."""
    clock: Clock
    """Clock of the run."""
    scope: Scope
    """Owner for tasks created by the run."""
    time_scope: TimeScope
    """Time limits, which pause while a question is open."""
    describe_loop: Callable[[], str]
    """Returns a description of the loop, for error messages."""
    answers_inline: bool
    """True if questions are answered during the attempt and do not end it."""
    resolve_model: Callable[[Any], Any]
    """Returns the provider for a model string. It is created once and closed with the agent."""
    budget: Budget = field(default_factory=Budget)
    """Budget for requests."""
    owner: str | None = None
    """Owner of the run."""
    run_in_loop: Callable[[Callable[[], Any]], Any] = lambda function: function()
    """Runs a function in the event loop thread, and returns its result."""

    @property
    def task_id(self) -> str:
        """Id of the run."""
        return self.ids["task_id"]

    @property
    def context_id(self) -> str:
        """Id of the conversation."""
        return self.ids["context_id"]

    @property
    def conversation(self) -> str:
        """Key of the conversation, see `RunRecord.conversation`."""
        return make_conversation_key(self.context_id, self.owner)

    @property
    def attempt(self) -> int:
        """Attempt number, starting from 1."""
        return self.ids["attempt"]


class RunPort(Protocol):
    """Run interface required by `RunContext`."""

    @property
    def info(self) -> AttemptInfo:
        """Metadata and services for the attempt."""
        ...

    def artifact_writes(self) -> Writes:
        """Return the state shared by all writes to artifacts."""
        ...

    def state(self, branch: str | None) -> RunState:
        """Return the state for a branch."""
        ...

    def publish(self, event: Event) -> None:
        """Stamp an event, fold it into the state and publish it on the stream."""
        ...

    def emit(self, event: Event, out: Callable[[Event], None] | None) -> None:
        """Pass an event to `out`, or to `publish` if `out` is None. Safe to call from any thread."""
        ...

    async def durable(self) -> int | None:
        """Wait until all published events are stored. Return the last `seq`, or None without a log."""
        ...

    async def ask(self, ctx: RunContext[Any], question: PendingInput, read: Callable[[Any], Any]) -> Any:
        """Ask the user or client a question, and return the answer converted by `read`."""
        ...

    def find_idempotency_key(self, slot: tuple[str, int]) -> str:
        """Return the idempotency key of a call."""
        ...


class ContextChanges(TypedDict, total=False):
    """Arguments for `RunContext.bind`: fields specific to a call, step or branch."""

    call: ToolCall | None
    index: int
    step: str | None
    branch: str | None
    answer: bool
    asked_by: str
    out: Callable[[Event], None] | None
    questions: list[Question[Any]] | None
    active_call: ActiveCall | None
    until_requested: Callable[[], Awaitable[object]] | None
    first_step: str | None
    time_scope: TimeScope | None


# Tests create contexts as `RunContext[Deps](deps)`, which does not work with slots.
@dataclass(frozen=True)
class RunContext(ExplainedAttributes, Generic[D_co]):
    """Run access for a tool, instruction or operator.

    Use `RunContext[Deps]` for agents with `deps_type=Deps`, and plain `RunContext` for any agent.

    Attributes:
        deps: Value passed as `agent.run(deps=...)`.
        call: Current tool call, if any.
        index: Zero-based call index within its message.
        step: Current model call.
        branch: Current strategy branch, or None for the main branch.
        asked_by: Operator name for questions outside tool calls.
        answer: True if the call returns the final answer.
    """

    deps: D_co = field(default=None)  # pyright: ignore[reportAssignmentType]
    run: RunPort | None = field(default=None, repr=False)
    call: ToolCall | None = None
    index: int = 0
    step: str | None = None
    branch: str | None = None
    answer: bool = False
    asked_by: str = "run"
    out: Callable[[Event], None] | None = field(default=None, repr=False)
    """Output for `emit`. None publishes on the run's stream, while tools use the pipeline."""
    questions: list[Question[Any]] | None = field(default=None, repr=False, compare=False)
    """Questions created by the tool during this call."""
    until_requested: Callable[[], Awaitable[object]] | None = field(default=None, repr=False, compare=False)
    """Function to delay questions until the model has requested a call that was started early."""
    first_step: str | None = field(default=None, repr=False, compare=False)
    """Original step, if a strategy repeats the call after a cancelled attempt."""
    time_scope: TimeScope | None = field(default=None, repr=False, compare=False)
    """Tool call time limit, if any."""
    active_call: ActiveCall | None = field(default=None, repr=False, compare=False)
    """Current tool call, set in contexts for tools."""

    @property
    def port(self) -> RunPort:
        """The run. Raises `RxloopError` if the context was created outside a run."""
        if self.run is None:
            raise RxloopError("this RunContext does not belong to a run; only agent.run() creates usable contexts")
        return self.run

    @property
    def info(self) -> AttemptInfo:
        """Metadata and services for the attempt."""
        # Operators read this several times per event, so do not call `port` unless it raises.
        return self.port.info if self.run is None else self.run.info

    @property
    def hidden(self) -> bool:
        """True if the call is hidden from clients."""
        return self.call is not None and self.call.hidden

    @property
    def call_fields(self) -> dict[str, Any]:
        """Event fields identifying the call."""
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
        return self.info.context_id

    @property
    def task_id(self) -> str:
        """Id of the run."""
        return self.info.task_id

    @property
    def attempt(self) -> int:
        """Attempt number, starting from 1."""
        return self.info.attempt

    @property
    def agent_name(self) -> str:
        """Name of the agent."""
        return self.info.agent_name

    @property
    def model(self) -> Model:
        """Model of the run."""
        return self.info.model

    @property
    def log(self) -> EventLog | None:
        """Agent's event log, if any."""
        return self.info.log

    @property
    def metadata(self) -> dict[str, Any]:
        """Value of `agent.run(metadata=...)`."""
        return self.info.metadata

    def owner_scope(self) -> Scope | None:
        """Return the scope of the run, or None if the context was created outside a run."""
        return None if self.run is None else self.run.info.scope

    @property
    def state(self) -> RunState:
        """State of the run on the current branch."""
        return (self.port if self.run is None else self.run).state(self.branch)

    @property
    def usage(self) -> Usage:
        """Token usage of the run so far."""
        return self.state.usage

    @property
    def artifacts(self) -> RunArtifacts:
        """Conversation artifacts, with read and write access.

        Outside tool calls, the step and `asked_by` identify the writer.
        """
        # Imported lazily to keep `import rxloop` fast.
        from rxloop.pipeline.artifacts import RunArtifacts, Writer

        position = self.index if self.call is not None else self.asked_by
        return RunArtifacts(
            self.port.artifact_writes(),
            self.info.conversation,
            Writer(
                name=f"{self.task_id}:{self.step or 'run'}:{position}",
                hidden=self.hidden,
                emit=self.emit,
                now=self.info.clock.now,
                ready=self.until_requested,
            ),
        )

    @property
    def idempotency_key(self) -> str:
        """Idempotency key for external services. Repeated attempts to execute the tool call use the same key."""
        if self.call is None:
            raise RxloopError("ctx.idempotency_key is only available in tools, because it identifies a tool call")
        return self.port.find_idempotency_key((self.step or "", self.index))

    def emit(self, event: Event) -> None:
        """Publish an event on the run's stream. This method is thread-safe.

        Raises:
            InvalidEvent: If the object is not an event, is not valid JSON, or is reserved for the run.
        """
        if not isinstance(event, Event):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidEvent(
                f"ctx.emit() requires an event such as CustomEvent(name='found', data={{'a': 1}}), got {event!r}"
            )
        # Copy the event because the run adds fields, while the caller may emit the same object again.
        unset = event.step is None and self.step is not None
        event = event.model_copy(update={"step": self.step, "branch": self.branch} if unset else None)
        # Normalise the event now, because errors from the run would not reach the caller.
        normalise(event)
        self.port.emit(event, self.out)

    def progress(self, message: str, fraction: float | None = None) -> None:
        """Report tool progress.

        Args:
            message: Message for the user.
            fraction: Completed fraction, from 0 to 1.
        """
        if self.call is None:
            raise RxloopError("ctx.progress() is only available in tools, because it needs a tool call")
        self.emit(ToolProgressEvent(message=message, fraction=fraction, **self.call_fields))

    def ask(self, prompt: str, answer: type[T] = bool, *, options: Sequence[T] | None = None) -> Coroutine[Any, Any, T]:
        """Ask the user or client a question: `await ctx.ask(...)`.

        A tool that does not await the result fails, because nothing is asked and the result has no truth value. With
        `agent.run(on_input=...)`, the answer is returned immediately. Otherwise, the attempt ends as `input-required`.
        After `agent.resume(task_id, inputs={input_id: value})`, the tool runs again and this call returns the answer.

        Args:
            prompt: Question text.
            answer: Answer type for validation.
            options: Allowed answers.

        Raises:
            InvalidInput: If the answer is invalid.
        """
        # Imported lazily to keep `import rxloop` fast.
        from rxloop.pipeline.ask import Question, make_question

        question: Question[T] = Question(prompt, lambda: self.port.ask(self, *make_question(prompt, answer, options)))
        if self.questions is not None:
            self.questions.append(question)
        return question

    def require_auth(
        self, provider: str, *, url: str | None = None, public_key: str | None = None
    ) -> Coroutine[Any, Any, Any]:
        """Ask the user for a credential and wait for it: `token = await ctx.require_auth("github")`.

        With `agent.run(on_input=...)`, the credential is available immediately. Otherwise the attempt ends as
        `auth-required`, and this call returns the credential when a resume with `inputs={input_id: credential}` runs
        the tool again. Streams, logs and errors never contain it, so it is requested again after a crash.

        Args:
            provider: Name of the service, such as `github`. A credential is only valid for this name.
            url: Sign-in page: an http or https URL of up to 8,000 ASCII characters, without credentials.
            public_key: Key with which the client encrypts the credential. This call then returns the ciphertext, which
                the tool decrypts. A ciphertext may also be sent by `RemoteRun.answer` and is then stored in the log.

        Raises:
            ToolError: The user declined by answering None.
        """
        # Imported lazily to keep `import rxloop` fast.
        from rxloop.pipeline.ask import Question, check_credential, make_auth_question

        request = make_auth_question(provider, url, public_key)

        async def ask() -> Any:
            return check_credential(provider, await self.port.ask(self, request, lambda credential: credential))

        question: Question[Any] = Question(provider, ask, "ctx.require_auth")
        if self.questions is not None:
            self.questions.append(question)
        return question

    def bind(self, **changes: Unpack[ContextChanges]) -> RunContext[D_co]:
        """Return a copy with changed fields, for another call, step or branch."""
        # Every iteration calls this several times, and `replace` is five times slower.
        fields = vars(self) | changes
        if len(fields) > len(vars(self)):
            raise TypeError(f"RunContext has no {', '.join(sorted(changes.keys() - vars(self).keys()))}")
        ctx = object.__new__(type(self))
        object.__setattr__(ctx, "__dict__", fields)
        return ctx
