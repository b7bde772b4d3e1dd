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
def test_arguments_that_say_nothing_are_an_empty_object(raw: str | None) -> None:  # L58
    made = ToolCall.parse("1", "f", raw)

    assert made.arguments == {}
    assert made.error is None


@pytest.mark.parametrize("raw", ['{"a": 1}', '  {"a": 1}', '"{\\"a\\": 1}"'])
def test_an_object_is_read_even_if_it_was_encoded_twice(raw: str) -> None:  # L31
    made = ToolCall.parse("1", "f", raw)

    assert made.arguments == {"a": 1}
    assert made.raw == raw


@pytest.mark.parametrize(
    ("raw", "named"),
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
def test_arguments_that_are_no_object_keep_what_was_written_and_what_is_wrong(raw: str, named: str) -> None:  # L59
    made = ToolCall.parse("1", "f", raw)

    assert made.arguments == {}
    assert made.raw == raw
    assert made.error is not None
    assert named in made.error


@settings(max_examples=50)
@given(st.text())
def test_no_text_makes_the_parser_raise(raw: str) -> None:
    made = ToolCall.parse("1", "f", raw)

    assert made.error is None or made.raw == raw


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"role": "tool", "content": "7"}, "tool_call_id"),
        ({"role": "user", "tool_call_id": "1"}, "tool_call_id"),
        ({"role": "assistant", "tool_call_id": "1"}, "tool_call_id"),
        ({"role": "user", "tool_calls": (ToolCall(id="1", name="f"),)}, "tool_calls"),
        ({"role": "robot"}, "role"),
        ({"role": "user", "contents": "Hi"}, "contents"),
    ],
)
def test_a_message_that_does_not_fit_its_role_is_refused_by_name(fields: dict[str, Any], named: str) -> None:
    with pytest.raises(ValidationError, match=named):
        Message(**fields)


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({}, "exactly one of url and data"),
        ({"url": "https://example.org/a.png", "data": b"a"}, "exactly one of url and data"),
        ({"data": b"a"}, "media_type"),
    ],
)
@pytest.mark.parametrize("part", [ImagePart, FilePart])
def test_an_image_or_a_file_has_one_source(part: Any, fields: dict[str, Any], named: str) -> None:
    with pytest.raises(ValidationError, match=named):
        part(**fields)


def test_the_text_of_a_message_is_that_of_its_text_parts() -> None:
    message = Message.user([TextPart(text="Who "), ImagePart(url="https://example.org/a.png"), TextPart(text="is it?")])

    assert message.text == "Who is it?"
    assert Message.user("Hi").text == "Hi"
    assert Message.assistant().text == ""


def test_a_message_with_bytes_survives_json() -> None:
    part = FilePart(data=bytes(range(256)), media_type="application/pdf", filename="a.pdf")
    message = Message.user([part])

    assert Message.model_validate_json(message.model_dump_json()) == message


@settings(max_examples=50)
@given(st.dictionaries(st.text(), json_values, max_size=4), st.text())
def test_an_assistant_message_survives_json(arguments: dict[str, Any], content: str) -> None:
    call = ToolCall(id="0", name="f", arguments=arguments, raw=None)
    message = Message(role="assistant", content=content, tool_calls=(call,), reasoning="because")

    assert Message.model_validate_json(message.model_dump_json()) == message


def test_a_prompt_is_a_text_a_message_or_several_of_both() -> None:
    told = Message.system("Be brief.")

    assert to_messages("Hi") == (Message.user("Hi"),)
    assert to_messages(told) == (told,)
    assert to_messages([told, "Hi"]) == (told, Message.user("Hi"))
    assert to_messages([]) == ()


def test_usage_adds_up_and_its_parts_are_no_part_of_the_total() -> None:
    one = Usage(input_tokens=10, output_tokens=3, cached_tokens=8, reasoning_tokens=1)
    two = Usage(input_tokens=20, output_tokens=4, cache_write_tokens=5)

    both = Usage(input_tokens=30, output_tokens=7, cached_tokens=8, cache_write_tokens=5, reasoning_tokens=1)
    assert one + two == both
    assert (one + two).total_tokens == 37


def test_nothing_written_to_the_cache_is_not_in_the_json() -> None:
    assert "cacheWriteTokens" not in Usage(input_tokens=9, cached_tokens=3).model_dump_json(by_alias=True)
    assert Usage(cache_write_tokens=3).model_dump(by_alias=True)["cacheWriteTokens"] == 3


def test_a_file_becomes_a_part_with_its_bytes_its_type_and_its_name(tmp_path: Path) -> None:
    (tmp_path / "cat.PNG").write_bytes(b"png")
    (tmp_path / "a.pdf").write_bytes(b"pdf")
    image = ImagePart.from_path(tmp_path / "cat.PNG")
    assert image == ImagePart(data=b"png", media_type="image/png")
    file = FilePart.from_path(str(tmp_path / "a.pdf"))
    assert file == FilePart(data=b"pdf", media_type="application/pdf", filename="a.pdf")


def test_a_file_whose_name_says_nothing_needs_a_type(tmp_path: Path) -> None:
    path = tmp_path / "picture"
    path.write_bytes(b"png")
    with pytest.raises(ValueError, match="media_type is required"):
        ImagePart.from_path(path)
    assert ImagePart.from_path(path, media_type="image/webp").media_type == "image/webp"
    with pytest.raises(FileNotFoundError):
        ImagePart.from_path(tmp_path / "none.png")


@pytest.mark.parametrize(
    ("part", "word"),
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
def test_a_word_in_brackets_stands_for_an_image_or_a_file(part: ImagePart | FilePart, word: str) -> None:
    assert part.placeholder == word
    assert Message.user([TextPart(text="See:"), part]).text_with_placeholders == f"See:\n{word}"
    assert Message.user([TextPart(text=f"See {word}."), part]).text_with_placeholders == f"See {word}."


def test_a_word_is_short_however_long_the_address_is() -> None:
    assert len(FilePart(url="https://" + "x" * 9_000, filename="y" * 9_000).placeholder) < 500


def test_the_bytes_in_an_address_are_not_in_the_repr_of_a_part() -> None:
    part = ImagePart(url="data:image/png;base64," + "iVBO" * 100)
    assert repr(part) == "ImagePart(url='data: image/png, 300 bytes', data=None, media_type=None, type='image')"
    assert "https://e.org/a.png" in repr(ImagePart(url="https://e.org/a.png"))


def test_the_bytes_of_a_part_are_not_in_its_repr() -> None:
    part = FilePart(data=b"secret", media_type="a/b", filename="a.b")
    assert repr(part) == "FilePart(url=None, data='6 bytes', media_type='a/b', type='file', filename='a.b')"
