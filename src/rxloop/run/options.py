"""What can be said of one run, beside its prompt and its dependencies."""

from __future__ import annotations

from collections.abc import AsyncIterable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from reactivex import Observable

from rxloop.pipeline.logs import EventLog
from rxloop.pipeline.requests import Strategy
from rxloop.pipeline.seams import ArtifactStore, Provider
from rxloop.protocol.messages import Message, Prompt
from rxloop.protocol.settings import Limits, ModelSettings
from rxloop.run.asking import OnInput
from rxloop.tools import AnyTool, Thoughts
from rxloop.tools.function import Enabled
from rxloop.tools.output import OutputMode

if TYPE_CHECKING:
    from rxloop.tools.client_tool import ClientTool

WhenBusy = Literal["refuse", "wait"]


class AgentOptions(TypedDict, total=False):
    """What can be said of an agent, beside its model, tools, loop and types; see `Agent`."""

    name: str
    output_mode: OutputMode
    output_retries: int
    limits: Limits | None
    thoughts: bool | Thoughts
    log: EventLog | None
    artifacts: ArtifactStore | None
    settings: ModelSettings | None


class AgentToolOptions(TypedDict, total=False):
    """What can be said of an agent as a tool; what is not explained here is as for `tool`."""

    prompt: Callable[..., Prompt] | None
    """Makes the prompt of the nested run: a function, the parameters of which are those of the tool. Without it there
    is one, `prompt`."""
    limits: Limits | None
    """Over those of the agent; they end the nested run alone."""
    timeout: float | None
    approve: bool | str
    hidden: bool
    enabled: Enabled | None
    max_result: int | None


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


class Options(TypedDict, total=False):
    """What can be said of one run and of a fork."""

    model: Provider | str | None
    settings: ModelSettings | None
    """Over those of the agent."""
    limits: Limits | None
    """Over those of the agent: a limit that is not set here stays as it is there."""
    strategy: Strategy | str | None
    """What makes a run of the loop: a strategy, or the name of one of `rxloop.strategies`."""
    on_input: OnInput | None
    """Answers the questions of `ctx.ask` while the run waits: a function on the event loop that gives the value, or an
    awaitable of it. What blocks, such as `input()`, belongs in `asyncio.to_thread`."""
    steering: Steering | None
    """Messages that steer the run, each as by `run.say`: an Observable or an async iterable of texts, messages or
    `Steer`. The source is subscribed to when the run begins and disposed of when it ends; its
    error ends the run."""
    metadata: dict[str, Any] | None
    client_tools: Sequence[ClientTool | Mapping[str, Any]] | None
    """Tools that the client carries out, for this run: made by `client_tool`, or dicts with `name`, `description` and
    `parameters` as the client has sent them. Whoever resumes the run has them too."""


class _Conversation(TypedDict, total=False):
    context_id: str | None
    """The conversation to go on with; its history comes from the agent's log."""
    when_busy: WhenBusy
    """What to do while another run of the conversation is under way: `refuse`, or `wait` for it to end, in order."""


class ResumeOptions(_Conversation, Options):
    """What can be said of one more attempt of a run."""


class RunOptions(ResumeOptions, total=False):
    """What can be said of a new run."""

    task_id: str | None
    """Its id, a UUID, as `id_of_key` makes it of a key of your own; a new one by default. There is never a second run
    of the same id in a log: it is refused with `RunExists` before a request is sent."""
    owner: str | None
    """Whose run it is, such as a user or a tenant; it stays on the server."""


class ForkOptions(Options, total=False):
    """What can be said of a fork: all that can be said of a run but its conversation, which is a new one."""

    tools: Sequence[AnyTool] | None
    """In the place of those of the agent."""
    fork_id: str | None
    """The id of the new run, as `task_id` is for `run`."""
