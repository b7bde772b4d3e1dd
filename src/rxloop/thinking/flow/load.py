"""Reads strategies and snapshots from JSON and YAML, and says what is wrong with them, and where."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from functools import cache
from os import PathLike
from pathlib import Path
from typing import Any, TypeVar, cast

from pydantic import TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from rxloop.errors import ConfigurationError
from rxloop.thinking.flow._nesting import MOST_CHARACTERS, TooMuch, check_json, check_yaml
from rxloop.thoughts.short_repr import short_repr

T = TypeVar("T")

_FAULTS = 20
"""Faults that an error names."""


def from_json(model: type[T], source: str | bytes | PathLike[str]) -> T:
    """Read a strategy, as a value of that class, from JSON text, or from a JSON file."""
    text, where = _read(source, "the JSON of a strategy")
    try:
        check_json(text)
        data = json.loads(text, object_pairs_hook=_unique)
    except json.JSONDecodeError as error:
        raise ConfigurationError(
            f"{where}: {error.msg} (line {error.lineno}, column {error.colno}){_hint(text)}"
        ) from None
    except TooMuch as error:
        raise ConfigurationError(f"{where} is not right: {error}") from None
    except ValueError as error:
        # Our own errors, and a number with too many digits.
        raise ConfigurationError(f"{where}: {error}") from None
    return _strategy(model, data, where)


def from_yaml(model: type[T], source: str | bytes | PathLike[str]) -> T:
    """Read a strategy, as a value of that class, from YAML text, or from a YAML file."""
    try:
        import yaml
    except ModuleNotFoundError:
        raise ConfigurationError(
            'Reading YAML needs pyyaml, which is not installed: pip install "rxloop[yaml]"'
        ) from None
    text, where = _read(source, "the YAML of a strategy")
    try:
        check_yaml(text)
        loader: Any = yaml.SafeLoader(text)
        root = loader.get_single_node()
        _refuse_repeated(root)
        data = loader.construct_document(root) if root is not None else None
    except yaml.YAMLError as error:
        mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None) or str(error)
        at = f" (line {mark.line + 1}, column {mark.column + 1})" if mark is not None else ""
        raise ConfigurationError(f"{where}: {problem}{at}") from None
    except TooMuch as error:
        raise ConfigurationError(f"{where} is not right: {error}") from None
    except (ValueError, TypeError, ArithmeticError) as error:
        # Our own errors, and invalid dates, numbers and base64.
        raise ConfigurationError(f"{where}: {error}") from None
    if isinstance(data, str):
        raise ConfigurationError(f"{where} is a piece of text, not a mapping{_hint(text)}")
    return _strategy(model, data, where)


def validated(model: type[T], data: object, what: str) -> T:
    """Validate data as a value of that type.

    Raises:
        ConfigurationError: The data does not fit; the message names every wrong place and what is wrong there.
    """
    try:
        return _adapter(model).validate_python(data)
    except ValidationError as error:
        faults = error.errors(include_url=False)
        said = "; ".join(_fault(fault, data) for fault in faults[:_FAULTS])
        more = f"; and {len(faults) - _FAULTS} more" if len(faults) > _FAULTS else ""
        raise ConfigurationError(f"{what} is not right: {said}{more}") from None


class _Repeated(ValueError):
    """The same key appears twice in one object; a plain reader would silently drop the first."""


@cache
def _adapter(model: type[Any]) -> TypeAdapter[Any]:
    return TypeAdapter(model)


def _strategy(model: type[T], data: Any, where: str) -> T:
    if isinstance(data, Mapping):
        fields = dict(cast("Mapping[str, Any]", data))
        if isinstance(stages := fields.get("stages"), Mapping):
            by_name = cast("Mapping[Any, Any]", stages)
            fields["stages"] = [_named(name, stage, where) for name, stage in by_name.items()]
        data = fields
    return validated(model, data, where)


def _named(name: Any, stage: Any, where: str) -> Any:
    """Give a stage that stood under its name this name."""
    if stage is None:
        return {"name": name}
    if not isinstance(stage, Mapping):
        return stage
    stage = cast("Mapping[str, Any]", stage)
    if stage.get("name", name) != name:
        raise ConfigurationError(f"{where}: the stage under {name!r} calls itself {stage['name']!r}")
    return {"name": name, **stage}


def _fault(error: ErrorDetails, data: Any) -> str:
    cause = error.get("ctx", {}).get("error")
    if isinstance(cause, ConfigurationError):
        return str(cause)
    where = _path(error["loc"], data)
    match error["type"]:
        case "missing":
            return f"{where} is missing"
        case "unexpected_keyword_argument" | "extra_forbidden":
            return f"there is no field {where}"
        case _:
            said = error["msg"][:1].lower() + error["msg"][1:]
            return f"{where or 'it'}: {said} (got {short_repr(error['input'])})"


def _path(location: tuple[int | str, ...], data: Any) -> str:
    """Say where in the data something is; a thing with a name stands there by its name instead of its number."""
    parts: list[str] = []
    for part in location:
        data = _inside(data, part)
        name = _inside(data, "name") if isinstance(part, int) else None
        parts.append(str(part) if name is None else name if isinstance(name, str) else short_repr(name))
    return ".".join(parts)


def _inside(data: Any, part: int | str) -> Any:
    try:
        return data[part]
    except (LookupError, TypeError):
        return None


def _read(source: str | bytes | PathLike[str], what: str) -> tuple[str, str]:
    """Return the text, and what to call it."""
    try:
        if isinstance(source, str | bytes):
            return _text(source, what), what
        path = Path(source)
        what = f"{what} in {path}"
        with path.open("rb") as file:
            return _text(file.read(4 * MOST_CHARACTERS + 1), what), what
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"{what} is not UTF-8: {error.reason} (at byte {error.start})") from None
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"{what} cannot be read: {error}") from error


def _text(source: str | bytes, what: str) -> str:
    # A character is four bytes at most.
    text = source if isinstance(source, str) or len(source) > 4 * MOST_CHARACTERS else source.decode()
    if isinstance(text, bytes) or len(text) > MOST_CHARACTERS:
        raise ConfigurationError(f"{what} has more than {MOST_CHARACTERS} characters")
    return text


def _hint(text: str) -> str:
    """Hint at `pathlib.Path` where the text looks like the name of a file."""
    return "; for a file, give a pathlib.Path" if text.strip() and "\n" not in text and len(text) < 300 else ""


def _unique(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for key, value in pairs:
        if key in made:
            raise _Repeated(f"the key {key!r} appears twice in one object")
        made[key] = value
    return made


def _refuse_repeated(root: Any) -> None:
    """Look through a tree of YAML nodes for keys that stand twice in one mapping."""
    waiting: list[Any] = [root]
    seen = set[int]()
    while waiting:
        node = waiting.pop()
        # An anchor makes of the tree a graph, which may even contain itself.
        if node is None or isinstance(node.value, str) or id(node) in seen:
            continue
        seen.add(id(node))
        if node.id == "sequence":
            waiting += node.value
            continue
        keys = set[Any]()
        for key, value in node.value:
            if isinstance(key.value, str) and key.value in keys:
                raise _Repeated(f"the key {key.value!r} appears twice in one mapping (line {key.start_mark.line + 1})")
            keys.add(key.value if isinstance(key.value, str) else id(key))
            waiting.append(value)
