"""Creation of run specifications from an agent and its options."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any, cast

from rxloop.agents.definition import AgentDefinition, Overrides, load_strategy
from rxloop.agents.options import (
    ForkOptions,
    Options,
    ResumeOptions,
    RunOptions,
    compare_model,
    merge_options,
    options_to_record,
)
from rxloop.agents.validation import (
    check_deps,
    check_history,
    check_messages,
    check_operator,
    check_options,
    check_run_id,
    check_seq,
)
from rxloop.errors import ConfigurationError
from rxloop.operators.loop.iterate import iterate
from rxloop.protocol.ids import make_id
from rxloop.protocol.messages import Prompt, to_messages
from rxloop.run.spec import RunSpec
from rxloop.tools.think_aloud import Thoughts

if TYPE_CHECKING:
    from rxloop.pipeline.records import RunRecord, Snapshot
    from rxloop.tools.client_tool import ClientTool


def make_run_spec(definition: AgentDefinition, callee: str, prompt: Prompt, deps: Any, options: RunOptions) -> RunSpec:
    """Return the specification for a new run.

    Args:
        definition: Agent definition.
        callee: Name of the called method in error messages.
        prompt: Prompt for the run.
        deps: Dependencies, already checked by the caller.
        options: Run options.

    Raises:
        ConfigurationError: If an option or the prompt is invalid, or a conversation is specified without a log.
        TypeError: If an option is unknown.
    """
    check_options(callee, options, RunOptions)
    context_id, task_id = options.get("context_id"), options.get("task_id")
    if context_id is not None and definition.log is None:
        raise ConfigurationError(f"context_id={context_id!r} requires an event log: Agent(..., log=MemoryEventLog())")
    return make_spec(
        definition,
        task_id if task_id is not None else make_id(),
        context_id if context_id is not None else make_id(),
        deps,
        options,
        messages=check_messages(prompt),
        keep_context=context_id is not None,
        chosen_id=task_id is not None,
        owner=options.get("owner"),
    )


def make_resume_spec(
    definition: AgentDefinition,
    callee: str,
    task_id: str,
    deps: Any,
    options: ResumeOptions,
    *,
    only_executes: bool = False,
    cached: RunRecord | Snapshot | None = None,
    make_deps: Callable[[], Coroutine[Any, Any, Any]] | None = None,
) -> RunSpec:
    """Return the specification for the next attempt.

    Args:
        definition: Agent definition.
        callee: Name of the called method in error messages.
        task_id: Run ID.
        deps: Dependencies of the run.
        options: Options for the attempt.
        only_executes: True if the attempt executes the run, waiting for the lease without a time limit.
        cached: Recent log contents for this run, if the caller has read them.
        make_deps: Async function that creates and checks the deps instead.

    Raises:
        ConfigurationError: If an option is invalid, the agent has no log, or `deps` are missing.
        TypeError: If an option is unknown.
    """
    check_options(callee, options, ResumeOptions)
    check_run_id(task_id)
    definition.get_log(f"{callee.rpartition('.')[2]} {task_id}")
    if make_deps is None:
        check_deps(callee, definition.deps_type, deps)
    overrides, inputs = definition.overrides, options.get("inputs")

    def build(merged: Options) -> RunSpec:
        fields: dict[str, Any] = {"resume": True, "only_executes": only_executes, "inputs": inputs, "cached": cached}
        fields["make_deps"] = make_deps
        return make_spec(definition, task_id, options.get("context_id") or "", deps, merged, overrides, **fields)

    def apply_recorded_options(recorded: Mapping[str, Any]) -> RunSpec:
        spec = build(merge_options(options, recorded))
        if "model" not in overrides:
            compare_model(task_id, options, recorded, spec.model)
        return spec

    return build(options)._replace(apply_recorded_options=apply_recorded_options)


def make_fork_spec(definition: AgentDefinition, task_id: str, at: int, deps: Any, options: ForkOptions[Any]) -> RunSpec:
    """Return the specification for a fork, implementing `Agent.fork`."""
    # Imported lazily, because few programs fork a run.
    from rxloop.run.fork import make_fork

    check_options("Agent.fork", options, ForkOptions)
    check_run_id(task_id)
    check_seq(at)
    if definition.log is None:
        raise ConfigurationError(f"cannot fork {task_id} without its event log: Agent(..., log=...)")
    check_deps("Agent.fork", definition.deps_type, deps)
    prompt, tools, fork_id = options.get("prompt"), options.get("tools"), options.get("fork_id")
    messages = check_history(to_messages(prompt) if prompt is not None else ())
    results, restricted = options.get("results") or {}, options.get("restricted", False)
    fork = make_fork(task_id, at, messages, results, restricted=restricted)
    new_id = make_id() if fork_id is None else fork_id
    spec = make_spec(definition, new_id, make_id(), deps, options, fork=fork, chosen_id=fork_id is not None)
    return spec if tools is None else spec._replace(tools=definition.make_tools(tools))


def make_spec(
    definition: AgentDefinition,
    task_id: str,
    context_id: str,
    deps: Any,
    options: Options,
    overrides: Overrides | None = None,
    **fields: Any,
) -> RunSpec:
    """Return a run specification.

    Args:
        definition: Agent definition.
        task_id: Run ID.
        context_id: Conversation ID.
        deps: Dependencies of the run.
        options: Checked options.
        overrides: Agent overrides. The default is the overrides in the current context.
        **fields: Additional `RunSpec` fields.
    """
    if overrides is None:
        overrides = definition.overrides
    model, settings, limits = options.get("model"), options.get("settings"), options.get("limits")
    requested = load_strategy(options.get("strategy"))
    strategy = requested or definition.strategy
    loop = strategy(definition.pipeline)
    if requested is not None:
        check_operator(requested, loop)
    tools, client = overrides.get("tools", definition.tools), _make_client_tools(options)
    get_provider, output = definition.resources.get_provider, definition.output
    provider = overrides.get("model") or (get_provider(model) if model is not None else definition.model)
    return RunSpec(
        task_id=task_id,
        context_id=context_id,
        agent_name=definition.name,
        model=provider,
        loop=loop,
        pipeline=definition.pipeline,
        strategy=getattr(strategy, "__name__", None) if strategy is not iterate else None,
        tools=tools.with_client_tools(client) if client else tools,
        instructions=definition.instructions,
        limits=limits.merge_defaults(definition.limits) if limits is not None else definition.limits,
        settings=settings.merge_defaults(definition.settings) if settings is not None else definition.settings,
        thought_limit=(definition.thoughts or Thoughts()).limit,
        record_requests=definition.record_requests,
        deps=deps,
        log=definition.log,
        views=definition.views,
        artifacts=definition.artifacts,
        metadata=dict(options.get("metadata") or {}),
        provider=get_provider,
        on_input=options.get("on_input"),
        steering=options.get("steering"),
        when_busy=cast("ResumeOptions", options).get("when_busy") or "refuse",
        parse=output.parse,
        output_prompt=output.prompt(provider),
        response_schema=output.schema,
        recorded_options=options_to_record(options, client),
        **fields,
    )


def _make_client_tools(options: Options) -> tuple[ClientTool, ...]:
    """Return tools executed by the run's client."""
    definitions = options.get("client_tools")
    if not definitions:
        return ()
    # Imported lazily, because few runs have client tools.
    from rxloop.tools.client_definitions import client_tools

    return client_tools(definitions)
