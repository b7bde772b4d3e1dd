"""Options of agents and runs, and their record in the `task` event."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypedDict

from pydantic import ValidationError

from rxloop.errors import ConfigurationError
from rxloop.pipeline.event_log import EventLog
from rxloop.pipeline.interfaces import Provider
from rxloop.pipeline.requests import Strategy
from rxloop.protocol.messages import Prompt
from rxloop.protocol.model import thawed
from rxloop.protocol.settings import Limits, ModelSettings
from rxloop.run.asking import OnInput
from rxloop.run.spec import Steering, WhenBusy
from rxloop.tools.agent_tools import AnyTool
from rxloop.tools.function import CallOptions
from rxloop.tools.output import OutputMode
from rxloop.tools.think_aloud import Thoughts

if TYPE_CHECKING:
    from rxloop.pipeline.artifacts import ArtifactStore
    from rxloop.tools.client_tool import ClientTool


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


class AgentToolOptions(CallOptions, total=False):
    """Options of `Agent.as_tool`."""

    prompt: Callable[..., Prompt] | None
    """Makes the prompt of the nested run: a function, the parameters of which are those of the tool. Without it there
    is one, `prompt`."""
    limits: Limits | None
    """Over those of the agent; they end the nested run alone."""


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
    """Its id, a UUID, as `derive_id` makes it of a key of your own; a new one by default. There is never a second run
    of the same id in a log: it is refused with `RunExists` before a request is sent."""
    owner: str | None
    """Whose run it is, such as a user or a tenant; it stays on the server."""


class ForkOptions(Options, total=False):
    """What can be said of a fork: all that can be said of a run but its conversation, which is a new one."""

    tools: Sequence[AnyTool] | None
    """In the place of those of the agent."""
    fork_id: str | None
    """The id of the new run, as `task_id` is for `run`."""


log = logging.getLogger("rxloop")

_SECRET = {"headers"}
"""Credentials travel in headers: they are not written into a log."""


def kept(options: Options, client: Sequence[ClientTool] = ()) -> dict[str, Any] | None:
    """What of the options of a run its `task` event keeps; None if there is nothing to keep.

    A model and a strategy that were given as text can be made again of it. Of a provider only the name is kept.

    Args:
        options: What was said of the run.
        client: The tools that its client carries out.
    """
    model, strategy = options.get("model"), options.get("strategy")
    settings, limits = options.get("settings"), options.get("limits")
    found: dict[str, Any] = {}
    if isinstance(model, str):
        found["model"] = model
    elif model is not None:
        found["provider"] = model.name
    if settings is not None:
        found["settings"] = settings.model_dump(mode="json", exclude_unset=True, exclude=_SECRET)
    if limits is not None:
        found["limits"] = limits.model_dump(mode="json", exclude_unset=True)
    if isinstance(strategy, str):
        found["strategy"] = strategy
    if client:
        found["client_tools"] = [tool.as_definition() for tool in client]
    return found or None


def resumed_with(given: Options, begun: Mapping[str, Any]) -> Options:
    """The options of a resumption: those that are given with it, and those that the run was begun with elsewhere.

    Settings and limits are joined field by field.

    Raises:
        ConfigurationError: The run was begun with something that cannot be read any more.
    """
    options = given.copy()
    if given.get("model") is None and "model" in begun:
        options["model"] = begun["model"]
    if given.get("strategy") is None and "strategy" in begun:
        options["strategy"] = begun["strategy"]
    if given.get("client_tools") is None and "client_tools" in begun:
        options["client_tools"] = begun["client_tools"]
    try:
        settings = ModelSettings.model_validate(thawed(begun["settings"])) if "settings" in begun else None
        limits = Limits.model_validate(thawed(begun["limits"])) if "limits" in begun else None
    except ValidationError as error:
        raise ConfigurationError(f"what the run was begun with cannot be read: {error}") from error
    if settings is not None:
        options["settings"] = (given.get("settings") or ModelSettings()).over(settings)
    if limits is not None:
        options["limits"] = (given.get("limits") or Limits()).over(limits)
    return options


def compare_model(task_id: str, given: Options, begun: Mapping[str, Any], model: Provider) -> None:
    """Tell whoever resumes a run that its model was given as an object, if the agent has another one."""
    name = begun.get("provider")
    if name is not None and given.get("model") is None and name != model.name:
        log.warning(
            "the run %s was begun with the model %s, of which only the name is kept, and goes on with %s: "
            "agent.resume(..., model=) takes the first",
            task_id,
            name,
            model.name,
        )
