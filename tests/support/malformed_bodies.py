"""Variants of request bodies in which one value is invalid."""

from __future__ import annotations

import json
from collections.abc import Generator, Iterable
from typing import Any, cast

_DELETE = "@delete"
_RAW = {
    '"@surrogate"': '"a\\ud800b"',
    '"@surrogate key"': '{"\\udc00": 1}',
    '"@huge"': "9" * 4_400,
    '"@deep"': "[" * 39 + "1" + "]" * 39,
    '"@deeper"': '{"a":' * 150 + "1" + "}" * 150,
    '"@nan"': "NaN",
    '"@infinite"': "-Infinity",
    '"@overflow"': "1e400",
}
"""JSON that `json.dumps` cannot write, by the marker that it replaces."""
_VALUES: tuple[Any, ...] = (
    *(None, True, 0, -1, 1.5, 2**64, -(2**63) - 1, "", "x", "\0\r\n\x1b[2J", "9" * 5_000, "../.."),
    *([], [[]], [None], ["x"], {}, {"": 1}, {"a": None}, {"type": "x"}, _DELETE, *(key.strip('"') for key in _RAW)),
)
_TEXTS = (b"", b"{", b"[]]", b'{"a":1,"a":2}', b"\xff\xfe", b"\xef\xbb\xbf{}", b" ", b"nul", b"[" * 100_000)


def replace_each_value(body: dict[str, Any]) -> Generator[tuple[str, bytes]]:
    """Yield a description and a body for each value of a body and each invalid value."""
    for path in _list_paths(body):
        for value in _VALUES:
            if path or value != _DELETE:
                yield f"{'.'.join(map(str, path))}={value!r:.40}", _encode(_replace(body, path, value))
    yield "an unknown field", _encode({**body, "unknown": 1, "__proto__": {"a": 1}})
    for text in _TEXTS:
        yield f"{text!r:.40}", text


def _list_paths(value: Any, path: tuple[Any, ...] = ()) -> Generator[tuple[Any, ...]]:
    yield path
    items: Iterable[tuple[Any, Any]] = ()
    if isinstance(value, dict):
        items = cast("dict[str, Any]", value).items()
    elif isinstance(value, list):
        items = enumerate(cast("list[Any]", value))
    for key, item in items:
        yield from _list_paths(item, (*path, key))


def _replace(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    if not path:
        return new
    copy = value.copy()
    if len(path) == 1 and new == _DELETE:
        del copy[path[0]]
    else:
        copy[path[0]] = _replace(value[path[0]], path[1:], new)
    return copy


def _encode(body: Any) -> bytes:
    text = json.dumps(body)
    for marker, raw in _RAW.items():
        text = text.replace(marker, raw)
    return text.encode()
