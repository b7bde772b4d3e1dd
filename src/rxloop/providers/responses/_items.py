"""The items of one answer, found by whatever an event says of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rxloop.providers.reading._draft import Draft
from rxloop.providers.reading._fields import text_of
from rxloop.providers.responses._output import OutputItem

ITEM_WEIGHT = 200
"""Characters that an item or a part counts for, besides what is in it."""


class OutputItems:
    """The items of one answer, in the order in which they began."""

    __slots__ = ("_by_id", "_by_index", "_draft", "all", "finished")

    def __init__(self, draft: Draft) -> None:
        self._draft = draft
        self.all: list[OutputItem] = []
        self.finished: set[int] = set()
        """The numbers of those that are there as a whole."""
        self._by_id: dict[str, OutputItem] = {}
        self._by_index: dict[int, OutputItem] = {}

    def find(self, event: dict[str, Any], type: str, own_id: str = "") -> OutputItem:
        """The item that an event is about: by its id, or else by its place; a new one where there is none."""
        item_id, index = own_id or text_of(event.get("item_id")), event.get("output_index")
        item = self._by_id.get(item_id)
        if item is None:
            last = self.all[-1] if self.all else None
            item = self._by_index.get(index) if isinstance(index, int) else last
            if item is not None and item.number in self.finished and (item_id or item is last):
                # The next one, of a gateway that does not count.
                item = None
        if item is None or item.type != type:
            item = self.new(type, item_id, index)
        return item

    def known(self, item_id: str, type: str) -> bool:
        """Whether an item with this id has begun."""
        item = self._by_id.get(item_id)
        return item is not None and item.type == type

    def new(self, type: str, id: str, index: Any) -> OutputItem:
        """Begin an item.

        Args:
            type: Its type.
            id: Its id; empty where it has none.
            index: Its place in the answer, if the vendor says so.
        """
        item = OutputItem(len(self.all), type, id)
        self._draft.other += ITEM_WEIGHT
        self.all.append(item)
        if id:
            self._by_id[id] = item
        if isinstance(index, int):
            self._by_index[index] = item
        return item

    def matched(self, output: list[dict[str, Any]]) -> Iterator[tuple[OutputItem, dict[str, Any]]]:
        """The items of a whole response beside those of its stream: by id, by place, or the next one of its type.

        Gateways give other ids to what they repeat, and leave items out.
        """
        free = {item.number: item for item in self.all}
        found: list[OutputItem | None] = []
        for place, fields in enumerate(output):
            item = self._by_id.get(text_of(fields.get("id"))) or self._by_index.get(place)
            if item is not None and (item.number not in free or item.type != fields.get("type")):
                item = None
            if item is not None:
                del free[item.number]
            found.append(item)
        left: dict[str, list[OutputItem]] = {}
        for item in reversed(free.values()):
            left.setdefault(item.type, []).append(item)
        for item, fields in zip(found, output, strict=True):
            kind = text_of(fields.get("type"))
            if item is None and left.get(kind):
                item = left[kind].pop()
            yield item or self.new(kind, text_of(fields.get("id")), None), fields
