"""Typed answers of the offline model: a value that fits the schema that it was sent."""

from __future__ import annotations

import json
import re
from typing import Any

from rxloop.demo.conversation import Conversation, Reply, as_json, as_object, plainest, text_of
from rxloop.tools import FINAL_ANSWER

_CAPITALS = {
    "Norway": ("Oslo", 717_710),
    "Sweden": ("Stockholm", 984_748),
    "Denmark": ("Copenhagen", 660_842),
    "Germany": ("Berlin", 3_662_381),
    "France": ("Paris", 2_102_650),
}


def typed(conversation: Conversation, reply: Reply) -> Reply:
    """Give the reply as a value of the type that was asked for, if one was.

    The capitals of a few countries it knows; every other text is what the reply says, and everything else is the
    plainest value that fits.
    """
    schema = _schema(conversation)
    if schema is None or reply.calls or as_json(reply.text) is not None:
        return reply
    value = plainest(schema, reply.text, _facts(conversation.question))
    if FINAL_ANSWER in conversation.tools:
        return Reply(calls=[(FINAL_ANSWER, value)], reasoning=reply.reasoning)
    # With blanks, at which the text is cut for the stream.
    return Reply(json.dumps(value, ensure_ascii=False), reasoning=reply.reasoning)


def _schema(conversation: Conversation) -> dict[str, Any] | None:
    """Find the schema of the answer: of the tool for it, of the response format, or in the system prompt."""
    if FINAL_ANSWER in conversation.tools:
        return conversation.tools[FINAL_ANSWER].parameters
    if conversation.response_format.get("type") == "json_schema":
        return conversation.response_format["json_schema"]["schema"]
    for message in conversation.messages:
        found = re.search(r"JSON Schema:\s*(\{.*\})", text_of(message)) if message.get("role") == "system" else None
        if found is not None:
            return as_object(found.group(1)) or None
    return None


def _facts(question: str) -> dict[str, Any]:
    for country, (city, population) in _CAPITALS.items():
        if country in question or city in question:
            return {"name": city, "city": city, "capital": city, "country": country, "population": population}
    return {}
