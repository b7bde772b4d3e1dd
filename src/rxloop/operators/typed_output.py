from __future__ import annotations

from collections.abc import Callable
from typing import Any

import reactivex as rx
from reactivex import Observable

from rxloop.errors import InvalidOutput
from rxloop.events import MessageAddedEvent
from rxloop.operators.at_end import at_end
from rxloop.requests import IterationEnd, Operator, Signal
from rxloop.stream.bridges import emit


def typed_output(parse: Callable[[str], Any], retries: int = 2) -> Operator:
    """See that an answer fits the output type, and send it back to the model if it does not.

    ::

        in   --E--C---|
        out  -----C---m(E|)

    C the `content-complete` with the answer, E `IterationEnd`, m a `message-added` (cause `retry`) that says what is
    wrong, upon which the loop goes on.

    Args:
        parse: Reads an answer; raises ValueError with a text for the model.
        retries: How often an answer is sent back before the run fails with `InvalidOutput`.
    """

    def answer(end: IterationEnd) -> Observable[Signal]:
        state = end.ctx.state
        if not state.done:
            return emit(end)
        try:
            parse(state.content)
        except ValueError as error:
            if state.retries >= retries:
                return rx.throw(
                    InvalidOutput(f"the answer does not fit the output type after {retries} retries: {error}")
                )
            note = f"Your answer does not fit what was asked for: {error}\nAnswer again, with the corrected JSON alone."
            return emit(MessageAddedEvent(content=note, cause="retry", branch=end.ctx.branch), end)
        return emit(end)

    operator = at_end(answer)
    operator.__qualname__ = "typed_output"
    return operator
