"""View for event order validation."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from rxloop.errors import GrammarError
from rxloop.operators.views import EventView
from rxloop.operators.views.make_view import ViewOutput, make_view
from rxloop.protocol.events import Event
from rxloop.state.grammar import Grammar


def grammar(*, whole: bool = True) -> EventView:
    """Pass all events, and fail with a `GrammarError` at the first event that violates the protocol.

    The view checks these rules for the run and separately for each nested run and branch:

    * `task` is first and `status-update` (working) second. A resumed attempt starts with a `status-update`.
    * `seq` has no gaps, `sub` increases, and `attempt` increases by one when an attempt starts.
    * Deltas are between the `llm-call` of their step and its only `content-complete`.
    * A tool call is in a message before it starts, starts before it ends, and ends once. The next model call comes
    after
      all tool calls of the branch have ended.
    * A question is asked before it is answered, and answered once.
    * An attempt has one final event. All calls are closed before it, and no event follows it.

    The view needs the whole stream, so put filters after it. It does not report merged or dropped deltas, or events
    missing after a `gap`. A nested run is checked if its `task` was passed on.

    ::

        source        --t--w--l--d--c--d--F|      a delta after its content-complete
        grammar()     --t--w--l--d--c--#

    Example:
        >>> await agent.run("Weather?").pipe(op.grammar())

    Args:
        whole: Whether the stream starts with its run or attempt. If False, as after a cursor, references to earlier
            events are not checked.

    Returns:
        View of all events, in order.
    """

    def check(out: ViewOutput[Event]) -> Callable[[Event], None]:
        rules = Grammar(whole=whole)

        def handle(event: Event) -> None:
            try:
                rules.check(event)
            except GrammarError as error:
                out.fail(error)
            else:
                out.emit(event)

        def end() -> None:
            try:
                rules.end()
            except GrammarError as error:
                out.fail(error)

        out.on_end(end)
        return handle

    return cast("EventView", make_view(check))
