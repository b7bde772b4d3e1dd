"""Checks of values and of schemas, as JSON Schema."""

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

_SECONDS = 2.0
"""Of the processor, that one check takes: a short schema can ask for more than anybody can do, and all runs of the
process would wait."""

_PER_CHARACTER = 0.003
"""What the search for a pattern takes at most for each character, as a part of what it took to compile it; measured. It
is linear in the text, but a short pattern may stand for very many states: `.{0,2000}x.{0,2000}y`."""

DEPTH = 100

_TOO_MUCH = "the value cannot be checked: its schema is too deep, or takes too long"


def find_misfit(value: Any, schema: Schema) -> str | None:
    """What is wrong with a value.

    Looks at `type`, `enum`, `const`, `anyOf`, `oneOf`, `allOf`, `$ref`, `properties`, `required`,
    `additionalProperties`, `items`, `pattern`, and the limits of numbers and of lengths. What else a schema says is
    taken as kept: whoever asked for the value reads it again with the type that the schema was made of.

    Returns:
        A phrase such as `amount is to be a JSON integer, not 'ten'`; None if the value fits.
    """
    try:
        return _Check(schema).misfit(value, schema, "", 0)
    except _TooMuch:
        return _TOO_MUCH


class _TooMuch(Exception):
    """A check takes more than it may."""


class _Check:
    """One check; it ends, whatever the schema refers to."""

    def __init__(self, root: Schema) -> None:
        self._root = root
        self._until = thread_time() + _SECONDS

    def _spend(self, seconds: float = 0.0) -> None:
        if thread_time() + seconds > self._until:
            raise _TooMuch

    def misfit(self, value: Any, schema: Schema | bool | None, where: str, depth: int) -> str | None:
        """What is wrong with a part of the value."""
        self._spend()
        if depth > DEPTH:
            raise _TooMuch
        if schema is None:
            return None
        if isinstance(schema, bool):
            return None if schema else f"{_name(where)} is not to be there"
        if isinstance(value, BaseModel):
            value = value.model_dump(by_alias=True)
        schema = self._referred(schema)
        if None in schema.values():
            # Some programs write what is not there as null.
            schema = {name: part for name, part in schema.items() if part is not None or name == "const"}
        for part in schema.get("allOf", ()):
            if found := self.misfit(value, part, where, depth + 1):
                return found
        options = schema.get("anyOf") or schema.get("oneOf")
        if options:
            found = [self.misfit(value, option, where, depth + 1) for option in options]
            if None not in found:
                return self._either(value, options, where) or found[0]
        return (
            _of_kind(value, schema, where)
            or self._unmatched(value, schema, where)
            or _within(value, schema, where)
            or self._inside(value, schema, where, depth)
        )

    def _referred(self, schema: Schema) -> Schema:
        """What a schema refers to, be it by way of others."""
        for _ in range(DEPTH):
            reference = schema.get("$ref")
            if not isinstance(reference, str):
                return schema
            schema = resolve_reference(reference, self._root) or {}
        raise _TooMuch

    def _unmatched(self, value: Any, schema: Schema, where: str) -> str | None:
        pattern = schema.get("pattern")
        if pattern is None or not isinstance(value, str):
            return None
        matches, seconds = _pattern(pattern)
        self._spend(seconds * _PER_CHARACTER * len(value))
        if matches is None or matches(value):
            return None
        return f"{_name(where)} is to match {pattern!r}, and {to_json_text(value)} does not"

    def _either(self, value: Any, options: Sequence[Schema | bool], where: str) -> str | None:
        """One phrase for several plain types."""
        kinds = [self._kind(option) for option in options]
        if not all(isinstance(kind, str) for kind in kinds):
            return None
        return f"{_name(where)} is to be a JSON {' or '.join(cast('list[str]', kinds))}, not {to_json_text(value)}"

    def _kind(self, schema: Schema | bool) -> Any:
        if isinstance(schema, bool):
            return None
        return self._referred(schema).get("type")

    def _inside(self, value: Any, schema: Schema, where: str, depth: int) -> str | None:
        if isinstance(value, Mapping):
            return self._fields(cast("Mapping[str, Any]", value), schema, where, depth)
        if isinstance(value, list | tuple) and isinstance(schema.get("items"), Mapping | bool):
            first = len(schema.get("prefixItems", ()))
            for index, item in enumerate(cast("Sequence[Any]", value)[first:], start=first):
                if found := self.misfit(item, schema["items"], f"{where}[{index}]", depth + 1):
                    return found
        return None

    def _fields(self, value: Mapping[str, Any], schema: Schema, where: str, depth: int) -> str | None:
        known: Mapping[str, Schema] = schema.get("properties", {})
        for name in schema.get("required", ()):
            if name not in value:
                return f"{_name(where)} lacks {name!r}"
        others = schema.get("additionalProperties", True)
        if "patternProperties" in schema:
            others = True
        for name, item in value.items():
            place = f"{where}.{name}" if where else name
            if name in known:
                found = self.misfit(item, known[name], place, depth + 1)
            elif others is False:
                found = f"{_name(where)} has no {name!r}, only {', '.join(map(repr, known))}"
            else:
                found = self.misfit(item, others, place, depth + 1) if others is not True else None
            if found:
                return found
        return None


def _of_kind(value: Any, schema: Schema, where: str) -> str | None:
    if "const" in schema and value != schema["const"]:
        return f"{_name(where)} is to be {schema['const']!r}, not {to_json_text(value)}"
    if "enum" in schema and value not in schema["enum"]:
        return f"{_name(where)} is to be one of {', '.join(map(repr, schema['enum']))}, not {to_json_text(value)}"
    kinds = schema.get("type")
    kinds = [kinds] if isinstance(kinds, str) else kinds or []
    if kinds and not any(_is(value, kind) for kind in kinds):
        return f"{_name(where)} is to be a JSON {' or '.join(kinds)}, not {to_json_text(value)}"
    return None


def _is(value: Any, kind: str) -> bool:
    if isinstance(value, bool):
        return kind == "boolean"
    if kind == "integer" and isinstance(value, float):
        return value.is_integer()
    return isinstance(value, TYPES.get(kind, object))


def _within(value: Any, schema: Schema, where: str) -> str | None:
    if isinstance(value, str):
        return _between(len(value), schema, "minLength", "maxLength", f"the length of {_name(where)}")
    if isinstance(value, list | tuple):
        items = cast("Sequence[Any]", value)
        return _between(len(items), schema, "minItems", "maxItems", f"the length of {_name(where)}")
    if not isinstance(value, int | float):
        return None
    more, less = _limit(schema, "exclusiveMinimum"), _limit(schema, "exclusiveMaximum")
    if more is not None and value <= more:
        return f"{_name(where)} is to be more than {more}, not {to_json_text(value)}"
    if less is not None and value >= less:
        return f"{_name(where)} is to be less than {less}, not {to_json_text(value)}"
    return _between(value, schema, "minimum", "maximum", _name(where))


def _limit(schema: Schema, name: str) -> float | None:
    limit = schema.get(name)
    # In old schemas it is true or false, and says how `minimum` is meant.
    return limit if isinstance(limit, int | float) and not isinstance(limit, bool) else None


def _between(size: float, schema: Schema, least: str, most: str, what: str) -> str | None:
    if least in schema and size < schema[least]:
        return f"{what} is to be at least {schema[least]}, not {size!r}"
    if most in schema and size > schema[most]:
        return f"{what} is to be at most {schema[most]}, not {size!r}"
    return None


@lru_cache(maxsize=256)
def _pattern(pattern: str) -> tuple[Callable[[str], bool] | None, float]:
    """Give what looks for a pattern in linear time, and how long it took to compile; None if that needs more."""
    from pydantic_core import SchemaError, SchemaValidator, core_schema

    begun = thread_time()
    try:
        matches = SchemaValidator(core_schema.str_schema(pattern=pattern)).isinstance_python
    except SchemaError:
        matches = None
    return matches, thread_time() - begun


def resolve_reference(reference: str, root: Schema) -> Schema | None:
    """What a reference inside the schema leads to."""
    found: Any = root
    for name in reference.removeprefix("#").split("/")[1:]:
        if not isinstance(found, Mapping):
            return None
        found = cast("Schema", found).get(name.replace("~1", "/").replace("~0", "~"))
    return cast("Schema", found) if isinstance(found, Mapping) else None


def _name(where: str) -> str:
    return where or "the value"


def to_json_text(value: Any) -> str:
    """A value in an error, cut short."""
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]}..."


def find_flaw(schema: Any, kind: str | None = "object") -> str | None:
    """What is wrong with a JSON Schema that somebody else has written.

    Args:
        schema: The schema.
        kind: The type of what fits it; None for any.

    Returns:
        A phrase such as `properties.city.type cannot be 'text'`; None if nothing is.
    """
    if not isinstance(schema, Mapping):
        return f"it is to be a dict, not {to_json_text(schema)}"
    root = cast("Schema", schema)
    kinds: Any = root.get("type", kind)
    if kind is not None and kind not in (
        kinds if isinstance(kinds, list | tuple) else [kind if kinds is None else kinds]
    ):
        return f"its type is to be {kind!r}, not {to_json_text(root['type'])}"
    return next(_find_flaws(root, root, "", 0), None)


def _is_list_of(kind: type) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list | tuple) and all(isinstance(each, kind) for each in cast("Any", value))


def _is_size(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_type(value: Any) -> bool:
    kinds: Any = [value] if isinstance(value, str) else value
    return _is_list_of(str)(kinds) and bool(kinds) and all(kind in TYPES for kind in kinds)


_BY_NAME = frozenset(("properties", "$defs", "definitions", "patternProperties"))

_SEVERAL = frozenset(("allOf", "anyOf", "oneOf", "prefixItems"))

_ONE = frozenset(("additionalProperties", "items", "not"))

_FORMS: dict[str, Callable[[Any], bool]] = {
    "type": _is_type,
    "enum": _is_list_of(object),
    "required": _is_list_of(str),
    "pattern": lambda value: isinstance(value, str),
    **dict.fromkeys(("minLength", "maxLength", "minItems", "maxItems"), _is_size),
    **dict.fromkeys(("minimum", "maximum"), _is_number),
}


def _find_flaws(schema: Any, root: Schema, where: str, depth: int) -> Iterator[str]:
    if (schema is None or isinstance(schema, bool)) and where:
        return
    if not isinstance(schema, Mapping):
        yield f"{where} is to be a JSON Schema, not {to_json_text(schema)}"
        return
    if depth > DEPTH:
        yield "it is nested too deep"
        return
    for keyword, value in cast("Mapping[Any, Any]", schema).items():
        place = f"{where}.{keyword}" if where else str(keyword)
        if value is None:
            # Some programs write what is not there as null.
            continue
        if keyword in _BY_NAME:
            if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in cast("Any", value)):
                yield f"{place} is to be a dict of schemas by name, not {to_json_text(value)}"
                return
            inner = [(f"{place}.{name}", part) for name, part in cast("Mapping[str, Any]", value).items()]
        elif keyword in _SEVERAL:
            if not isinstance(value, list | tuple):
                yield f"{place} is to be a list of schemas, not {to_json_text(value)}"
                return
            inner = [(f"{place}.{number}", part) for number, part in enumerate(cast("Sequence[Any]", value))]
        elif keyword in _ONE:
            inner = [(place, value)]
        else:
            inner = []
            if keyword in _FORMS and not _FORMS[keyword](value):
                yield f"{place} cannot be {to_json_text(value)}"
            elif keyword == "$ref" and (not isinstance(value, str) or resolve_reference(value, root) is None):
                yield f"{place}: there is nothing at {to_json_text(value)} in this schema"
        for name, part in inner:
            yield from _find_flaws(part, root, name, depth + 1)


_NAMED = frozenset(["properties", "$defs", "patternProperties", "dependentSchemas"])
"""Keywords whose value maps names to schemas."""

_DATA = frozenset(["default", "const", "enum", "examples", "required", "discriminator"])
"""Keywords whose value is data, in which nothing is a schema."""


def map_subschemas(schema: dict[str, Any], change: Callable[[dict[str, Any]], Any]) -> dict[str, Any]:
    """A copy of a schema in which each schema directly inside it is what `change` makes of that one."""

    def changed(value: Any) -> Any:
        if isinstance(value, list):
            return [changed(part) for part in cast("list[Any]", value)]
        return change(cast("dict[str, Any]", value)) if isinstance(value, dict) else value

    result: dict[str, Any] = {}
    for key, value in schema.items():
        if key in _NAMED and isinstance(value, dict):
            result[key] = {name: changed(part) for name, part in cast("dict[str, Any]", value).items()}
        else:
            result[key] = value if key in _DATA else changed(value)
    return result


def close_objects(schema: dict[str, Any]) -> dict[str, Any] | None:
    """The keywords that close an object and require all its properties, as strict decoding asks for.

    Returns:
        None if the object has free keys: then it cannot be closed.
    """
    if schema.get("properties") is None or schema.get("additionalProperties", False) is not False:
        return None
    return {"additionalProperties": False, "required": list(schema["properties"])}


def explain_schema_error(error: SchemaError) -> str:
    """Return why pydantic cannot check values of a type, such as a pattern that it does not understand."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    where = next((n for n, line in enumerate(lines) if "regex parse error" in line), None)
    if where is None or where + 1 >= len(lines):
        return lines[0] if lines else "its schema is invalid"
    why = next((line.removeprefix("error: ") for line in lines if line.startswith("error: ")), "it is invalid")
    return f"the pattern {lines[where + 1]!r} cannot be used: {why}"
