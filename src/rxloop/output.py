"""Typed output: how an answer becomes a value."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, get_args

import orjson
from pydantic import PydanticUserError, TypeAdapter, ValidationError

from rxloop.errors import ConfigurationError

OutputMode = Literal["auto", "native", "prompted"]

_FENCE = re.compile(r"\A\s*```[a-zA-Z]*\s*\n(?P<body>.*?)\n?\s*```\s*\Z", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Output:
    """How the answer is asked for, and read."""

    parse: Callable[[str], Any]
    """Raises ValueError with a text for the model."""
    prompt: str | None = None
    """What the system prompt says of the answer."""
    schema: dict[str, Any] | None = None
    """What a provider that can makes the model keep to."""


def output_of(output_type: Any, mode: OutputMode = "auto") -> Output:
    """The way to an answer of a type.

    Args:
        output_type: `str` takes the answer as it is; anything else that pydantic validates is asked for as JSON.
        mode: `native` leaves the schema to the provider, `prompted` puts it into the system prompt, `auto` does both.

    Raises:
        ConfigurationError: There is no such mode, or pydantic cannot validate the type.
    """
    if mode not in get_args(OutputMode):
        raise ConfigurationError(f"output_mode must be one of {', '.join(get_args(OutputMode))}, not {mode!r}")
    if output_type is str:
        return Output(parse=str)
    try:
        adapter: TypeAdapter[Any] = TypeAdapter(output_type)
        schema = adapter.json_schema()
    except PydanticUserError as error:
        reason = str(error).partition("\n")[0]
        raise ConfigurationError(f"output_type={output_type!r} is nothing that an answer can be: {reason}") from error

    def parse(text: str) -> Any:
        fenced = _FENCE.match(text)
        try:
            return adapter.validate_json(fenced["body"] if fenced else text)
        except ValidationError as error:
            raise ValueError(_for_the_model(error)) from error

    prompt = (
        "Give your final answer as JSON alone, with no other text and no code fence. It must fit this JSON Schema:\n"
        + orjson.dumps(schema).decode()
    )
    return Output(
        parse=parse,
        prompt=None if mode == "native" else prompt,
        schema=None if mode == "prompted" or schema.get("type") != "object" else schema,
    )


def _for_the_model(error: ValidationError) -> str:
    return "; ".join(
        f"{'.'.join(map(str, each['loc'])) or 'the answer'}: {each['msg']}" for each in error.errors(include_url=False)
    )
