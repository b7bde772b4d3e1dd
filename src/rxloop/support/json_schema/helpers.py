"""References, types and subschemas of JSON Schemas."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import unquote

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

MAX_DEPTH = 100

MAX_STEPS = 500_000
"""Maximum number of steps for all values of a message. A step takes about a microsecond."""

VALUE_ERROR = "Value error, "
"""Prefix that pydantic adds to the message of a `ValueError` of a validator."""

_MAX_QUOTED = 200
"""Maximum number of characters of a value in an error."""

_MAX_LISTED = 100
"""Maximum number of names or values in an error."""


class StepBudget:
    """Number of steps that the validation of a message may take.

    The number of steps only depends on values and schemas, so that a repeated validation has the same result.

    Attributes:
        remaining: Remaining number of steps.
    """

    __slots__ = ("remaining",)

    def __init__(self, steps: int = MAX_STEPS) -> None:
        self.remaining = steps

    def spend(self, steps: int) -> bool:
        """Count steps. Return False if there are too many."""
        self.remaining -= steps
        return self.remaining >= 0


Path = tuple["Path | None", str | int] | None
"""Path of a part, from its last step to the first one. Long names are not copied for each part."""

_MAX_PATH = 500
"""Maximum number of characters of a path in an error."""


def format_path(path: Path) -> str:
    """Return a path for errors, such as `stops[0].name`."""
    steps: list[str] = []
    while path is not None:
        path, step = path
        steps.append(f"[{step}]" if isinstance(step, int) else f".{step[:_MAX_PATH]}")
    text = "".join(reversed(steps)).removeprefix(".")
    return text if len(text) <= _MAX_PATH else f"{text[:_MAX_PATH]}..."


def resolve_reference(reference: str, root: Schema) -> Schema | None:
    """Resolve a local reference. Return None if the target does not exist."""
    target: Any = root
    for name in reference.removeprefix("#").split("/")[1:]:
        name = unquote(name).replace("~1", "/").replace("~0", "~")
        if isinstance(target, Mapping):
            target = cast("Schema", target).get(name)
        elif isinstance(target, list | tuple) and name.isdecimal() and len(name) < 10:
            target = next(islice(cast("Sequence[Any]", target), int(name), None), None)
        else:
            return None
    return cast("Schema", target) if isinstance(target, Mapping) else None


def quote_value(value: Any) -> str:
    """Return a shortened `repr` for errors. Large values are not written completely."""
    text = repr(_shorten(value, [_MAX_QUOTED]))
    return text if len(text) <= _MAX_QUOTED else f"{text[:_MAX_QUOTED]}..."


def _shorten(value: Any, remaining: list[int]) -> Any:
    """Return a copy of the start of a JSON value, which is long enough for `quote_value`."""
    remaining[0] -= 1
    if isinstance(value, str):
        return value[: _MAX_QUOTED + 1]
    if isinstance(value, list | tuple):
        items = [_shorten(item, remaining) for item in islice(cast("Sequence[Any]", value), max(remaining[0], 0))]
        return items if isinstance(value, list) else tuple(items)
    if isinstance(value, dict):
        pairs = islice(cast("dict[Any, Any]", value).items(), max(remaining[0], 0))
        return {_shorten(key, remaining): _shorten(item, remaining) for key, item in pairs}
    return value


def list_values(values: Iterable[Any]) -> str:
    """Return a list of values for errors, shortened if there are many."""
    listed = [quote_value(value) for value in islice(values, _MAX_LISTED + 1)]
    return ", ".join([*listed[:_MAX_LISTED], "..."] if len(listed) > _MAX_LISTED else listed)


_SUBSCHEMA_MAPS = frozenset(["properties", "$defs", "patternProperties", "dependentSchemas"])
"""Keywords with named subschemas."""

_DATA_KEYWORDS = frozenset(["default", "const", "enum", "examples", "required", "discriminator"])
"""Keywords without subschemas."""


def map_subschemas(schema: dict[str, Any], change: Callable[[dict[str, Any]], Any]) -> dict[str, Any]:
    """Apply `change` to direct subschemas and return a new schema."""

    def map_value(value: Any) -> Any:
        if isinstance(value, list):
            return [map_value(part) for part in cast("list[Any]", value)]
        return change(cast("dict[str, Any]", value)) if isinstance(value, dict) else value

    result: dict[str, Any] = {}
    for key, value in schema.items():
        if key in _SUBSCHEMA_MAPS and isinstance(value, dict):
            result[key] = {name: map_value(part) for name, part in cast("dict[str, Any]", value).items()}
        else:
            result[key] = value if key in _DATA_KEYWORDS else map_value(value)
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
