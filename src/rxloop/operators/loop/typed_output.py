from __future__ import annotations

from collections.abc import Callable
from typing import Any

import reactivex as rx
from reactivex import Observable

from rxloop.errors import IncompleteOutput, InvalidOutput
from rxloop.operators.loop.at_end import at_end
from rxloop.pipeline.requests import IterationEnd, Operator, Signal
from rxloop.protocol.events import ContentCompleteEvent, LLMNoticeEvent, MessageAddedEvent
from rxloop.protocol.finish import COMPLETE, CUT_OFF, explain_end, is_filtered, is_refusal
from rxloop.state.run_state import RunState
from rxloop.stream.sources import emit
from rxloop.support.misuse import check_argument, check_minimum
from rxloop.tools.output import FINAL_ANSWER, is_read_leniently

_READABLE = COMPLETE | CUT_OFF


def typed_output(parse: Callable[[str], Any], retries: int = 2, *, by_tool: bool = False) -> Operator[object]:
    """Validate the answer, and ask the model again if it is invalid.

    ::

        in   --E--C---|
        out  -----C---(m,E|)

    C is the `content-complete` with the answer, E the `IterationEnd`, and m a `message-added` event (cause `retry`)
    with the validation error, after which the loop continues. If the answer is a tool call, its `tool-complete` has the
    validation error instead, and also counts as a retry.

    The text of a message that did not end normally is never parsed. If the model refused, or a filter ended the
    message, the run fails immediately with `IncompleteOutput`. If the message was truncated, the note has the limit.

    Args:
        parse: Parses an answer. Raises ValueError with a message for the model.
        retries: Maximum number of retries before the run fails with `InvalidOutput`.
        by_tool: True if the model should answer with a tool call. Valid text is accepted too.

    Raises:
        ConfigurationError: An argument is invalid.
    """
    check_argument("parse", parse, callable(parse), "a function of the answer, such as Person.model_validate_json")
    check_minimum(0, retries=retries)
    instruction = (
        f"Call the tool {FINAL_ANSWER} with your answer." if by_tool else "Answer again, with the corrected JSON alone."
    )

    def failure(error: object) -> InvalidOutput:
        return InvalidOutput(f"the answer does not fit the output type after {retries} retries: {error}")

    def answer(end: IterationEnd) -> Observable[Signal]:
        if end.ctx.branch is not None:
            # Branches don't answer for the run.
            return emit(end)
        state = end.ctx.state
        last = state.last
        incomplete = last if last is not None and last.finish_reason not in _READABLE else None
        if not state.done:
            if not (by_tool and state.retries > retries):
                return emit(end)
            return rx.throw(failure(_refusal(state)) if incomplete is None else _to_error(incomplete, state))
        if incomplete is not None:
            if is_filtered(incomplete) or state.retries >= retries:
                return rx.throw(_to_error(incomplete, state))
            note = f"Your answer is incomplete: {explain_end(incomplete)}.\n{_ask_for_less(incomplete)}{instruction}"
            return emit(MessageAddedEvent(content=note, cause="retry"), end)
        try:
            parse(state.content)
        except ValueError as error:
            if state.retries >= retries:
                return rx.throw(failure(error))
            note = f"Your answer does not fit what was asked for: {error}\n{instruction}"
            return emit(MessageAddedEvent(content=note, cause="retry"), end)
        if is_read_leniently(state.content):
            notice = "the answer is the only JSON value in a text that is not JSON"
            return emit(LLMNoticeEvent(code="repaired", message=notice, step=end.ctx.step), end)
        return emit(end)

    operator = at_end(answer)
    operator.__qualname__ = "typed_output"
    return operator


def _to_error(message: ContentCompleteEvent, state: RunState) -> IncompleteOutput:
    """Create an error for incomplete answers, including the received text."""
    if is_refusal(message):
        code, why = "refused", "the model refused to answer"
    elif is_filtered(message):
        code, why = "content_filter", f"the answer is incomplete: {explain_end(message)}"
    else:
        code = "truncated" if message.finish_reason == "length" else "incomplete"
        why = f"the answer is incomplete: {explain_end(message)}"
    text = state.content.strip()
    return IncompleteOutput(f"{why}: {text}" if text else why, code=code)


def _ask_for_less(message: ContentCompleteEvent) -> str:
    return "Keep it shorter. " if message.finish_reason == "length" else ""


def _refusal(state: RunState) -> str:
    """Return the validation error in the result of the newest call of the answer tool."""
    calls = state.last.tool_calls if state.last is not None else []
    call_ids = {call.id for call in calls if call.name == FINAL_ANSWER}
    results = [message.text for message in reversed(state.messages) if message.tool_call_id in call_ids]
    return results[0] if results else "it came in no form that can be read"
