"""The view of the thoughts."""

from __future__ import annotations

from collections.abc import Collection
from typing import cast, get_args

from reactivex import operators as ops

from rxloop.errors import ConfigurationError
from rxloop.operators.views._types import View, named
from rxloop.protocol.events import THOUGHT_TYPES, Event, ThoughtStreamEvent, ThoughtType, Verbosity

_LEVELS: tuple[str, ...] = get_args(Verbosity)


def thoughts(
    types: ThoughtType | Collection[ThoughtType] | None = None,
    *,
    min_confidence: float | None = None,
    verbosity: Verbosity | None = None,
) -> View[Event, ThoughtStreamEvent]:
    """Keep the thoughts, or some of them.

    ::

        source                            --t(.9)--a--t(.2)--t(?)--|      t thought-stream, ? no confidence
        thoughts(min_confidence=0.5)      --t(.9)------------------|

    Example:
        >>> run.pipe(op.thoughts("decision", min_confidence=0.5)).subscribe(lambda t: print(t.content))

    Args:
        types: The type of thought to keep, or several; None keeps all.
        min_confidence: The least confidence, from 0 to 1. A thought that states none does not pass, not even 0.
        verbosity: The most detail: `brief` keeps brief thoughts only, `normal` leaves out the detailed ones.

    Returns:
        A view of the thoughts that match, in order.

    Raises:
        ConfigurationError: A type, the confidence or the verbosity is not one; raised at once.
    """
    wanted = _types(types)
    if min_confidence is not None and not 0 <= min_confidence <= 1:
        raise ConfigurationError(f"min_confidence must be from 0 to 1, not {min_confidence}")
    levels = _levels(verbosity)

    def matches(event: Event) -> bool:
        if not isinstance(event, ThoughtStreamEvent):
            return False
        if event.thought_type not in wanted or event.verbosity not in levels:
            return False
        if min_confidence is None:
            return True
        return event.confidence is not None and event.confidence >= min_confidence

    return cast("View[Event, ThoughtStreamEvent]", named(ops.filter(matches), "thoughts"))


def _types(types: ThoughtType | Collection[ThoughtType] | None) -> frozenset[str]:
    if types is None:
        return frozenset(THOUGHT_TYPES)
    wanted: frozenset[str] = frozenset([types] if isinstance(types, str) else types)
    unknown = sorted(wanted.difference(THOUGHT_TYPES))
    if unknown:
        raise ConfigurationError(f"unknown thought types: {', '.join(unknown)}; there are {', '.join(THOUGHT_TYPES)}")
    return wanted


def _levels(verbosity: Verbosity | None) -> tuple[str, ...]:
    if verbosity is None:
        return _LEVELS
    if verbosity not in _LEVELS:
        raise ConfigurationError(f"unknown verbosity {verbosity!r}; there are {', '.join(_LEVELS)}")
    return _LEVELS[: _LEVELS.index(verbosity) + 1]
