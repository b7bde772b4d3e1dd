"""Output items while streaming."""

from __future__ import annotations

from collections.abc import Iterator
from io import StringIO
from typing import Any, Literal, TypeGuard

import orjson

from rxloop.protocol.messages import Citation
from rxloop.providers.codecs.draft import MessageDraft
from rxloop.providers.codecs.fields import as_text

PartKind = Literal["output_text", "refusal", "summary_text", "reasoning_text"]

PARENTS: dict[PartKind, str] = {
    "output_text": "message",
    "refusal": "message",
    "summary_text": "reasoning",
    "reasoning_text": "reasoning",
}
"""Item type by part type."""

PART_FIELDS: dict[str, str] = {"summary_text": "summary"}
"""Item fields for parts, if not `content`."""

CALLS = {"function_call": "arguments", "custom_tool_call": "input"}
"""Client tool calls with their input field."""

# Stored in the message itself, and restored before sending.
_IN_MESSAGE = {"content", "summary"}

_INPUT_FIELDS = {"arguments", "input"}


class OutputPart:
    """Received text part."""

    __slots__ = ("annotations", "index", "is_complete", "item", "kind", "received", "start")

    def __init__(self, item: OutputItem, kind: PartKind, index: int) -> None:
        self.item = item
        self.kind: PartKind = kind
        self.index = index
        self.received = StringIO()
        self.is_complete = False
        """True if the complete text was compared with the fragments."""
        self.annotations: list[dict[str, Any]] = []
        self.start = 0
        """Start index of the part in the message text."""

    @property
    def name(self) -> str:
        """Part name used in message pieces."""
        return f"{self.kind}/{self.index}"

    def make_state(self) -> dict[str, Any]:
        """Return the data needed to send the part back, without text that is in the message."""
        state: dict[str, Any] = {}
        if self.annotations:
            state["annotations"] = self.annotations
        if not self.item.shows(self):
            state["text"] = self.received.getvalue()
        return state


class OutputItem:
    """Response output item."""

    __slots__ = ("call", "fields", "id", "input", "is_reported", "number", "parts", "shown", "type", "weight")

    def __init__(self, number: int, type: str, id: str) -> None:
        self.number = number
        """Index in order of appearance."""
        self.type = type
        self.id = id
        self.parts: dict[str, OutputPart] = {}
        self.shown: PartKind | None = None
        """Reasoning type included in the message: the first one received."""
        self.fields: dict[str, Any] = {}
        """Latest fields."""
        self.weight = 0
        """Field size in characters."""
        self.is_reported = False
        """True if the start of a server tool was published."""
        self.call: int | None = None
        """Call index, if applicable."""
        self.input = StringIO()
        """Received arguments or input."""

    def part(self, kind: PartKind, index: int) -> OutputPart:
        """Return the part with this kind and index."""
        name = f"{kind}/{index}"
        part = self.parts.get(name)
        if part is None:
            part = self.parts[name] = OutputPart(self, kind, index)
        return part

    def shows(self, part: OutputPart) -> bool:
        """Return True if the message contains the part. Of summarised and full reasoning, it contains only one."""
        if self.type != "reasoning":
            return True
        if self.shown is None:
            self.shown = part.kind
        return self.shown == part.kind

    def head(self) -> dict[str, Any]:
        """Return the fields needed to send the item back, without the data that is in the message."""
        fields: dict[str, Any] = {"type": self.type}
        for name, value in self.fields.items():
            if self.type in ("message", "reasoning") and name in _IN_MESSAGE:
                fields[name] = []
            elif self.type in CALLS and name in _INPUT_FIELDS:
                fields[name] = ""
            else:
                fields[name] = value
        if fields.get("status") == "in_progress":
            # The response has ended.
            fields["status"] = "completed"
        if self.id and not fields.get("id"):
            fields["id"] = self.id
        head: dict[str, Any] = {"item": self.number, "fields": fields}
        if self.parts:
            head["parts"] = {name: part.make_state() for name, part in self.parts.items() if part.received.tell()}
        return head


def find_part_kind(part: dict[str, Any], item_type: str) -> PartKind | None:
    """Return the part type if supported by this item type."""
    name = part.get("type")
    if name == "text":
        name = "output_text" if item_type == "message" else "reasoning_text"
    return next((kind for kind, type_ in PARENTS.items() if kind == name and type_ == item_type), None)


def differs(received: str, text: str) -> bool:
    """Return True if two JSON documents have different values."""
    try:
        return orjson.loads(received) != orjson.loads(text)
    except orjson.JSONDecodeError:
        return True


def to_citation(annotation: dict[str, Any], offset: int) -> Citation:
    """Convert an annotation to a citation.

    Args:
        annotation: The vendor's annotation.
        offset: Start index of the annotated text in the message text.
    """
    start, end = annotation.get("start_index"), annotation.get("end_index")
    return Citation(
        url=as_text(annotation.get("url")) or None,
        title=as_text(annotation.get("title")) or as_text(annotation.get("filename")) or None,
        start=start + offset if _is_index(start) else None,
        end=end + offset if _is_index(end) else None,
    )


def _is_index(value: Any) -> TypeGuard[int]:
    """Return True if a value is a valid string index."""
    return value.__class__ is int and 0 <= value < 2**53


QUIET_EVENTS = ("keepalive", "ping", "response.created", "response.in_progress", "response.queued")

# Redundant events, whose data is repeated by items.
QUIET_PREFIXES = (
    "response.content_part.",
    "response.reasoning_part.",
    "response.reasoning_summary_part.",
    "response.output_text.annotation.",
    *(f"response.{name}" for name in ("web_search_call", "file_search_call", "code_interpreter_call", "mcp_")),
    *(f"response.{name}" for name in ("image_generation_call", "shell_call", "tool_search_call", "compaction")),
)

ITEM_WEIGHT = 200
"""Fixed size charged per item or part, in characters."""


class OutputItems:
    """Response output items in order."""

    __slots__ = ("_by_id", "_by_index", "_draft", "all", "finished")

    def __init__(self, draft: MessageDraft) -> None:
        self._draft = draft
        self.all: list[OutputItem] = []
        self.finished: set[int] = set()
        """Complete items."""
        self._by_id: dict[str, OutputItem] = {}
        self._by_index: dict[int, OutputItem] = {}

    def find(self, event: dict[str, Any], type: str, own_id: str = "") -> OutputItem:
        """Find an item by id or index, or begin a new one."""
        item_id, index = own_id or as_text(event.get("item_id")), event.get("output_index")
        item = self._by_id.get(item_id)
        if item is None:
            last = self.all[-1] if self.all else None
            item = self._by_index.get(index) if isinstance(index, int) else last
            if item is not None and item.number in self.finished and (item_id or item is last):
                # Gateways without indexes continue with the next item.
                item = None
        if item is None or item.type != type:
            item = self.begin(type, item_id, index)
        return item

    def has_item(self, item_id: str, type: str) -> bool:
        """Return True if an item with this id and type has begun."""
        item = self._by_id.get(item_id)
        return item is not None and item.type == type

    def begin(self, type: str, id: str, index: Any) -> OutputItem:
        """Begin an item.

        Args:
            type: Item type.
            id: Item id, may be empty.
            index: Position in the response, if known.
        """
        item = OutputItem(len(self.all), type, id)
        self._draft.other += ITEM_WEIGHT
        self.all.append(item)
        if id:
            self._by_id[id] = item
        if isinstance(index, int):
            self._by_index[index] = item
        return item

    def match(self, output: list[dict[str, Any]]) -> Iterator[tuple[OutputItem, dict[str, Any]]]:
        """Match complete items with streamed ones, by id, index, or type.

        Gateways may change ids or omit items.
        """
        free = {item.number: item for item in self.all}
        matches: list[OutputItem | None] = []
        for index, fields in enumerate(output):
            item = self._by_id.get(as_text(fields.get("id"))) or self._by_index.get(index)
            if item is not None and (item.number not in free or item.type != fields.get("type")):
                item = None
            if item is not None:
                del free[item.number]
            matches.append(item)
        by_type: dict[str, list[OutputItem]] = {}
        for item in reversed(free.values()):
            by_type.setdefault(item.type, []).append(item)
        for item, fields in zip(matches, output, strict=True):
            kind = as_text(fields.get("type"))
            if item is None and by_type.get(kind):
                item = by_type[kind].pop()
            yield item or self.begin(kind, as_text(fields.get("id")), None), fields


SERVER_TOOLS = frozenset(
    (
        "web_search_call",
        "file_search_call",
        "code_interpreter_call",
        "image_generation_call",
        "mcp_call",
        "mcp_list_tools",
        "tool_search_call",
        "shell_call",
        "program",
    )
)
"""Item types of server tools."""

RAW_ITEMS = frozenset(("additional_tools", "compaction", "program_output", "shell_call_output", "tool_search_output"))
"""Item types that are only sent back unchanged."""

UNSUPPORTED = frozenset(("computer_call", "local_shell_call", "shell_call", "apply_patch_call", "mcp_approval_request"))
"""Items requesting unsupported actions, unless already answered by the vendor."""

_ARGUMENTS = ("action", "arguments", "queries", "code")

_RESULTS = ("output", "outputs", "results", "tools", "error")


def report_start(draft: MessageDraft, item: OutputItem) -> None:
    """Report that a server tool started, once."""
    if not item.is_reported:
        item.is_reported = True
        draft.server_tool(item.id, _find_tool_name(item), "start", arguments=_find_first(item.fields, _ARGUMENTS))


def report_end(draft: MessageDraft, item: OutputItem) -> None:
    """Report that a server tool finished."""
    fields = item.fields
    failed = fields.get("status") in ("failed", "incomplete") or bool(fields.get("error"))
    draft.server_tool(
        item.id,
        _find_tool_name(item),
        "complete",
        arguments=_find_first(fields, _ARGUMENTS),
        result=_find_first(fields, _RESULTS),
        success=not failed,
    )


def _find_tool_name(item: OutputItem) -> str:
    if item.type == "mcp_call":
        return as_text(item.fields.get("name")) or item.type
    return item.type.removesuffix("_call")


def _find_first(fields: dict[str, Any], names: tuple[str, ...]) -> Any:
    return next((fields[name] for name in names if fields.get(name)), None)
