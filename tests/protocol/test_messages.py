from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from rxloop.protocol.messages import FilePart, ImagePart, Message, TextPart, ToolCall, Usage, to_messages

json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@pytest.mark.parametrize("raw", [None, "", "  ", "null", " null ", "{}", '""', '"null"', '"{}"'])
def test_empty_arguments_are_an_empty_object(raw: str | None) -> None:  # L58
    tool_call = ToolCall.parse("1", "f", raw)

    assert tool_call.arguments == {}
    assert tool_call.error is None


@pytest.mark.parametrize("raw", ['{"a": 1}', '  {"a": 1}', '"{\\"a\\": 1}"'])
def test_object_is_read_even_if_it_is_encoded_twice(raw: str) -> None:  # L31
    tool_call = ToolCall.parse("1", "f", raw)

    assert tool_call.arguments == {"a": 1}
    assert tool_call.raw == raw


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ('{"a": ', "not valid JSON"),
        ("{'a': 1}", "not valid JSON"),
        ('{"a": 1}{"b": 2}', "not valid JSON"),
        ('"Oslo"', "not valid JSON"),
        ("[1]", "must be a JSON object, not list"),
        ("7", "must be a JSON object, not int"),
        ("false", "must be a JSON object, not bool"),
    ],
)
def test_invalid_arguments_keep_their_text_and_the_error(raw: str, message: str) -> None:  # L59
    tool_call = ToolCall.parse("1", "f", raw)

    assert tool_call.arguments == {}
    assert tool_call.raw == raw
    assert tool_call.error is not None
    assert message in tool_call.error


@settings(max_examples=50)
@given(st.text())
def test_parser_raises_for_no_input(raw: str) -> None:
    tool_call = ToolCall.parse("1", "f", raw)

    assert tool_call.error is None or tool_call.raw == raw


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"role": "tool", "content": "7"}, "tool_call_id"),
        ({"role": "user", "tool_call_id": "1"}, "tool_call_id"),
        ({"role": "assistant", "tool_call_id": "1"}, "tool_call_id"),
        ({"role": "user", "tool_calls": (ToolCall(id="1", name="f"),)}, "tool_calls"),
        ({"role": "robot"}, "role"),
        ({"role": "user", "contents": "Hi"}, "contents"),
    ],
)
def test_message_that_does_not_fit_its_role_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        Message(**fields)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "exactly one of url and data"),
        ({"url": "https://example.org/a.png", "data": b"a"}, "exactly one of url and data"),
        ({"data": b"a"}, "media_type"),
    ],
)
@pytest.mark.parametrize("part", [ImagePart, FilePart])
def test_image_or_file_has_exactly_one_source(part: Any, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        part(**fields)


def test_text_of_a_message_joins_its_text_parts() -> None:
    message = Message.user([TextPart(text="Who "), ImagePart(url="https://example.org/a.png"), TextPart(text="is it?")])

    assert message.text == "Who is it?"
    assert Message.user("Hi").text == "Hi"
    assert Message.assistant().text == ""


def test_message_with_bytes_survives_json() -> None:
    part = FilePart(data=bytes(range(256)), media_type="application/pdf", filename="a.pdf")
    message = Message.user([part])

    assert Message.model_validate_json(message.model_dump_json()) == message


@settings(max_examples=50)
@given(st.dictionaries(st.text(), json_values, max_size=4), st.text())
def test_assistant_message_survives_json(arguments: dict[str, Any], content: str) -> None:
    call = ToolCall(id="0", name="f", arguments=arguments, raw=None)
    message = Message(role="assistant", content=content, tool_calls=(call,), reasoning="because")

    assert Message.model_validate_json(message.model_dump_json()) == message


def test_prompt_is_a_string_a_message_or_a_list_of_both() -> None:
    system_message = Message.system("Be brief.")

    assert to_messages("Hi") == (Message.user("Hi"),)
    assert to_messages(system_message) == (system_message,)
    assert to_messages([system_message, "Hi"]) == (system_message, Message.user("Hi"))
    assert to_messages([]) == ()


def test_usage_is_added_and_details_do_not_count_towards_the_total() -> None:
    one = Usage(input_tokens=10, output_tokens=3, cached_tokens=8, reasoning_tokens=1)
    two = Usage(input_tokens=20, output_tokens=4, cache_write_tokens=5)

    both = Usage(input_tokens=30, output_tokens=7, cached_tokens=8, cache_write_tokens=5, reasoning_tokens=1)
    assert one + two == both
    assert (one + two).total_tokens == 37


def test_zero_cache_writes_are_omitted_from_json() -> None:
    assert "cacheWriteTokens" not in Usage(input_tokens=9, cached_tokens=3).model_dump_json(by_alias=True)
    assert Usage(cache_write_tokens=3).model_dump(by_alias=True)["cacheWriteTokens"] == 3


def test_part_from_a_path_has_bytes_type_and_name(tmp_path: Path) -> None:
    (tmp_path / "cat.PNG").write_bytes(b"png")
    (tmp_path / "a.pdf").write_bytes(b"pdf")
    image = ImagePart.from_path(tmp_path / "cat.PNG")
    assert image == ImagePart(data=b"png", media_type="image/png")
    file = FilePart.from_path(str(tmp_path / "a.pdf"))
    assert file == FilePart(data=b"pdf", media_type="application/pdf", filename="a.pdf")


def test_file_with_an_unknown_extension_requires_a_media_type(tmp_path: Path) -> None:
    path = tmp_path / "picture"
    path.write_bytes(b"png")
    with pytest.raises(ValueError, match="media_type is required"):
        ImagePart.from_path(path)
    assert ImagePart.from_path(path, media_type="image/webp").media_type == "image/webp"
    with pytest.raises(FileNotFoundError):
        ImagePart.from_path(tmp_path / "none.png")


@pytest.mark.parametrize(
    ("part", "placeholder"),
    [
        (ImagePart(data=b"x" * 4_000, media_type="image/png"), "[image/png, 4.0 kB]"),
        (FilePart(data=b"x", media_type="application/pdf"), "[application/pdf, 1 bytes]"),
        (FilePart(data=b"x" * 2_500_000, media_type="a/b", filename="a.b"), "[a.b, a/b, 2.5 MB]"),
        (ImagePart(url="https://example.org/a"), "[image at https://example.org/a]"),
        (FilePart(url="https://example.org/a", media_type="a/b"), "[file at https://example.org/a]"),
        (FilePart(url="https://example.org/a", filename="a.b"), "[a.b at https://example.org/a]"),
        (ImagePart(url="data:image/png;base64,AAAA"), "[image/png, 3 bytes]"),
        (ImagePart(url="data:,"), "[bytes, 0 bytes]"),
    ],
)
def test_placeholder_describes_an_image_or_a_file(part: ImagePart | FilePart, placeholder: str) -> None:
    assert part.placeholder == placeholder
    assert Message.user([TextPart(text="See:"), part]).text_with_placeholders == f"See:\n{placeholder}"
    assert Message.user([TextPart(text=f"See {placeholder}."), part]).text_with_placeholders == f"See {placeholder}."


def test_placeholder_is_short_for_long_addresses() -> None:
    assert len(FilePart(url="https://" + "x" * 9_000, filename="y" * 9_000).placeholder) < 500


def test_repr_of_a_part_omits_the_bytes_of_a_data_url() -> None:
    part = ImagePart(url="data:image/png;base64," + "iVBO" * 100)
    assert repr(part) == "ImagePart(url='data: image/png, 300 bytes', data=None, media_type=None, type='image')"
    assert "https://e.org/a.png" in repr(ImagePart(url="https://e.org/a.png"))


def test_repr_of_a_part_omits_its_bytes() -> None:
    part = FilePart(data=b"secret", media_type="a/b", filename="a.b")
    assert repr(part) == "FilePart(url=None, data='6 bytes', media_type='a/b', type='file', filename='a.b')"
