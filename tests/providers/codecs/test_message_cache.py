from __future__ import annotations

from rxloop.protocol.messages import Message
from rxloop.providers.codecs.message_cache import get_form, put_form


def test_what_was_kept_under_a_key_is_found_under_it_alone() -> None:
    message = Message.user("hi")
    assert get_form(message, "a", bytes) is None
    assert put_form(message, "a", b"1") == b"1"
    assert get_form(message, "a", bytes) == b"1"
    assert get_form(message, "b", bytes) is None


def test_what_is_kept_is_no_part_of_the_message() -> None:
    message = Message.user("hi")
    put_form(message, "a", b"1")
    assert message == Message.user("hi")
    assert get_form(message.model_copy(update={"content": "ho"}), "a", bytes) is None


def test_the_forms_of_several_wires_are_kept_side_by_side_and_not_of_any_number() -> None:
    message = Message.user("hi")
    for key in "abc":
        put_form(message, key, key.encode())
    assert [get_form(message, key, bytes) for key in "abc"] == [b"a", b"b", b"c"]
    put_form(message, "d", b"d")
    assert [get_form(message, key, bytes) for key in "abcd"] == [None, b"b", b"c", b"d"]
