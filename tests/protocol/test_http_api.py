"""Input of the HTTP API."""

from __future__ import annotations

from collections.abc import Iterator

from typing_extensions import override

from rxloop.protocol.http_api import make_messages


def test_text_input_is_not_examined_by_character() -> None:
    """A million characters would block the event loop for 100 ms."""

    class Text(str):
        __slots__ = ()

        @override
        def __iter__(self) -> Iterator[str]:
            raise AssertionError

    [message] = make_messages(Text("Hi"))
    assert message.text == "Hi"
