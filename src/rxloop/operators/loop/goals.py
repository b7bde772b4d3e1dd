from __future__ import annotations

import logging
from typing import Any
from weakref import WeakKeyDictionary

from reactivex import Observable

from rxloop.errors import ConfigurationError
from rxloop.operators.loop.answer_requests import answer_requests
from rxloop.pipeline.host import get_host
from rxloop.pipeline.requests import ModelRequest, Operator, Signal
from rxloop.pipeline.sent.texts import mark_origin
from rxloop.protocol.messages import Message
from rxloop.protocol.tool_events import Goal, GoalChange, GoalsUpdatedEvent
from rxloop.stream.sources import emit
from rxloop.tools.goals import change_goals, render_goals

log = logging.getLogger("rxloop")


def goals(*initial: GoalChange) -> Operator[object]:
    """Add the current goals of the run to the end of each model request, but not to the history.

    ::

        in   --M------|     --M--|
        out  --(G,M1)-|     --M1-|

    G is a `goals-updated` event with the initial goals, which is published unless an earlier run of the conversation
    had goals. Goals that were changed before the first request of the run are added to the initial ones.

    M1 is the request with a list of the goals. Dropped goals and the parts of closed goals are omitted. The list only
    changes if the goals change, and the provider can cache the messages before it.

    The model edits goals with `rxloop.tools.goal_tool`, and the program with `rxloop.tools.update_goals`. The goals are
    part of the state of the run, so resumed runs, forks and the next run of the conversation have the same goals.
    Nested agents have goals of their own.

    Place the operator before `compress` and `thinking_phase`, because they count its tokens.

    Args:
        *initial: Initial goals.

    Raises:
        ConfigurationError: An initial goal is invalid.
    """
    first = tuple(change_goals((), initial))
    layers: WeakKeyDictionary[Any, tuple[tuple[Goal, ...], Message | None]] = WeakKeyDictionary()

    def answer(request: ModelRequest) -> Observable[Signal] | ModelRequest:
        state, host = request.ctx.state, get_host(request.ctx)
        adds = bool(first) and not state.planned
        current = _add_initial(first, state.goals or (), request.ctx.task_id) if adds else state.goals or ()
        layer = layers.get(host)
        if layer is None or layer[0] is not current:
            text = render_goals(current)
            message = mark_origin(Message.user(f"[Goals, as they are now]\n{text}"), "note") if text else None
            layer = layers[host] = current, message
        request = request if layer[1] is None else request.replace(tail=(*request.tail, layer[1]))
        if adds:
            return emit(GoalsUpdatedEvent(goals=[*current], step=request.step, branch=request.branch), request)
        return request

    operator = answer_requests(ModelRequest, answer)
    operator.__qualname__ = "goals"
    return operator


def _add_initial(initial: tuple[Goal, ...], changed: tuple[Goal, ...], task_id: str) -> tuple[Goal, ...]:
    try:
        return tuple(change_goals(initial, [GoalChange(**dict(goal)) for goal in changed]))
    except ConfigurationError as error:
        log.warning("Skipping the initial goals of run %s: %s", task_id, error)
        return changed
