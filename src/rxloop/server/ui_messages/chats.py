"""Chat conversations and answers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, cast

import orjson
from reactivex import from_iterable

from rxloop.coordination.answers import new_answers
from rxloop.errors import InvalidInput
from rxloop.pipeline.log_retry import read_log
from rxloop.pipeline.records import RunRecord
from rxloop.protocol.events import Event, TaskEvent
from rxloop.protocol.ids import derive_id, is_id
from rxloop.protocol.messages import Message, PendingInput, TextPart
from rxloop.server.core import runs
from rxloop.server.core.chat_fold import chat
from rxloop.server.core.errors import Refused
from rxloop.server.core.gateway import Gateway, Principal
from rxloop.server.core.runs import find_started_run
from rxloop.server.ui_messages.fold import chunks
from rxloop.server.ui_messages.frames import Chunk, file_part, ui_message
from rxloop.server.ui_messages.requests import Answers, Asked
from rxloop.state.fold import fold_all
from rxloop.state.run_state import initial_state
from rxloop.storage.conversation import conversation

NOTE = "ui"
"""Metadata key for adapter data, which is needed to restore the chat later."""


class Place(NamedTuple):
    """Run within a chat."""

    record: RunRecord
    newest: bool
    """True if the run is in the chat's current conversation."""


class Chat:
    """A principal's chat.

    A chat starts as the conversation with the same id. Regenerating an answer creates a new conversation with a copy of
    the preceding messages, because a conversation cannot branch. The chat then continues in the new conversation.
    """

    def __init__(self, gateway: Gateway, principal: Principal, chat_id: str) -> None:
        self._gateway, self._principal, self._chat_id = gateway, principal, chat_id
        self.conversations: list[str] = [chat_id]
        """Conversation ids, oldest first."""
        self.begun = False

    async def find(self) -> Chat:
        """Load all conversations in this chat.

        Raises:
            Refused: If the chat belongs to another principal.
        """
        self.begun = await self._gateway.find_context(self._principal, self._chat_id)
        while self.begun and await self._gateway.find_context(self._principal, self.next_id()):
            self.conversations.append(self.next_id())
        return self

    def next_id(self) -> str:
        """Return the conversation id for the next regenerated answer."""
        return derive_id("chat", self._principal.id, self._chat_id, str(len(self.conversations)))

    def key(self, message_id: str, context_id: str | None = None) -> str:
        """Return the idempotency key of a message."""
        return orjson.dumps(["ui", context_id or self.conversations[-1], message_id]).decode()

    async def run_of(self, agent: str, message_id: str) -> Place | None:
        """Return the run that a message started, or the latest run if the message was regenerated."""
        for context_id in reversed(self.conversations):
            record = await find_started_run(self._gateway, self._principal, agent, self.key(message_id, context_id))
            if record is not None:
                return Place(record, context_id == self.conversations[-1])
        return None

    async def not_begun(self, agent: str, asked: Sequence[Asked]) -> list[Asked]:
        """Return the user messages that have not started a run yet."""
        for place in range(len(asked) - 1, 0, -1):
            if await self.run_of(agent, asked[place - 1].id):
                return list(asked[place:])
        return list(asked)

    async def before(self, record: RunRecord) -> list[Message]:
        """Return messages preceding a run in its conversation."""
        return list((await conversation(self._gateway.runtime.log, record.context_id, before=record.task_id)).messages)

    async def runs(self) -> list[RunRecord]:
        """Return the runs of the chat in order."""
        found: list[RunRecord] = []
        context_id: str | None = self.conversations[-1]
        before = ""
        while context_id is not None:
            records = list(await read_log(self._gateway.runtime.log.list_runs, context_id=context_id))
            ids = [record.task_id for record in records]
            found[:0] = records[: ids.index(before)] if before in ids else records
            before = str(note_of(records[0]).get("replaces", "")) if records else ""
            context_id = (await read_log(self._gateway.runtime.log.get_record, before)).context_id if before else None
        return found

    async def messages(self) -> list[dict[str, Any]]:
        """Return all UI messages in this chat."""
        made: list[dict[str, Any]] = []
        for record in await self.runs() if self.begun else ():
            events = await read_log(self._gateway.runtime.log.read, record.task_id)
            made += _asked(events, note_of(record).get("new"))
            if record.state != "submitted":
                made.append(_answered(record, events))
        return made


def note_of(record: RunRecord) -> dict[str, Any]:
    """Return the adapter data stored in a run's metadata."""
    note: Any = record.metadata.get(NOTE)
    return cast("dict[str, Any]", note) if isinstance(note, Mapping) else {}


def check_chat_id(chat_id: str) -> None:
    """Validate a chat id.

    Raises:
        Refused: If the id is invalid.
    """
    if not is_id(chat_id):
        raise Refused(404, "not_found", "there is no such conversation")


def _answered(record: RunRecord, events: Sequence[Event]) -> dict[str, Any]:
    found: list[Chunk] = []
    made = chunks(record.task_id, record.context_id, client_tools=note_of(record).get("tools", ()))
    from_iterable(events).pipe(chat(), made).subscribe(found.append)
    return ui_message(found)


def _asked(events: Sequence[Event], new: Any) -> list[dict[str, Any]]:
    """Return the user messages that started a run, excluding copied history."""
    first = events[0].to_public() if events else None
    if not isinstance(first, TaskEvent):
        return []
    said = [message for message in first.messages if message.role == "user"]
    count = new if isinstance(new, int) else len(said)
    return [
        {
            "id": message.message_id or f"{first.task_id}:{place}",
            "role": "user",
            "parts": [{"type": "text", "text": message.content}]
            if isinstance(message.content, str)
            else [_part(part) for part in message.content],
        }
        for place, message in enumerate(said[-count:] if count else [])
    ]


def _part(part: Any) -> dict[str, Any]:
    if isinstance(part, TextPart):
        return {"type": "text", "text": part.text}
    return file_part(part)


async def answer(gateway: Gateway, record: RunRecord, answers: Answers, inputs: dict[str, Any]) -> bool:
    """Answer the open questions of a run, ignoring answers that it already has.

    Args:
        gateway: Gateway of the run.
        record: Record of the run.
        answers: Answers found in the run's message.
        inputs: Answers to other questions.

    Returns:
        True if the run was resumed with at least one new answer.

    Raises:
        Refused: If an answer is invalid, or the request contains no pending answer and requests no new events.
    """
    last = await runs.find_last_update(gateway, record)
    pending = await runs.list_pending_inputs(gateway, record)
    given: dict[str, Any] = {}
    reasons: dict[str, str] = {}
    for question in pending:
        for value, reason in _matches(record.task_id, question, answers, inputs):
            given[question.input_id] = value
            if reason is not None:
                reasons[f"{record.task_id}:{question.input_id}"] = reason
    if not given:
        await _check_known(gateway, record, answers, inputs)
        if last is not None and answers.seen >= record.seq:
            raise Refused(409, "not_waiting", _NOT_WAITING if pending else "the run waits for no answer")
        return False
    # Decisions are booleans, so send the person's reason as a message. The fixed id avoids duplicates.
    said = [Message.user(reason, message_id=f"{asked}:reason") for asked, reason in reasons.items()]
    await runs.answer_run(gateway, record, given, said)
    return True


def _matches(
    task_id: str, question: PendingInput, answers: Answers, inputs: Mapping[str, Any]
) -> Iterator[tuple[Any, str | None]]:
    """Yield the answers to a question in order of increasing precedence, each with the person's reason."""
    asked = f"{task_id}:{question.input_id}"
    slot = f"{question.task_id or task_id}:{question.step}:{question.index}"
    if asked in answers.approvals and question.input_kind == "confirmation":
        yield answers.approvals[asked], answers.reasons.get(asked)
    elif question.input_kind == "tool" and slot in answers.results:
        yield answers.results[slot], None
    for name in (asked, question.input_id):
        if name in inputs:
            yield inputs[name], None


async def _check_known(gateway: Gateway, record: RunRecord, answers: Answers, inputs: Mapping[str, Any]) -> None:
    """Check that a run already contains all posted answers, which indicates a repeated request.

    Raises:
        Refused: If the run has a different answer, the question was dropped, or the question was never asked.
    """
    if not (answers.approvals or answers.results or inputs):
        return
    state, asked = initial_state(), dict[str, PendingInput]()
    for event in await read_log(gateway.runtime.log.read, record.task_id):
        state = fold_all([event], state)
        asked |= state.pending
    given = {
        name: each
        for name, question in asked.items()
        for each, _ in _matches(record.task_id, question, answers, inputs)
    }
    try:
        new_answers(record.task_id, state, given)
    except InvalidInput:
        raise Refused(409, "not_waiting", _TOO_LATE) from None
    if inputs and not given:
        raise Refused(409, "not_waiting", _NOT_WAITING)


_TOO_LATE = "the answer comes too late: the run has another one, or does not wait for it any more"
_NOT_WAITING = "the run waits for an answer, and this is none that it waits for"
