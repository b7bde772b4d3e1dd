"""Elicitation forms and their responses."""

from __future__ import annotations

from typing import Any

import mcp_types as types
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rxloop import PendingInput
from rxloop.server.mcp.questions import Elicitation, InvalidResponse, make_form, parse_response

NAMES = st.sampled_from(["a", "b", "c"])
TITLE = st.fixed_dictionaries({}, optional={"title": st.text(max_size=5), "description": st.text(max_size=5)})


def generate_schemas() -> st.SearchStrategy[dict[str, Any]]:
    """Generate schemas with nested values, objects, lists and recursive references."""
    plain = st.one_of(
        st.sampled_from(["boolean", "integer", "number", "string", "null"]).map(lambda kind: {"type": kind}),
        st.lists(st.text(max_size=3), min_size=1, max_size=3).map(lambda texts: {"type": "string", "enum": texts}),
        st.integers(0, 9).map(lambda minimum: {"type": "integer", "minimum": minimum}),
        st.sampled_from(["email", "uuid"]).map(lambda form: {"type": "string", "format": form}),
        NAMES.map(lambda name: {"$ref": f"#/$defs/{name}"}),
        st.just({"$ref": "elsewhere.json"}),
        st.just({}),
    )

    def deeper(inner: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
        return st.one_of(
            inner.map(lambda each: {"anyOf": [each, {"type": "null"}]}),
            inner.map(lambda each: {"type": "array", "items": each}),
            st.lists(inner, min_size=1, max_size=3).map(lambda several: {"anyOf": several}),
            st.dictionaries(NAMES, inner, max_size=3).map(
                lambda fields: {"type": "object", "properties": fields, "required": [*fields][:1]}
            ),
        )

    fields = st.builds(lambda one, two: {**one, **two}, st.recursive(plain, deeper, max_leaves=6), TITLE)
    return st.builds(lambda root, defs: {**root, "$defs": defs}, fields, st.dictionaries(NAMES, fields, max_size=3))


def make_question(schema: dict[str, Any], **more: Any) -> PendingInput:
    return PendingInput(input_id="1.0.0", prompt="Which?", answer_schema=schema, **more)


@settings(max_examples=60)
@given(schema=generate_schemas())
def test_any_schema_becomes_a_form_of_the_protocol(schema: dict[str, Any]) -> None:
    request = Elicitation(form=True, url=True).make_request(make_question(schema))
    assert request is not None
    message = request.params.model_dump(mode="json", by_alias=True, exclude_none=True)
    fields = message["requestedSchema"]["properties"]
    assert fields
    assert all(each["type"] in ("string", "number", "integer", "boolean", "array") for each in fields.values())
    assert set(message["requestedSchema"]["required"]) <= set(fields)


@settings(max_examples=60)
@given(options=st.lists(st.one_of(st.integers(), st.text(), st.booleans(), st.none()), min_size=1, unique_by=repr))
def test_chosen_option_is_the_value_and_not_its_label(options: list[Any]) -> None:
    form = make_form(make_question({}, input_kind="selection", options=options))
    labels = form.schema["properties"]["answer"]["enum"]
    values = [form.parse({"answer": each}) for each in labels]
    assert all(any(each is option or each == option for option in options) for each in values)
    with pytest.raises(InvalidResponse):
        form.parse({"answer": "".join(labels) + "!"})


@pytest.mark.parametrize(
    ("elicitation", "form", "url"),
    [
        (None, False, False),
        ({}, True, False),
        ({"form": {}}, True, False),
        ({"url": {}}, False, True),
        ({"form": {}, "url": {}}, True, True),
    ],
)
def test_question_uses_the_capabilities_of_the_client(elicitation: Any, form: bool, url: bool) -> None:
    capabilities = types.ClientCapabilities.model_validate({} if elicitation is None else {"elicitation": elicitation})
    assert Elicitation.from_capabilities(capabilities) == Elicitation(form, url)
    secret = PendingInput(input_id="1", prompt="Sign in.", input_kind="credential", url="https://a.example")
    assert (
        Elicitation.from_capabilities(capabilities).make_request(make_question({"type": "boolean"})) is not None
    ) == form
    assert (Elicitation.from_capabilities(capabilities).make_request(secret) is not None) == url


@pytest.mark.parametrize("content", [{}, {"other": 1}, None])
def test_empty_form_is_not_an_answer(content: Any) -> None:
    with pytest.raises(InvalidResponse):
        parse_response(make_question({"type": "integer"}), types.ElicitResult(action="accept", content=content))
