"""Answers of a page to the questions of a run: which of them count, and what they are for the run."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from rxloop.errors import RunOver
from rxloop.pipeline.values import RunRecord
from rxloop.protocol.messages import Message
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
    reasons: dict[str, str] = {}
    for question in pending:
        asked = f"{record.task_id}:{question.input_id}"
        slot = f"{question.task_id or record.task_id}:{question.step}:{question.index}"
        if asked in answers.approvals and question.input_kind == "confirmation":
            given[question.input_id] = answers.approvals[asked]
            reasons.update({asked: answers.reasons[asked]} if asked in answers.reasons else {})
        elif question.input_kind == "tool" and slot in answers.results:
            given[question.input_id] = answers.results[slot]
        for named in (asked, question.input_id):
            if named in inputs:
                given[question.input_id] = inputs[named]
    if not given:
        if inputs or (last is not None and answers.seen >= record.seq):
            raise Refused(409, "not_waiting", _NOT_WAITING if pending else "the run waits for no answer")
        return False
    for asked, reason in reasons.items():
        # A decision is yes or no: what the person says to it is a message, and one however often it is posted.
        with suppress(RunOver):
            await host.runtime.say(record.task_id, Message.user(reason, message_id=f"{asked}:reason"))
    try:
        await questions.answer(host, record, given)
    except Refused as refused:
        if refused.code != "not_waiting":
            raise
        # Another tab was quicker: what comes of its answer comes here, too.
    return True


_NOT_WAITING = "the run waits for an answer, and this is none that it waits for"
