"""Views that filter events."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, TypeVar, cast, get_args, overload

from reactivex import operators as ops

from rxloop.errors import ConfigurationError
from rxloop.operators.views import EventView, View, name_view
from rxloop.operators.views.make_view import ViewOutput, make_view
from rxloop.protocol.events import (
    THOUGHT_TYPES,
    Event,
    ThoughtStreamEvent,
    ThoughtType,
    ToolCompleteEvent,
    UsageEvent,
    Verbosity,
    ends_attempt,
)
from rxloop.support.misuse import check_argument, is_number

A = TypeVar("A", bound=Event)
B = TypeVar("B", bound=Event)
C = TypeVar("C", bound=Event)
D = TypeVar("D", bound=Event)
E = TypeVar("E", bound=Event)


@overload
def of_type(first: type[A], /) -> View[Event, A]: ...
@overload
def of_type(first: type[A], second: type[B], /) -> View[Event, A | B]: ...
@overload
def of_type(first: type[A], second: type[B], third: type[C], /) -> View[Event, A | B | C]: ...
@overload
def of_type(first: type[A], second: type[B], third: type[C], fourth: type[D], /) -> View[Event, A | B | C | D]: ...
@overload
def of_type(
    first: type[A], second: type[B], third: type[C], fourth: type[D], fifth: type[E], /
) -> View[Event, A | B | C | D | E]: ...
@overload
def of_type(first: type[Event], /, *others: type[Event]) -> View[Event, Event]: ...


def of_type(first: type[Event], /, *others: type[Event]) -> View[Any, Any]:
    """Keep events of the given classes, and narrow the type of the view accordingly.

    ::

        source                 --S--a--a--C--|
        of_type(S, C)          --S--------C--|

    Example:
        >>> async for event in run.pipe(op.of_type(ToolStartEvent, ToolCompleteEvent)):
        ...     match event:
        ...         case ToolStartEvent(): print("->", event.name)
        ...         case ToolCompleteEvent(): print("<-", event.content)

    Args:
        first: Event class, including its subclasses.
        others: More event classes. With more than five classes in total, the static type of the events is `Event`.

    Returns:
        View of the events of these classes, in order.

    Raises:
        ConfigurationError: An argument is not a class.
    """
    classes = (first, *others)
    for kind in cast("tuple[Any, ...]", classes):
        if not isinstance(kind, type):
            raise ConfigurationError(f"op.of_type() requires event classes such as ToolStartEvent, got {kind!r}")
    # Cache results, because `isinstance` is slow for non-matching classes.
    matches_by_type: dict[type[Event], bool] = {}

    def matches(event: Event) -> bool:
        result = matches_by_type.get(type(event))
        if result is None:
            result = matches_by_type[type(event)] = isinstance(event, classes)
        return result

    return name_view(ops.filter(matches), "op.of_type")


def for_task(task_id: str) -> EventView:
    """Keep events with the given task id, for example to select a nested agent or one run of a conversation.

    ::

        source          --a1--b1--a2--b2--|
        for_task("a")   --a1------a2------|

    Args:
        task_id: Task id. An unknown id results in an empty view.

    Returns:
        View of the events of the task, in order.
    """

    def matches(event: Event) -> bool:
        return event.task_id == task_id

    return cast("EventView", name_view(ops.filter(matches), "op.for_task"))


_LEVELS: tuple[str, ...] = get_args(Verbosity)


def thoughts(
    types: ThoughtType | Collection[ThoughtType] | None = None,
    *,
    min_confidence: float | None = None,
    verbosity: Verbosity | None = None,
) -> View[Event, ThoughtStreamEvent]:
    """Keep thoughts, optionally filtered by type, confidence and verbosity.

    ::

        source                            --t(.9)--a--t(.2)--t(?)--|      t thought-stream, ? no confidence
        thoughts(min_confidence=0.5)      --t(.9)------------------|

    Example:
        >>> run.pipe(op.thoughts("decision", min_confidence=0.5)).subscribe(lambda t: print(t.content))

    Args:
        types: One or more thought types. The default is all.
        min_confidence: Minimum confidence from 0 to 1. If it is set, thoughts without a confidence are omitted.
        verbosity: Maximum verbosity. `brief` keeps brief thoughts only, `normal` omits detailed ones.

    Returns:
        View of the matching thoughts, in order.

    Raises:
        ConfigurationError: An argument is invalid. Raised immediately.
    """
    allowed = _types(types)
    if min_confidence is not None and not (is_number(min_confidence) and 0 <= min_confidence <= 1):
        raise ConfigurationError(f"min_confidence must be from 0 to 1, got {min_confidence!r}")
    levels = _levels(verbosity)

    def matches(event: Event) -> bool:
        if not isinstance(event, ThoughtStreamEvent):
            return False
        if event.thought_type not in allowed or event.verbosity not in levels:
            return False
        if min_confidence is None:
            return True
        return event.confidence is not None and event.confidence >= min_confidence

    return cast("View[Event, ThoughtStreamEvent]", name_view(ops.filter(matches), "op.thoughts"))


def _types(types: ThoughtType | Collection[ThoughtType] | None) -> frozenset[str]:
    if types is None:
        return frozenset(THOUGHT_TYPES)
    names: frozenset[str] = frozenset([types] if isinstance(types, str) else types)
    unknown = sorted(names.difference(THOUGHT_TYPES))
    if unknown:
        raise ConfigurationError(f"types must be among {', '.join(THOUGHT_TYPES)}, got {', '.join(unknown)}")
    return names


def _levels(verbosity: Verbosity | None) -> tuple[str, ...]:
    if verbosity is None:
        return _LEVELS
    check_argument("verbosity", verbosity, verbosity in _LEVELS, f"one of {', '.join(_LEVELS)}")
    return _LEVELS[: _LEVELS.index(verbosity) + 1]


def tool_calls() -> View[Event, ToolCompleteEvent]:
    """Keep the finished tool calls, with their arguments, result or error, and duration.

    ::

        source           --s--p--C--s--C--|      s tool-start, p tool-progress, C tool-complete
        tool_calls()     --------C-----C--|

    Returns:
        View of the `tool-complete` events in the order in which the calls ended, including refused calls.
    """
    return name_view(of_type(ToolCompleteEvent), "op.tool_calls")


def usage() -> View[Event, UsageEvent]:
    """Keep `usage` events, which contain the token usage of a single model call.

    ::

        source      --d--d--U--c--d--U--c--|      U usage
        usage()     --------U--------U-----|

    Example:
        >>> total = run.pipe(op.usage(), rx.scan(lambda sum, event: sum + event.usage, Usage()))

    Returns:
        View of the `usage` events, in order.
    """
    return name_view(of_type(UsageEvent), "op.usage")


def public() -> EventView:
    """Return the public form of the events, for clients.

    Internal events and the events of hidden tools are omitted; thoughts of a hidden tool such as `think_aloud` remain.
    Fields that are not public have their default values. See `Event.to_public`.

    ::

        source       --a--i--b--h--m--|      i internal, h of a hidden tool, m with metadata
        public()     --a-----b-----n--|      n the same without

    Returns:
        View of the public events, in order.
    """

    def emit_public(out: ViewOutput[Event]) -> Callable[[Event], None]:
        emit = out.emit

        def handle(event: Event) -> None:
            public_event = event.to_public()
            if public_event is not None:
                emit(public_event)

        return handle

    return cast("EventView", make_view(emit_public))


def until_final() -> EventView:
    """Complete after the final `status-update` of the run.

    Useful for streams that continue, such as those of a conversation or of a log with later attempts. The end of a
    nested run does not complete the view.

    ::

        source            --a--f'--b--F--c--      F final, f' final of a nested run
        until_final()     --a--f'--b--(F|)

    Returns:
        View of the events up to and including the final one.
    """

    def is_not_final(event: Event) -> bool:
        return not ends_attempt(event)

    return cast("EventView", name_view(ops.take_while(is_not_final, inclusive=True), "op.until_final"))
