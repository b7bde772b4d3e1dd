from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from operator import is_
from typing import Any, Protocol
from weakref import WeakKeyDictionary

from reactivex import Observable

from rxloop.errors import ConfigurationError, EventLogError
from rxloop.operators.loop.answer_requests import answer_requests
from rxloop.pipeline.host import get_host
from rxloop.pipeline.requests import ModelRequest, Operator, Signal
from rxloop.pipeline.sent.texts import mark_origin
from rxloop.protocol.messages import Message, is_private
from rxloop.state.history import History
from rxloop.stream.sources import emit, from_awaitable

log = logging.getLogger("rxloop")


class NoteSource(Protocol):
    """Memory that `recall` reads, implemented by `rxloop.memory.Memory`."""

    async def recall(
        self, owner: str | None, question: str, *, tokens: int, exclude_context: str, known: Collection[str]
    ) -> tuple[str, Collection[str]]:
        """Return the text of the notes that match a question, and their ids.

        Args:
            owner: Owner of the run.
            question: User message.
            tokens: Maximum number of tokens.
            exclude_context: Conversation whose notes are omitted.
            known: Ids of notes that are omitted, because an earlier request contains them.
        """
        ...


def recall(memory: NoteSource, *, tokens: int = 2_000) -> Operator[object]:
    """Add the notes that match the newest user message to model requests, but not to the history.

    ::

        in   --M--|     --M--|
        out  --M1-|     --M2-|

    M1 contains the notes before the user message. M2, a later request of the same run, contains the same notes at the
    same place, so that the provider can cache them. Each further user message adds notes that were not added before.
    Notes of the current conversation are omitted, because the history contains them.

    If the log of the memory cannot be read, a warning is logged and the request is sent without notes.

    The owner of the notes is the owner of the run. Place the operator after `compress` and `thinking_phase`, and reduce
    their limits by `tokens`.

    Args:
        memory: `rxloop.memory.Memory` over the log of the agents.
        tokens: Maximum number of tokens of the notes for a user message, estimated as a quarter of their characters.

    Raises:
        ConfigurationError: `tokens` is not positive.
    """
    if tokens < 1:
        raise ConfigurationError(f"tokens must be a positive number, got {tokens!r}")
    recalled: WeakKeyDictionary[Any, dict[str | None, _Recalled]] = WeakKeyDictionary()

    def answer(request: ModelRequest) -> Observable[Signal]:
        branches = recalled.setdefault(get_host(request.ctx), {})
        blocks = branches.setdefault(request.branch, _Recalled())
        question = blocks.find_question(request.messages)
        if question is None:
            return emit(blocks.extend(request))
        work = lambda: blocks.search(memory, tokens, request, question)  # noqa: E731
        return from_awaitable(work, request.ctx, name="rxloop-recall")

    operator = answer_requests(ModelRequest, answer)
    operator.__qualname__ = "recall"
    return operator


class _Recalled:
    """Notes recalled for the user messages of a branch."""

    def __init__(self) -> None:
        self._blocks: dict[str | None, Message | None] = {}
        """Messages with notes by the id of their user message. None if there are no notes."""
        self._known: set[str] = set()
        self._read: Sequence[Message] = ()
        """Messages of the last request, before notes were added."""
        self._sent: list[Message] = []
        """The same messages with notes. Long histories are not copied message by message at each request."""

    def find_question(self, messages: Sequence[Message]) -> Message | None:
        """Return the newest user message if no notes were searched for it."""
        last = messages.newest_user if isinstance(messages, History) else len(messages) - 1
        indexes = range(-1 if last is None else last, -1, -1)
        newest = next((message for index in indexes if _is_question(message := messages[index])), None)
        return None if newest is None or newest.message_id in self._blocks else newest

    def _count_read(self, messages: Sequence[Message]) -> int:
        """Return the number of messages if the last request started with the same messages, or 0."""
        read = self._read
        if isinstance(messages, History) and messages.extends(read):
            return len(read)
        if isinstance(messages, History) or isinstance(read, History) or len(messages) < len(read):
            return 0
        return len(read) if all(map(is_, messages, read)) else 0

    async def search(self, memory: NoteSource, tokens: int, request: ModelRequest, question: Message) -> ModelRequest:
        """Search notes for a user message, and return the request with all notes."""
        info = request.ctx.info
        try:
            text, ids = await memory.recall(
                info.owner, question.text, tokens=tokens, exclude_context=info.context_id, known=self._known
            )
        except EventLogError as error:
            # The log of the memory may be another one than that of the run.
            log.warning("run %s: the request is sent without notes: %s", request.ctx.task_id, error)
            text, ids = "", ()
        # Strategies may send several requests at the same time.
        if question.message_id not in self._blocks:
            self._known.update(ids)
            self._blocks[question.message_id] = mark_origin(Message.user(text), "note") if text else None
            self._read, self._sent = (), []
        return self.extend(request)

    def extend(self, request: ModelRequest) -> ModelRequest:
        """Return the request with the notes before their user messages."""
        if not any(self._blocks.values()):
            return request
        messages = request.messages
        start = self._count_read(messages)
        if not start:
            self._sent = []
        for message in messages[start:]:
            block = self._blocks.get(message.message_id) if message.role == "user" else None
            self._sent += [message] if block is None else [block, message]
        self._read = messages
        return request.replace(messages=[*self._sent])


def _is_question(message: Message) -> bool:
    # Summaries and other messages of operators have no id. Messages of strategies and retries are private.
    return message.role == "user" and message.message_id is not None and not is_private(message)
