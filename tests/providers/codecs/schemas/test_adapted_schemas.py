"""Adapted schemas follow the rules of each vendor and keep all parameters."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Union

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, Field, TypeAdapter

from rxloop.pipeline.requests import ToolDefinition
from rxloop.providers.codecs.schemas import AdaptedSchema, adapt_answer_schema, adapt_schema
from rxloop.providers.codecs.schemas.dialects import CLAUDE, GEMINI, OPENAI, Dialect
from rxloop.providers.codecs.tools import ToolAdapter
from support.vendors.schema_rules import (
    check_claude_strict,
    check_claude_tool,
    check_gemini_schema,
    check_gemini_tool,
    check_openai_schema,
    check_openai_tool,
    property_names,
)

DIALECTS = {"openai": OPENAI, "claude": CLAUDE, "gemini": GEMINI}
TEXT = {"type": "string"}
A, B = {"type": "object", "properties": {"a": TEXT}, "required": ["a"]}, {"type": "object", "properties": {"b": TEXT}}
NODE = {"type": "object", "properties": {"value": TEXT, "next": {"$ref": "#/$defs/Node"}}, "required": ["value"]}


def make_object(schema: Any) -> dict[str, Any]:
    """Return an object schema with one parameter."""
    return {"type": "object", "properties": {"x": schema}, "required": ["x"]}


def nest(levels: int) -> dict[str, Any]:
    made: dict[str, Any] = make_object(TEXT)
    for _ in range(levels - 1):
        made = make_object(made)
    return made


ROOTS: dict[str, Any] = {
    "object alone": {"type": "object"},
    "empty": {},
    "true": True,
    "false": False,
    "null": None,
    "a text": "object",
    "no type": {"properties": {"a": TEXT}},
    "null as a type": {"type": None, "properties": {"a": TEXT}},
    "or null": {"type": ["object", "null"], "properties": {"a": TEXT}},
    "in capitals": {"type": "OBJECT", "properties": {"a": {"type": "STRING"}}},
    "anyOf": {"anyOf": [A, B]},
    "anyOf beside properties": {"type": "object", "properties": {"c": TEXT}, "anyOf": [A, B]},
    "anyOf of required": {"type": "object", "properties": {"a": TEXT, "b": TEXT}, "anyOf": [{"required": ["a"]}, {}]},
    "anyOf with null": {"anyOf": [A, {"type": "null"}]},
    "oneOf": {"oneOf": [A, B], "discriminator": {"propertyName": "a"}},
    "oneOf by a constant": {"oneOf": [make_object({"const": "p"}), make_object({"const": "q"})]},
    "allOf": {"allOf": [A, B]},
    "allOf of references": {"allOf": [{"$ref": "#/$defs/A"}, {"$ref": "#/$defs/B"}], "$defs": {"A": A, "B": B}},
    "if then else": {"type": "object", "properties": {"a": TEXT}, "if": A, "then": B, "else": make_object(TEXT)},
    "reference": {"$ref": "#/$defs/Node", "$defs": {"Node": NODE}},
    "definitions": {"$ref": "#/definitions/A", "definitions": {"A": A}},
    "reference to itself": {"type": "object", "properties": {"self": {"$ref": "#"}, "a": TEXT}},
    "nothing but itself": {"$ref": "#"},
    "circle": {"$ref": "#/$defs/A", "$defs": {"A": {"$ref": "#/$defs/B"}, "B": {"$ref": "#/$defs/A"}}},
    "many ways": {"$ref": "#/$defs/A", "$defs": {"A": {**A, "anyOf": [{"$ref": "#/$defs/A"}] * 3}}},
    "lost reference": {"$ref": "https://example.com/schema.json"},
    "enum": {"enum": [{"a": 1}, {"a": 2, "b": True}]},
    "const": {"const": {"a": 1}},
    "not": {"type": "object", "properties": {"a": TEXT}, "not": {"required": ["a"]}},
    "dependent": {"type": "object", "properties": {"a": TEXT}, "dependentSchemas": {"a": B}},
    "array": {"type": "array", "items": TEXT},
    "scalar": {"type": "string", "enum": ["a", "b"]},
    "scalars": {"anyOf": [{"type": "string"}, {"type": "integer"}]},
    "required null": {"type": "object", "properties": {"a": TEXT}, "required": None},
    "required absent": {"type": "object", "properties": {"a": TEXT}, "required": ["a", "b", "a"]},
    "required without properties": {"type": "object", "required": ["a"]},
    "required of a closed one": {
        "type": "object",
        "properties": {"a": TEXT},
        "required": ["b"],
        "additionalProperties": False,
    },
    "required that is no list": {"type": "object", "properties": {"a": TEXT}, "required": True},
    "properties null": {"type": "object", "properties": None},
    "properties list": {"type": "object", "properties": ["a"]},
    "marks": {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "$id": "urn:x",
        "$comment": "c",
        **A,
        "x-order": [1],
    },
    "anchor": {**make_object({"$ref": "#here"}), "$defs": {"A": {"$anchor": "here", **A}}},
    "dynamic reference": {"$dynamicAnchor": "me", **make_object({"type": "array", "items": {"$dynamicRef": "#me"}})},
    "recursive reference": {
        "$recursiveAnchor": True,
        **make_object({"type": "array", "items": {"$recursiveRef": "#"}}),
    },
    "address inside": {
        "$id": "https://e.com/s",
        **make_object({"$ref": "a.json"}),
        "$defs": {"A": {"$id": "a.json", **A}},
    },
    "bad address": {"$id": "http://[", **make_object({"$ref": "http://["})},
    "definitions inside": make_object({**make_object({"$ref": "#/$defs/A"}), "$defs": {"A": A}}),
    "by its own address": {
        "$id": "https://e.com/s",
        **make_object({"$ref": "https://e.com/s#/$defs/A"}),
        "$defs": {"A": A},
    },
    "names": {
        "type": "object",
        "properties": dict.fromkeys(("user name", "user_name", "a.b", "$filter", "1st", "ø", "x" * 90, "-", ""), TEXT),
        "required": ["user name", "$filter"],
    },
    "names inside": make_object(
        {"type": "array", "items": {"anyOf": [make_object(TEXT), {"type": "object", "properties": {"a b": TEXT}}]}}
    ),
    "titles": {
        "type": "object",
        "title": "T",
        "properties": {"title": TEXT, "description": TEXT, "type": TEXT, "enum": TEXT},
    },
    "strict beforehand": {**A, "additionalProperties": False},
    "deep": nest(12),
    "too deep": nest(90),
    "bad properties": {"type": "object", "properties": {"type": "object", "a": ["x"], "b": 3, "c": None, "d": False}},
}
PARTS: dict[str, Any] = {
    "array without items": {"type": "array"},
    "no JSON": {"type": "string", "default": object(), "x-set": {1}},
    "no JSON in an enum": {"enum": [object()]},
    "examples": {"type": "string", "examples": ["a"], "x-order": 1},
    "items true": {"type": "array", "items": True},
    "items empty": {"type": "array", "items": {}},
    "items null": {"type": "array", "items": None},
    "items list": {"type": "array", "items": [TEXT, {"type": "integer"}], "additionalItems": False},
    "items empty list": {"type": "array", "items": []},
    "tuple": {"type": "array", "prefixItems": [TEXT, TEXT], "minItems": 2, "maxItems": 2},
    "unique": {"type": "array", "items": TEXT, "uniqueItems": True},
    "contains": {"type": "array", "items": TEXT, "contains": {"const": "a"}},
    "object": {"type": "object"},
    "free keys": {"type": "object", "additionalProperties": TEXT},
    "free keys true": {"type": "object", "additionalProperties": True},
    "by pattern": {"type": "object", "patternProperties": {"^x": TEXT}, "additionalProperties": False},
    "true": True,
    "enum empty": {"type": "string", "enum": []},
    "enum null": {"type": ["string", "null"], "enum": ["a", None]},
    "enum mixed": {"enum": ["a", 1, 2.5, None, True, "a"]},
    "enum booleans": {"enum": [True, False]},
    "enum one boolean": {"enum": [True], "description": "d"},
    "enum numbers": {"type": "integer", "enum": [1, 2]},
    "enum of objects": {"enum": [{"a": 1}, [1]]},
    "enum that is no list": {"enum": "a"},
    "huge enum": {"type": "string", "enum": [f"value-{n}" for n in range(1_200)]},
    "long enum": {"type": "string", "enum": ["v" * 60 + str(n) for n in range(300)]},
    "null type": {"type": "null"},
    "const": {"const": "a"},
    "const number": {"const": 1},
    "const null": {"const": None},
    "const object": {"const": {"a": 1}},
    "nullable": {"type": "string", "nullable": True, "enum": ["a"]},
    "nullable reference": {"allOf": [TEXT], "nullable": True},
    "not nullable": {"type": "string", "nullable": False},
    "format": {"type": "string", "format": "color"},
    "known format": {"type": "string", "format": "date-time"},
    "draft 4 limit": {
        "type": "number",
        "minimum": 3,
        "exclusiveMinimum": True,
        "maximum": 9,
        "exclusiveMaximum": False,
    },
    "limit as a text": {"type": "number", "minimum": "3", "multipleOf": 0},
    "limits": {"type": "integer", "minimum": 1, "exclusiveMaximum": 9, "multipleOf": 2},
    "lengths": {"type": "string", "minLength": 1, "maxLength": -2},
    "look-around": {"type": "string", "pattern": "^(?!0)[0-9]+$"},
    "broken pattern": {"type": "string", "pattern": "(?<!x"},
    "pattern of another language": {"type": "string", "pattern": r"^\p{L}+$"},
    "default": {"type": "string", "default": "a"},
    "default beside a reference": {"$ref": "#/properties/y", "default": "a", "description": "d"},
    "several types": {"type": ["string", "integer"]},
    "several with an object": {"type": ["object", "string"], "properties": {"k": TEXT}},
    "unknown type": {"type": "any"},
    "type of a language": {"type": "int"},
    "types empty": {"type": []},
    "union": {
        "oneOf": [make_object({"const": "p"}), make_object({"const": "q"})],
        "discriminator": {"propertyName": "x"},
    },
    "union null": {"anyOf": None},
    "union empty": {"anyOf": []},
    "one of all": {"allOf": [make_object(TEXT)], "description": "d"},
    "all": {"allOf": [make_object(TEXT), {"type": "object", "properties": {"k": TEXT}}]},
    "all of numbers": {"allOf": [{"type": "number"}, {"minimum": 3}]},
    "condition": {
        "type": "object",
        "properties": {"k": TEXT},
        "if": make_object(TEXT),
        "then": {"properties": {"m": TEXT}},
    },
    "not": {"not": {"type": "null"}},
    "words": {"type": "string", "title": 3, "description": ["d"], "examples": ["e"], "x-y": {"properties": 1}},
}
SCHEMAS: dict[str, Any] = {
    **ROOTS,
    **{
        f"part: {name}": {"type": "object", "properties": {"x": part, "y": TEXT}, "required": ["x", "y"]}
        for name, part in PARTS.items()
    },
}


def check_tool(adapted: AdaptedSchema, dialect: Dialect) -> None:
    if dialect is OPENAI:
        fields = {"strict": True} if adapted.strict else {}
        check_openai_tool({"name": "t", "description": "", "parameters": adapted.schema, **fields})
    elif dialect is CLAUDE:
        check_claude_tool({"name": "t", "input_schema": adapted.schema, "strict": adapted.strict})
    else:
        check_gemini_tool({"name": "t", "description": "", "parametersJsonSchema": adapted.schema})


def assert_all_names(adapted: AdaptedSchema, schema: Any) -> None:
    """Check that all parameters remain, under original names or replacements."""
    known = {adapted.names.get(name, name) for name in property_names(adapted.schema)}
    assert property_names(schema) <= known


# P3 P28
@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("vendor", DIALECTS)
@pytest.mark.parametrize("name", SCHEMAS)
def test_adapted_schema_is_valid_and_keeps_all_parameters(name: str, vendor: str, strict: bool) -> None:
    schema, dialect = SCHEMAS[name], DIALECTS[vendor]
    adapted = adapt_schema(schema, dialect, strict=strict)
    check_tool(adapted, dialect)
    if name != "too deep":
        assert_all_names(adapted, schema)
    if not adapted.strict:
        assert adapted.schema == schema or adapted.notes


@pytest.mark.parametrize("vendor", DIALECTS)
def test_valid_schema_is_unchanged(vendor: str) -> None:
    schema = {
        **make_object({"type": "array", "items": {"anyOf": [TEXT, {"$ref": "#/$defs/Node"}]}, "minItems": 1}),
        "$defs": {"Node": NODE},
    }
    assert adapt_schema(schema, DIALECTS[vendor]) == (schema, False, (), {})


class Cat(BaseModel):
    kind: Literal["cat"]


class Dog(BaseModel):
    kind: Literal["dog"]


class Owner(BaseModel):
    pet: Annotated[Union[Cat, Dog], Field(discriminator="kind")]  # noqa: UP007


def adapt_answer(schema: Any, dialect: Dialect) -> AdaptedSchema:
    adapted, _ = adapt_answer_schema(schema, dialect, strict=True)
    if dialect is OPENAI:
        check_openai_schema(adapted.schema, strict=adapted.strict)
    elif dialect is CLAUDE and adapted.strict:
        check_claude_strict(adapted.schema)
    elif dialect is GEMINI:
        check_gemini_schema(adapted.schema)
    return adapted


# P28
def test_discriminated_alternatives_are_enforced() -> None:
    adapted = adapt_answer(TypeAdapter(Owner).json_schema(), OPENAI)
    assert adapted.strict
    assert len(adapted.schema["properties"]["pet"]["anyOf"]) == 2


class Sparse(BaseModel):
    pair: tuple[int, str]


class Unique(BaseModel):
    tags: set[str]


class Looking(BaseModel):
    price: Annotated[str, Field(json_schema_extra={"pattern": "^(?!0)[0-9]+$"})]


class Tree(BaseModel):
    children: list[Tree]


# P28
@pytest.mark.parametrize(
    ("of", "why"),
    [(Sparse, "prefixItems"), (Unique, "uniqueItems"), (Looking, "pattern"), (dict[str, int], "free keys")],
)
def test_unsupported_answer_schema_is_sent_without_strict_and_explained(of: Any, why: str) -> None:
    adapted = adapt_answer(TypeAdapter(of).json_schema(), OPENAI)
    assert not adapted.strict
    assert any(why in note and "without strict" in note for note in adapted.notes)


# P28
@pytest.mark.parametrize("vendor", DIALECTS)
@pytest.mark.parametrize("of", [Owner, Sparse, Unique, Looking, Tree])
def test_answer_schema_is_valid_for_each_vendor(of: Any, vendor: str) -> None:
    assert_all_names(adapt_answer(TypeAdapter(of).json_schema(), DIALECTS[vendor]), TypeAdapter(of).json_schema())


# P28
@pytest.mark.parametrize(
    ("schema", "why"),
    [
        ({"type": "object", "properties": {f"p{n}": TEXT for n in range(5_001)}}, "5,001 properties"),
        (nest(11), "11 nested objects"),
        (make_object({"enum": [f"v{n}" for n in range(1_001)]}), "1,001 values"),
        (make_object({"enum": ["v" * 60 + str(n) for n in range(251)]}), "15000 characters"),
        (make_object({"const": "v" * 120_001}), "characters of names"),
    ],
)
def test_schema_beyond_the_limits_is_sent_without_strict(schema: dict[str, Any], why: str) -> None:
    schema = {**schema, "required": list(schema["properties"])}
    adapted = adapt_schema(schema, OPENAI, strict=True)
    assert not adapted.strict
    assert any(why in note for note in adapted.notes)


# P3
def test_alternatives_at_the_root_become_one_object() -> None:
    other = {"type": "object", "properties": {"x": {"const": "q"}, "b": TEXT}, "required": ["b", "x"]}
    adapted = adapt_schema({"description": "d", "oneOf": [make_object({"const": "p"}), other]}, CLAUDE)
    assert adapted.schema["type"] == "object"
    assert adapted.schema["properties"] == {"x": {"enum": ["p", "q"]}, "b": TEXT}
    assert adapted.schema["required"] == ["x"]
    # The combinations remain in the description.
    assert adapted.schema["description"].startswith("d\n\nThe arguments must also fit this JSON Schema: {")


def _names() -> st.SearchStrategy[str]:
    return st.sampled_from(["a", "b", "user name", "$f", "a.b", "title", "type", "1", "x" * 70])


def _schemas() -> st.SearchStrategy[Any]:
    scalars = st.sampled_from([*PARTS.values(), True, False, None, {}, {"$ref": "#/$defs/D"}, {"$ref": "#"}])

    def enlarge(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
        several = st.lists(inner, max_size=3)
        keywords: dict[str, st.SearchStrategy[Any]] = {
            "type": st.sampled_from(["object", "array", "string", ["object", "null"], None, "any"]),
            "properties": st.one_of(st.none(), st.dictionaries(_names(), inner, max_size=3)),
            "required": st.one_of(st.none(), st.lists(_names(), max_size=3)),
            "additionalProperties": st.one_of(st.booleans(), inner),
            "items": st.one_of(inner, several),
            "description": st.sampled_from(["words", None]),
            **dict.fromkeys(("anyOf", "oneOf", "allOf", "prefixItems"), several),
            **dict.fromkeys(("not", "if", "then", "else"), inner),
            "nullable": st.booleans(),
            "enum": st.lists(st.sampled_from([1, "a", None, True, {"k": 1}]), max_size=3),
        }
        return st.fixed_dictionaries({}, optional=keywords)

    return st.recursive(scalars, enlarge, max_leaves=12)


# P3 P28
@settings(max_examples=30, deadline=None)
@given(_schemas(), st.sampled_from(sorted(DIALECTS)), st.booleans())
def test_any_adapted_schema_is_valid_and_keeps_all_parameters(schema: Any, vendor: str, strict: bool) -> None:
    if isinstance(schema, dict):
        schema = {
            **schema,
            "$defs": {"D": {"type": "object", "properties": {"d": TEXT, "more": {"$ref": "#/$defs/D"}}}},
        }
    adapted = adapt_schema(schema, DIALECTS[vendor], strict=strict)
    check_tool(adapted, DIALECTS[vendor])


# P3
def test_argument_names_are_restored_everywhere() -> None:
    inner = {"type": "object", "properties": {"a b": TEXT, "list": {"type": "array", "items": {"$ref": "#/$defs/In"}}}}
    schema: dict[str, Any] = {
        **make_object({"anyOf": [{"$ref": "#/$defs/In"}, {"type": "null"}]}),
        "$defs": {"In": inner},
    }
    schema["properties"]["free"] = {"type": "object", "additionalProperties": {"$ref": "#/$defs/In"}}
    adapter = ToolAdapter(CLAUDE, strict=False)
    original = adapter.adapt((ToolDefinition("t", "", schema),)).originals["t"]
    sent = '{"x":{"a_b":"1","list":[{"a_b":"2"},{"a b":"3"}]},"free":{"a_b":{"a_b":"4"}},"a_b":5}'
    assert original.translate(sent) == (
        '{"x":{"a b":"1","list":[{"a b":"2"},{"a b":"3"}]},"free":{"a_b":{"a b":"4"}},"a_b":5}'
    )
    assert original.translate("[1") == "[1"


# P3
def test_tools_are_adapted_once() -> None:
    adapter = ToolAdapter(OPENAI, strict=True, longest_description=1024)
    tools = (ToolDefinition("t", "", {"type": "object"}),)
    first = adapter.adapt(tools)
    assert adapter.adapt(tools) is first
    more = adapter.adapt((*tools, ToolDefinition("u", "", {"type": "object"})))
    assert more.tools[0].schema is first.tools[0].schema
    assert adapter.adapt(tools) is first


# P3
@pytest.mark.parametrize("vendor", DIALECTS)
def test_tool_names_are_valid_and_distinct(vendor: str) -> None:
    names = ("a.b", "a_b", "a b", "x" * 200, "3d", "", "shop/find", "look")
    tools = tuple(ToolDefinition(name, "", {"type": "object", "properties": {}}) for name in names)
    made = ToolAdapter(DIALECTS[vendor], strict=False).adapt(tools)
    sent = [tool.name for tool in made.tools]
    assert len(set(sent)) == len(names)
    assert [made.originals[name].name if name in made.originals else name for name in sent] == list(names)
    assert all(DIALECTS[vendor].tool_name.fullmatch(name) for name in sent)


# P14
def test_rest_of_a_long_description_is_moved_to_the_system_prompt() -> None:
    sentences = [f"Sentence number {n} tells something." for n in range(60)]
    tool = ToolDefinition("t", " ".join(sentences), {"type": "object", "properties": {}})
    made = ToolAdapter(OPENAI, strict=False, longest_description=1024).adapt((tool,))
    description = made.tools[0].description
    assert 900 < len(description) <= 1024
    kept, _, pointer = description.partition(" (The system")
    assert pointer
    head, _, rest = made.rest.partition("\n")
    assert head == "More about the tool t:"
    assert f"{kept} {rest}" == tool.description
    assert "system prompt" in made.notes[0]


# P14
@pytest.mark.parametrize("text", ["x" * 3_000, "one\n" * 700, "ø " * 1_500])
def test_long_description_is_split_without_losing_a_word(text: str) -> None:
    made = ToolAdapter(OPENAI, strict=False, longest_description=1024).adapt(
        (ToolDefinition("t", text, {"type": "object", "properties": {}}),)
    )
    sent = made.tools[0].description.removesuffix(" (The system prompt has the rest of this description.)")
    whole = sent + made.rest.partition("\n")[2]
    assert "".join(whole.split()) == "".join(text.split())
