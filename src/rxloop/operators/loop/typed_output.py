from __future__ import annotations

from collections.abc import Callable
from typing import Any

import reactivex as rx
from reactivex import Observable

from rxloop.errors import InvalidOutput
from rxloop.operators.loop.at_end import at_end
from rxloop.pipeline.requests import IterationEnd, Operator, Signal
from rxloop.protocol.events import MessageAddedEvent
from rxloop.state.run_state import RunState
from rxloop.stream.bridges import emit
from rxloop.tools import FINAL_ANSWER


def typed_output(parse: Callable[[str], Any], retries: int = 2, *, by_tool: bool = False) -> Operator[object]:
    """Check that an answer fits the output type, and send it back to the model if it does not.

    ::

        in   --E--C---|
        out  -----C---(m,E|)

    C the `content-complete` with the answer, E `IterationEnd`, m a `message-added` (cause `retry`) that says what is
    wrong; the loop then goes on. For an answer by a tool call, the `tool-complete` says what is wrong; such answers
    count as well.

    Args:
        parse: Reads an answer; raises ValueError with a text for the model.
        retries: How often an answer is sent back before the run fails with `InvalidOutput`.
        by_tool: The answer should be the call of a tool; a text that fits is accepted too.
    """
    again = (
        f"Call the tool {FINAL_ANSWER} with your answer." if by_tool else "Answer again, with the corrected JSON alone."
    )

    def failure(error: object) -> InvalidOutput:
        return InvalidOutput(f"the answer does not fit the output type after {retries} retries: {error}")

    def answer(end: IterationEnd) -> Observable[Signal]:
        if end.ctx.branch is not None:
            # An answer beside the main line is not that of the run.
            return emit(end)
        state = end.ctx.state
        if not state.done:
            given_up = by_tool and state.retries > retries
            return rx.throw(failure(_refusal(state))) if given_up else emit(end)
        try:
            parse(state.content)
        except ValueError as error:
            if state.retries >= retries:
                return rx.throw(failure(error))
            note = f"Your answer does not fit what was asked for: {error}\n{again}"
            return emit(MessageAddedEvent(content=note, cause="retry"), end)
        return emit(end)

    operator = at_end(answer)
    operator.__qualname__ = "typed_output"
    return operator


def _refusal(state: RunState) -> str:
    """Find what the result of the last call for the answer said."""
    calls = state.last.tool_calls if state.last is not None else []
    asked = {call.id for call in calls if call.name == FINAL_ANSWER}
    texts = [message.text for message in reversed(state.messages) if message.tool_call_id in asked]
    return texts[0] if texts else "it came in no form that can be read"
