"""Validation of JSON Schemas, within limits of their size."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from typing import Any, cast

from rxloop.support.json_schema.helpers import (
    MAX_DEPTH,
    TYPES,
    Path,
    Schema,
    StepBudget,
    format_path,
    quote_value,
    resolve_reference,
)
from rxloop.support.json_schema.patterns import find_pattern_error

MAX_SCHEMA_STEPS = 20_000
"""Maximum number of steps for the validation of a schema. Subschemas take two, and characters of patterns take one."""

_VALUES_PER_STEP = 16

_TOO_LARGE = "it has too many parts, or its patterns are too long"


def find_schema_error(schema: Any, kind: str | None = "object", budget: StepBudget | None = None) -> str | None:
    """Return the reason why a JSON Schema is invalid or too large.

    Args:
        schema: The schema.
        kind: Required type of matching values, or None to allow any type.
        budget: Remaining steps of all schemas of a message. None for a message with a single schema.

    Returns:
        A clause such as `properties.city.type cannot be 'text'`, or None if the schema is valid.
    """
    if not isinstance(schema, Mapping):
        return f"it must be a dict, got {quote_value(schema)}"
    root = cast("Schema", schema)
    kinds: Any = root.get("type", kind)
    if kind is not None and kind not in (
        kinds if isinstance(kinds, list | tuple) else [kind if kinds is None else kinds]
    ):
        return f"its type must be {kind!r}, got {quote_value(root['type'])}"
    check = _SchemaCheck(root, budget or StepBudget(MAX_SCHEMA_STEPS))
    return next(check.find_errors(root, None, 0), None)


def _make_list_check(kind: type) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list | tuple) and all(isinstance(each, kind) for each in cast("Any", value))


def _is_size(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_type(value: Any) -> bool:
    kinds: Any = [value] if isinstance(value, str) else value
    return _make_list_check(str)(kinds) and bool(kinds) and all(kind in TYPES for kind in kinds)


_SCHEMA_MAPS = frozenset(("properties", "$defs", "definitions", "patternProperties"))

_SCHEMA_LISTS = frozenset(("allOf", "anyOf", "oneOf", "prefixItems"))

_SCHEMAS = frozenset(("additionalProperties", "items", "not"))

_CHECKS: dict[str, Callable[[Any], bool]] = {
    "type": _is_type,
    "enum": _make_list_check(object),
    "required": _make_list_check(str),
    "pattern": lambda value: isinstance(value, str),
    **dict.fromkeys(("minLength", "maxLength", "minItems", "maxItems"), _is_size),
    **dict.fromkeys(("minimum", "maximum"), _is_number),
}


_Parts = Iterable[tuple[str, Any]]


class _SchemaCheck:
    """Search for errors in a schema and its subschemas."""

    def __init__(self, root: Schema, budget: StepBudget) -> None:
        self._root = root
        self._budget = budget

    def find_errors(self, schema: Any, path: Path, depth: int) -> Iterator[str]:
        """Yield the errors of a schema."""
        if not self._budget.spend(2):
            yield _TOO_LARGE
        if (schema is None or isinstance(schema, bool)) and path is not None:
            return
        if not isinstance(schema, Mapping):
            yield f"{format_path(path)} must be a JSON Schema, got {quote_value(schema)}"
            return
        if depth > MAX_DEPTH:
            yield "it is nested too deep"
            return
        for keyword, value in cast("Mapping[Any, Any]", schema).items():
            # Some programs write null for missing keywords.
            if value is None:
                continue
            inner_path = (path, str(keyword))
            if keyword in _SCHEMA_MAPS:
                if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in cast("Any", value)):
                    yield f"{format_path(inner_path)} must be a dict of schemas by name, got {quote_value(value)}"
                    return
                parts: _Parts = cast("Mapping[str, Any]", value).items()
            elif keyword in _SCHEMA_LISTS:
                if not isinstance(value, list | tuple):
                    yield f"{format_path(inner_path)} must be a list of schemas, got {quote_value(value)}"
                    return
                parts = ((str(number), part) for number, part in enumerate(cast("Sequence[Any]", value)))
            elif keyword in _SCHEMAS:
                yield from self.find_errors(value, inner_path, depth + 1)
                continue
            else:
                yield from self._find_value_errors(keyword, value, inner_path)
                continue
            for name, part in parts:
                yield from self.find_errors(part, (inner_path, name), depth + 1)

    def _find_value_errors(self, keyword: Any, value: Any, path: Path) -> Iterator[str]:
        size = len(value) if isinstance(value, Sized) else 0
        if not self._budget.spend(size // _VALUES_PER_STEP):
            yield _TOO_LARGE
        if keyword in _CHECKS and not _CHECKS[keyword](value):
            yield f"{format_path(path)} cannot be {quote_value(value)}"
        elif keyword == "$ref" and (not isinstance(value, str) or resolve_reference(value, self._root) is None):
            yield f"{format_path(path)} must refer to a part of this schema, got {quote_value(value)}"
        elif keyword == "pattern":
            if not self._budget.spend(len(value)):
                yield _TOO_LARGE
            error = find_pattern_error(value)
            if error is not None:
                yield f"{format_path(path)} {quote_value(value)} cannot be used: {error}"
