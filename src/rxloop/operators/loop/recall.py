from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from typing import Any, Protocol, TypedDict
from weakref import WeakKeyDictionary

from reactivex import Observable
from typing_extensions import Unpack

from rxloop.errors import ConfigurationError, EventLogError
from rxloop.operators.loop.answer_requests import answer_requests
from rxloop.pipeline.host import get_host
from rxloop.pipeline.requests import ModelRequest, Operator, Signal
from rxloop.pipeline.sent.texts import mark_origin
from rxloop.protocol.events import MemoryRecalledEvent
from rxloop.protocol.messages import Message, is_private
from rxloop.state.history import History
from rxloop.stream.sources import Push, from_task
from rxloop.support.misuse import check_minimum

log = logging.getLogger("rxloop")


class RecallScope(TypedDict, total=False):
    """Run that receives notes or lessons."""

    agent: str
    """Name of its agent."""
    tools: Collection[str]
    """Names of its tools."""
    exclude_context: str
    """Its conversation, whose notes are omitted."""


class NoteSource(Protocol):
    """Memory that `recall` reads, implemented by `rxloop.memory.Memory` and `rxloop.memory.Experience`."""

    async def recall(
        self, owner: str | None, question: str, *, tokens: int, **scope: Unpack[RecallScope]
    ) -> tuple[str, MemoryRecalledEvent] | None:
        """Return the text of the notes that match a question, and the event for the stream. None if no note matches.

        Args:
            owner: Owner of the run.
            question: User message.
            tokens: Maximum number of tokens.
            **scope: See `RecallScope`.
        """
        ...


def recall(memory: NoteSource, *, tokens: int = 2_000) -> Operator[object]:
    """Add the notes that match the newest user message to model requests, but not to the history.

    ::

        in   --M--|        --M--|
        out  --(H,m)--|    --m--|

    M is a `ModelRequest`, and m the same request with a block of notes after its messages. H is a `memory-recalled`
    event, which lists the notes. The block changes only after the next user message. It follows the messages, so that
    the provider can cache all of them in later requests and runs. Notes of the current conversation are omitted,
    because the history contains them.

    If the log of the memory cannot be read, a warning is logged and the request is sent without notes.

    The owner of the notes is the owner of the run. Place the operator before `compress` and `thinking_phase`, because
    they count its tokens. Records of requests do not contain the text of notes, so that it is deleted with their runs.

    Args:
        memory: `rxloop.memory.Memory` over the log of the agents.
        tokens: Maximum number of tokens of the notes, estimated as a quarter of their characters.

    Raises:
        ConfigurationError: `memory` is neither a memory nor an experience, or `tokens` is not a positive integer.
    """
    check_source(memory, "recall", "memory must be a Memory or an Experience", tokens=tokens)
    recalled: WeakKeyDictionary[Any, dict[str, _Block]] = WeakKeyDictionary()

    def answer(request: ModelRequest) -> Observable[Signal] | ModelRequest:
        question = _find_question(request.messages)
        if question is None or question.message_id is None:
            return request
        key = question.message_id
        blocks = recalled.setdefault(get_host(request.ctx), {})
        if key in blocks:
            return _add_block(request, blocks[key])

        async def search(push: Push[Signal]) -> None:
            block, event = await _search(memory, tokens, request, question.text)
            # Strategies may send several requests at the same time.
            if event is not None and key not in blocks:
                push(event.model_copy(update={"branch": request.branch}))
            push(_add_block(request, blocks.setdefault(key, block)))

        return from_task(search, request.ctx, name="rxloop-recall")

    operator = answer_requests(ModelRequest, answer)
    operator.__qualname__ = "recall"
    return operator


def check_source(source: object, method: str, rule: str, **limits: object) -> None:
    """Validate the arguments of an operator that reads a memory.

    Raises:
        ConfigurationError: The source has no such method, or a limit is not a positive integer.
    """
    if not callable(getattr(source, method, None)):
        raise ConfigurationError(f"{rule}, got {source!r}")
    check_minimum(1, optional=False, **limits)


_Block = tuple[Message, ...]
"""Message with notes, if any. Requests share the object, so that the record of the tail is created once."""


async def _search(
    memory: NoteSource, tokens: int, request: ModelRequest, question: str
) -> tuple[_Block, MemoryRecalledEvent | None]:
    info, tools = request.ctx.info, {tool.name for tool in request.tools}
    scope: RecallScope = {"agent": info.agent_name, "tools": tools, "exclude_context": info.context_id}
    try:
        found = await memory.recall(info.owner, question, tokens=tokens, **scope)
    except EventLogError as error:
        # The memory may read another log, which can fail independently of the run.
        log.warning("run %s: the request is sent without notes: %s", request.ctx.task_id, error)
        found = None
    if found is None:
        return (), None
    return (mark_origin(Message.user(found[0]), "memory"),), found[1]


def _add_block(request: ModelRequest, block: _Block) -> ModelRequest:
    if not block:
        return request
    return request.replace(tail=(*block, *request.tail) if request.tail else block)


def _find_question(messages: Sequence[Message]) -> Message | None:
    """Return the newest message of the user.

    Summaries and other messages of operators have no id. Messages of strategies and retries are private.
    """
    last = messages.newest_user if isinstance(messages, History) else len(messages) - 1
    for index in range(-1 if last is None else last, -1, -1):
        message = messages[index]
        if message.role == "user" and message.message_id is not None and not is_private(message):
            return message
    return None
