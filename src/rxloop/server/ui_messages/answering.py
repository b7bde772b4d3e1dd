"""Answers of a page to the questions of a run: which of them count, and what they are for the run."""

from __future__ import annotations

from typing import Any

from rxloop.pipeline.values import RunRecord
from rxloop.server import questions
from rxloop.server.host import Host
from rxloop.server.refusals import Refused
from rxloop.server.ui_messages.bodies import Answers


async def answer(host: Host, record: RunRecord, answers: Answers, inputs: dict[str, Any]) -> bool:
    """Give a run the answers that it waits for; the others of the message are those that it has.

    Args:
        host: Has the run.
        record: The run.
        answers: What stands in its message.
        inputs: Answers to other questions.

    Returns:
        Whether it goes on with any of them.

    Raises:
        Refused: An answer does not fit, or there is none that the run waits for and it tells nothing new.
    """
    last = await questions.last_update(host, record)
    pending = last.pending if last is not None else []
    given: dict[str, Any] = {}
    for question in pending:
        asked = f"{record.task_id}:{question.input_id}"
        slot = f"{question.task_id or record.task_id}:{question.step}:{question.index}"
        if asked in answers.approvals and question.input_kind == "confirmation":
            given[question.input_id] = answers.approvals[asked]
        elif question.input_kind == "tool" and slot in answers.results:
            given[question.input_id] = answers.results[slot]
        for named in (asked, question.input_id):
            if named in inputs:
                given[question.input_id] = inputs[named]
    if not given:
        if inputs or (last is not None and answers.seen >= record.seq):
            raise Refused(409, "not_waiting", _NOT_WAITING if pending else "the run waits for no answer")
        return False
    try:
        await questions.answer(host, record, given)
    except Refused as refused:
        if refused.code != "not_waiting":
            raise
        # Another tab was quicker: what comes of its answer comes here, too.
    return True


_NOT_WAITING = "the run waits for an answer, and this is none that it waits for"
