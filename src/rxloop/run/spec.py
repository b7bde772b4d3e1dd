"""Complete specification of a run."""

from __future__ import annotations

from collections.abc import AsyncIterable, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from reactivex import Observable

from rxloop.pipeline.event_log import EventLog
from rxloop.pipeline.interfaces import Provider
from rxloop.pipeline.requests import Operator
from rxloop.pipeline.run_context import RunContext
from rxloop.protocol.messages import Message
from rxloop.protocol.settings import Limits, ModelSettings
from rxloop.run.questions.asking import OnInput
from rxloop.tools.agent_tools import AgentTools

if TYPE_CHECKING:
    from rxloop.pipeline.artifacts import ArtifactStore
    from rxloop.pipeline.records import RunRecord, Snapshot
    from rxloop.run.fork import Fork

WhenBusy = Literal["refuse", "wait"]


@dataclass(frozen=True, slots=True)
class Steer:
    """A message to a run that goes on, for `steering=`, and how it is said.

    Attributes:
        message: A text, a message, or several.
        interrupt: Cut off the answer that is being written.
    """

    message: str | Message | Sequence[Message | str]
    interrupt: bool = False


Said = str | Message | Sequence[Message | str] | Steer

Steering = Observable[Said] | AsyncIterable[Said]

Instructions = str | Callable[[RunContext[Any]], str | Awaitable[str]]


class RunSpec(NamedTuple):
    """Everything that a run is made of, fixed before it starts."""

    task_id: str
    context_id: str
    agent_name: str
    model: Provider
    loop: Operator
    """Answers the `RunRequest`."""
    pipeline: Operator
    """Carries out one iteration."""
    strategy: str | None
    """What the strategy is called that made the loop; None for the usual one."""
    tools: AgentTools
    instructions: Instructions
    limits: Limits
    settings: ModelSettings
    thought_limit: int
    metadata: dict[str, Any]
    provider: Callable[[Provider | str], Provider]
    """Gives the provider that a model string stands for."""
    deps: Any = None
    log: EventLog | None = None
    artifacts: ArtifactStore | None = None
    """Where they are kept, if not beside the log."""
    keep_context: bool = False
    """Whether the history of the conversation comes from the log."""
    messages: tuple[Message, ...] = ()
    on_input: OnInput | None = None
    parse: Callable[[str], Any] = str
    output_prompt: str | None = None
    response_schema: dict[str, Any] | None = None
    when_busy: WhenBusy = "refuse"
    resume: bool = False
    settles: bool = False
    """Whether the attempt is one to settle the run: it waits for its turn for as long as that takes."""
    known: RunRecord | Snapshot | None = None
    """What the caller knows of a run that is resumed: its record, or all that the log had of it a moment ago."""
    inputs: Mapping[str, Any] | None = None
    cancel: str | None = None
    """The reason for which the attempt is there to cancel the run, and to do nothing else."""
    cancel_code: str = "canceled"
    """The error code in the final event of such an attempt."""
    fork: Fork | None = None
    initiator: str = "user"
    """Who asks for the run."""
    owner: str | None = None
    """Whose run it is."""
    begun_with: dict[str, Any] | None = None
    """What its `task` event keeps of the options of a new run."""
    as_begun: Callable[[Mapping[str, Any]], RunSpec] | None = None
    """Gives the spec of a resumed run with what the `task` event has kept."""
    steering: Steering | None = None
    """Messages that steer the run."""
    chosen_id: bool = False
    """Whether the id was given, so that there may be a run of that id already."""

    def __repr__(self) -> str:
        # Without its deps and inputs, which are nobody's business.
        return f"<RunSpec {self.task_id}>"
