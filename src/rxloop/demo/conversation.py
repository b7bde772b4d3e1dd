"""Conversation model for rules of the offline model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

import orjson

THINK_ALOUD = "think_aloud"


@dataclass(frozen=True, slots=True)
class Reply:
    """Reply of a rule."""

    text: str = ""
    calls: Sequence[tuple[str, Mapping[str, Any]]] = ()
    """Tool names and arguments of requested calls."""
    reasoning: str = ""
    """Reasoning of the model."""


@dataclass(frozen=True, slots=True)
class PastCall:
    """Previous tool call."""

    id: str
    name: str
    arguments: dict[str, Any]
    result: str | None
    """Result text, or None for pending calls."""


@dataclass(frozen=True, slots=True)
class OfferedTool:
    """A tool offered in the request."""

    name: str
    parameters: dict[str, Any]

    @property
    def arguments(self) -> dict[str, dict[str, Any]]:
        """Argument schemas by name."""
        return self.parameters.get("properties") or {}

    def fill(self, **known: Any) -> dict[str, Any]:
        """Return arguments for a call: the given values, and generated values for other required arguments."""
        required: list[str] = self.parameters.get("required") or []
        shared = {"$defs": self.parameters.get("$defs", {})}
        return known | {name: plainest(self.arguments.get(name, {}) | shared) for name in required if name not in known}


_PLAIN: dict[str, Any] = {"boolean": False, "null": None}


def plainest(schema: dict[str, Any], text: str = "", facts: Mapping[str, Any] | None = None) -> Any:
    """Generate the simplest value that matches a JSON Schema.

    Args:
        schema: The schema.
        text: Value of strings.
        facts: Known values by field name.
    """

    def fitting(part: dict[str, Any], name: str, known: Mapping[str, Any]) -> Any:
        if "$ref" in part:
            part = schema["$defs"][part["$ref"].rpartition("/")[2]]
        for key in ("anyOf", "oneOf"):
            if key in part:
                # Prefer null, because it ends a recursive type.
                return fitting(min(part[key], key=lambda option: option.get("type") != "null"), name, {})
        for key in ("const", "default"):
            if key in part:
                return part[key]
        if "enum" in part:
            return part["enum"][0]
        kind = part.get("type")
        if kind == "object":
            return {field: fitting(inner, field, known) for field, inner in part.get("properties", {}).items()}
        if kind == "array":
            return [fitting(part.get("items", {}), name, known) for _ in range(part.get("minItems", 0))]
        if isinstance(known.get(name), str if kind == "string" else int):
            return known[name]
        if kind in ("integer", "number"):
            return max(1, part.get("minimum", 1))
        return _PLAIN[kind] if kind in _PLAIN else text[: part.get("maxLength")]

    return fitting(schema, "", facts or {})


class Conversation:
    """A request to the offline model.

    Attributes:
        messages: Messages of the request.
        tools: Offered tools by name. Empty if the request forbids tool calls.
        response_format: Response format of the request.
    """

    def __init__(self, body: Mapping[str, Any]) -> None:
        self.messages: list[dict[str, Any]] = list(body.get("messages") or [])
        self.response_format: dict[str, Any] = body.get("response_format") or {}
        offered: list[dict[str, Any]] = body.get("tools") or []
        if body.get("tool_choice") == "none":
            offered = []
        functions: list[dict[str, Any]] = [tool["function"] for tool in offered if "function" in tool]
        self.tools = {
            function["name"]: OfferedTool(function["name"], function.get("parameters") or {}) for function in functions
        }

    @cached_property
    def questions(self) -> list[str]:
        """User messages in chronological order."""
        return [text_of(message) for message in self.messages if message.get("role") == "user"]

    @property
    def question(self) -> str:
        """Most recent user message."""
        return self.questions[-1] if self.questions else ""

    @cached_property
    def answers(self) -> list[str]:
        """Previous model answers in chronological order."""
        said = [message for message in self.messages if message.get("role") == "assistant"]
        return [text_of(message) for message in said if not message.get("tool_calls")]

    @cached_property
    def calls(self) -> list[PastCall]:
        """Previous tool calls in chronological order."""
        return self._calls_in(self.messages)

    @cached_property
    def turn(self) -> list[PastCall]:
        """Tool calls after the most recent user message."""
        users = [place for place, message in enumerate(self.messages) if message.get("role") == "user"]
        return self._calls_in(self.messages[users[-1] + 1 :] if users else self.messages)

    def results(self, name: str) -> list[PastCall]:
        """Return calls of a specific tool after the most recent user message."""
        return [call for call in self.turn if call.name == name]

    @property
    def thoughts(self) -> list[str]:
        """Thought ids returned by the tool after the most recent user message."""
        return [_thought_id(call) for call in self.results(THINK_ALOUD)]

    @property
    def thinks(self) -> bool:
        """True if the model may think aloud."""
        return THINK_ALOUD in self.tools

    def tool_with(self, argument: str, *hints: str) -> OfferedTool | None:
        """Find a tool by argument name, preferring tool names that contain a hint."""
        found = self.tools_with(argument)
        named = [tool for tool in found if any(hint in tool.name.lower() for hint in hints)]
        return next(iter([*named, *found]), None)

    def tools_with(self, argument: str) -> list[OfferedTool]:
        """Find all tools with a matching argument name."""
        return [tool for tool in self.tools.values() if argument in tool.arguments]

    def think(
        self, id: str, thought: str, kind: str, *, related_to: str | None = None, confidence: float | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Return a call that thinks aloud. A number is appended to the id if it is already used."""
        taken = {call.arguments.get("thought_id") for call in self.calls if call.name == THINK_ALOUD}
        allowed = self.tools[THINK_ALOUD].arguments.get("thought_type", {}).get("enum") or [kind]
        names = [id, *(f"{id}-{n}" for n in range(2, len(taken) + 3))]
        arguments = {
            "thought": thought,
            "thought_type": kind if kind in allowed else allowed[0],
            "thought_id": next(name for name in names if name not in taken),
            "related_to": related_to,
            "confidence": confidence,
        }
        return THINK_ALOUD, {name: value for name, value in arguments.items() if value is not None}

    def call_id(self, index: int) -> str:
        """Return the call id for a given index in the next reply."""
        return f"call_{len(self.calls) + index + 1}"

    def _calls_in(self, messages: list[dict[str, Any]]) -> list[PastCall]:
        results = {
            message.get("tool_call_id"): text_of(message) for message in messages if message.get("role") == "tool"
        }
        made: list[dict[str, Any]] = []
        for message in messages:
            made += message.get("tool_calls") or []
        return [
            PastCall(
                id=call["id"],
                name=call["function"]["name"],
                arguments=as_object(call["function"].get("arguments")),
                result=results.get(call["id"]),
            )
            for call in made
        ]


Rule = Callable[[Conversation], Reply | None]
"""Function that generates a reply, or returns None to continue with the next rule."""


def text_of(message: Mapping[str, Any]) -> str:
    """Extract text from a single-part or multi-part message."""
    content: Any = message.get("content")
    if isinstance(content, list):
        parts = cast("list[dict[str, Any]]", content)
        return "".join(part.get("text", "") for part in parts if part.get("type") == "text")
    return content or ""


def as_object(text: str | None) -> dict[str, Any]:
    """Parse a JSON object. Return an empty one if this fails."""
    value = as_json(text)
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def as_json(text: str | None) -> Any:
    """Parse a JSON value. Return None if this fails."""
    try:
        return orjson.loads(text or "null")
    except orjson.JSONDecodeError:
        return None


def _thought_id(call: PastCall) -> str:
    return str(as_object(call.result).get("thoughtId") or call.arguments.get("thought_id", call.id))
