"""`RunContext`, which rides on each request: what tools, instructions and operators get to see of the run."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypedDict

from typing_extensions import TypeVar, Unpack

from rxloop.errors import InvalidEvent, RxloopError
from rxloop.protocol.events import Event, ToolProgressEvent
from rxloop.protocol.messages import Message, ToolCall, Usage
from rxloop.protocol.questions import PendingInput
from rxloop.protocol.settings import Limits
from rxloop.protocol.settle import settle

if TYPE_CHECKING:
    from rxloop.pipeline.artifacts import RunArtifacts, Writes
    from rxloop.pipeline.asked import Asked
    from rxloop.pipeline.logs import EventLog
    from rxloop.pipeline.requests import ModelRequest, ToolDefinition, ToolRequest
    from rxloop.pipeline.seams import Clock, Provider, Tool
    from rxloop.state.run_state import RunState
    from rxloop.stream.scope import Scope

D = TypeVar("D", default=None)
D_co = TypeVar("D_co", covariant=True, default=object)
T = TypeVar("T")


class ModelCall(Protocol):
    """A call of the model, while its answer is being written."""

    request: ModelRequest
    """What was sent."""

    def interrupt(self) -> None:
        """Cut the answer off: what there is of it is the message."""
        ...


class Host(Protocol):
    """The run, as it looks to those who work inside it."""

    open_call: ModelCall | None
    """The call of the main line whose answer is being written."""

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
    def writes(self) -> Writes:
        """What the writes to artifacts share."""
        ...

    @property
    def system(self) -> tuple[Message, ...]:
        """The layers of the system prompt that the run itself has."""
        ...

    def provider(self, model: Provider | str) -> Provider:
        """The provider that a model string stands for: one for each string, closed with the agent."""
        ...

    @property
    def loop_name(self) -> str:
        """The loop with the names of its operators."""
        ...

    def state(self, branch: str | None) -> RunState:
        """The fold of everything published so far on that branch."""
        ...

    def publish(self, event: Event) -> None:
        """Stamp an event, fold it into the state, and put it on the stream."""
        ...

    def emit(self, event: Event, out: Callable[[Event], None] | None) -> None:
        """Give an event to `out`, or else to `publish`; from any thread."""
        ...

    async def durable(self) -> int | None:
        """Wait until all that is published is in the log; its last `seq`, or None without a log."""
        ...

    def durable_now(self) -> int | None:
        """The same without waiting; None if that takes waiting, or there is no log."""
        ...

    async def ask(self, ctx: RunContext[Any], question: PendingInput, read: Callable[[Any], Any]) -> Any:
        """Put a question to the person or client behind the run, and give what `read` makes of the answer."""
        ...

    def request(self, ctx: RunContext[Any], iteration: int, pressure: int) -> ModelRequest | Awaitable[ModelRequest]:
        """The request of the next model call: layers, history, tools and settings; `ctx` names step and branch."""
        ...

    def offers(self, name: str) -> bool:
        """Whether the model has been offered a tool of that name."""
        ...

    def has_tools_beside(self, names: Set[str]) -> bool:
        """Whether the run has tools of other names, offered now or not."""
        ...

    def still_offered(
        self, step: str, tools: tuple[ToolDefinition, ...] | None = None
    ) -> tuple[ToolDefinition, ...] | None:
        """The tools that the message of that step, of an earlier attempt, may call.

        Args:
            step: The model call.
            tools: Those that it may call now; None is all that the run has.

        Returns:
            Those that it was offered then as well: `tools`, if the message does not say that it lacked any.
        """
        ...

    def tool(self, request: ToolRequest) -> Tool | str:
        """The tool that a call asks for, or the reason why it cannot be called."""
        ...

    def hides(self, name: str) -> bool:
        """Whether the tool of that name is not for clients."""
        ...

    def earlier_message(self, step: str) -> Event | None:
        """The message that an earlier attempt received for that step, if there is one."""
        ...

    def earlier_result(self, slot: tuple[str, int]) -> Event | None:
        """The answer that an earlier attempt had for that slot, if there is one."""
        ...

    def interrupted(self, slot: tuple[str, int]) -> bool:
        """Whether an earlier attempt started the call of that slot and never heard of its end."""
        ...

    def noted(self, slot: tuple[str, int]) -> Mapping[str, Any]:
        """What the last question of that call had in its metadata, in an earlier attempt; empty if it asked none."""
        ...

    @property
    def answers_now(self) -> bool:
        """Whether questions are answered while the run waits, and do not end the attempt."""
        ...

    def take(self, slot: tuple[str, int]) -> bool:
        """Take a call to carry it out; False if this attempt has taken it before."""
        ...

    def cut_off(self, step: str) -> Sequence[Event]:
        """The ends of the open message of that step, and of the thought in it, when it is interrupted."""
        ...

    def abandon(self, ctx: RunContext[Any]) -> None:
        """Close the message, or the call, of a subscription that was disposed before its end."""
        ...


class ContextChanges(TypedDict, total=False):
    """What `RunContext.bind` takes: the fields that differ between the calls, steps and branches of a run."""

    call: ToolCall | None
    index: int
    step: str | None
    branch: str | None
    answer: bool
    asked_by: str
    out: Callable[[Event], None] | None
    questions: list[Asked[Any]] | None
    asked_for: Callable[[], Awaitable[object]] | None
    first_step: str | None


# No slots: with them `RunContext[Deps](deps)` fails, which people write in tests of their tools.
@dataclass(frozen=True)
class RunContext(Generic[D_co]):
    """What a tool, an instruction or an operator gets of the run.

    `RunContext[Deps]` fits an agent with `deps_type=Deps`, and a `RunContext` that names no deps fits every agent.

    Attributes:
        deps: What was given to `agent.run(deps=...)`.
        call: The tool call that this context belongs to, if any.
        index: The place of the call in its message.
        step: The model call that this context belongs to.
        branch: The line of a strategy that it belongs to; None on the main line.
        asked_by: Who asks questions where there is no call: the name of the operator.
        answer: The call gives the answer of the run.
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
    """Where `emit` puts events: the pipeline, for a tool; otherwise straight onto the stream."""
    questions: list[Asked[Any]] | None = field(default=None, repr=False, compare=False)
    """What a tool has asked in this call."""
    asked_for: Callable[[], Awaitable[object]] | None = field(default=None, repr=False, compare=False)
    """Of a call that was started early: waits until the model has asked for it, before which it asks nobody."""
    first_step: str | None = field(default=None, repr=False, compare=False)
    """Of a call that a strategy makes once more, since an attempt was cancelled: the step of the first time."""

    @property
    def host(self) -> Host:
        """The run; an error in a context that was made outside one."""
        if self.run is None:
            raise RxloopError("this RunContext belongs to no run: it was made by hand, outside agent.run()")
        return self.run

    @property
    def hidden(self) -> bool:
        """Whether the call is not for clients."""
        return self.call is not None and self.call.hidden

    @property
    def call_fields(self) -> dict[str, Any]:
        """The fields that each event of the call has."""
        return {
            "call": self.call,
            "index": self.index,
            "hidden": self.hidden,
            "step": self.step,
            "branch": self.branch,
        }

    @property
    def context_id(self) -> str:
        """The conversation."""
        return self.host.context_id

    @property
    def task_id(self) -> str:
        """The run."""
        return self.host.task_id

    @property
    def attempt(self) -> int:
        """Which attempt of the run this is, from 1."""
        return self.host.attempt

    @property
    def agent_name(self) -> str:
        """The name of the agent."""
        return self.host.agent_name

    @property
    def model(self) -> Provider:
        """The model of the run."""
        return self.host.model

    @property
    def log(self) -> EventLog | None:
        """The event log of the agent, if it has one."""
        return self.host.log

    @property
    def limits(self) -> Limits:
        """The limits of the run."""
        return self.host.limits

    @property
    def metadata(self) -> dict[str, Any]:
        """What was given to `agent.run(metadata=...)`."""
        return self.host.metadata

    @property
    def clock(self) -> Clock:
        """Where time comes from."""
        return self.host.clock

    @property
    def scope(self) -> Scope:
        """Owns the tasks of the run."""
        return self.host.scope

    @property
    def state(self) -> RunState:
        """The fold of everything published so far."""
        return self.host.state(self.branch)

    @property
    def usage(self) -> Usage:
        """The tokens of the run so far."""
        return self.state.usage

    @property
    def artifacts(self) -> RunArtifacts:
        """The files of the conversation: to create, append to, read and list.

        Outside a tool call, what writes is known by the step and by `asked_by`.
        """
        # Not before it is needed: importing rxloop is quicker without.
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
        """The name of this tool call, the same in every attempt to carry it out: for a service that knows such keys."""
        if self.call is None:
            raise RxloopError("ctx.idempotency_key belongs in a tool: this context has no tool call")
        return f"{self.task_id}:{self.step}:{self.index}"

    def emit(self, event: Event) -> None:
        """Put an event on the stream of the run; from any thread.

        Raises:
            InvalidEvent: It is not an event, cannot be written as JSON, or is one that only the run itself may publish.
        """
        if not isinstance(event, Event):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidEvent(
                f"ctx.emit() takes an event, such as CustomEvent(name='found', data={{'a': 1}}), and not {event!r}"
            )
        # A copy, since the run stamps what it publishes: who emits an event may keep it as a constant.
        unset = event.step is None and self.step is not None
        event = event.model_copy(update={"step": self.step, "branch": self.branch} if unset else None)
        # Here, and not only where the run stamps it: what cannot be written is for the one who emits it to hear of.
        settle(event)
        self.host.emit(event, self.out)

    def progress(self, message: str, fraction: float | None = None) -> None:
        """Say how far the tool is.

        Args:
            message: For the person who waits.
            fraction: The part that is done, from 0 to 1.
        """
        if self.call is None:
            raise RxloopError("ctx.progress() belongs in a tool: this context has no tool call")
        self.emit(ToolProgressEvent(message=message, fraction=fraction, **self.call_fields))

    def ask(self, prompt: str, answer: type[T] = bool, *, options: Sequence[T] | None = None) -> Asked[T]:
        """Ask the person or client behind the run, and wait: `await ctx.ask(...)`.

        Without the await nothing is asked: what this gives is then neither true nor false but an error, and a tool that
        forgets it has failed.

        With `agent.run(on_input=...)` the answer comes at once. Without it the attempt ends as `input-required`, and
        this call returns when `agent.resume(task_id, inputs={input_id: value})` runs the tool again.

        Args:
            prompt: The question.
            answer: The type of the answer; the value is validated against it.
            options: The values to choose from.

        Raises:
            InvalidInput: The answer does not fit.
        """
        # Not before it is needed: importing rxloop is quicker without.
        from rxloop.pipeline.asked import Asked, question_of

        asked: Asked[T] = Asked(prompt, lambda: self.host.ask(self, *question_of(prompt, answer, options)))
        if self.questions is not None:
            self.questions.append(asked)
        return asked

    def require_auth(self, provider: str, *, url: str | None = None, public_key: str | None = None) -> Asked[Any]:
        """Ask the person behind the run for a credential, and wait: `token = await ctx.require_auth("github")`.

        The attempt ends as `auth-required`, and `agent.resume(task_id, inputs={input_id: credential})` runs the tool
        again, in which this call gives the credential; with `agent.run(on_input=...)` it comes at once. A credential is
        on no stream, in no log and in no error: after a crash it is asked for again.

        Args:
            provider: Where the person signs in, such as `github`; a credential is for what was asked in this name.
            url: The page for that.
            public_key: What the client is to encrypt the credential with. This call then gives the ciphertext, which
                may also come by `agent.answer`, and so stand in a log: the tool has the private key.

        Raises:
            ToolError: The person has declined, by the answer None.
        """
        # Not before it is needed: importing rxloop is quicker without.
        from rxloop.pipeline.asked import Asked, given_credential, sign_in

        question = sign_in(provider, url, public_key)

        async def put() -> Any:
            return given_credential(provider, await self.host.ask(self, question, lambda credential: credential))

        asked: Asked[Any] = Asked(provider, put, "ctx.require_auth")
        if self.questions is not None:
            self.questions.append(asked)
        return asked

    def bind(self, **changes: Unpack[ContextChanges]) -> RunContext[D_co]:
        """The same context for another call, step or branch."""
        # A fifth of what `replace` costs, which several times in each iteration is worth it.
        if not changes.keys() <= vars(self).keys():
            raise TypeError(f"RunContext has no {', '.join(sorted(changes.keys() - vars(self).keys()))}")
        ctx = object.__new__(type(self))
        fields = vars(ctx)
        fields.update(vars(self))
        fields.update(changes)
        return ctx
