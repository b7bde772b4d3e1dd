"""Complete specification of a run."""

from __future__ import annotations

from collections.abc import AsyncIterable, Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from reactivex import Observable

from rxloop.pipeline.event_log import EventLog
from rxloop.pipeline.interfaces import Provider
from rxloop.pipeline.requests import Operator
from rxloop.pipeline.run_context import RunContext
from rxloop.protocol.messages import Message
from rxloop.protocol.settings import Limits, ModelSettings
from rxloop.run.questions.registry import OnInput
from rxloop.tools.agent_tools import AgentTools

if TYPE_CHECKING:
    from rxloop.pipeline.artifacts import ArtifactStore
    from rxloop.pipeline.records import RunRecord, Snapshot
    from rxloop.run.fork import Fork

WhenBusy = Literal["refuse", "wait"]


@dataclass(frozen=True, slots=True)
class Steer:
    """Steering message with delivery options.

    Attributes:
        message: String, message, or a sequence of them.
        interrupt: Whether to interrupt the model while it is answering.
    """

    message: str | Message | Sequence[Message | str]
    interrupt: bool = False


SteeringMessage = str | Message | Sequence[Message | str] | Steer

Steering = Observable[SteeringMessage] | AsyncIterable[SteeringMessage]

Instructions = str | Callable[[RunContext[Any]], str | Awaitable[str]]


class RunSpec(NamedTuple):
    """Complete specification of a run. Fixed once started."""

    task_id: str
    context_id: str
    agent_name: str
    model: Provider
    loop: Operator
    """Operator handling the `RunRequest`."""
    pipeline: Operator
    """Operator handling a single iteration."""
    strategy: str | None
    """Strategy name, or None when using the default loop."""
    tools: AgentTools
    instructions: Instructions
    limits: Limits
    settings: ModelSettings
    thought_limit: int
    record_requests: bool
    metadata: dict[str, Any]
    provider: Callable[[Provider | str], Provider]
    """Function resolving model strings to providers."""
    deps: Any = None
    make_deps: Callable[[], Coroutine[Any, Any, Any]] | None = None
    """Function creating the deps once the start of the attempt is logged. If it fails, the run is released."""
    log: EventLog | None = None
    views: Sequence[Callable[[Observable[Any]], Observable[Any]]] = ()
    """Views to subscribe to the attempt."""
    artifacts: ArtifactStore | None = None
    """Artifact store. Defaults to the log's store."""
    keep_context: bool = False
    """True to load the conversation history from the log."""
    messages: tuple[Message, ...] = ()
    on_input: OnInput | None = None
    parse: Callable[[str], Any] = str
    output_prompt: str | None = None
    response_schema: dict[str, Any] | None = None
    when_busy: WhenBusy = "refuse"
    resume: bool = False
    only_executes: bool = False
    """True if this attempt only executes the run. It waits for the lease as long as necessary."""
    cached: RunRecord | Snapshot | None = None
    """Record or snapshot the caller already has of the resumed run."""
    inputs: Mapping[str, Any] | None = None
    cancel: str | None = None
    """Reason for cancelling the run, if this attempt only cancels it."""
    cancel_code: str = "canceled"
    """Error code for the final event of such an attempt."""
    fork: Fork | None = None
    initiator: str = "user"
    """Name of the party requesting the run."""
    owner: str | None = None
    """Owner of the run."""
    recorded_options: dict[str, Any] | None = None
    """Options recorded in the `task` event of a new run."""
    apply_recorded_options: Callable[[Mapping[str, Any]], RunSpec] | None = None
    """Function applying recorded options to the specification of a resumed run."""
    steering: Steering | None = None
    """Messages for steering the run."""
    chosen_id: bool = False
    """True if the caller chose the id, which may already be in use."""

    def __repr__(self) -> str:
        # Keep deps and inputs private.
        return f"<RunSpec {self.task_id}>"
