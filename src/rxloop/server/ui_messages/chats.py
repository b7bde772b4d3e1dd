"""Chat conversations and answers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, cast

import orjson
from reactivex.subject import Subject

from rxloop.coordination.answers import find_new_answers, validate_answers
from rxloop.errors import InvalidInput
from rxloop.pipeline.log_retry import read_log
from rxloop.pipeline.records import RunRecord
from rxloop.protocol.events import Event, TaskEvent
from rxloop.protocol.ids import derive_id, is_id
from rxloop.protocol.messages import Message, PendingInput, TextPart
from rxloop.recorded.follow import read_first
from rxloop.recorded.questions import read_status
from rxloop.run.ownership import read_open_questions
from rxloop.server.core.chat_fold import chat
from rxloop.server.core.errors import Refused
from rxloop.server.core.existing_runs import answer_run
from rxloop.server.core.gateway import Gateway, Principal
from rxloop.server.core.runs import find_started_run
from rxloop.server.ui_messages.fold import chunks
from rxloop.server.ui_messages.frames import Chunk, assemble_message, to_file_part
from rxloop.server.ui_messages.requests import Answers, UserMessage
from rxloop.state.fold import fold_all
from rxloop.state.run_state import initial_state
from rxloop.storage.conversation import conversation
from rxloop.support.threads import compute

NOTE = "ui"
"""Metadata key for adapter data, which is needed to restore the chat later."""


class ChatRun(NamedTuple):
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
        self.exists = False

    async def load(self) -> Chat:
        """Load all conversations in this chat."""
        self.exists = await self._gateway.has_conversation(self._principal, self._chat_id)
        while self.exists and await self._gateway.has_conversation(self._principal, self.next_id()):
            self.conversations.append(self.next_id())
        return self

    def next_id(self) -> str:
        """Return the conversation id for the next regenerated answer."""
        return derive_id("chat", self._principal.id, self._chat_id, str(len(self.conversations)))

    def make_key(self, message_id: str, context_id: str | None = None) -> str:
        """Return the idempotency key of a message."""
        return orjson.dumps(["ui", context_id or self.conversations[-1], message_id]).decode()

    async def find_run(self, agent: str, message_id: str) -> ChatRun | None:
        """Return the run that a message started, or the latest run if the message was regenerated."""
        for context_id in reversed(self.conversations):
            key = self.make_key(message_id, context_id)
            record = await find_started_run(self._gateway, self._principal, agent, key)
            if record is not None:
                return ChatRun(record, context_id == self.conversations[-1])
        return None

    async def select_new(self, agent: str, messages: Sequence[UserMessage]) -> list[UserMessage]:
        """Return the user messages that have not started a run yet."""
        for index in range(len(messages) - 1, 0, -1):
            if await self.find_run(agent, messages[index - 1].id):
                return list(messages[index:])
        return list(messages)

    async def load_history(self, record: RunRecord) -> list[Message]:
        """Return messages preceding a run in its conversation."""
        earlier = await conversation(self._gateway.runtime.log, record.conversation, before=record.task_id)
        return list(earlier.messages)

    async def list_runs(self) -> list[RunRecord]:
        """Return the runs of the chat in order."""
        runs: list[RunRecord] = []
        key: str | None = self._principal.get_conversation(self.conversations[-1])
        old_id = ""
        while key is not None:
            records = list(await read_log(self._gateway.runtime.log.list_conversation, key))
            ids = [record.task_id for record in records]
            runs[:0] = records[: ids.index(old_id)] if old_id in ids else records
            old_id = str(read_note(records[0]).get("replaces", "")) if records else ""
            key = (await read_log(self._gateway.runtime.log.get_record, old_id)).conversation if old_id else None
        return runs

    async def list_messages(self) -> list[dict[str, Any]]:
        """Return all UI messages in this chat."""
        messages: list[dict[str, Any]] = []
        for record in await self.list_runs() if self.exists else ():
            first = await read_first(self._gateway.runtime.log, record.task_id)
            messages += _list_user_messages(first, read_note(record).get("new"))
            if record.state != "submitted":
                messages.append(await self._build_message(record))
        return messages

    async def _build_message(self, record: RunRecord) -> dict[str, Any]:
        collected: list[Chunk] = []
        view = chunks(record.task_id, record.context_id, client_tools=read_note(record).get("tools", ()))
        events: Subject[Event] = Subject()
        events.pipe(chat(), view).subscribe(collected.append)
        await self._gateway.computations.fold_events(self._gateway.runtime.log, record.task_id, events.on_next)
        events.on_completed()
        return await compute(lambda: assemble_message(collected), steps=len(collected))


def read_note(record: RunRecord) -> dict[str, Any]:
    """Return the adapter data stored in a run's metadata."""
    note: Any = record.metadata.get(NOTE)
    return cast("dict[str, Any]", note) if isinstance(note, Mapping) else {}


def check_chat_id(chat_id: str) -> None:
    """Validate a chat id.

    Raises:
        Refused: If the id is invalid.
    """
    if not is_id(chat_id):
        raise Refused(404, "not_found", "the conversation does not exist")


def _list_user_messages(first: Event | None, new: Any) -> list[dict[str, Any]]:
    """Return the user messages that started a run, excluding copied history."""
    first = first and first.to_public()
    if not isinstance(first, TaskEvent):
        return []
    messages = [message for message in first.messages if message.role == "user"]
    count = new if isinstance(new, int) else len(messages)
    return [
        {
            "id": message.message_id or f"{first.task_id}:{index}",
            "role": "user",
            "parts": [{"type": "text", "text": message.content}]
            if isinstance(message.content, str)
            else [_convert_part(part) for part in message.content],
        }
        for index, message in enumerate(messages[-count:] if count else [])
    ]


def _convert_part(part: Any) -> dict[str, Any]:
    return {"type": "text", "text": part.text} if isinstance(part, TextPart) else to_file_part(part)


async def answer_questions(
    gateway: Gateway, principal: Principal, record: RunRecord, answers: Answers, inputs: dict[str, Any]
) -> bool:
    """Answer the open questions of a run, ignoring answers that it already has.

    Args:
        gateway: Gateway of the run.
        principal: Sender of the answers.
        record: Record of the run.
        answers: Answers found in the run's message.
        inputs: Answers to other questions.

    Returns:
        True if the run was resumed with at least one new answer.

    Raises:
        Refused: If an answer is invalid, or the request contains no pending answer and requests no new events.
    """
    log = gateway.runtime.log
    status, pending = await read_status(log, record), await read_open_questions(log, record.task_id)
    values: dict[str, Any] = {}
    reasons: dict[str, str] = {}
    for question in pending:
        for value, reason in _iterate_answers(record.task_id, question, answers, inputs):
            values[question.input_id] = value
            if reason is not None:
                reasons[f"{record.task_id}:{question.input_id}"] = reason
    if not values:
        await _check_known(gateway, record, answers, inputs)
        if status.last is not None and answers.seen >= status.record.seq:
            message = _NOT_WAITING if pending else "the run is not waiting for an answer"
            raise Refused(409, "not_waiting", message)
        return False
    # Decisions are booleans, so send the user's reason as a message. The fixed id avoids duplicates.
    messages = [Message.user(reason, message_id=f"{approval_id}:reason") for approval_id, reason in reasons.items()]
    await answer_run(gateway, principal, record, values, messages)
    return True


def _iterate_answers(
    task_id: str, question: PendingInput, answers: Answers, inputs: Mapping[str, Any]
) -> Iterator[tuple[Any, str | None]]:
    """Yield the answers to a question in order of increasing precedence, each with the user's reason or None."""
    approval_id = f"{task_id}:{question.input_id}"
    slot = f"{question.task_id or task_id}:{question.step}:{question.index}"
    if approval_id in answers.approvals and question.input_kind == "confirmation":
        yield answers.approvals[approval_id], answers.reasons.get(approval_id)
    elif question.input_kind == "tool" and slot in answers.results:
        yield answers.results[slot], None
    for name in (approval_id, question.input_id):
        if name in inputs:
            yield inputs[name], None


async def _check_known(gateway: Gateway, record: RunRecord, answers: Answers, inputs: Mapping[str, Any]) -> None:
    """Check that a repeated request contains only answers that the run already has.

    Raises:
        Refused: If the run has a different answer, the question was dropped, or the question was never asked.
    """
    if not (answers.approvals or answers.results or inputs):
        return
    state, questions = initial_state(), dict[str, PendingInput]()

    def add(event: Event) -> None:
        nonlocal state
        state = fold_all([event], state)
        questions.update(state.pending)

    await gateway.computations.fold_events(gateway.runtime.log, record.task_id, add)
    values = {
        name: each
        for name, question in questions.items()
        for each, _ in _iterate_answers(record.task_id, question, answers, inputs)
    }
    await validate_answers(state, values)
    try:
        find_new_answers(record.task_id, state, values)
    except InvalidInput:
        raise Refused(409, "not_waiting", _ALREADY_ANSWERED) from None
    if inputs and not values:
        raise Refused(409, "not_waiting", _NOT_WAITING)


_ALREADY_ANSWERED = "the question already has another answer, or is no longer open"
_NOT_WAITING = "the run is not waiting for this answer"
