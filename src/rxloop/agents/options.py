"""Agent and run options, including those recorded in the `task` event."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypedDict, TypeVar

from pydantic import ValidationError

from rxloop.errors import ConfigurationError
from rxloop.operators.views import View
from rxloop.pipeline.event_log import EventLog
from rxloop.pipeline.interfaces import Provider
from rxloop.pipeline.requests import Operator, Strategy
from rxloop.pipeline.run_context import D, RunContext
from rxloop.protocol.messages import Prompt
from rxloop.protocol.model import thaw
from rxloop.protocol.settings import Limits, ModelSettings
from rxloop.run.handle import Run
from rxloop.run.questions.registry import OnInput
from rxloop.run.spec import Steering, WhenBusy
from rxloop.tools.agent_tools import AnyTool
from rxloop.tools.function import CallOptions
from rxloop.tools.output import OutputMode
from rxloop.tools.think_aloud import Thoughts

if TYPE_CHECKING:
    from rxloop.pipeline.artifacts import ArtifactStore
    from rxloop.strategies.catalog import StrategyName
    from rxloop.tools.client_tool import ClientTool

I = TypeVar("I")  # noqa: E741

O = TypeVar("O")  # noqa: E741


class AgentOptions(TypedDict, Generic[D], total=False):
    """Options of `Agent`."""

    name: str
    """Name used in events. The default is `agent`."""
    instructions: str | Callable[[RunContext[D]], Any]
    """System prompt, or a sync or async function that returns the system prompt for a run context."""
    tools: Sequence[AnyTool[D]]
    """Functions, tools and toolsets."""
    output_mode: OutputMode
    """Method for requesting an answer of `output_type`: the provider's structured output (`native`), a tool call with
    the answer (`tool`), or the system prompt (`prompted`). With `auto`, the default, the provider decides if it is
    known to apply the schema to every request. Otherwise, the schema is also included in the system prompt."""
    output_retries: int
    """Maximum number of attempts by the model to correct an invalid answer. The default is 2."""
    loop: Sequence[Operator[D]] | None
    """Operators for one iteration. The default is `op.standard()`."""
    strategy: Strategy[D] | StrategyName | None
    """Strategy function, or a name in `rxloop.strategies`, such as `rewoo`. The default is `op.iterate`."""
    limits: Limits | None
    """Limits for each run. A run that exceeds a limit ends without an answer."""
    thoughts: bool | Thoughts
    """Options for the `think_aloud` tool, or False to disable it. The default is True."""
    record_requests: bool
    """True, the default, if the log keeps system prompts, tools and edited messages, so that requests can be displayed
    exactly. With False, runs take up less space, and only the messages of the history are displayed."""
    log: EventLog | None
    """Event log. Required for conversations and for resuming runs."""
    artifacts: ArtifactStore | None
    """Artifact store for files created by runs. The default is the store of the log. Without a log, files are kept in
    memory until the run is released."""
    settings: ModelSettings | None
    """Model settings."""
    views: Sequence[View[Any, Any]]
    """Views to subscribe to each attempt of a run, such as `op.spans()`. They also receive the events of nested runs.
    If the agent is used as a tool, they receive the events of its runs and of those nested in them. A failing view is
    logged and does not end the run."""


class AgentToolOptions(CallOptions, total=False):
    """Options of `Agent.as_tool`."""

    description: str | None
    """Tool description. The default says that the tool hands a task to the named agent."""
    prompt: Callable[..., Prompt] | None
    """Function that returns the prompt for the nested run. The function parameters become the tool parameters. The
    default has a single parameter, `prompt`."""
    limits: Limits | None
    """Limits for the nested run, overriding individual limits of the agent."""


class Options(TypedDict, total=False):
    """Options for new runs, resumed runs, forks and batches."""

    model: Provider | str | None
    settings: ModelSettings | None
    """Model settings, overriding individual settings of the agent."""
    limits: Limits | None
    """Run limits, overriding individual limits of the agent."""
    strategy: Strategy | StrategyName | None
    """Strategy function, or a name in `rxloop.strategies`."""
    on_input: OnInput | None
    """Function that answers `ctx.ask` questions while the run waits. Async functions run on the event loop. Other
    functions run in a thread, one question at a time, so they may block."""
    steering: Steering | None
    """Steering messages, equivalent to `run.send`, from an Observable or async iterable of strings, messages or `Steer`
    objects. The run subscribes at its start and disposes the subscription at its end. A source error ends the run."""
    metadata: dict[str, Any] | None
    client_tools: Sequence[ClientTool | Mapping[str, Any]] | None
    """Tools executed by the client, created by `client_tool` or passed as dicts with `name`, `description` and
    `parameters`. Resumed runs keep them."""


class _Conversation(TypedDict, total=False):
    context_id: str | None
    """Conversation to continue. Its history is read from the agent's log."""
    when_busy: WhenBusy
    """Policy for unfinished earlier runs of the conversation. `refuse` raises an error, and `wait` executes the runs in
    order."""


class ResumeOptions(_Conversation, Options, total=False):
    """Options of `Agent.resume`."""

    inputs: Mapping[str, Any] | None
    """Answers to open questions, by `input_id`."""


class RunOptions(_Conversation, Options, total=False):
    """Options for new runs."""

    task_id: str | None
    """Run ID, which must be a UUID, for example from `derive_id`. The default is a new ID. IDs are unique within a log.
    A run with an existing ID raises `RunExists` before sending a request."""
    owner: str | None
    """Owner, such as a user or tenant. Not sent to clients."""


class ForkOptions(Options, Generic[D], total=False):
    """Options of `Agent.fork`. A fork starts a new conversation."""

    prompt: Prompt | None
    """Replacement for the user message if `at` is 1, or else a new message after the copied events. Open calls are
    closed as cancelled."""
    results: Mapping[str, Any] | None
    """Tool results by call ID, or by slot if IDs are not unique (`"2/0"` is the first call of step 2). A `ToolError`
    value creates a failed result."""
    tools: Sequence[AnyTool[D]] | None
    """Tools for the fork, replacing the agent's tools."""
    fork_id: str | None
    """ID for the new run, like `task_id` in `Agent.run`."""
    restricted: bool
    """Set to True for a fork that a client requests. It repeats no call that the original run has started, unless its
    tool is idempotent, and it replaces only results of client tools."""


class MapOptions(Options, Generic[I], total=False):
    """Options of `Agent.map`."""

    key: Callable[[I], str | int] | None
    """Function that returns a stable key for an item. The default is the prompt. Within a named batch, items with equal
    keys share a run."""
    name: str | None
    """Batch name. Without a name, every execution calls the model again. Reusing a name with different instructions or
    another model returns the answers in the log."""
    concurrency: int
    """Maximum number of concurrent runs. The default is 50. `limited(model, per_minute=...)` limits the model calls."""


class ExecuteOptions(TypedDict, Generic[O], total=False):
    """Options of `RemoteRun.execute`."""

    on_input: OnInput | None
    """Function that answers questions while this process executes the run."""
    on_run: Callable[[Run[O]], object] | None
    """Callback for each attempt before it starts, for example to read live events."""
    when_busy: WhenBusy
    """Policy for unfinished earlier runs of the conversation. The default, `wait`, waits for them. `refuse` raises an
    error, which suits workers with limited capacity."""


log = logging.getLogger("rxloop")

_SECRET_SETTINGS = {"headers"}
"""Settings with credentials, excluded from recording."""


def options_to_record(options: Options, client: Sequence[ClientTool] = ()) -> dict[str, Any] | None:
    """Return options to record in the `task` event, or None.

    Models and strategies passed as strings can be recreated from their names. For provider objects, only the name is
    recorded.

    Args:
        options: Run options.
        client: Tools executed by the run's client.
    """
    model, strategy = options.get("model"), options.get("strategy")
    settings, limits = options.get("settings"), options.get("limits")
    record: dict[str, Any] = {}
    if isinstance(model, str):
        record["model"] = model
    elif model is not None:
        record["provider"] = model.name
    if settings is not None:
        record["settings"] = settings.model_dump(mode="json", exclude_unset=True, exclude=_SECRET_SETTINGS)
    if limits is not None:
        record["limits"] = limits.model_dump(mode="json", exclude_unset=True)
    if isinstance(strategy, str):
        record["strategy"] = strategy
    if client:
        record["client_tools"] = [tool.to_definition() for tool in client]
    return record or None


def merge_options(options: Options, recorded: Mapping[str, Any]) -> Options:
    """Return options for a resumed run, using recorded options as defaults.

    Settings and limits are merged field by field.

    Raises:
        ConfigurationError: If a recorded option is invalid.
    """
    merged = options.copy()
    if options.get("model") is None and "model" in recorded:
        merged["model"] = recorded["model"]
    if options.get("strategy") is None and "strategy" in recorded:
        merged["strategy"] = recorded["strategy"]
    if options.get("client_tools") is None and "client_tools" in recorded:
        merged["client_tools"] = recorded["client_tools"]
    try:
        settings = ModelSettings.model_validate(thaw(recorded["settings"])) if "settings" in recorded else None
        limits = Limits.model_validate(thaw(recorded["limits"])) if "limits" in recorded else None
    except ValidationError as error:
        raise ConfigurationError(f"cannot read the recorded options of the run: {error}") from error
    if settings is not None:
        merged["settings"] = (options.get("settings") or ModelSettings()).merge_defaults(settings)
    if limits is not None:
        merged["limits"] = (options.get("limits") or Limits()).merge_defaults(limits)
    return merged


def compare_model(task_id: str, options: Options, recorded: Mapping[str, Any], model: Provider) -> None:
    """Log a warning if the recorded provider and the current model have different names."""
    name = recorded.get("provider")
    if name is not None and options.get("model") is None and name != model.name:
        log.warning(
            "Resuming run %s, started with model %s, with model %s; pass the original provider with "
            "agent.resume(..., model=)",
            task_id,
            name,
            model.name,
        )
