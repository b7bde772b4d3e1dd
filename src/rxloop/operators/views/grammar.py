"""The view that checks the grammar of a stream."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from rxloop.errors import GrammarError
from rxloop.operators.views import EventView
from rxloop.operators.views.make_view import ViewOutput, make_view
from rxloop.protocol.events import Event
from rxloop.state.grammar import Grammar


def grammar(*, whole: bool = True) -> EventView:
    """Pass all events, and fail with a `GrammarError` at the first one that breaks a rule of the protocol.

    What it checks, for the run and for each nested run and each branch by itself:

    * `task` comes first and `status-update` (working) second; a resumed attempt begins with its own `status-update`.
    * `seq` has no gap, `sub` grows, and `attempt` grows by one where an attempt begins.
    * Deltas lie between the `llm-call` of their step and its `content-complete`, of which there is one.
    * A call is in a message before it starts, starts before it ends, and has one end; the model is asked again when all
      calls of a line are answered.
    * A question is asked before it is answered, and answered once.
    * An attempt has one final event, with nothing left open before it and nothing after it.

    It needs the whole stream: put filters after it. It is silent where readers may get less, on deltas that were
    merged or dropped, and after a `gap`. A nested run is checked if its `task` was passed on.

    ::

        source        --t--w--l--d--c--d--F|      a delta after its content-complete
        grammar()     --t--w--l--d--c--#

    Example:
        >>> await agent.run("Weather?").pipe(op.grammar())

    Args:
        whole: Whether the stream begins with its run or attempt. False for one that begins in the middle, after a
            cursor: what belongs to something earlier is then taken on trust.

    Returns:
        A view of all events, in order.
    """

    def check(out: ViewOutput[Event]) -> Callable[[Event], None]:
        rules = Grammar(whole=whole)

        def take(event: Event) -> None:
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
        return take

    return cast("EventView", make_view(check))
