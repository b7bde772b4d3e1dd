"""Typed answers of the offline model: a value that fits the schema that it was sent."""

from __future__ import annotations

import json
import re
from typing import Any

from rxloop.demo.conversation import Conversation, Reply, as_json, as_object, text_of
from rxloop.tools import FINAL_ANSWER

_CAPITALS = {
    "Norway": ("Oslo", 717_710),
    "Sweden": ("Stockholm", 984_748),
    "Denmark": ("Copenhagen", 660_842),
    "Germany": ("Berlin", 3_662_381),
    "France": ("Paris", 2_102_650),
}
_PLAIN: dict[str, Any] = {"boolean": False, "null": None}


def typed(conversation: Conversation, reply: Reply) -> Reply:
    """Give the reply as a value of the type that was asked for, if one was.

    The capitals of a few countries it knows; every other text is what the reply says, and everything else is the
    plainest value that fits.
    """
    schema = _schema(conversation)
    if schema is None or reply.calls or as_json(reply.text) is not None:
        return reply
    value = _value(schema, "", _facts(conversation.question), reply.text, schema.get("$defs", {}))
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


def _value(schema: dict[str, Any], name: str, facts: dict[str, Any], text: str, shared: dict[str, Any]) -> Any:
    if "$ref" in schema:
        schema = shared[schema["$ref"].rpartition("/")[2]]
    for key in ("anyOf", "oneOf"):
        if key in schema:
            # Null, where that is allowed: it ends a type that contains itself.
            return _value(min(schema[key], key=lambda each: each.get("type") != "null"), name, {}, text, shared)
    if "const" in schema or "enum" in schema:
        return schema["const"] if "const" in schema else schema["enum"][0]
    kind = schema.get("type")
    if kind == "object":
        fields: dict[str, Any] = schema.get("properties", {})
        return {field: _value(part, field, facts, text, shared) for field, part in fields.items()}
    if kind == "array":
        item = schema.get("items", {})
        return [_value(item, name, facts, text, shared) for _ in range(schema.get("minItems", 0))]
    known = facts.get(name)
    if isinstance(known, str if kind == "string" else int):
        return known
    if kind in ("integer", "number"):
        return max(1, schema.get("minimum", 1))
    return _PLAIN[kind] if kind in _PLAIN else text[: schema.get("maxLength")]
