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
    """Requested calls as tool names and arguments."""
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
        return known | {
            name: make_minimal_value(self.arguments.get(name, {}) | shared) for name in required if name not in known
        }


_CONSTANT_VALUES: dict[str, Any] = {"boolean": False, "null": None}


def make_minimal_value(schema: dict[str, Any], text: str = "", facts: Mapping[str, Any] | None = None) -> Any:
    """Generate the simplest value that matches a JSON Schema.

    Args:
        schema: The schema.
        text: Value of strings.
        facts: Known values by field name.
    """

    def build(part: dict[str, Any], name: str, known: Mapping[str, Any]) -> Any:
        if "$ref" in part:
            part = schema["$defs"][part["$ref"].rpartition("/")[2]]
        for key in ("anyOf", "oneOf"):
            if key in part:
                # Prefer null, because it ends a recursive type.
                return build(min(part[key], key=lambda option: option.get("type") != "null"), name, {})
        for key in ("const", "default"):
            if key in part:
                return part[key]
        if "enum" in part:
            return part["enum"][0]
        kind = part.get("type")
        if kind == "object":
            return {field: build(inner, field, known) for field, inner in part.get("properties", {}).items()}
        if kind == "array":
            return [build(part.get("items", {}), name, known) for _ in range(part.get("minItems", 0))]
        if isinstance(known.get(name), str if kind == "string" else int):
            return known[name]
        if kind in ("integer", "number"):
            return max(1, part.get("minimum", 1))
        return _CONSTANT_VALUES[kind] if kind in _CONSTANT_VALUES else text[: part.get("maxLength")]

    return build(schema, "", facts or {})


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
        return [extract_text(message) for message in self.messages if message.get("role") == "user"]

    @property
    def question(self) -> str:
        """Most recent user message."""
        return self.questions[-1] if self.questions else ""

    @cached_property
    def answers(self) -> list[str]:
        """Previous model answers in chronological order."""
        replies = [message for message in self.messages if message.get("role") == "assistant"]
        return [extract_text(message) for message in replies if not message.get("tool_calls")]

    @cached_property
    def calls(self) -> list[PastCall]:
        """Previous tool calls in chronological order."""
        return self._collect_calls(self.messages)

    @cached_property
    def turn(self) -> list[PastCall]:
        """Tool calls after the most recent user message."""
        user_positions = [position for position, message in enumerate(self.messages) if message.get("role") == "user"]
        return self._collect_calls(self.messages[user_positions[-1] + 1 :] if user_positions else self.messages)

    def results(self, name: str) -> list[PastCall]:
        """Return calls of a specific tool after the most recent user message."""
        return [call for call in self.turn if call.name == name]

    @property
    def thoughts(self) -> list[str]:
        """Thought ids returned by the tool after the most recent user message."""
        return [_get_thought_id(call) for call in self.results(THINK_ALOUD)]

    @property
    def can_think(self) -> bool:
        """True if the model may think aloud."""
        return THINK_ALOUD in self.tools

    def find_tool(self, argument: str, *hints: str) -> OfferedTool | None:
        """Find a tool by argument name, preferring tool names that contain a hint."""
        candidates = self.find_tools(argument)
        preferred = [tool for tool in candidates if any(hint in tool.name.lower() for hint in hints)]
        return next(iter([*preferred, *candidates]), None)

    def find_tools(self, argument: str) -> list[OfferedTool]:
        """Find all tools with a matching argument name."""
        return [tool for tool in self.tools.values() if argument in tool.arguments]

    def think(
        self, id: str, thought: str, kind: str, *, related_to: str | None = None, confidence: float | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Return a call that thinks aloud. A number is appended to the id if it is already used."""
        used_ids = {call.arguments.get("thought_id") for call in self.calls if call.name == THINK_ALOUD}
        allowed = self.tools[THINK_ALOUD].arguments.get("thought_type", {}).get("enum") or [kind]
        names = [id, *(f"{id}-{n}" for n in range(2, len(used_ids) + 3))]
        arguments = {
            "thought": thought,
            "thought_type": kind if kind in allowed else allowed[0],
            "thought_id": next(name for name in names if name not in used_ids),
            "related_to": related_to,
            "confidence": confidence,
        }
        return THINK_ALOUD, {name: value for name, value in arguments.items() if value is not None}

    def make_call_id(self, index: int) -> str:
        """Return the call id for a given index in the next reply."""
        return f"call_{len(self.calls) + index + 1}"

    def _collect_calls(self, messages: list[dict[str, Any]]) -> list[PastCall]:
        results = {
            message.get("tool_call_id"): extract_text(message) for message in messages if message.get("role") == "tool"
        }
        calls: list[dict[str, Any]] = []
        for message in messages:
            calls += message.get("tool_calls") or []
        return [
            PastCall(
                id=call["id"],
                name=call["function"]["name"],
                arguments=parse_object(call["function"].get("arguments")),
                result=results.get(call["id"]),
            )
            for call in calls
        ]


Rule = Callable[[Conversation], Reply | None]
"""Function that generates a reply, or returns None to continue with the next rule."""


def extract_text(message: Mapping[str, Any]) -> str:
    """Extract text from a single-part or multi-part message."""
    content: Any = message.get("content")
    if isinstance(content, list):
        parts = cast("list[dict[str, Any]]", content)
        return "".join(part.get("text", "") for part in parts if part.get("type") == "text")
    return content or ""


def parse_object(text: str | None) -> dict[str, Any]:
    """Parse a JSON object. Return an empty one if this fails."""
    value = parse_json(text)
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def parse_json(text: str | None) -> Any:
    """Parse a JSON value. Return None if this fails."""
    try:
        return orjson.loads(text or "null")
    except orjson.JSONDecodeError:
        return None


def _get_thought_id(call: PastCall) -> str:
    return str(parse_object(call.result).get("thoughtId") or call.arguments.get("thought_id", call.id))
