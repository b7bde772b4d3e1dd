"""Stage tables from JSON and YAML."""

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
from rxloop.support.text import to_short_repr
from rxloop.support.yaml import InvalidYAML, load_yaml

MAX_CHARACTERS = 256 * 1024
"""Maximum document length in characters. The built-in strategies use 40,000 in total."""

T = TypeVar("T")

_FAULTS = 20
"""Maximum number of validation errors per message."""


def from_json(model: type[T], source: str | bytes | PathLike[str]) -> T:
    """Load a strategy from JSON text or a JSON file."""
    text, subject = _read(source, "the JSON of a strategy")
    try:
        data = json.loads(text, object_pairs_hook=_check_unique)
    except json.JSONDecodeError as error:
        raise ConfigurationError(
            f"{subject}: {error.msg} (line {error.lineno}, column {error.colno}){_hint(text)}"
        ) from None
    except RecursionError:
        raise ConfigurationError(f"{subject}: the values are nested too deeply") from None
    except ValueError as error:
        # Raised for duplicate keys and excessively long numbers.
        raise ConfigurationError(f"{subject}: {error}") from None
    return validate(model, data, subject)


def from_yaml(model: type[T], source: str | bytes | PathLike[str]) -> T:
    """Load a strategy from YAML text or a YAML file."""
    text, subject = _read(source, "the YAML of a strategy")
    try:
        data = load_yaml(text)
    except InvalidYAML as error:
        raise ConfigurationError(f"{subject}: {error}") from None
    if isinstance(data, str):
        raise ConfigurationError(f"{subject} must be a mapping, got a string{_hint(text)}")
    return validate(model, data, subject)


def validate(model: type[T], data: object, subject: str) -> T:
    """Parse data using a model type.

    Raises:
        ConfigurationError: Invalid data. The message includes the path, problem and value of each error.
    """
    try:
        return _make_adapter(model).validate_python(data)
    except ValidationError as error:
        faults = error.errors(include_url=False)
        problems = "; ".join(_describe(fault, data) for fault in faults[:_FAULTS])
        more = f"; and {len(faults) - _FAULTS} more" if len(faults) > _FAULTS else ""
        raise ConfigurationError(f"{subject} is invalid: {problems}{more}") from None


@cache
def _make_adapter(model: type[Any]) -> TypeAdapter[Any]:
    return TypeAdapter(model)


def _describe(error: ErrorDetails, data: Any) -> str:
    cause = error.get("ctx", {}).get("error")
    if isinstance(cause, ConfigurationError):
        return str(cause)
    path = _path(error["loc"], data)
    match error["type"]:
        case "missing":
            return f"{path} is missing"
        case "unexpected_keyword_argument" | "extra_forbidden":
            return f"unknown field {path}"
        case _:
            message = error["msg"][:1].lower() + error["msg"][1:]
            return f"{path or 'it'}: {message} (got {to_short_repr(error['input'])})"


def _path(location: tuple[int | str, ...], data: Any) -> str:
    """Format the path of a value, using stage names instead of indices."""
    parts: list[str] = []
    for part in location:
        name: Any = None
        if isinstance(part, int) and isinstance(data, Mapping):
            # The validator converts a mapping of stages to a list.
            name, data = list(cast("Mapping[Any, Any]", data).items())[part]
        else:
            data = _get(data, part)
            name = _get(data, "name") if isinstance(part, int) else None
        parts.append(str(part) if name is None else name if isinstance(name, str) else to_short_repr(name))
    return ".".join(parts)


def _get(data: Any, part: int | str) -> Any:
    try:
        return data[part]
    except (LookupError, TypeError):
        return None


def _read(source: str | bytes | PathLike[str], subject: str) -> tuple[str, str]:
    """Read source text and return it with a description for error messages."""
    if not isinstance(source, str | bytes):
        path = Path(source)
        subject = f"{subject} in {path}"
        try:
            with path.open("rb") as file:
                source = file.read(4 * MAX_CHARACTERS + 1)
        except (OSError, ValueError) as error:
            raise ConfigurationError(f"{subject} cannot be read: {error}") from error
    # UTF-8 characters use at most four bytes.
    if isinstance(source, bytes) and len(source) <= 4 * MAX_CHARACTERS:
        try:
            source = source.decode()
        except UnicodeDecodeError as error:
            raise ConfigurationError(f"{subject} is not UTF-8: {error.reason} (at byte {error.start})") from None
    if isinstance(source, bytes) or len(source) > MAX_CHARACTERS:
        raise ConfigurationError(f"{subject} must have at most {MAX_CHARACTERS} characters, it has more")
    return source, subject


def _hint(text: str) -> str:
    """Suggest `pathlib.Path` for text that resembles a file name."""
    return "; for a file, pass a pathlib.Path" if text.strip() and "\n" not in text and len(text) < 300 else ""


def _check_unique(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key, value in pairs:
        if key in result:
            raise ValueError(f"the key {key!r} appears twice in one object")
        result[key] = value
    return result
