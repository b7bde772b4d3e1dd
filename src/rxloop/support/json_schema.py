"""Validation of values and schemas according to JSON Schema."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from time import thread_time
from typing import TYPE_CHECKING, Any, cast

from pydantic import BaseModel

if TYPE_CHECKING:
    from pydantic_core import SchemaError

Schema = Mapping[str, Any]

TYPES: dict[str, type | tuple[type, ...]] = {
    "boolean": bool,
    "integer": int,
    "number": (int, float),
    "string": str,
    "array": (list, tuple),
    "object": (Mapping, BaseModel),
    "null": type(None),
}

_MAX_SECONDS = 2.0
"""Maximum CPU time of one validation. A short schema can require unbounded time, and all runs of the process would
wait."""

_PER_CHARACTER = 0.003
"""Maximum time for matching one character, as a fraction of the pattern's compile time (measured). Matching is linear,
but even a short pattern may need very many states, such as `.{0,2000}x.{0,2000}y`."""

MAX_DEPTH = 100

_TOO_COMPLEX = "the value cannot be validated, because its schema is nested too deep or takes too long"


def find_mismatch(value: Any, schema: Schema) -> str | None:
    """Return the reason why a value does not match a schema.

    These keywords are validated: `type`, `enum`, `const`, `anyOf`, `oneOf`, `allOf`, `$ref`, `properties`, `required`,
    `additionalProperties`, `items`, `pattern`, and limits of numbers and lengths. Other keywords are ignored, because
    the caller parses the value again with the original type.

    Returns:
        A clause such as `amount must be a JSON integer, got 'ten'`, or None if the value matches.
    """
    try:
        return _Validator(schema).find_mismatch(value, schema, "", 0)
    except _TooComplex:
        return _TOO_COMPLEX


class _TooComplex(Exception):
    """Raised if validation exceeds a limit."""


class _Validator:
    """Validator with time and depth limits, so that recursive schemas are detected."""

    def __init__(self, root: Schema) -> None:
        self._root = root
        self._deadline = thread_time() + _MAX_SECONDS

    def _spend(self, seconds: float = 0.0) -> None:
        if thread_time() + seconds > self._deadline:
            raise _TooComplex

    def find_mismatch(self, value: Any, schema: Schema | bool | None, path: str, depth: int) -> str | None:
        """Validate a part of the value."""
        self._spend()
        if depth > MAX_DEPTH:
            raise _TooComplex
        if schema is None:
            return None
        if isinstance(schema, bool):
            return None if schema else f"{_name(path)} must not be set"
        if isinstance(value, BaseModel):
            value = value.model_dump(by_alias=True)
        schema = self._resolve(schema)
        if None in schema.values():
            # Some programs write null for missing keywords.
            schema = {name: part for name, part in schema.items() if part is not None or name == "const"}
        for part in schema.get("allOf", ()):
            if mismatch := self.find_mismatch(value, part, path, depth + 1):
                return mismatch
        options = schema.get("anyOf") or schema.get("oneOf")
        if options:
            mismatches = [self.find_mismatch(value, option, path, depth + 1) for option in options]
            if None not in mismatches:
                return self._merge_types(value, options, path) or mismatches[0]
        return (
            _check_type(value, schema, path)
            or self._check_pattern(value, schema, path)
            or _check_limits(value, schema, path)
            or self._check_items(value, schema, path, depth)
        )

    def _resolve(self, schema: Schema) -> Schema:
        """Follow schema references."""
        for _ in range(MAX_DEPTH):
            reference = schema.get("$ref")
            if not isinstance(reference, str):
                return schema
            schema = resolve_reference(reference, self._root) or {}
        raise _TooComplex

    def _check_pattern(self, value: Any, schema: Schema, path: str) -> str | None:
        pattern = schema.get("pattern")
        if pattern is None or not isinstance(value, str):
            return None
        matches, seconds = _compile_pattern(pattern)
        self._spend(seconds * _PER_CHARACTER * len(value))
        if matches is None or matches(value):
            return None
        return f"{_name(path)} must match {pattern!r}, got {quote_value(value)}"

    def _merge_types(self, value: Any, options: Sequence[Schema | bool], path: str) -> str | None:
        """Return a single clause if all options are simple types."""
        kinds = [self._get_type(option) for option in options]
        if not all(isinstance(kind, str) for kind in kinds):
            return None
        return f"{_name(path)} must be a JSON {' or '.join(cast('list[str]', kinds))}, got {quote_value(value)}"

    def _get_type(self, schema: Schema | bool) -> Any:
        if isinstance(schema, bool):
            return None
        return self._resolve(schema).get("type")

    def _check_items(self, value: Any, schema: Schema, path: str, depth: int) -> str | None:
        if isinstance(value, Mapping):
            return self._check_properties(cast("Mapping[str, Any]", value), schema, path, depth)
        if isinstance(value, list | tuple) and isinstance(schema.get("items"), Mapping | bool):
            first = len(schema.get("prefixItems", ()))
            for index, item in enumerate(cast("Sequence[Any]", value)[first:], start=first):
                if mismatch := self.find_mismatch(item, schema["items"], f"{path}[{index}]", depth + 1):
                    return mismatch
        return None

    def _check_properties(self, value: Mapping[str, Any], schema: Schema, path: str, depth: int) -> str | None:
        properties: Mapping[str, Schema] = schema.get("properties", {})
        for name in schema.get("required", ()):
            if name not in value:
                return f"{_name(path)} must have {name!r}"
        others = schema.get("additionalProperties", True)
        if "patternProperties" in schema:
            others = True
        for name, item in value.items():
            item_path = f"{path}.{name}" if path else name
            if name in properties:
                mismatch = self.find_mismatch(item, properties[name], item_path, depth + 1)
            elif others is False:
                mismatch = f"{_name(path)} must not have {name!r}, only {', '.join(map(repr, properties))}"
            else:
                mismatch = self.find_mismatch(item, others, item_path, depth + 1) if others is not True else None
            if mismatch:
                return mismatch
        return None


def _check_type(value: Any, schema: Schema, path: str) -> str | None:
    if "const" in schema and value != schema["const"]:
        return f"{_name(path)} must be {schema['const']!r}, got {quote_value(value)}"
    if "enum" in schema and value not in schema["enum"]:
        return f"{_name(path)} must be one of {', '.join(map(repr, schema['enum']))}, got {quote_value(value)}"
    kinds = schema.get("type")
    kinds = [kinds] if isinstance(kinds, str) else kinds or []
    if kinds and not any(_has_type(value, kind) for kind in kinds):
        return f"{_name(path)} must be a JSON {' or '.join(kinds)}, got {quote_value(value)}"
    return None


def _has_type(value: Any, kind: str) -> bool:
    if isinstance(value, bool):
        return kind == "boolean"
    if kind == "integer" and isinstance(value, float):
        return value.is_integer()
    return isinstance(value, TYPES.get(kind, object))


def _check_limits(value: Any, schema: Schema, path: str) -> str | None:
    if isinstance(value, str):
        return _check_range(len(value), schema, "minLength", "maxLength", f"the length of {_name(path)}")
    if isinstance(value, list | tuple):
        items = cast("Sequence[Any]", value)
        return _check_range(len(items), schema, "minItems", "maxItems", f"the length of {_name(path)}")
    if not isinstance(value, int | float):
        return None
    low, high = _get_exclusive_limit(schema, "exclusiveMinimum"), _get_exclusive_limit(schema, "exclusiveMaximum")
    if low is not None and value <= low:
        return f"{_name(path)} must be greater than {low}, got {quote_value(value)}"
    if high is not None and value >= high:
        return f"{_name(path)} must be less than {high}, got {quote_value(value)}"
    return _check_range(value, schema, "minimum", "maximum", _name(path))


def _get_exclusive_limit(schema: Schema, name: str) -> float | None:
    limit = schema.get(name)
    # Old schemas use a boolean to modify `minimum` or `maximum`.
    return limit if isinstance(limit, int | float) and not isinstance(limit, bool) else None


def _check_range(size: float, schema: Schema, low: str, high: str, name: str) -> str | None:
    if low in schema and size < schema[low]:
        return f"{name} must be at least {schema[low]}, got {size!r}"
    if high in schema and size > schema[high]:
        return f"{name} must be at most {schema[high]}, got {size!r}"
    return None


@lru_cache(maxsize=256)
def _compile_pattern(pattern: str) -> tuple[Callable[[str], bool] | None, float]:
    """Return a linear-time matcher and its compile time in seconds. The matcher is None for unsupported patterns."""
    from pydantic_core import SchemaError, SchemaValidator, core_schema

    start = thread_time()
    try:
        matches = SchemaValidator(core_schema.str_schema(pattern=pattern)).isinstance_python
    except SchemaError:
        matches = None
    return matches, thread_time() - start


def resolve_reference(reference: str, root: Schema) -> Schema | None:
    """Resolve a local reference. Return None if the target does not exist."""
    target: Any = root
    for name in reference.removeprefix("#").split("/")[1:]:
        if not isinstance(target, Mapping):
            return None
        target = cast("Schema", target).get(name.replace("~1", "/").replace("~0", "~"))
    return cast("Schema", target) if isinstance(target, Mapping) else None


def _name(path: str) -> str:
    return path or "the value"


def quote_value(value: Any) -> str:
    """Return a shortened `repr` for errors."""
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]}..."


def find_schema_error(schema: Any, kind: str | None = "object") -> str | None:
    """Return the reason why a JSON Schema is invalid.

    Args:
        schema: The schema.
        kind: Required type of matching values, or None to allow any type.

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
    return next(_find_errors(root, root, "", 0), None)


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


def _find_errors(schema: Any, root: Schema, path: str, depth: int) -> Iterator[str]:
    if (schema is None or isinstance(schema, bool)) and path:
        return
    if not isinstance(schema, Mapping):
        yield f"{path} must be a JSON Schema, got {quote_value(schema)}"
        return
    if depth > MAX_DEPTH:
        yield "it is nested too deep"
        return
    for keyword, value in cast("Mapping[Any, Any]", schema).items():
        item_path = f"{path}.{keyword}" if path else str(keyword)
        if value is None:
            # Some programs write null for missing keywords.
            continue
        if keyword in _SCHEMA_MAPS:
            if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in cast("Any", value)):
                yield f"{item_path} must be a dict of schemas by name, got {quote_value(value)}"
                return
            inner = [(f"{item_path}.{name}", part) for name, part in cast("Mapping[str, Any]", value).items()]
        elif keyword in _SCHEMA_LISTS:
            if not isinstance(value, list | tuple):
                yield f"{item_path} must be a list of schemas, got {quote_value(value)}"
                return
            inner = [(f"{item_path}.{number}", part) for number, part in enumerate(cast("Sequence[Any]", value))]
        elif keyword in _SCHEMAS:
            inner = [(item_path, value)]
        else:
            inner = []
            if keyword in _CHECKS and not _CHECKS[keyword](value):
                yield f"{item_path} cannot be {quote_value(value)}"
            elif keyword == "$ref" and (not isinstance(value, str) or resolve_reference(value, root) is None):
                yield f"{item_path} must refer to a part of this schema, got {quote_value(value)}"
        for name, part in inner:
            yield from _find_errors(part, root, name, depth + 1)


_NAMED = frozenset(["properties", "$defs", "patternProperties", "dependentSchemas"])
"""Keywords with named subschemas."""

_DATA = frozenset(["default", "const", "enum", "examples", "required", "discriminator"])
"""Keywords without subschemas."""


def map_subschemas(schema: dict[str, Any], change: Callable[[dict[str, Any]], Any]) -> dict[str, Any]:
    """Apply `change` to direct subschemas and return a new schema."""

    def map_value(value: Any) -> Any:
        if isinstance(value, list):
            return [map_value(part) for part in cast("list[Any]", value)]
        return change(cast("dict[str, Any]", value)) if isinstance(value, dict) else value

    result: dict[str, Any] = {}
    for key, value in schema.items():
        if key in _NAMED and isinstance(value, dict):
            result[key] = {name: map_value(part) for name, part in cast("dict[str, Any]", value).items()}
        else:
            result[key] = value if key in _DATA else map_value(value)
    return result


def close_objects(schema: dict[str, Any]) -> dict[str, Any] | None:
    """Return the keywords that reject unknown properties and require all others, as needed for strict decoding.

    Returns:
        None if the schema allows additional properties.
    """
    if schema.get("properties") is None or schema.get("additionalProperties", False) is not False:
        return None
    return {"additionalProperties": False, "required": list(schema["properties"])}


def explain_schema_error(error: SchemaError) -> str:
    """Return the reason why pydantic cannot validate a type, such as an unsupported pattern."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    index = next((n for n, line in enumerate(lines) if "regex parse error" in line), None)
    if index is None or index + 1 >= len(lines):
        return lines[0] if lines else "its schema is invalid"
    reason = next((line.removeprefix("error: ") for line in lines if line.startswith("error: ")), "it is invalid")
    return f"the pattern {lines[index + 1]!r} cannot be used: {reason}"
