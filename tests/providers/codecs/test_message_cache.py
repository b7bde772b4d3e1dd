from __future__ import annotations

from rxloop.protocol.messages import Message
from rxloop.providers.codecs.message_cache import get_form, store_form


def test_form_is_found_only_under_its_key() -> None:
    message = Message.user("hi")
    assert get_form(message, "a", bytes) is None
    assert store_form(message, "a", b"1") == b"1"
    assert get_form(message, "a", bytes) == b"1"
    assert get_form(message, "b", bytes) is None


def test_cached_form_is_not_part_of_the_message() -> None:
    message = Message.user("hi")
    store_form(message, "a", b"1")
    assert message == Message.user("hi")
    assert get_form(message.model_copy(update={"content": "ho"}), "a", bytes) is None


def test_a_few_forms_per_message_are_cached() -> None:
    message = Message.user("hi")
    for key in "abc":
        store_form(message, key, key.encode())
    assert [get_form(message, key, bytes) for key in "abc"] == [b"a", b"b", b"c"]
    store_form(message, "d", b"d")
    assert [get_form(message, key, bytes) for key in "abcd"] == [None, b"b", b"c", b"d"]
