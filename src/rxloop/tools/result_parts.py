"""Result images, files and size limits."""

from __future__ import annotations

import copy
import dataclasses
import os
from collections import deque
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from enum import Enum
from operator import attrgetter, is_
from typing import Any, cast

from pydantic import BaseModel

from rxloop.errors import ToolError
from rxloop.protocol.json_data import MAX_DEPTH
from rxloop.protocol.parts import FilePart, ImagePart, is_data_url

Media = ImagePart | FilePart

_KINDS: tuple[type[Any], ...] = (tuple, set, frozenset, deque)
"""Collection types to preserve. All other collections become lists."""


class PartExtractor:
    """Extractor for nested images and files.

    Before encoding, each part receives a marker URL. Models, dataclasses and custom serializers can still access the
    original bytes. After encoding, marked parts are replaced by a description or reference.
    """

    def __init__(self) -> None:
        self.parts: list[Media] = []
        """Extracted parts in order."""
        self._marker = f"rxloop-part:{os.urandom(8).hex()}:"

    def extract(self, value: Any) -> Any:
        """Return a copy of a value with markers. A value without parts is returned itself."""
        if isinstance(value, Media):
            self.parts.append(value)
            return value.model_copy(update={"url": f"{self._marker}{len(self.parts) - 1}"})
        if isinstance(value, dict):
            mapping = cast("dict[Any, Any]", value)
            items = self._changes(mapping)
            return {**mapping, **items} if items else mapping
        if isinstance(value, list | tuple | set | frozenset | deque):
            return self._extract_items(cast("Collection[Any]", value))
        if isinstance(value, Enum):
            item = self.extract(value.value)
            return cast("Any", value if item is value.value else item)
        if isinstance(value, BaseModel):
            items = self._changes({**vars(value), **(value.__pydantic_extra__ or {})})
            return value.model_copy(update=items) if items else value
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            items = self._changes({each.name: getattr(value, each.name, None) for each in dataclasses.fields(value)})
            if items:
                value = copy.copy(value)
                for name, item in items.items():
                    object.__setattr__(value, name, item)
        return cast("Any", value)

    def describe(self, data: Any) -> Any:
        """Replace markers in JSON data with part types and sizes."""
        return self._fill(data, describe_part)

    def refer(self, data: Any) -> Any:
        """Replace the markers in JSON data by short references, for the model."""
        return self._fill(data, attrgetter("placeholder"))

    def _extract_items(self, value: Collection[Any]) -> Collection[Any]:
        items = [self.extract(item) for item in value]
        if all(map(is_, items, value)):
            return value
        make: Any = next((kind for kind in _KINDS if isinstance(value, kind)), list)
        if isinstance(value, tuple) and hasattr(value, "_make"):
            make = cast("Any", value)._make  # A named tuple.
        return make(items)

    def _changes(self, items: dict[Any, Any]) -> dict[Any, Any]:
        return {key: new for key, old in items.items() if (new := self.extract(old)) is not old}

    def _fill(self, data: Any, form: Callable[[Media], Any]) -> Any:
        if isinstance(data, str) and data.startswith(self._marker):
            # A custom serializer returned only the URL.
            return self._part(data).placeholder
        if isinstance(data, list):
            return [self._fill(item, form) for item in cast("list[Any]", data)]
        if not isinstance(data, dict):
            return data
        fields = cast("dict[str, Any]", data)
        url = fields.get("url")
        if isinstance(url, str) and url.startswith(self._marker):
            return form(self._part(url))
        return {key: self._fill(item, form) for key, item in fields.items()}

    def _part(self, url: str) -> Media:
        return self.parts[int(url.removeprefix(self._marker))]


def describe_part(part: Media) -> dict[str, Any]:
    """Serialize part metadata, replacing binary data and data URLs with the size."""
    fields = part.model_dump(mode="json", exclude={"data"}, exclude_none=True)
    if part.data is not None:
        return {**fields, "size": len(part.data)}
    if part.url is None or not is_data_url(part.url):
        return fields
    # Data URLs are rare, so do not load this module at startup.
    from rxloop.protocol.media import read_data_url

    del fields["url"]
    with suppress(ValueError):
        media = read_data_url(part.url.strip())
        fields = {**({"mediaType": media.media_type} if media.media_type else {}), **fields, "size": len(media.data)}
    return fields


MAX_VALUES = 50_000
"""Maximum number of values in a result, at all depths. The event loop encodes them several times."""

MAX_BYTES = 32_000_000
"""Maximum JSON length of results."""

MAX_PARTS = 100
"""Maximum number of images and files in a result. Every later model request sends them again."""

MAX_PART_BYTES = 20_000_000
"""Maximum total size of images and files. Most vendors do not accept larger requests."""

_MAX_BITS = 14_283
"""Bit length of a 4,300-digit integer, the maximum supported by JSON parsers. Formatting larger integers takes
quadratic time.
"""

_SIMPLE = frozenset((float, bool, type(None)))

ADVICE = "Ask for less at once, or for a part of it."


class TooLarge(ToolError):
    """Result exceeding a size limit."""


def check_size(value: Any) -> bool:
    """Check that a value is not too large. Publishing a huge value would block all runs of the process.

    Returns:
        True if the value contains images or files, at any depth.

    Raises:
        TooLarge: If the value exceeds a limit.
        ValueError: If the value is nested too deeply, or contains an iterator, which may be infinite.
    """
    kind = value.__class__
    if kind in _SIMPLE or (kind is int and value.bit_length() <= _MAX_BITS):
        return False
    values_left, characters_left, has_parts = MAX_VALUES, MAX_BYTES, False
    parts: list[Any] = [value]
    for _ in range(MAX_DEPTH + 2):
        level, parts = parts, []
        for part in level:
            kind = part.__class__
            if kind is dict:
                items = part.values()
            elif kind is list or kind is tuple:
                items = part
            else:
                items = _list_items(part)
                has_parts = has_parts or isinstance(part, ImagePart | FilePart)
            values_left -= len(items)
            if values_left < 0:
                raise TooLarge(f"The tool ran, but its result has more than {MAX_VALUES:,} values. {ADVICE}")
            for item in items:
                kind = item.__class__
                if kind is str:
                    characters_left -= len(item)
                elif kind is int:
                    if item.bit_length() > _MAX_BITS:
                        raise ValueError("an integer of more than 4,300 digits")
                elif kind not in _SIMPLE:
                    parts.append(item)
            if characters_left < 0:
                raise make_size_error()
        if not parts:
            return has_parts
    raise ValueError(f"nested more than {MAX_DEPTH} deep, or in itself: give it flatter, or as a text")


def _list_items(part: Any) -> Collection[Any]:
    """Return container items, or an empty collection for scalar values."""
    if isinstance(part, int):
        return (int(part),)
    if isinstance(part, dict):
        return cast("dict[Any, Any]", part).values()
    if isinstance(part, list | tuple | set | frozenset | deque):
        return cast("Collection[Any]", part)
    if isinstance(part, BaseModel):
        return [*part.__dict__.values(), *(part.__pydantic_extra__ or {}).values()]
    if isinstance(part, Enum):
        return (part.value,)
    if isinstance(part, Iterator):
        kind = type(cast("Any", part)).__qualname__
        raise ValueError(f"an iterator ({kind}) can be read only once; return a list")
    if dataclasses.is_dataclass(part) and not isinstance(part, type):
        return [getattr(part, field.name, None) for field in dataclasses.fields(part)]
    return (str.__str__(part),) if isinstance(part, str) else ()


def make_size_error() -> TooLarge:
    """Create the error for oversized JSON results."""
    return TooLarge(f"The tool ran, but its result is longer than {MAX_BYTES // 1_000_000} MB. {ADVICE}")
