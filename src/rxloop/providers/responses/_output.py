"""The items of an answer while they come: what is known of each, and of the parts in it."""

from __future__ import annotations

from io import StringIO
from typing import Any, Literal, TypeGuard

import orjson

from rxloop.protocol.messages import Citation
from rxloop.providers.reading._draft import Draft
from rxloop.providers.reading._fields import object_of, text_of

PartKind = Literal["output_text", "refusal", "summary_text", "reasoning_text"]

TYPE_OF: dict[PartKind, str] = {
    "output_text": "message",
    "refusal": "message",
    "summary_text": "reasoning",
    "reasoning_text": "reasoning",
}
"""The type of the item that a part of a kind stands in."""
FIELD_OF: dict[str, str] = {"summary_text": "summary"}
"""The field of the item that has the parts of a kind, where it is not `content`."""
CALLS = {"function_call": "arguments", "custom_tool_call": "input"}
"""The items that are calls of our tools, and the field that has what the tool gets."""
# What stands in the message itself, and is put back into the item when it is sent.
_IN_MESSAGE = {"content", "summary"}
_WRITTEN = {"arguments", "input"}


class OutputPart:
    """A text in an item: what of it has come."""

    __slots__ = ("annotations", "got", "index", "item", "kind", "settled", "start")

    def __init__(self, item: OutputItem, kind: PartKind, index: int) -> None:
        self.item = item
        self.kind: PartKind = kind
        self.index = index
        self.got = StringIO()
        self.settled = False
        """The whole text was there to compare with."""
        self.annotations: list[dict[str, Any]] = []
        self.start = 0
        """Where it begins in the content of the message."""

    @property
    def name(self) -> str:
        """What it is called among the pieces of the message."""
        return f"{self.kind}/{self.index}"

    def kept(self) -> dict[str, Any]:
        """What has to be known of it when the message goes back, beside its text where the message shows that."""
        kept: dict[str, Any] = {}
        if self.annotations:
            kept["annotations"] = self.annotations
        if not self.item.shows(self):
            kept["text"] = self.got.getvalue()
        return kept


class OutputItem:
    """One item of an answer."""

    __slots__ = ("call", "fields", "id", "number", "parts", "shown", "started", "type", "weight", "written")

    def __init__(self, number: int, type: str, id: str) -> None:
        self.number = number
        """Its place among the items, in the order in which they began."""
        self.type = type
        self.id = id
        self.parts: dict[str, OutputPart] = {}
        self.shown: PartKind | None = None
        """Of reasoning, which of its two forms the message shows: the one that came first."""
        self.fields: dict[str, Any] = {}
        """What the vendor said of it last."""
        self.weight = 0
        """The characters of that."""
        self.started = False
        """The stream was told of a tool that the vendor carries out."""
        self.call: int | None = None
        """Of a call, its place among the calls."""
        self.written = StringIO()
        """Of a call, what has come of its arguments or its input."""

    def part(self, kind: PartKind, index: int) -> OutputPart:
        """The part of this kind with this number."""
        name = f"{kind}/{index}"
        found = self.parts.get(name)
        if found is None:
            found = self.parts[name] = OutputPart(self, kind, index)
        return found

    def shows(self, part: OutputPart) -> bool:
        """Whether the message shows a part: of summarised and of full reasoning it shows one."""
        if self.type != "reasoning":
            return True
        if self.shown is None:
            self.shown = part.kind
        return self.shown == part.kind

    def head(self) -> dict[str, Any]:
        """What is kept of the item for the way back, beside what stands in the message."""
        fields: dict[str, Any] = {"type": self.type}
        for name, value in self.fields.items():
            if self.type in ("message", "reasoning") and name in _IN_MESSAGE:
                fields[name] = []
            elif self.type in CALLS and name in _WRITTEN:
                fields[name] = ""
            else:
                fields[name] = value
        if fields.get("status") == "in_progress":
            # The response is over.
            fields["status"] = "completed"
        if self.id and not fields.get("id"):
            fields["id"] = self.id
        head: dict[str, Any] = {"item": self.number, "fields": fields}
        if self.parts:
            head["parts"] = {name: part.kept() for name, part in self.parts.items() if part.got.tell()}
        return head


def kind_of(part: dict[str, Any], item_type: str) -> PartKind | None:
    """The kind of a part, if its item can have it."""
    name = part.get("type")
    if name == "text":
        name = "output_text" if item_type == "message" else "reasoning_text"
    return next((kind for kind, of in TYPE_OF.items() if kind == name and of == item_type), None)


def differs(got: str, text: str) -> bool:
    """Whether two texts of arguments mean something else."""
    try:
        return orjson.loads(got) != orjson.loads(text)
    except orjson.JSONDecodeError:
        return True


def citation_of(annotation: dict[str, Any], offset: int) -> Citation:
    """A source that the vendor names.

    Args:
        annotation: What it says.
        offset: Where the text that it says it of begins in the content of the message.
    """
    start, end = annotation.get("start_index"), annotation.get("end_index")
    return Citation(
        url=text_of(annotation.get("url")) or None,
        title=text_of(annotation.get("title")) or text_of(annotation.get("filename")) or None,
        start=start + offset if _is_place(start) else None,
        end=end + offset if _is_place(end) else None,
    )


def _is_place(value: Any) -> TypeGuard[int]:
    """Whether a value can be a place in a text."""
    return value.__class__ is int and 0 <= value < 2**53


def count(draft: Draft, usage: dict[str, Any]) -> None:
    """Take the vendor's word on the tokens, if it has one."""
    if not usage:
        return
    read, written = object_of(usage.get("input_tokens_details")), object_of(usage.get("output_tokens_details"))
    draft.usage(
        input=usage.get("input_tokens"),
        output=usage.get("output_tokens"),
        cached=read.get("cached_tokens"),
        cache_write=read.get("cache_write_tokens"),
        cache_write_long=object_of(read.get("cache_write_tokens_details")).get("ttl_12h_tokens"),
        reasoning=written.get("reasoning_tokens"),
    )
