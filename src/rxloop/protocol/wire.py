"""What all models on the wire have in common."""

import ast
import inspect
import textwrap
from functools import cache
from itertools import pairwise
from typing import Any, cast

from pydantic import BaseModel, ConfigDict, GetJsonSchemaHandler
from pydantic.alias_generators import to_camel
from pydantic_core import CoreSchema


class Wire(BaseModel):
    """A frozen model: snake_case in Python, camelCase in JSON."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        alias_generator=cache(to_camel),
        validate_by_name=True,
        validate_by_alias=True,
        serialize_by_alias=True,
        ser_json_bytes="base64",
        val_json_bytes="base64",
        # Built when a model is first used: all of them at once would be a good part of importing rxloop.
        defer_build=True,
    )

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """Return the schema, with the docstrings of the fields as their descriptions.

        Read from the source when there is a schema to make. With pydantic's `use_attribute_docstrings` they would be
        read at every start, which takes a quarter of the time of importing rxloop.
        """
        made = handler(schema)
        properties: dict[str, Any] = handler.resolve_ref_schema(made).get("properties", {})
        for base in reversed(cls.__mro__):
            for name, text in _field_docstrings(base).items():
                if name in cls.model_fields:
                    properties[cls.model_fields[name].serialization_alias or name]["description"] = text
        return made


@cache
def _field_docstrings(cls: type) -> dict[str, str]:
    """Return what stands in the source below each annotated name of a class."""
    if not issubclass(cls, Wire):
        return {}
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(cls)))
    except (OSError, SyntaxError):
        return {}
    body = cast("ast.ClassDef", tree.body[0]).body
    return {
        field.target.id: inspect.cleandoc(text.value.value)
        for field, text in pairwise(body)
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(text, ast.Expr)
        and isinstance(text.value, ast.Constant)
        and isinstance(text.value.value, str)
    }
