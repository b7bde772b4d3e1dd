"""Editing and rendering of goals."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import reduce
from typing import Annotated, Any

from pydantic import Field, ValidationError

from rxloop.errors import ConfigurationError, ToolError
from rxloop.pipeline.run_context import RunContext
from rxloop.protocol.tool_events import Goal, GoalChange, GoalsUpdatedEvent, check_goals
from rxloop.support.text import to_one_line
from rxloop.tools.function import tool

_WIDTH = 300
"""Maximum title length in characters."""


_MAX_LISTED = 5
"""Maximum number of listed dependencies of a goal, because each request contains all goals."""


def change_goals(goals: Sequence[Goal], changes: Sequence[GoalChange]) -> list[Goal]:
    """Return goals with changes. The given goals stay unchanged.

    If all goals are done or dropped, and the changes only contain new goals, the old ones are removed.

    Args:
        goals: Current goals.
        changes: Changes, all of which are applied or none.

    Raises:
        ConfigurationError: A new goal has no title, a value is invalid, or the result is not a tree of goals that can
            be done in some order.
    """
    changed = {goal.id: goal for goal in goals}
    for change in changes:
        if not isinstance(change, dict) or not isinstance(change.get("id"), str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigurationError(f"a change must be a dict with the `id` of a goal, got {change!r}")
    if all(goal.closed for goal in goals) and changed.keys().isdisjoint(change["id"] for change in changes):
        changed = {}
    for change in changes:
        fields: dict[str, Any] = {name: value for name, value in change.items() if value is not None}
        name, known = change["id"], changed.get(change["id"])
        if "parent" in fields:
            fields["parent"] = fields["parent"] or None
        if known is None and "title" not in fields:
            ids = ", ".join(changed) or "none"
            raise ConfigurationError(f"goal {name!r} is new and needs a title; the ids of existing goals are: {ids}")
        try:
            changed[name] = Goal.model_validate(({} if known is None else dict(known)) | fields)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            raise ConfigurationError(f"goal {name!r}: {first['loc'][0]}: {first['msg']}") from None
    try:
        return list(check_goals(list(changed.values())))
    except ValueError as error:
        raise ConfigurationError(str(error)) from None


def update_goals(ctx: RunContext[Any], *changes: GoalChange) -> tuple[Goal, ...]:
    """Add or change goals of a run. Publishes a `goals-updated` event if they differ.

    Args:
        ctx: Context of a tool or an operator.
        *changes: New goals and changes, such as `{"id": "tests", "status": "done"}`.

    Returns:
        All goals of the run.

    Raises:
        ConfigurationError: A change is invalid. The goals stay unchanged.
    """

    def update() -> tuple[Goal, ...]:
        before = ctx.state.goals or ()
        pending = None if ctx.active_call is None else ctx.active_call.goal_changes
        goals = tuple(reduce(change_goals, [*(pending or ()), changes], before))
        if pending is not None:
            pending.append(changes)
        elif goals != before:
            ctx.emit(GoalsUpdatedEvent(goals=[*goals]))
        return goals

    # In the thread of a sync tool, the state does not contain updates that are being published.
    return ctx.info.run_in_loop(update)


@tool(name="update_goals", idempotent=True)
async def goal_tool(
    ctx: RunContext[Any], goals: Annotated[list[GoalChange], Field(description="New and changed goals.")]
) -> str:
    """Keep track of work with several steps.

    Add the goals before you start. Mark a goal as active when you start it, and as done as soon as it is achieved and
    checked. Drop goals that are no longer needed. Send only new goals and changed fields.
    """
    try:
        statuses = Counter(goal.status for goal in update_goals(ctx, *goals))
    except ConfigurationError as error:
        raise ToolError(f"The goals are unchanged: {error}") from error
    return f"Goals: {', '.join(f'{count} {status}' for status, count in statuses.items()) or 'none'}."


def render_goals(goals: Sequence[Goal]) -> str:
    """Return goals as an indented list for the model, without dropped goals and the parts of closed goals."""
    parts: dict[str | None, list[Goal]] = {}
    for goal in goals:
        parts.setdefault(goal.parent, []).append(goal)
    closed = {goal.id for goal in goals if goal.closed}

    def render(parent: str | None, indent: str) -> Iterator[str]:
        for goal in parts.get(parent, ()):
            if goal.status == "dropped":
                continue
            missing = [to_one_line(name, _WIDTH) for name in goal.depends_on if name not in closed]
            if missing[_MAX_LISTED:]:
                missing[_MAX_LISTED:] = [f"{len(missing) - _MAX_LISTED} more"]
            waits = f", after {', '.join(missing)}" if missing and not goal.closed else ""
            yield f"{indent}- {to_one_line(goal.id, _WIDTH)} ({goal.status}{waits}): {to_one_line(goal.title, _WIDTH)}"
            if not goal.closed:
                yield from render(goal.id, f"{indent}  ")

    return "\n".join(render(None, ""))
