"""Checks of arguments before anything starts."""

# What is checked here may be anything, whatever the annotations of its callers say.
# pyright: reportUnknownArgumentType=false, reportUnknownVariableType=false, reportUnknownMemberType=false

from __future__ import annotations

import inspect
import logging
from collections.abc import AsyncIterable, Callable, Collection, Iterable, Mapping, Sequence
from os import PathLike, fspath
from typing import Any, cast

from reactivex import Observable

from rxloop import operators
from rxloop.errors import ConfigurationError, InvalidEvent
from rxloop.operators.loop.checks import check_iteration, check_run
from rxloop.operators.loop.compose import describe
from rxloop.operators.views import VIEW
from rxloop.pipeline.event_log import EventLog
from rxloop.pipeline.interfaces import Provider
from rxloop.pipeline.requests import Operator
from rxloop.protocol.ids import check_name, check_task_id
from rxloop.protocol.json_data import storable
from rxloop.protocol.messages import Message, Wire
from rxloop.protocol.settings import Limits, ModelSettings
from rxloop.state.run_state import MAIL_ID
from rxloop.tools.agent_tools import nearest
from rxloop.tools.think_aloud import Thoughts

log = logging.getLogger("rxloop")

_MODEL = "give a provider, or a model string such as 'zai:glm-4.7'"

_LOOP = "give a list of operators, such as [op.call_model(), op.run_tools()]"


def check_agent(
    *,
    model: Any,
    name: Any,
    instructions: Any,
    tools: Any,
    output_retries: Any,
    loop: Any,
    strategy: Any,
    limits: Any,
    thoughts: Any,
    log: Any,
    artifacts: Any,
    settings: Any,
) -> None:
    """Refuse arguments of an agent that are of a wrong kind.

    Raises:
        ConfigurationError: One is; it says which, what was given, and what to write.
    """
    check_model(model)
    check_tools(tools)
    check_options(settings=settings, limits=limits, strategy=strategy)
    if not isinstance(name, str):
        raise _wrong("name", name, "give a text")
    if not (isinstance(instructions, str) or callable(instructions)):
        advice = "give a text or a function of the run's context, or leave it out"
        raise _wrong("instructions", instructions, advice)
    if not isinstance(output_retries, int) or output_retries < 0:
        raise _wrong("output_retries", output_retries, "give a number of times: 0 or more")
    if loop is not None:
        _check_loop(loop)
    if not isinstance(thoughts, bool | Thoughts):
        raise _wrong("thoughts", thoughts, "give True, False, or Thoughts()")
    if log is not None:
        check_log(log)
    if isinstance(artifacts, str | PathLike):
        where = fspath(cast("str | PathLike[str]", artifacts))
        raise _wrong("artifacts", artifacts, f"write artifacts=FolderArtifacts({where!r})")
    if artifacts is not None:
        # Imported here: importing rxloop is quicker without.
        from rxloop.pipeline.artifacts import ArtifactStore

        if isinstance(artifacts, type) or not isinstance(artifacts, ArtifactStore):
            raise _wrong("artifacts", artifacts, "give a store, such as FolderArtifacts('files')")


def check_options(
    *,
    task_id: Any = None,
    owner: Any = None,
    context_id: Any = None,
    when_busy: Any = None,
    model: Any = None,
    settings: Any = None,
    limits: Any = None,
    strategy: Any = None,
    on_input: Any = None,
    steering: Any = None,
    metadata: Any = None,
    client_tools: Any = None,
) -> None:
    """Refuse what is said of one run and is of a wrong kind; None stands for what is not said.

    Raises:
        ConfigurationError: As for `check_agent`.
    """
    if task_id is not None:
        check_task_id(task_id)
    if owner is not None and not isinstance(owner, str):
        raise _wrong("owner", owner, "give a text, such as the id of a user")
    if context_id is not None:
        check_name(context_id, "context_id")
    if when_busy not in (None, "refuse", "wait"):
        raise _wrong("when_busy", when_busy, "give 'refuse' or 'wait'")
    if model is not None:
        check_model(model)
    _check_values("settings", settings, ModelSettings, "temperature=0")
    if settings is not None:
        _check_storable("settings.extra_body", settings.extra_body)
    _check_values("limits", limits, Limits, "iterations=3")
    if strategy is not None and not callable(strategy) and not isinstance(strategy, str):
        advice = "give a strategy, such as react() of rxloop.strategies, or the name of one"
        raise _wrong("strategy", strategy, advice)
    if on_input is not None and not callable(on_input):
        raise _wrong("on_input", on_input, "give a function that takes the question and gives the answer")
    if steering is not None and not isinstance(steering, Observable | AsyncIterable):
        raise _wrong("steering", steering, "give an Observable or an async iterable of messages")
    if metadata is not None and not isinstance(metadata, Mapping):
        raise _wrong("metadata", metadata, "give a dict")
    if metadata is not None:
        _check_storable("metadata", metadata)
        if MAIL_ID in metadata:
            raise _wrong("metadata", metadata, f"{MAIL_ID!r} is the number of a letter to a run: choose another name")
    if client_tools is not None and (isinstance(client_tools, str | bytes) or not isinstance(client_tools, Sequence)):
        raise _wrong("client_tools", client_tools, "give a list of definitions; each is a dict or of client_tool()")


def check_fork(at: Any, results: Any, tools: Any, fork_id: Any = None) -> None:
    """Refuse arguments of a fork that are of a wrong kind.

    Raises:
        ConfigurationError: As for `check_agent`.
    """
    if not isinstance(at, int) or isinstance(at, bool) or at < 1:
        raise _wrong("at", at, "give the seq of the last event to take over: 1 or more")
    if results is not None and not (isinstance(results, Mapping) and all(isinstance(key, str) for key in results)):
        raise _wrong("results", results, 'give a dict from ids of calls to results, such as {"call_1": "declined"}')
    if tools is not None:
        check_tools(tools)
    if fork_id is not None:
        check_task_id(fork_id)


def _check_storable(name: str, value: Any) -> None:
    try:
        storable(value, name)
    except InvalidEvent as error:
        raise ConfigurationError(f"{error}; what only your own code needs belongs into deps=") from error


def check_names(method: str, given: Iterable[str], known: Collection[str]) -> None:
    """Refuse an argument that a method does not have.

    Raises:
        TypeError: There is one; it says which was probably meant.
    """
    for name in given:
        if name not in known:
            near = nearest(name, known)
            advice = f"did you mean {near!r}?" if near is not None else f"it takes {', '.join(known)}"
            raise TypeError(f"Agent.{method}() got an unknown argument {name!r}; {advice}")


def check_model(model: Any) -> None:
    """Refuse what is neither a provider nor a string.

    Raises:
        ConfigurationError: As for `check_agent`.
    """
    if isinstance(model, type):
        raise _wrong("model", model, f"it is a class; {_MODEL}")
    if not isinstance(model, str | Provider):
        raise _wrong("model", model, _MODEL)


def check_tools(tools: Any) -> None:
    """Refuse what is not a list of tools; the tools themselves are checked where they are put together.

    Raises:
        ConfigurationError: As for `check_agent`.
    """
    if isinstance(tools, str | bytes | Mapping) or not isinstance(tools, Iterable):
        name = getattr(tools, "__name__", "tool") if callable(tools) else "tool"
        raise _wrong("tools", tools, f"give a list, such as tools=[{name}]")


def check_deps(method: str, kind: object, deps: object) -> None:
    """Refuse a run without the dependencies that its tools were written for, and warn of other ones.

    Args:
        method: What was called to make the run.
        kind: The `deps_type` of the agent; only a class can be checked.
        deps: What the run was given.

    Raises:
        ConfigurationError: There are none.
    """
    if not isinstance(kind, type) or kind is Any:
        return
    try:
        fits = isinstance(deps, kind)
    except TypeError:
        # A protocol or a dict with named keys, of which nothing can be told but that it is missing.
        fits = deps is not None
    if fits:
        return
    if deps is None:
        raise ConfigurationError(
            f"the tools of this agent need deps, and none were given: agent.{method}(..., deps={kind.__name__}(...))"
        )
    log.warning("deps is a %s, but the deps_type of the agent is %s", type(deps).__name__, kind.__name__)


def check_operator(strategy: Callable[..., Any], operator: Any) -> None:
    """Refuse what a strategy has made of the pipeline if it is not an operator, or holds one that guards nothing.

    Raises:
        ConfigurationError: It is so.
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
        # Built in: it does not tell what it takes.
        return True
    return True


def check_log(log: Any) -> None:
    """Refuse an argument that is not an event log.

    Raises:
        ConfigurationError: As for `check_agent`.
    """
    if isinstance(log, EventLog):
        return
    if isinstance(log, str | PathLike):
        raise _wrong("log", log, f"write log=open_log({fspath(cast('str | PathLike[str]', log))!r})")
    reason = "it is a class" if isinstance(log, type) else "it is not an EventLog"
    raise _wrong("log", log, f"{reason}; give an event log, such as MemoryEventLog(), or a subclass of EventLog")


def _check_values(argument: str, value: Any, kind: type[Wire], example: str) -> None:
    if value is None or isinstance(value, kind):
        return
    given = example
    if isinstance(value, dict):
        given = ", ".join(f"{name}={each!r}" for name, each in cast("dict[str, Any]", value).items())
    raise _wrong(argument, value, f"write {argument}={kind.__name__}({given})")


def _wrong(argument: str, value: object, advice: str) -> ConfigurationError:
    return ConfigurationError(f"{argument}={value!r} cannot be used: {advice}")


def check_history(messages: Sequence[Message]) -> tuple[Message, ...]:
    """Refuse a prompt in which a tool call and its answer do not stand together; vendors do, less clearly.

    Returns:
        The messages, with the answers to the calls of a message in the order of these calls.

    Raises:
        ConfigurationError: A call has no answer right after its message, or an answer has no call before it.
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
