"""The messages of a conversation, out of the log."""

from __future__ import annotations

from rxloop.pipeline.logs import EventLog
from rxloop.protocol.messages import Message
from rxloop.protocol.visibility import messages_for_clients
from rxloop.state.conversation import conversation


async def history(log: EventLog, context_id: str, *, public: bool = False) -> list[Message]:
    """Read the messages of a conversation, oldest first, as the next run of it would begin with them.

    Args:
        log: Holds the runs of the conversation.
        context_id: The conversation; of one that the log does not know there are none.
        public: As clients may see them: without messages of the system, without calls of hidden tools and their
            answers, and without what providers want back. Only these may leave the server.

    Raises:
        EventLogError: The log cannot be read.

    Example:
        >>> shown = [message.model_dump() for message in await history(log, "bob", public=True)]
    """
    messages = list((await conversation(log, context_id, before="")).messages)
    return list(messages_for_clients(messages)) if public else messages
