"""Options of agents and runs, and their record in the `task` event."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypedDict, TypeVar

from pydantic import ValidationError

from rxloop.errors import ConfigurationError
from rxloop.pipeline.event_log import EventLog
from rxloop.pipeline.interfaces import Provider
from rxloop.pipeline.requests import Operator, Strategy
from rxloop.pipeline.run_context import D, RunContext
from rxloop.protocol.messages import Prompt
from rxloop.protocol.model import thaw
from rxloop.protocol.settings import Limits, ModelSettings
from rxloop.run.handle import Run
from rxloop.run.questions.asking import OnInput
from rxloop.run.spec import Steering, WhenBusy
from rxloop.tools.agent_tools import AnyTool
from rxloop.tools.function import CallOptions
from rxloop.tools.output import OutputMode
from rxloop.tools.think_aloud import Thoughts

if TYPE_CHECKING:
    from rxloop.pipeline.artifacts import ArtifactStore
    from rxloop.tools.client_tool import ClientTool

I = TypeVar("I")  # noqa: E741

O = TypeVar("O")  # noqa: E741


class AgentOptions(TypedDict, Generic[D], total=False):
    """Options of `Agent`."""

    name: str
    """Name on the stream. The default is `agent`."""
    instructions: str | Callable[[RunContext[D]], Any]
    """System prompt, or a function that returns the system prompt for the context of a run, sync or async."""
    tools: Sequence[AnyTool[D]]
    """Functions, tools and toolsets."""
    output_mode: OutputMode
    """How the model is asked for an answer of `output_type`: by the structured output of the provider (`native`), by a
    tool that takes the answer (`tool`), or in the system prompt (`prompted`). With `auto`, the default, the provider
    decides if it is known to apply the schema to every request; otherwise the system prompt contains it as well."""
    output_retries: int
    """How many times the model may correct an answer that does not fit. The default is 2."""
    loop: Sequence[Operator[D]] | None
    """Operators of one iteration. The default is `op.standard()`."""
    strategy: Strategy[D] | str | None
    """Function that makes a run of the loop, or a name in `rxloop.strategies`, such as `rewoo`. The default is
    `op.iterate`."""
    limits: Limits | None
    """Limits that end a run without an answer."""
    thoughts: bool | Thoughts
    """Tool with which the model thinks aloud: True, False, or its options. The default is True."""
    log: EventLog | None
    """Log of the events. Conversations and resumed runs need one."""
    artifacts: ArtifactStore | None
    """Store of the files that runs make. The default is the store of the log. Without a log, files stay in memory
    until the run is released."""
    settings: ModelSettings | None
    """Settings of the model calls."""


class AgentToolOptions(CallOptions, total=False):
    """Options of `Agent.as_tool`."""

    description: str | None
    """Description of the tool. The default says that it hands a task to the agent of that name."""
    prompt: Callable[..., Prompt] | None
    """Function that makes the prompt of the nested run. The tool has the parameters of the function. The default has
    one parameter, `prompt`."""
    limits: Limits | None
    """Limits of the nested run. They are applied over those of the agent."""


class Options(TypedDict, total=False):
    """Options of runs, resumed runs, forks and batches."""

    model: Provider | str | None
    settings: ModelSettings | None
    """Settings that are applied over those of the agent."""
    limits: Limits | None
    """Limits that are applied over those of the agent. Limits that are not set here keep the value of the agent."""
    strategy: Strategy | str | None
    """Function that makes a run of the loop, or a name in `rxloop.strategies`."""
    on_input: OnInput | None
    """Function that answers the questions of `ctx.ask` while the run waits. It is called on the event loop and returns
    the value or an awaitable. Use `asyncio.to_thread` for functions that block, such as `input`."""
    steering: Steering | None
    """Messages that steer the run, each as by `run.send`: an Observable or an async iterable of texts, messages or
    `Steer`. The run subscribes to the source when it starts and disposes the subscription when it ends. An error of
    the source ends the run."""
    metadata: dict[str, Any] | None
    client_tools: Sequence[ClientTool | Mapping[str, Any]] | None
    """Tools of this run that the client executes: made by `client_tool`, or dicts with `name`, `description` and
    `parameters` as sent by the client. A resumed run keeps them."""


class _Conversation(TypedDict, total=False):
    context_id: str | None
    """Conversation to continue. The log of the agent has its history."""
    when_busy: WhenBusy
    """Whether to `refuse` a run while another run of the conversation is not finished, or to `wait`, in order."""


class ResumeOptions(_Conversation, Options, total=False):
    """Options of `Agent.resume`."""

    inputs: Mapping[str, Any] | None
    """Answers to the questions of the run, by `input_id`."""


class RunOptions(_Conversation, Options, total=False):
    """Options of a new run."""

    task_id: str | None
    """Id of the run, a UUID, such as one that `derive_id` makes of a key. The default is a new id. A log never contains
    two runs with one id: the second run is refused with `RunExists` before it sends a request."""
    owner: str | None
    """Owner of the run, such as a user or a tenant. The owner is not sent to clients."""


class ForkOptions(Options, Generic[D], total=False):
    """Options of `Agent.fork`. A fork starts a new conversation."""

    prompt: Prompt | None
    """Replaces the message of the user if `at` is 1; otherwise a new message after the copied events. Calls that are
    open there are closed as cancelled."""
    results: Mapping[str, Any] | None
    """Results of tools, by the id of the call, or by its slot if ids are not unique (`"2/0"`: first call of step 2). A
    `ToolError` makes a failed result."""
    tools: Sequence[AnyTool[D]] | None
    """Tools that replace those of the agent."""
    fork_id: str | None
    """Id of the new run, as `task_id` is for `Agent.run`."""


class MapOptions(Options, Generic[I], total=False):
    """Options of `Agent.map`."""

    prompt: Callable[[I], Prompt] | None
    """Function that returns the prompt of an item. By default the item is the prompt."""
    key: Callable[[I], str | int] | None
    """Function that returns the key of an item, equal in every process. The default is the prompt. In a batch with a
    name, items with equal keys are one run."""
    name: str | None
    """Name of the batch. Without a name, the model is asked again for all items. If a name is used again with other
    instructions or another model, the answers are those in the log."""
    concurrency: int
    """Maximum number of concurrent runs. The default is 50. `limited(model, per_minute=...)` limits the model calls."""


class ExecuteOptions(TypedDict, Generic[O], total=False):
    """Options of `RemoteRun.execute`."""

    on_input: OnInput | None
    """Function that answers the questions of the run while it is executed here."""
    on_run: Callable[[Run[O]], object] | None
    """Function that receives each attempt before it starts, to read its events live."""
    when_busy: WhenBusy
    """Whether to `wait` while an earlier run of the conversation has to finish first, or to `refuse`, for workers with
    little capacity. The default is `wait`."""


log = logging.getLogger("rxloop")

_SECRET = {"headers"}
"""Settings with credentials, which are not recorded."""


def options_to_record(options: Options, client: Sequence[ClientTool] = ()) -> dict[str, Any] | None:
    """Return the options that the `task` event records, or None.

    Models and strategies passed as strings can be created again from their names. For provider objects, only the name
    is recorded.

    Args:
        options: Options of the run.
        client: Tools that the client of the run executes.
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
        found["client_tools"] = [tool.to_definition() for tool in client]
    return found or None


def merge_options(given: Options, recorded: Mapping[str, Any]) -> Options:
    """Return the options of a resumed run: the given ones, and the recorded ones that they do not replace.

    Settings and limits are merged field by field.

    Raises:
        ConfigurationError: A recorded option cannot be read.
    """
    options = given.copy()
    if given.get("model") is None and "model" in recorded:
        options["model"] = recorded["model"]
    if given.get("strategy") is None and "strategy" in recorded:
        options["strategy"] = recorded["strategy"]
    if given.get("client_tools") is None and "client_tools" in recorded:
        options["client_tools"] = recorded["client_tools"]
    try:
        settings = ModelSettings.model_validate(thaw(recorded["settings"])) if "settings" in recorded else None
        limits = Limits.model_validate(thaw(recorded["limits"])) if "limits" in recorded else None
    except ValidationError as error:
        raise ConfigurationError(f"what the run was begun with cannot be read: {error}") from error
    if settings is not None:
        options["settings"] = (given.get("settings") or ModelSettings()).merge_defaults(settings)
    if limits is not None:
        options["limits"] = (given.get("limits") or Limits()).merge_defaults(limits)
    return options


def compare_model(task_id: str, given: Options, recorded: Mapping[str, Any], model: Provider) -> None:
    """Warn if a resumed run was started with a provider object that has another name than the model used now."""
    name = recorded.get("provider")
    if name is not None and given.get("model") is None and name != model.name:
        log.warning(
            "the run %s was begun with the model %s, of which only the name is kept, and goes on with %s: "
            "agent.resume(..., model=) takes the first",
            task_id,
            name,
            model.name,
        )
