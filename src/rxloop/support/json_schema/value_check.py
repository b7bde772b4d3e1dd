"""Comparison of a value with a JSON Schema, counting the steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from pydantic import BaseModel

from rxloop.support.json_schema.helpers import (
    MAX_DEPTH,
    TYPES,
    Path,
    Schema,
    format_path,
    list_values,
    quote_value,
    resolve_reference,
)
from rxloop.support.json_schema.patterns import Pattern, PatternTooLarge, compile_pattern

_LOOKUPS_PER_STEP = 16
"""Number of lookups of names that take as long as one step."""

_EMPTY: Mapping[str, Any] = {}

_ABSENT: Any = object()

_JSON_CLASSES = frozenset((str, int, float, bool, type(None), dict, list))


class TooComplex(Exception):
    """Raised if validation exceeds a limit."""


_Mismatch = Callable[[], str]
"""Function that describes a mismatch. Most mismatches are those of alternatives, and are not described."""


class _Node:
    """Prepared schema without its subschemas."""

    __slots__ = (
        "all_of",
        "closed",
        "const",
        "enum",
        "enum_keys",
        "first_item",
        "items",
        "kinds",
        "limits",
        "options",
        "pattern",
        "properties",
        "reference",
        "required",
        "rest",
    )

    def __init__(self, schema: Schema, root: Schema) -> None:
        # Some programs write null for missing keywords.
        get = schema.get
        reference = get("$ref")
        self.reference = (resolve_reference(reference, root) or _EMPTY) if isinstance(reference, str) else None
        self.all_of: Sequence[Any] = get("allOf") or ()
        self.options: Sequence[Any] = get("anyOf") or get("oneOf") or ()
        kinds = get("type")
        self.kinds: tuple[str, ...] = (kinds,) if isinstance(kinds, str) else tuple(kinds or ())
        self.const = schema.get("const", _ABSENT)
        self.enum: Sequence[Any] | None = get("enum")
        self.enum_keys: frozenset[Any] | None = None
        self.pattern: str | None = get("pattern")
        self.limits = _LIMITS.keys() & schema.keys()
        self.properties: Mapping[str, Any] = get("properties") or _EMPTY
        self.required: Sequence[str] = get("required") or ()
        rest = get("additionalProperties")
        self.rest = True if rest is None or get("patternProperties") is not None else rest
        items: Any = get("items")
        self.items: Any = items if isinstance(items, Mapping | bool) else True
        self.first_item = len(get("prefixItems") or ())


_LIMITS = dict.fromkeys(
    ("minLength", "maxLength", "minItems", "maxItems", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
)


class ValueCheck:
    """Validation of one value."""

    __slots__ = ("_nodes", "_root", "remaining")

    def __init__(self, root: Schema, steps: int) -> None:
        self._root = root
        self._nodes: dict[int, _Node] = {}
        self.remaining = steps

    def spend(self, steps: int) -> None:
        """Count steps."""
        self.remaining -= steps
        if self.remaining < 0:
            raise TooComplex

    def visit(self, value: Any, schema: Any, path: Path, depth: int) -> _Mismatch | None:
        """Check a part of the value. Return the mismatch, if any."""
        if schema is None or schema is True:
            return None
        if schema is False:
            return lambda: f"{_name(path)} must not be set"
        if depth > MAX_DEPTH:
            raise TooComplex
        if value.__class__ not in _JSON_CLASSES and isinstance(value, BaseModel):
            value = value.model_dump(by_alias=True)
        for _ in range(MAX_DEPTH):
            self.remaining -= 1
            if self.remaining < 0:
                raise TooComplex
            node = self._nodes.get(id(schema)) or self._prepare(schema)
            mismatch = self._check_node(value, schema, node, path, depth)
            if mismatch is not None or node.reference is None:
                return mismatch
            schema = node.reference
        raise TooComplex

    def _prepare(self, schema: Schema) -> _Node:
        node = self._nodes[id(schema)] = _Node(schema, self._root)
        return node

    def _check_node(self, value: Any, schema: Schema, node: _Node, path: Path, depth: int) -> _Mismatch | None:
        for part in node.all_of:
            mismatch = self.visit(value, part, path, depth + 1)
            if mismatch is not None:
                return mismatch
        if node.options:
            mismatch = self._check_options(value, node.options, path, depth)
            if mismatch is not None:
                return mismatch
        if node.const is not _ABSENT and self._make_key(value) != self._make_key(node.const):
            return lambda: f"{_name(path)} must be {quote_value(node.const)}, got {quote_value(value)}"
        if node.enum is not None and not self._is_listed(value, node, node.enum):
            return lambda: f"{_name(path)} must be one of {list_values(node.enum or ())}, got {quote_value(value)}"
        kinds = node.kinds
        if kinds and not any(_has_type(value, kind) for kind in kinds):
            return lambda: f"{_name(path)} must be a JSON {' or '.join(kinds)}, got {quote_value(value)}"
        if isinstance(value, str):
            if node.pattern is not None and not self._matches(value, node.pattern):
                return lambda: f"{_name(path)} must match {quote_value(node.pattern)}, got {quote_value(value)}"
            return _check_length(len(value), schema, "minLength", "maxLength", path) if node.limits else None
        if isinstance(value, Mapping):
            return self._check_properties(cast("Mapping[str, Any]", value), node, path, depth)
        if isinstance(value, list | tuple):
            return self._check_items(cast("Sequence[Any]", value), schema, node, path, depth)
        if node.limits and isinstance(value, int | float):
            return _check_number(value, schema, path)
        return None

    def _check_options(self, value: Any, options: Sequence[Any], path: Path, depth: int) -> _Mismatch | None:
        first: _Mismatch | None = None
        for option in options:
            mismatch = self.visit(value, option, path, depth + 1)
            if mismatch is None:
                return None
            first = first or mismatch
        kinds = [self._get_type(option) for option in options]
        if not all(isinstance(kind, str) for kind in kinds):
            return first
        names = list(dict.fromkeys(cast("list[str]", kinds)))
        return lambda: f"{_name(path)} must be a JSON {' or '.join(names)}, got {quote_value(value)}"

    def _get_type(self, schema: Any) -> Any:
        """Return the type of an option that was visited."""
        for _ in range(MAX_DEPTH):
            node = self._nodes.get(id(schema))
            if node is None:
                break
            if node.reference is None:
                return node.kinds[0] if len(node.kinds) == 1 else None
            schema = node.reference
        return None

    def _make_key(self, value: Any) -> Any:
        """Return a key that is equal for equal JSON values."""
        self.spend(1)
        if isinstance(value, bool):
            return _KEYS[value]
        if isinstance(value, list | tuple):
            return (_KEYS["list"], *map(self._make_key, cast("Sequence[Any]", value)))
        if isinstance(value, Mapping):
            items = cast("Mapping[str, Any]", value).items()
            return _KEYS["dict"], frozenset((name, self._make_key(item)) for name, item in items)
        return value

    def _is_listed(self, value: Any, node: _Node, enum: Sequence[Any]) -> bool:
        if node.enum_keys is None:
            node.enum_keys = frozenset(map(self._make_key, enum))
        return self._make_key(value) in node.enum_keys

    def _matches(self, value: str, text: str) -> bool:
        pattern = self._load_pattern(text)
        return pattern is None or pattern.search(value, self.spend)

    def _load_pattern(self, text: str) -> Pattern | None:
        try:
            pattern = compile_pattern(text)
        except PatternTooLarge:
            raise TooComplex from None
        if pattern is not None and id(pattern) not in self._nodes:
            # The first use counts as a compilation, even if the pattern is cached.
            self.spend(pattern.cost)
            self._nodes[id(pattern)] = cast("Any", pattern)
        return pattern

    def _check_items(
        self, items: Sequence[Any], schema: Schema, node: _Node, path: Path, depth: int
    ) -> _Mismatch | None:
        if node.limits:
            mismatch = _check_length(len(items), schema, "minItems", "maxItems", path)
            if mismatch is not None:
                return mismatch
        rest = node.items
        if rest is True:
            return None
        for index in range(node.first_item, len(items)):
            mismatch = self.visit(items[index], rest, (path, index), depth + 1)
            if mismatch is not None:
                return mismatch
        return None

    def _check_properties(self, value: Mapping[str, Any], node: _Node, path: Path, depth: int) -> _Mismatch | None:
        properties, rest = node.properties, node.rest
        self.spend((len(node.required) + len(value)) // _LOOKUPS_PER_STEP)
        for name in node.required:
            if name not in value:
                return lambda: f"{_name(path)} must have {quote_value(name)}"
        if not properties and rest is True:
            return None
        for name, item in value.items():
            schema = properties.get(name, rest)
            if schema is False and name not in properties:
                return lambda: f"{_name(path)} must not have {quote_value(name)}, only {list_values(properties)}"
            mismatch = self.visit(item, schema, (path, name), depth + 1)
            if mismatch is not None:
                return mismatch
        return None


_KEYS: dict[Any, Any] = {
    **{kind: (object(), kind) for kind in (True, False)},
    # Strings have random hashes, so that no client can choose values whose hashes collide.
    **{kind: f"{kind} of JSON" for kind in ("list", "dict")},
}
"""Keys of booleans, which equal numbers in Python, and first parts of the keys of lists and objects."""


def _has_type(value: Any, kind: str) -> bool:
    if isinstance(value, bool):
        return kind == "boolean"
    if kind == "integer" and isinstance(value, float):
        return value.is_integer()
    return isinstance(value, TYPES.get(kind, object))


def _check_number(value: float, schema: Schema, path: Path) -> _Mismatch | None:
    if isinstance(value, bool):
        return None
    low, high = _get_number(schema, "exclusiveMinimum"), _get_number(schema, "exclusiveMaximum")
    if low is not None and value <= low:
        return lambda: f"{_name(path)} must be greater than {low}, got {quote_value(value)}"
    if high is not None and value >= high:
        return lambda: f"{_name(path)} must be less than {high}, got {quote_value(value)}"
    return _check_range(value, schema, "minimum", "maximum", lambda: _name(path))


def _get_number(schema: Schema, name: str) -> float | None:
    limit = schema.get(name)
    # Old schemas use a boolean to modify `minimum` or `maximum`.
    return limit if isinstance(limit, int | float) and not isinstance(limit, bool) else None


def _check_length(size: int, schema: Schema, low: str, high: str, path: Path) -> _Mismatch | None:
    return _check_range(size, schema, low, high, lambda: f"the length of {_name(path)}")


def _check_range(size: float, schema: Schema, low: str, high: str, name: Callable[[], str]) -> _Mismatch | None:
    lowest, highest = schema.get(low), schema.get(high)
    if lowest is not None and size < lowest:
        return lambda: f"{name()} must be at least {lowest}, got {size!r}"
    if highest is not None and size > highest:
        return lambda: f"{name()} must be at most {highest}, got {size!r}"
    return None


def _name(path: Path) -> str:
    return format_path(path) or "the value"
