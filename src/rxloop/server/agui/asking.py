"""What a client asks for by a `RunAgentInput`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from ag_ui.core import RunAgentInput, ToolMessage, UserMessage

from rxloop.protocol.messages import Message
from rxloop.server.agui.content import message_of, text_of, value_of
from rxloop.server.agui.frames import Data
from rxloop.server.agui.messages import Messages
from rxloop.server.refusals import Refused

_ID = re.compile(r"[A-Za-z0-9._:~-]{1,128}")
_MOST_MESSAGES = 64
"""How many new messages one run may begin with."""


def check_ids(asked: RunAgentInput) -> None:
    """See that the ids are such.

    Raises:
        Refused: They are not.
    """
    for name, given in (("threadId", asked.thread_id), ("runId", asked.run_id)):
        if not _ID.fullmatch(given):
            message = "an id has 1 to 128 letters, digits or any of . _ : ~ -"
            raise Refused(422, "invalid", message, fields={name: "it has something else"})


def new_messages(asked: RunAgentInput, stored: Sequence[Message], *, again: bool) -> list[Message]:
    """What is said behind the last word of the agent, without what the conversation has already.

    The history of the conversation is that of the log, whatever the client has made of it.

    Args:
        asked: What the client sends: all that it has.
        stored: The conversation.
        again: Whether the last message counts, where all of them are known: it is asked once more.

    Raises:
        Refused: There is too much of it, or a file that cannot be taken.
    """
    said: list[UserMessage] = []
    for message in reversed(asked.messages):
        if isinstance(message, UserMessage):
            said.insert(0, message)
        elif message.role in ("assistant", "reasoning"):
            break
    if len(said) > _MOST_MESSAGES:
        raise Refused(422, "invalid", f"a run begins with at most {_MOST_MESSAGES} new messages")
    taken = [message_of(message) for message in said]
    known = {(message.message_id, text_of(message.content)) for message in stored if message.role == "user"}
    new = [message for message in taken if (message.message_id, text_of(message.content)) not in known]
    if again:
        new = new or taken[-1:]
    return [message for message in new if message.content]


def client_tools(asked: RunAgentInput) -> list[Data] | None:
    """The tools that the client carries out, as a run takes them."""
    return [
        {
            "name": tool.name,
            "description": tool.description,
            **({"parameters": tool.parameters} if tool.parameters else {}),
        }
        for tool in asked.tools or ()
    ] or None


def messages_of(asked: RunAgentInput) -> Messages:
    """The messages that the client has, to be added to."""

    def written() -> list[Data]:
        return [message.model_dump(mode="json", by_alias=True) for message in asked.messages]

    results = (message for message in asked.messages if isinstance(message, ToolMessage))
    answered = {each.tool_call_id: result_of(each) for each in results if each.id != f"{each.tool_call_id}:result"}
    return Messages((message.id for message in asked.messages), written, answered)


def reasoning_of(asked: RunAgentInput) -> frozenset[str]:
    """The ids of the reasoning that the client has."""
    return frozenset(message.id for message in asked.messages if message.role == "reasoning")


def result_of(message: ToolMessage) -> Any:
    """What a client's tool has answered: JSON where it is such, otherwise a text."""
    if message.error:
        return {"error": message.error}
    content: Any = message.content
    text = content if isinstance(content, str) else "\n".join(part.text for part in content if part.type == "text")
    return value_of(text)
