"""JSON Schema of a function's parameters, from hints and docstring."""

from __future__ import annotations

import inspect
import re
import sys
import types
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Annotated, Any, Union, cast, get_args, get_origin, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model
from pydantic.errors import PydanticSchemaGenerationError, PydanticUndefinedAnnotation, PydanticUserError
from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaWarningKind
from pydantic_core import PydanticSerializationError, SchemaError

from rxloop.errors import ConfigurationError, ToolError
from rxloop.pipeline.run_context import RunContext
from rxloop.protocol.model import thaw
from rxloop.support.json_schema import VALUE_ERROR, close_objects, explain_schema_error, map_subschemas
from rxloop.support.text import shorten_repr
from rxloop.tools.docstring import parse
from rxloop.tools.execution import describe, find_function, list_parameters, read_docstring, read_signature

_CONTEXT = re.compile(r"^(\w+\.)*RunContext(\[.*\])?$", re.DOTALL)

_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)

_NO_ANNOTATION: Any = inspect.Parameter.empty

_SCHEMA_ERRORS = (PydanticUserError, PydanticUndefinedAnnotation, SchemaError)


class _SilentSchemaGenerator(GenerateJsonSchema):
    # Silently omit defaults that are not JSON-serializable. The function still uses them.
    def emit_warning(self, kind: JsonSchemaWarningKind, detail: str) -> None:
        pass

    def encode_default(self, dft: Any) -> Any:
        encoded = super().encode_default(dft)
        if _has_secret(dft):
            # Pydantic masks secrets with asterisks, which models might send back as actual values.
            raise PydanticSerializationError("the default contains a secret")
        return encoded


class Parameters:
    """Function parameters as JSON Schema, with argument validation and binding."""

    def __init__(
        self,
        function: Callable[..., Any],
        name: str,
        local_names: Mapping[str, Any] | None = None,
        *,
        strict: bool = False,
    ) -> None:
        """Inspect the signature and the docstring.

        Args:
            function: Function to call.
            name: Name of the tool for error messages.
            local_names: Local names for annotations that are strings, in addition to the names of the function's
                module.
            strict: True to make the schema conform to the rules for strict decoding.

        Raises:
            ConfigurationError: If a parameter cannot be described to a model.
        """
        self._name = name
        self._positional: list[inspect.Parameter] = []
        self._keyword: list[inspect.Parameter] = []
        self._contexts: set[str] = set()
        self._fields: dict[str, str] = {}
        definitions: dict[str, tuple[Any, FieldInfo]] = {}
        annotated = list(_resolve_annotations(function, name, local_names))
        shown_names = [parameter.name for parameter, annotation in annotated if not _is_context(annotation)]
        docstring = parse(read_docstring(function), shown_names, list_parameters(function) - {*shown_names})
        self.description = docstring.description
        """Docstring without parameter, result and exception sections."""
        for parameter, annotation in annotated:
            positional = parameter.kind is inspect.Parameter.POSITIONAL_ONLY
            (self._positional if positional else self._keyword).append(parameter)
            if _is_context(annotation):
                self._contexts.add(parameter.name)
                continue
            # Fields have generated names, because a parameter may be named `schema`, `_x` or `copy`.
            field = f"p{len(definitions)}"
            self._fields[parameter.name] = field
            definitions[field] = _field(parameter, annotation, docstring.parameters.get(parameter.name))
        self._model, self.schema = _build(name, definitions)
        if strict:
            self.schema = strict_schema(self.schema, name)

    @property
    def takes_context(self) -> bool:
        """True if a parameter receives the context of the run."""
        return bool(self._contexts)

    def bind(self, arguments: Mapping[str, Any], ctx: RunContext[Any]) -> tuple[list[Any], dict[str, Any]]:
        """Validate arguments of the model, and return positional and keyword arguments for the function.

        Raises:
            ToolError: If the arguments are invalid. The message lists the invalid fields.
        """
        # Copy mutable arguments, because functions may modify values shared with events.
        values = validate(self._model, thaw(dict(arguments)), self._name, self._fields)

        def value(parameter: inspect.Parameter) -> Any:
            if parameter.name in self._contexts:
                return ctx
            field = self._fields[parameter.name]
            if field in values.model_fields_set or not _has_default(parameter):
                return getattr(values, field)
            return parameter.default

        positional = [value(parameter) for parameter in self._positional]
        return positional, {parameter.name: value(parameter) for parameter in self._keyword}


def validate(model: type[Any], arguments: Any, name: str, parameters: Mapping[str, Any]) -> Any:
    """Validate arguments with a pydantic model in lax mode.

    Raises:
        ToolError: If the arguments are invalid. The message lists the invalid fields.
    """
    try:
        return model.model_validate(arguments)
    except ValidationError as error:
        raise _make_arguments_error(error, name, parameters) from error


def _make_arguments_error(error: ValidationError, name: str, parameters: Mapping[str, Any]) -> ToolError:
    lines = [f"The arguments of {name} do not fit, and it was not called:"]
    for problem in error.errors(include_url=False):
        path = _format_path(problem["loc"])
        if problem["type"] == "extra_forbidden":
            names = ", ".join(parameters) or "none"
            lines.append(f"- {path}: there is no such parameter (there are: {names})")
        elif problem["type"] == "missing":
            lines.append(f"- {path}: required, but missing")
        else:
            lines.append(
                f"- {path}: {problem['msg'].removeprefix(VALUE_ERROR)} (got {shorten_repr(problem['input'], 80)})"
            )
    failure = ToolError("\n".join(lines))
    failure.code = "invalid_arguments"
    return failure


def json_schema(model: type[BaseModel]) -> dict[str, Any]:
    """Generate JSON Schema for an argument model, excluding titles."""
    return _remove_titles(model.model_json_schema(schema_generator=_SilentSchemaGenerator, mode="validation"))


def _resolve_annotations(
    function: Callable[..., Any], name: str, local_names: Mapping[str, Any] | None
) -> Iterator[tuple[inspect.Parameter, Any]]:
    """Yield the parameters with their resolved annotations."""
    try:
        function_signature = read_signature(function)
    except (TypeError, ValueError, NameError) as error:
        raise ConfigurationError(
            f"tool {name!r}: cannot read the signature of {describe(function)}: {error}"
        ) from error
    plain = find_function(function)
    module = vars(sys.modules.get(getattr(plain, "__module__", None) or "", types.ModuleType("")))
    names = getattr(plain, "__globals__", module)
    for parameter in function_signature.parameters.values():
        subject = f"tool {name!r}: parameter {parameter.name!r}"
        if parameter.kind in _VARIADIC:
            stars = "*" if parameter.kind is inspect.Parameter.VAR_POSITIONAL else "**"
            raise ConfigurationError(
                f"{subject} is {stars}{parameter.name}, which cannot be described to a model; declare each parameter"
            )
        annotation: Any = parameter.annotation
        if annotation is _NO_ANNOTATION:
            hint = f"; declare its type, as in `{parameter.name}: str`"
            if parameter.name in ("self", "cls"):
                hint = " (pass a bound method: tool(instance.method))"
            elif parameter.name in ("ctx", "context", "run_context"):
                hint = f"; write `{parameter.name}: RunContext`, or RunContext[Deps] to use the deps"
            raise ConfigurationError(f"{subject} has no annotation{hint}")
        if isinstance(annotation, str) and _CONTEXT.match(annotation.strip()):
            # Not evaluated, because RunContext and the type of the deps may only be imported for type checking.
            annotation = RunContext
        try:
            namespace = types.SimpleNamespace(__annotations__={"it": annotation})
            yield parameter, get_type_hints(namespace, names, _to_dict(local_names), include_extras=True)["it"]
        except (NameError, SyntaxError, TypeError, AttributeError) as error:
            raise ConfigurationError(f"{subject}: its annotation {annotation!r} cannot be resolved: {error}") from error


def _to_dict(names: Mapping[str, Any] | None) -> dict[str, Any] | None:
    return None if names is None else dict(names)


def _is_context(annotation: Any) -> bool:
    origin = get_origin(annotation)
    if origin is Annotated or origin is Union or origin is types.UnionType:
        return any(_is_context(part) for part in get_args(annotation))
    return annotation is RunContext or origin is RunContext


def _has_default(parameter: inspect.Parameter) -> bool:
    # Pydantic applies `Field(default=...)` separately.
    return parameter.default is not _NO_ANNOTATION and not isinstance(parameter.default, FieldInfo)


def _field(parameter: inspect.Parameter, annotation: Any, description: str | None) -> tuple[Any, FieldInfo]:
    """Return the type and the field of a parameter. The docstring is used if the annotation has no description."""
    if isinstance(parameter.default, FieldInfo):
        annotation = Annotated[annotation, parameter.default]
    metadata = get_args(annotation)[1:] if get_origin(annotation) is Annotated else ()
    extra: dict[str, Any] = {"alias": parameter.name, "validation_alias": parameter.name}
    if description and not any(isinstance(part, FieldInfo) and part.description for part in metadata):
        extra["description"] = description
    if _has_default(parameter):
        extra["default"] = parameter.default
    return annotation, cast("FieldInfo", Field(**extra))


def _build(name: str, fields: dict[str, tuple[Any, FieldInfo]]) -> tuple[type[BaseModel], dict[str, Any]]:
    try:
        return _model(name, fields)
    except _SCHEMA_ERRORS as error:
        for field, (annotation, info) in fields.items():
            try:
                _model(name, {field: (annotation, info)})
            except _SCHEMA_ERRORS as field_error:
                raise ConfigurationError(
                    f"tool {name!r}: parameter {info.alias!r} of type {annotation!r} cannot be described to a model: "
                    f"{_explain_failure(field_error)}"
                ) from field_error
        raise ConfigurationError(f"tool {name!r}: its parameters cannot be described to a model: {error}") from error


def _explain_failure(error: Exception) -> str:
    """Return a helpful reason. The advice of pydantic refers to a setting that tools do not have."""
    if isinstance(error, SchemaError):
        return explain_schema_error(error)
    if isinstance(error, PydanticSchemaGenerationError):
        return "use a JSON type, a dataclass, a TypedDict or a pydantic model"
    return str(error).partition("\n")[0]


def _model(name: str, fields: dict[str, tuple[Any, FieldInfo]]) -> tuple[type[BaseModel], dict[str, Any]]:
    definitions: dict[str, Any] = dict(fields)
    model = create_model(name, __config__=ConfigDict(extra="forbid"), **definitions)
    return model, json_schema(model)


def _remove_titles(schema: dict[str, Any]) -> dict[str, Any]:
    """Remove pydantic's generated titles from a schema."""
    return map_subschemas({key: value for key, value in schema.items() if key != "title"}, _remove_titles)


def strict_schema(schema: dict[str, Any], name: str) -> dict[str, Any]:
    """Return the schema in the form required for strict decoding.

    All objects are closed, all properties are required and have no defaults. A `$ref` with other keywords next to it is
    replaced by its definition.

    Raises:
        ConfigurationError: If an object of the schema allows arbitrary keys.
    """
    shared: dict[str, Any] = schema.get("$defs", {})

    def visit(node: dict[str, Any], parents: frozenset[str]) -> dict[str, Any]:
        keywords = {key: value for key, value in node.items() if key != "default"}
        target = str(keywords.get("$ref", "")).removeprefix("#/$defs/")
        if target and len(keywords) > 1:
            if target in parents:
                return {"$ref": keywords["$ref"]}
            del keywords["$ref"]
            return visit({**shared[target], **keywords}, parents | {target})
        result = map_subschemas(keywords, lambda part: visit(part, parents))
        if result.get("type") == "object":
            closing = close_objects(result)
            if closing is None:
                raise ConfigurationError(
                    f"tool {name!r}: strict=True does not support objects with arbitrary keys, such as dict"
                )
            result |= closing
        return result

    return visit(schema, frozenset())


def _has_secret(value: Any) -> bool:
    """Return True if a value is or contains a pydantic secret."""
    if isinstance(value, Mapping):
        return any(map(_has_secret, cast("Mapping[Any, Any]", value).values()))
    if isinstance(value, list | tuple | set | frozenset):
        return any(map(_has_secret, cast("Collection[Any]", value)))
    if isinstance(value, BaseModel):
        return any(map(_has_secret, vars(value).values()))
    if is_dataclass(value) and not isinstance(value, type):
        return any(_has_secret(getattr(value, field.name, None)) for field in fields(value))
    return hasattr(value, "get_secret_value")


def _format_path(location: tuple[int | str, ...]) -> str:
    path = ""
    for part in location:
        path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else part
    return path or "arguments"
