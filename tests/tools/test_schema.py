from __future__ import annotations

import inspect
from dataclasses import dataclass
from datetime import date
from typing import TYPE_CHECKING, Annotated, Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import AfterValidator, BaseModel, Field

from rxloop import tool
from rxloop.errors import ConfigurationError, ToolError
from rxloop.pipeline.run_context import RunContext
from rxloop.tools import FunctionTool
from support.fake_host import FakeHost

if TYPE_CHECKING:
    from somewhere_else import Secrets  # pyright: ignore[reportMissingImports, reportUnknownVariableType]


class City(BaseModel):
    name: str
    near: list[City] = []


@dataclass
class Unit:
    title: str


def get_schema(function: Any, **options: Any) -> dict[str, Any]:
    return tool(function, **options).definition.parameters


async def call_tool(tested_tool: FunctionTool[Any, ..., Any], /, **arguments: Any) -> Any:
    return await tested_tool.call(arguments, FakeHost().context())


def test_type_hints_and_docstring_become_the_schema() -> None:  # L110
    @tool
    def weather(
        city: str, days: int = 3, unit: Literal["C", "F"] = "C", note: Annotated[str, Field(description="Mine.")] = ""
    ) -> str:
        """Weather.

        Args:
            city: A city.
            days: How many.
            note: Not this.
        """
        return city

    assert weather.definition.description == "Weather."
    assert weather.definition.parameters == {
        "type": "object",
        "properties": {
            "city": {"type": "string", "description": "A city."},
            "days": {"type": "integer", "default": 3, "description": "How many."},
            "unit": {"type": "string", "enum": ["C", "F"], "default": "C"},
            "note": {"type": "string", "default": "", "description": "Mine."},
        },
        "required": ["city"],
        "additionalProperties": False,
    }


def test_function_without_parameters_has_an_empty_object() -> None:
    def now() -> str:
        return ""

    assert get_schema(now) == {"type": "object", "properties": {}, "additionalProperties": False}


def test_references_to_shared_models_and_properties_called_title_are_kept() -> None:
    def visit(city: City, unit: Unit) -> None: ...

    schema = get_schema(visit)
    assert schema["properties"]["city"] == {"$ref": "#/$defs/City"}
    assert schema["$defs"]["City"]["properties"]["near"]["items"] == {"$ref": "#/$defs/City"}
    assert schema["$defs"]["Unit"]["properties"] == {"title": {"type": "string"}}
    assert "title" not in schema["$defs"]["City"]


async def test_arguments_are_converted_to_models_dates_and_sets() -> None:  # L110
    @tool
    async def visit(city: City, when: date, tags: set[str]) -> list[Any]:
        return [city.name, when.year, sorted(tags)]

    assert await call_tool(visit, city={"name": "Oslo"}, when="2025-01-02", tags=["b", "a"]) == [
        "Oslo",
        2025,
        ["a", "b"],
    ]


async def test_context_parameter_is_recognised_by_its_annotation() -> None:
    @tool
    async def first(anything: RunContext[Secrets], x: int) -> tuple[str, int]:
        return anything.task_id, x

    @tool
    async def last(x: int, /, y: int = 2, *, run: RunContext | None = None) -> tuple[str, int, int]:
        assert run is not None
        return run.task_id, x, y

    for each in (first, last):
        assert not {"anything", "run"} & set(each.definition.parameters["properties"])
    assert await call_tool(first, x=1) == ("r", 1)
    assert await call_tool(last, x="1") == ("r", 1, 2)


async def test_local_type_can_be_used_in_a_string_annotation() -> None:
    class Local(BaseModel):
        x: int

    @tool(name="other")
    async def use(value: Local) -> int:
        return value.x

    assert await call_tool(use, value={"x": 1}) == 1


async def test_parameter_names_may_be_reserved_by_pydantic() -> None:
    @tool
    async def odd(schema: int, _private: int, model_config: int, copy: int = 4) -> list[int]:
        return [schema, _private, model_config, copy]

    assert await call_tool(odd, schema=1, _private=2, model_config=3) == [1, 2, 3, 4]


async def test_defaults_of_the_function_are_used() -> None:
    marker = object()

    @tool
    async def keep(a: Any = marker, b: int = Field(default=3, ge=1), c: Annotated[int, Field(default=5)] = 6) -> Any:
        return a is marker, b, c

    assert get_schema(keep)["properties"]["b"] == {"type": "integer", "default": 3, "minimum": 1}
    assert "default" not in get_schema(keep)["properties"]["a"]
    assert await call_tool(keep) == (True, 3, 6)
    with pytest.raises(ToolError, match="- b: Input should be greater than or equal to 1"):
        await call_tool(keep, b=0)


async def test_invalid_arguments_are_reported_with_field_and_reason() -> None:  # L110
    calls: list[Any] = []

    @tool
    async def visit(city: City, days: int, note: str = "") -> None:
        calls.append(city)

    with pytest.raises(ToolError) as caught:
        await call_tool(visit, city={"name": "Oslo", "near": [{}]}, dayz=1, note=["x" * 200])
    lines = str(caught.value).splitlines()
    assert lines[0] == "The arguments of visit do not fit, and it was not called:"
    assert set(lines[1:3]) == {"- city.near[0].name: required, but missing", "- days: required, but missing"}
    assert lines[3].startswith("- note: Input should be a valid string (got ['xxx")
    assert len(lines[3]) < 150
    assert lines[4] == "- dayz: there is no such parameter (there are: city, days, note)"
    assert calls == []


async def test_message_of_a_validator_is_reported_without_a_prefix() -> None:
    def check(value: int) -> int:
        raise ValueError("days must be below 7")

    @tool
    async def visit(days: Annotated[int, AfterValidator(check)]) -> None: ...

    with pytest.raises(ToolError, match=r"(?m)^- days: days must be below 7 \(got 9\)$"):
        await call_tool(visit, days=9)


async def test_function_may_change_its_arguments_without_changing_the_event() -> None:
    @tool
    async def change(data: dict[str, Any]) -> None:
        data["list"].append(1)

    arguments = {"data": {"list": []}}
    await change.call(arguments, FakeHost().context())
    assert arguments == {"data": {"list": []}}


class Opaque: ...


def star(*items: str) -> None: ...
def stars(**options: str) -> None: ...
def bare(city, days: int) -> None: ...
def opaque(days: int, thing: Opaque) -> None: ...
def unresolved(thing: Nowhere) -> None: ...  # noqa: F821  # pyright: ignore[reportUndefinedVariable, reportUnknownParameterType]


@pytest.mark.parametrize(
    ("function", "parameter", "reason"),
    [
        (star, "items", r"is \*items, which cannot be described to a model"),
        (stars, "options", r"is \*\*options, which cannot be described to a model"),
        (bare, "city", "has no annotation"),
        (opaque, "thing", "cannot be described to a model: use a JSON type"),
        (unresolved, "thing", "name 'Nowhere' is not defined"),
    ],
)
def test_parameter_that_cannot_be_described_is_named(function: Any, parameter: str, reason: str) -> None:
    with pytest.raises(ConfigurationError, match=reason) as caught:
        tool(function)
    assert f"tool {function.__name__!r}: parameter {parameter!r}" in str(caught.value)


def test_unbound_method_is_an_error_with_a_remedy() -> None:
    def buy(self, thing: str) -> None: ...

    with pytest.raises(ConfigurationError, match=r"tool\(instance\.method\)"):
        tool(buy)


def test_strict_schema_closes_every_object_and_requires_every_property() -> None:
    def visit(city: Annotated[City, Field(description="Where.")], unit: Unit | None = None) -> None: ...

    schema = get_schema(visit, strict=True)
    assert schema["required"] == ["city", "unit"]
    assert schema["properties"]["city"]["description"] == "Where."
    assert schema["properties"]["city"]["required"] == ["name", "near"]
    assert schema["$defs"]["Unit"]["additionalProperties"] is False
    assert "default" not in schema["properties"]["unit"]


class Branch(BaseModel):
    next: Annotated[Branch, Field(description="Further out.")] | None = None


def test_strict_schema_keeps_recursive_references() -> None:
    def grow(root: Annotated[Branch, Field(description="Where.")]) -> None: ...

    schema = get_schema(grow, strict=True)
    assert schema["properties"]["root"]["description"] == "Where."
    assert schema["$defs"]["Branch"]["required"] == ["next"]
    check_references(schema, schema["$defs"])


def test_strict_schema_refuses_an_object_with_free_keys() -> None:
    def count(words: dict[str, int]) -> None: ...

    with pytest.raises(ConfigurationError, match="strict=True does not support objects with arbitrary keys"):
        tool(count, strict=True)


def check_references(node: Any, shared: dict[str, Any]) -> None:
    if isinstance(node, dict):
        assert "title" not in node or isinstance(node["title"], dict)
        if "$ref" in node:
            assert node["$ref"].removeprefix("#/$defs/") in shared
        for value in node.values():
            check_references(value, shared)
    elif isinstance(node, list):
        for value in node:
            check_references(value, shared)


TYPES = st.recursive(
    st.sampled_from([int, str, float, bool, date, City, Unit, Literal["a", 1], Any, None]),
    lambda inner: st.one_of(
        inner.map(lambda each: list[each]),
        inner.map(lambda each: dict[str, each]),
        inner.map(lambda each: each | None if each is not Any and each is not None else int | None),
        st.tuples(inner, inner).map(lambda pair: tuple[pair]),
        inner.map(lambda each: Annotated[each, Field(title="Noise", description="told")]),
    ),
    max_leaves=6,
)


@given(st.dictionaries(st.from_regex(r"[a-z_][a-z0-9_]{0,8}", fullmatch=True), TYPES, max_size=4))
def test_any_parameters_have_a_closed_schema_without_titles(types: dict[str, Any]) -> None:
    def function() -> None: ...

    parameters = [
        inspect.Parameter(f"x{name}", inspect.Parameter.KEYWORD_ONLY, annotation=t) for name, t in types.items()
    ]
    function.__signature__ = inspect.Signature(parameters)  # pyright: ignore[reportFunctionMemberAccess]
    schema = get_schema(function)
    assert list(schema["properties"]) == [parameter.name for parameter in parameters]
    assert schema.get("required", []) == [parameter.name for parameter in parameters]
    assert schema["additionalProperties"] is False
    check_references(schema, schema.get("$defs", {}))
