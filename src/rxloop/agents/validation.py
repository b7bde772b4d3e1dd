"""Argument validation for agents and runs."""

# Arguments may have any type at runtime, regardless of annotations.
# pyright: reportUnknownArgumentType=false, reportUnknownVariableType=false, reportUnknownMemberType=false

from __future__ import annotations

import inspect
import logging
from collections.abc import AsyncIterable, Callable, Iterable, Mapping, Sequence
from functools import partial
from os import PathLike, fspath
from typing import Any, NamedTuple, cast

from reactivex import Observable

from rxloop import operators
from rxloop.agents.options import AgentOptions, RunOptions
from rxloop.errors import ConfigurationError, InvalidEvent
from rxloop.operators.loop.checks import check_iteration, check_run
from rxloop.operators.loop.compose import check_loop_operator, describe
from rxloop.operators.views import check_views
from rxloop.pipeline.interfaces import Provider
from rxloop.pipeline.requests import Operator
from rxloop.protocol.envelope import RESERVED_METADATA
from rxloop.protocol.ids import check_task_id, validate_id
from rxloop.protocol.json_data import freeze_json
from rxloop.protocol.messages import Message, Prompt, Wire, to_messages
from rxloop.protocol.settings import Limits, ModelSettings
from rxloop.storage.log_urls import check_log
from rxloop.support.misuse import check_argument, check_type
from rxloop.tools.think_aloud import Thoughts

log = logging.getLogger("rxloop")

_MODEL = "a provider, or a model string such as 'zai:glm-4.7'"

_LOOP = "a list of operators, such as [op.call_model(), op.run_tools()]"


class _OptionType(NamedTuple):
    """Accepted types for an option, and their description in error messages."""

    types: tuple[Any, ...]
    description: str


_OPTION_TYPES = {
    "name": _OptionType((str,), "a string"),
    "instructions": _OptionType((str, Callable), "a string, or a function of the run context"),
    "output_retries": _OptionType((int,), "a non-negative integer"),
    "strategy": _OptionType((str, Callable), "a strategy, such as rxloop.strategies.react(), or its name"),
    "thoughts": _OptionType((bool, Thoughts), "True, False or Thoughts()"),
    "record_requests": _OptionType((bool,), "True or False"),
    "owner": _OptionType((str,), "a string, such as a user id"),
    "on_input": _OptionType((Callable,), "a function that answers a question"),
    "steering": _OptionType((Observable, AsyncIterable), "an Observable or an async iterable of messages"),
    "metadata": _OptionType((Mapping,), "a dict"),
}

_NEVER_NONE = {"name", "instructions", "tools", "output_retries", "thoughts", "record_requests"}
"""Agent options that do not accept None as a default."""


def check_options(callee: str, options: Mapping[str, Any], kind: type) -> None:
    """Check option names and types.

    Args:
        callee: Method name for error messages, such as `Agent.run`.
        options: Options to check.
        kind: TypedDict with the allowed options.

    Raises:
        TypeError: If an option is unknown. The message suggests a similar name.
        ConfigurationError: If an option has an invalid type. The message contains the name, value and remedy.
    """
    allowed = kind.__annotations__
    for name, value in options.items():
        if name not in allowed:
            raise _make_name_error(callee, name, allowed)
        if value is None and (kind is not AgentOptions or name not in _NEVER_NONE):
            continue
        expected = _OPTION_TYPES.get(name)
        if expected is not None:
            check_type(name, value, expected.types, expected.description)
        check = _CHECKS.get(name)
        if check is not None:
            check(value)


def _make_name_error(callee: str, name: str, allowed: Iterable[str]) -> TypeError:
    # Imported lazily, because correct programs do not need it.
    from rxloop._names import explain_argument, explain_name

    places = [callee if callee == "Agent" else "Agent.run", "option"]
    remedy = explain_name(places, name, ())
    if not remedy and callee != "Agent" and name in {*AgentOptions.__annotations__, "output_type", "deps_type"}:
        remedy = f"pass it to Agent(..., {name}=...)"
    elif not remedy and callee != "Agent.run" and name in {*RunOptions.__annotations__, "deps", "prompt"}:
        remedy = f"pass it to agent.run(..., {name}=...)"
    remedy = remedy or explain_argument(callee, (), name, allowed)
    return TypeError(f"{callee}() got an unknown argument {name!r}; {remedy}")


def check_change(name: str, *, is_reserved: bool) -> None:
    """Reject a new value for an attribute of an agent.

    Args:
        name: Attribute.
        is_reserved: False for additional attributes of a subclass. Their names must differ from the options.

    Raises:
        AttributeError: If the attribute is reserved. The message contains a remedy.
    """
    is_option = name in {*AgentOptions.__annotations__, "model", "output_type", "deps_type"}
    if not is_reserved and not is_option:
        return
    remedy = f"create another agent with Agent(..., {name}=...)"
    if not is_option:
        # Imported lazily, because correct programs do not need it.
        from rxloop._names import explain_name

        remedy = explain_name(["Agent", "option"], name, AgentOptions.__annotations__) or "create another agent"
    raise AttributeError(f"cannot set {name!r}, because agents are immutable; {remedy}")


def check_messages(prompt: Prompt) -> tuple[Message, ...]:
    """Return validated prompt messages.

    Raises:
        ConfigurationError: If the prompt is empty, or the history is invalid.
    """
    messages = to_messages(prompt)
    if not messages:
        raise ConfigurationError("the prompt must not be empty")
    return check_history(messages)


def _check_artifacts(artifacts: Any) -> None:
    # Imported lazily to keep `import rxloop` fast.
    from rxloop.pipeline.artifacts import ArtifactStore

    is_store = not isinstance(artifacts, type) and isinstance(artifacts, ArtifactStore)
    path = fspath(cast("str | PathLike[str]", artifacts)) if isinstance(artifacts, str | PathLike) else "files"
    check_argument("artifacts", artifacts, is_store, f"an ArtifactStore, such as FolderArtifacts({path!r})")


def _check_retries(retries: int) -> None:
    check_argument("output_retries", retries, retries >= 0, _OPTION_TYPES["output_retries"].description)


def _check_settings(settings: Any) -> None:
    _check_values("settings", settings, ModelSettings, "temperature=0")
    _check_storable("settings.extra_body", settings.extra_body)


def _check_metadata(metadata: Mapping[str, Any]) -> None:
    _check_storable("metadata", metadata)
    if reserved := RESERVED_METADATA.intersection(metadata):
        raise ConfigurationError(f"metadata must not contain the reserved key {min(reserved)!r}, got {metadata!r}")


def _check_client_tools(tools: Any) -> None:
    is_list = isinstance(tools, Sequence) and not isinstance(tools, str | bytes)
    check_argument("client_tools", tools, is_list, "a list of dicts or client_tool() objects")


def _check_when_busy(when_busy: Any) -> None:
    check_argument("when_busy", when_busy, when_busy in ("refuse", "wait"), "'refuse' or 'wait'")


def check_seq(seq: Any) -> None:
    """Check the position for a fork.

    Raises:
        ConfigurationError: If the position is not a positive integer.
    """
    is_seq = isinstance(seq, int) and not isinstance(seq, bool) and seq >= 1
    check_argument("at", seq, is_seq, "a positive integer, the seq of the last event to copy")


def _check_results(results: Any) -> None:
    is_valid = isinstance(results, Mapping) and all(isinstance(key, str) for key in results)
    check_argument("results", results, is_valid, 'a dict of results by call id, such as {"call_1": "declined"}')


def check_inputs(inputs: Any) -> None:
    """Check answers to questions.

    Raises:
        ConfigurationError: If they are not a mapping by `input_id`.
    """
    check_type("inputs", inputs, Mapping, "a dict of answers, such as {result.pending[0].input_id: True}")


def check_run_id(task_id: Any) -> None:
    """Check the ID of an existing run.

    Raises:
        ConfigurationError: If it is not a string.
    """
    has_id = isinstance(getattr(task_id, "task_id", None), str)
    check_type("task_id", task_id, str, "a string, the `task_id` of a run" + (", not the object" * has_id))


def check_deps_type(kind: Any) -> None:
    """Check the type of an agent's dependencies.

    Raises:
        ConfigurationError: If an object is given instead of its type.
    """
    is_type = isinstance(kind, type | None) or type(kind).__module__ in ("typing", "typing_extensions", "types")
    expected = f"a type, such as {type(kind).__name__}; pass the object with agent.run(..., deps=...)"
    check_argument("deps_type", kind, is_type, expected)


def _check_storable(name: str, value: Any) -> None:
    try:
        freeze_json(value, name)
    except InvalidEvent as error:
        raise ConfigurationError(f"{error}; use deps= for objects that only your code needs") from error


def check_model(model: Any) -> None:
    """Validate the model of an agent.

    Raises:
        ConfigurationError: If the type is invalid.
    """
    check_argument("model", model, not isinstance(model, type), f"{_MODEL}, not a class")
    check_type("model", model, str | Provider, _MODEL)


def check_tools(tools: Any) -> None:
    """Check that tools are given as a list. Individual tools are checked later.

    Raises:
        ConfigurationError: If the type is invalid.
    """
    if isinstance(tools, str | bytes | Mapping) or not isinstance(tools, Iterable):
        name = getattr(tools, "__name__", "tool") if callable(tools) else "tool"
        raise _make_error("tools", tools, f"a list, such as tools=[{name}]")


def check_deps(callee: str, kind: object, deps: object) -> None:
    """Check that required dependencies are present, and log a warning for unexpected types.

    Args:
        callee: Method name for error messages, such as `Agent.run`.
        kind: The agent's `deps_type`. Only classes are checked.
        deps: Dependencies of the run.

    Raises:
        ConfigurationError: If the dependencies are missing.
    """
    if not isinstance(kind, type) or kind is Any:
        return
    try:
        is_valid = isinstance(deps, kind)
    except TypeError:
        # Some protocols and TypedDicts do not support `isinstance`, so only check for None.
        is_valid = deps is not None
    if is_valid:
        return
    if deps is None:
        call = f"agent.{callee.removeprefix('Agent.')}(..., deps={kind.__name__}(...))"
        raise ConfigurationError(f"this agent requires deps: {call}")
    log.warning("deps is a %s, but the deps_type of the agent is %s", type(deps).__name__, kind.__name__)


def check_operator(strategy: Callable[..., Any], operator: Any) -> None:
    """Check that a strategy returns a valid operator.

    Raises:
        ConfigurationError: If the return value is not an operator, or contains a guard without effect.
    """
    if not callable(operator):
        raise ConfigurationError(
            f"strategy {describe(strategy)} must return an operator such as op.iterate, got {operator!r}"
        )
    check_run(cast("Operator", operator))


def _check_loop(loop: Any) -> None:
    is_list = isinstance(loop, Sequence) and not isinstance(loop, str | bytes | Mapping)
    check_argument("loop", loop, is_list, _LOOP)
    items = cast("Sequence[Any]", loop)
    for index, operator in enumerate(items):
        argument = f"loop[{index}]"
        check_loop_operator(argument, operator)
        if _is_factory(operator):
            raise _make_error(argument, operator, f"an operator, not a factory; call it as in {operator.__name__}()")
        expected = "an operator with one parameter, its source; if it is a factory, call it"
        check_argument(argument, operator, _accepts_one_argument(operator), expected)
    check_iteration(items)


def _is_factory(operator: Callable[..., Any]) -> bool:
    name = getattr(operator, "__name__", None)
    return name in operators.__all__ and operator is getattr(operators, name)


def _accepts_one_argument(operator: Callable[..., Any]) -> bool:
    try:
        inspect.signature(operator).bind(None)
    except TypeError:
        return False
    except ValueError:
        # Some built-in functions have no signature.
        return True
    return True


def _check_values(argument: str, value: Any, kind: type[Wire], example: str) -> None:
    if isinstance(value, kind):
        return
    arguments = example
    if isinstance(value, dict):
        arguments = ", ".join(f"{name}={each!r}" for name, each in cast("dict[str, Any]", value).items())
    raise _make_error(argument, value, f"of type {kind.__name__}, such as {kind.__name__}({arguments})")


def _make_error(argument: str, value: object, expected: str) -> ConfigurationError:
    return ConfigurationError(f"{argument} must be {expected}, got {value!r}")


def check_history(messages: Sequence[Message]) -> tuple[Message, ...]:
    """Check that tool calls have matching results. Providers return less helpful errors.

    Returns:
        Messages with tool results sorted in call order.

    Raises:
        ConfigurationError: If a call is not followed by its result, or a result is not preceded by its call.
    """
    ordered = list(messages)
    open_calls: dict[int, tuple[str, str]] = {}
    call_index = 0
    for index, message in enumerate(messages):
        if message.role == "tool":
            position = next((key for key, (call_id, _) in open_calls.items() if call_id == message.tool_call_id), None)
            if position is None:
                raise ConfigurationError(
                    f"prompt[{index}] answers tool call {message.tool_call_id!r}, but the preceding assistant message "
                    "has no open call with this id"
                )
            del open_calls[position]
            ordered[call_index + 1 + position] = message
            continue
        _check_answered(open_calls, call_index)
        call_index = index
        open_calls = {key: (call.id, call.name) for key, call in enumerate(message.tool_calls)}
    _check_answered(open_calls, call_index)
    return tuple(ordered)


def _check_answered(open_calls: Mapping[int, tuple[str, str]], index: int) -> None:
    for call_id, name in open_calls.values():
        raise ConfigurationError(
            f"prompt[{index}] has an unanswered call of tool {name!r} ({call_id!r}); "
            f"append Message.tool({call_id!r}, ...) or remove the call"
        )


_CHECKS: Mapping[str, Callable[[Any], object]] = {
    "artifacts": _check_artifacts,
    "client_tools": _check_client_tools,
    "context_id": partial(validate_id, name="context_id"),
    "fork_id": check_task_id,
    "inputs": check_inputs,
    "limits": lambda limits: _check_values("limits", limits, Limits, "iterations=3"),
    "log": check_log,
    "loop": _check_loop,
    "metadata": _check_metadata,
    "model": check_model,
    "output_retries": _check_retries,
    "results": _check_results,
    "settings": _check_settings,
    "task_id": check_task_id,
    "tools": check_tools,
    "views": check_views,
    "when_busy": _check_when_busy,
}
