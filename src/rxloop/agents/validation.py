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
from rxloop.agents.options import AgentOptions
from rxloop.errors import ConfigurationError, InvalidEvent
from rxloop.operators.loop.checks import check_iteration, check_run
from rxloop.operators.loop.compose import describe
from rxloop.operators.views import VIEW
from rxloop.pipeline.event_log import EventLog
from rxloop.pipeline.interfaces import Provider
from rxloop.pipeline.requests import Operator
from rxloop.protocol.ids import check_task_id, validate_id
from rxloop.protocol.json_data import freeze_json
from rxloop.protocol.messages import Message, Prompt, Wire, to_messages
from rxloop.protocol.settings import Limits, ModelSettings
from rxloop.state.run_state import COMMAND_ID
from rxloop.tools.agent_tools import find_nearest
from rxloop.tools.think_aloud import Thoughts

log = logging.getLogger("rxloop")

_MODEL = "give a provider, or a model string such as 'zai:glm-4.7'"

_LOOP = "give a list of operators, such as [op.call_model(), op.run_tools()]"


class _Kind(NamedTuple):
    """Accepted types for an option, with a remedy for the error message."""

    types: tuple[Any, ...]
    advice: str


_KINDS = {
    "name": _Kind((str,), "give a text"),
    "instructions": _Kind((str, Callable), "give a text or a function of the run's context, or leave it out"),
    "output_retries": _Kind((int,), "give a number of times: 0 or more"),
    "strategy": _Kind((str, Callable), "give a strategy, such as react() of rxloop.strategies, or the name of one"),
    "thoughts": _Kind((bool, Thoughts), "give True, False, or Thoughts()"),
    "owner": _Kind((str,), "give a text, such as the id of a user"),
    "on_input": _Kind((Callable,), "give a function that takes the question and gives the answer"),
    "steering": _Kind((Observable, AsyncIterable), "give an Observable or an async iterable of messages"),
    "metadata": _Kind((Mapping,), "give a dict"),
}

_NEVER_NONE = {"name", "instructions", "tools", "output_retries", "thoughts"}
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
    known = kind.__annotations__
    for name, value in options.items():
        if name not in known:
            near = find_nearest(name, known)
            advice = f"did you mean {near!r}?" if near is not None else f"it takes {', '.join(known)}"
            raise TypeError(f"{callee}() got an unknown argument {name!r}; {advice}")
        if value is None and (kind is not AgentOptions or name not in _NEVER_NONE):
            continue
        expected = _KINDS.get(name)
        if expected is not None and not isinstance(value, expected.types):
            raise _wrong(name, value, expected.advice)
        check = _CHECKS.get(name)
        if check is not None:
            check(value)


def check_messages(prompt: Prompt) -> tuple[Message, ...]:
    """Return validated prompt messages.

    Raises:
        ConfigurationError: If the prompt is empty, or the history is invalid.
    """
    messages = to_messages(prompt)
    if not messages:
        raise ConfigurationError("the prompt is empty: give a text, a message, or a list of them")
    return check_history(messages)


def _check_artifacts(artifacts: Any) -> None:
    if isinstance(artifacts, str | PathLike):
        where = fspath(cast("str | PathLike[str]", artifacts))
        raise _wrong("artifacts", artifacts, f"write artifacts=FolderArtifacts({where!r})")
    # Imported lazily to keep `import rxloop` fast.
    from rxloop.pipeline.artifacts import ArtifactStore

    if isinstance(artifacts, type) or not isinstance(artifacts, ArtifactStore):
        raise _wrong("artifacts", artifacts, "give a store, such as FolderArtifacts('files')")


def _check_retries(retries: int) -> None:
    if retries < 0:
        raise _wrong("output_retries", retries, _KINDS["output_retries"].advice)


def _check_settings(settings: Any) -> None:
    _check_values("settings", settings, ModelSettings, "temperature=0")
    _check_storable("settings.extra_body", settings.extra_body)


def _check_metadata(metadata: Mapping[str, Any]) -> None:
    _check_storable("metadata", metadata)
    if COMMAND_ID in metadata:
        raise _wrong("metadata", metadata, f"{COMMAND_ID!r} is the number of a letter to a run: choose another name")


def _check_client_tools(tools: Any) -> None:
    if isinstance(tools, str | bytes) or not isinstance(tools, Sequence):
        raise _wrong("client_tools", tools, "give a list of definitions; each is a dict or of client_tool()")


def _check_when_busy(when_busy: Any) -> None:
    if when_busy not in ("refuse", "wait"):
        raise _wrong("when_busy", when_busy, "give 'refuse' or 'wait'")


def check_at(at: Any) -> None:
    """Check the position for a fork.

    Raises:
        ConfigurationError: If the position is not a positive integer.
    """
    if not isinstance(at, int) or isinstance(at, bool) or at < 1:
        raise _wrong("at", at, "give the seq of the last event to take over: 1 or more")


def _check_results(results: Any) -> None:
    if not (isinstance(results, Mapping) and all(isinstance(key, str) for key in results)):
        raise _wrong("results", results, 'give a dict from ids of calls to results, such as {"call_1": "declined"}')


def _check_storable(name: str, value: Any) -> None:
    try:
        freeze_json(value, name)
    except InvalidEvent as error:
        raise ConfigurationError(f"{error}; what only your own code needs belongs into deps=") from error


def check_model(model: Any) -> None:
    """Check the type of a model.

    Raises:
        ConfigurationError: If the type is invalid.
    """
    if isinstance(model, type):
        raise _wrong("model", model, f"it is a class; {_MODEL}")
    if not isinstance(model, str | Provider):
        raise _wrong("model", model, _MODEL)


def check_tools(tools: Any) -> None:
    """Check that tools are given as a list. Individual tools are checked later.

    Raises:
        ConfigurationError: If the type is invalid.
    """
    if isinstance(tools, str | bytes | Mapping) or not isinstance(tools, Iterable):
        name = getattr(tools, "__name__", "tool") if callable(tools) else "tool"
        raise _wrong("tools", tools, f"give a list, such as tools=[{name}]")


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
        fits = isinstance(deps, kind)
    except TypeError:
        # Some protocols and TypedDicts do not support `isinstance`, so only check for None.
        fits = deps is not None
    if fits:
        return
    if deps is None:
        call = f"agent.{callee.removeprefix('Agent.')}(..., deps={kind.__name__}(...))"
        raise ConfigurationError(f"the tools of this agent need deps, and none were given: {call}")
    log.warning("deps is a %s, but the deps_type of the agent is %s", type(deps).__name__, kind.__name__)


def check_operator(strategy: Callable[..., Any], operator: Any) -> None:
    """Check that a strategy returns a valid operator.

    Raises:
        ConfigurationError: If the return value is not an operator, or contains a guard without effect.
    """
    if not callable(operator):
        raise ConfigurationError(
            f"the strategy {describe(strategy)} gave {operator!r}: it has to give an operator, as op.iterate does"
        )
    check_run(cast("Operator", operator))


def _check_loop(loop: Any) -> None:
    if isinstance(loop, str | bytes | Mapping) or not isinstance(loop, Sequence):
        raise _wrong("loop", loop, _LOOP)
    items = cast("Sequence[Any]", loop)
    for place, operator in enumerate(items):
        argument = f"loop[{place}]"
        if isinstance(operator, list | tuple):
            raise _wrong(argument, operator, "it is a list of operators: put a * before it, as in [*op.standard()]")
        if not callable(operator):
            raise _wrong(argument, operator, "it is not an operator; give one, such as op.call_model()")
        if _makes_an_operator(operator):
            raise _wrong(argument, operator, f"it makes an operator: call it, as in {operator.__name__}()")
        if not _takes_one(operator):
            raise _wrong(argument, operator, "an operator takes one argument, its source: call what makes it")
        view = getattr(operator, VIEW, None)
        if view is not None:
            raise _wrong(argument, operator, f"it is a view, for subscribers: write run.pipe({view}(...))")
    check_iteration(items)


def _makes_an_operator(operator: Callable[..., Any]) -> bool:
    name = getattr(operator, "__name__", None)
    return name in operators.__all__ and operator is getattr(operators, name)


def _takes_one(operator: Callable[..., Any]) -> bool:
    try:
        inspect.signature(operator).bind(None)
    except TypeError:
        return False
    except ValueError:
        # Some built-in functions have no signature.
        return True
    return True


def check_log(log: Any) -> None:
    """Check the type of an event log.

    Raises:
        ConfigurationError: If the type is invalid.
    """
    if isinstance(log, EventLog):
        return
    if isinstance(log, str | PathLike):
        raise _wrong("log", log, f"write log=open_log({fspath(cast('str | PathLike[str]', log))!r})")
    reason = "it is a class" if isinstance(log, type) else "it is not an EventLog"
    raise _wrong("log", log, f"{reason}; give an event log, such as MemoryEventLog(), or a subclass of EventLog")


def _check_values(argument: str, value: Any, kind: type[Wire], example: str) -> None:
    if isinstance(value, kind):
        return
    given = example
    if isinstance(value, dict):
        given = ", ".join(f"{name}={each!r}" for name, each in cast("dict[str, Any]", value).items())
    raise _wrong(argument, value, f"write {argument}={kind.__name__}({given})")


def _wrong(argument: str, value: object, advice: str) -> ConfigurationError:
    return ConfigurationError(f"{argument}={value!r} cannot be used: {advice}")


def check_history(messages: Sequence[Message]) -> tuple[Message, ...]:
    """Check that tool calls and results match, because error messages from providers are less helpful.

    Returns:
        Messages with tool results sorted in call order.

    Raises:
        ConfigurationError: If a call is not followed by its result, or a result is not preceded by its call.
    """
    ordered = list(messages)
    due: dict[int, tuple[str, str]] = {}
    asked = 0
    for place, message in enumerate(messages):
        if message.role == "tool":
            answered = next((key for key, (call_id, _) in due.items() if call_id == message.tool_call_id), None)
            if answered is None:
                raise ConfigurationError(
                    f"prompt[{place}] answers the tool call {message.tool_call_id!r}, but no message of the assistant "
                    "right before it has an open call of that id: put it there, or leave the answer out"
                )
            del due[answered]
            ordered[asked + 1 + answered] = message
            continue
        _check_answered(due, asked)
        asked = place
        due = {key: (call.id, call.name) for key, call in enumerate(message.tool_calls)}
    _check_answered(due, asked)
    return tuple(ordered)


def _check_answered(due: Mapping[int, tuple[str, str]], place: int) -> None:
    for call_id, name in due.values():
        raise ConfigurationError(
            f"prompt[{place}] calls the tool {name!r} ({call_id!r}), and nothing after it answers the call: "
            f"put Message.tool({call_id!r}, ...) right after it, or leave the call out"
        )


_CHECKS: Mapping[str, Callable[[Any], object]] = {
    "artifacts": _check_artifacts,
    "client_tools": _check_client_tools,
    "context_id": partial(validate_id, name="context_id"),
    "fork_id": check_task_id,
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
    "when_busy": _check_when_busy,
}
