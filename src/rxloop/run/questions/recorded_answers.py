"""Handling of recorded answers that are no longer requested by the tool or guard."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Set
from typing import Any

from rxloop.pipeline.interfaces import Tool
from rxloop.pipeline.requests import ToolRequest
from rxloop.protocol.events import Event, InputReceivedEvent, LLMNoticeEvent, QuestionEvent, ToolCompleteEvent
from rxloop.protocol.json_data import replace_surrogates
from rxloop.protocol.messages import PendingInput, get_tool_error
from rxloop.protocol.refusals import is_refusal, refusal_reason
from rxloop.run.recorder import Recorder
from rxloop.state.earlier_attempts import AskedQuestion
from rxloop.state.history import Slot
from rxloop.tools.approval import approval_question
from rxloop.tools.client_tool import ClientTool
from rxloop.tools.result import MAX_RESULT_CHARS, encode_result, truncate_text

log = logging.getLogger("rxloop")


def find_recorded_outcome(
    recorder: Recorder, read: set[str], request: ToolRequest, tool: Tool | str
) -> ToolCompleteEvent | None:
    """Return the tool result that follows from an unused recorded answer.

    A recorded refusal is applied even if the tool or guard was changed or removed. If a client executed the call and
    the tool is no longer a client tool, the client's answer is used as the result.

    Args:
        recorder: The recorder of the current attempt.
        read: Input ids of the questions that were asked in this attempt.
        request: The tool call, after all guards.
        tool: The current tool with this name, or an error message if the tool does not exist.

    Returns:
        None if no recorded answer decides the call.
    """
    approval = None
    if not isinstance(tool, str) and tool.approve:
        approval = replace_surrogates(approval_question(tool.approve, request.call))
    discarded = recorder.earlier.discarded
    answers = {**discarded, **request.ctx.state.answers}
    for input_id, record in _list_unread(recorder, read):
        if record.slot != request.slot or input_id not in answers:
            continue
        answer, question = answers[input_id], record.question
        if record.precedes_start and question.prompt == approval:
            # `run_tools` asks this question and reads its answer.
            continue
        if question.input_kind == "tool" and not isinstance(tool, ClientTool) and input_id not in discarded:
            error = get_tool_error(answer)
            if error is None and isinstance(tool, str):
                continue
            _report(recorder, read, question, "it became the result of the call")
            if error is not None:
                return request.refuse(error, code="error")
            return request.answer(answer, _format_content(answer))
        if is_refusal(answer) and (record.precedes_start or not _may_ask(recorder, question, request.slot, tool)):
            _report(recorder, read, question, "the call was closed as refused")
            return request.refuse(_format_refusal(request.call.name, question, answer))
    return None


def report_unread(
    recorder: Recorder, read: set[str], initial_events: Iterable[Event], handled_slots: Set[Slot], *, ended: bool
) -> None:
    """Report unused recorded answers in the log and as events.

    Args:
        recorder: Recorder of the attempt, before the final event.
        read: Input ids that were used in this attempt.
        initial_events: First events of the attempt, including its answers.
        handled_slots: Tool calls handled by this attempt.
        ended: True if the pipeline completed without an error.
    """
    state, earlier = recorder.state(), recorder.earlier
    batches = [each.batch for each in recorder.states.values() if each.batch is not None]
    open_slots = {(batch.step, index) for batch in batches for index in batch.open}
    answers = {event.input_id: event for event in initial_events if isinstance(event, InputReceivedEvent)}
    for input_id, record in list(_list_unread(recorder, read)):
        if input_id not in state.answers or record.slot in open_slots:
            continue
        answered_now = input_id in answers if record.slot is None else True
        if (ended and answered_now) or (record.slot is not None and record.slot in handled_slots):
            _report(recorder, read, record.question, "it was ignored")
    if not ended:
        return
    for asking in earlier.nested_events:
        # Answers for nested runs that were not resumed.
        if isinstance(asking, QuestionEvent) and not earlier.is_resumed(asking.task_id):
            answer = answers.pop(asking.input_id, None)
            if answer is not None and answer.task_id == asking.task_id:
                _report(recorder, read, asking.input, "it was ignored")


def _list_unread(recorder: Recorder, read: set[str]) -> Iterator[tuple[str, AskedQuestion]]:
    return ((key, record) for key, record in recorder.earlier.undecided.items() if key not in read)


def _may_ask(recorder: Recorder, question: PendingInput, slot: Slot, tool: Tool | str) -> bool:
    """Return True if the tool can ask its earlier question again."""
    if isinstance(tool, str):
        return False
    if isinstance(tool, ClientTool):
        return question.input_kind == "tool"
    # MCP tools only repeat questions from an MCP server, and never ask their own.
    asked_by_server = "mcp" in recorder.earlier.notes.get(slot, {})
    return asked_by_server == getattr(tool, "asks_in_rounds", False) and getattr(tool, "takes_context", True)


def _format_refusal(name: str, question: PendingInput, answer: Any) -> str:
    text = f"The call of {name} was not approved"
    reason = refusal_reason(answer)
    return f"{text}." if reason is None else truncate_text(replace_surrogates(f"{text}: {reason}"), MAX_RESULT_CHARS)


def _format_content(answer: Any) -> str:
    return truncate_text(encode_result(answer)[1], MAX_RESULT_CHARS)


def _report(recorder: Recorder, read: set[str], question: PendingInput, outcome: str) -> None:
    read.add(question.input_id)
    call = "" if question.call is None or question.call.hidden else f" of the call {question.call.name}"
    text = f"The answer to {question.input_id}{call} is no longer requested by the code; {outcome}."
    log.warning("run %s: %s", recorder.task_id, text)
    recorder.publish(LLMNoticeEvent(code="unread_answer", message=text, step=question.step))
