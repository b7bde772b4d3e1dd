"""A message goes back in the pieces that it came in, and nothing that somebody took out of it comes back."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from rxloop.protocol.events import Event
from rxloop.protocol.messages import ImagePart, Message, ToolCall
from rxloop.providers.codecs.draft import MessageDraft
from rxloop.providers.codecs.provider_state import Piece, find_foreign_states, iter_pieces
from rxloop.providers.failures import Endpoint
from support.vendors.messages import to_message

WHERE = Endpoint("acme:m", "http://localhost")
PIXEL = ImagePart(data=b"p", media_type="image/png")


def answered(*pieces: tuple[str, Any, dict[str, Any]]) -> Message:
    """The message of an answer that came in these pieces."""
    events: list[Event] = []
    draft = MessageDraft(events.append, "1", WHERE)
    calls = files = 0
    for kind, value, extra in pieces:
        if kind == "text":
            draft.begin_text().update(extra)
            draft.write(value)
        elif kind == "reasoning":
            draft.begin_reasoning().update(extra)
            draft.think(value)
        elif kind == "call":
            draft.call(calls, id=f"c{calls}", name=value, arguments={})
            draft.begin_call(calls).update(extra)
            calls += 1
        elif kind == "file":
            draft.file(value).update(extra)
            files += 1
        else:
            draft.raw(value)
    draft.finish("stop", "end")
    draft.complete("acme")
    return to_message(events[-1])


def plain(piece: Piece) -> tuple[str, Any, dict[str, Any]]:
    return piece.kind, piece.value.name if isinstance(piece.value, ToolCall) else piece.value, piece.extra


TEXTS = st.text(st.characters(codec="utf-8"), min_size=1, max_size=5)
EXTRAS = st.one_of(st.just({}), st.dictionaries(st.sampled_from("ab"), st.text("xy", max_size=2), min_size=1))
PIECES = st.one_of(
    st.tuples(st.sampled_from(["text", "reasoning"]), TEXTS, EXTRAS),
    st.tuples(st.just("call"), st.sampled_from(["look", "see"]), EXTRAS),
    st.tuples(st.just("file"), st.just(PIXEL), EXTRAS),
    st.tuples(st.just("raw"), st.dictionaries(st.sampled_from("ab"), st.integers(0, 9)), st.just({})),
)


@given(st.lists(PIECES, max_size=6))
def test_what_came_in_pieces_goes_back_in_them(pieces: list[tuple[str, Any, dict[str, Any]]]) -> None:
    message = answered(*pieces)
    back = [plain(piece) for piece in iter_pieces(message, "acme")]
    if message.provider_state is None:
        # Text and calls alone say it all: what stands side by side is joined.
        assert all(kind in ("text", "call") and not extra for kind, _, extra in pieces)
        assert [value for kind, value, _ in back if kind == "call"] == [v for kind, v, _ in pieces if kind == "call"]
        assert "".join(value for kind, value, _ in back if kind == "text") == message.text
    else:
        assert back == pieces


def test_an_ordinary_message_keeps_no_state() -> None:
    assert answered(("text", "Hello.", {}), ("call", "look", {}), ("call", "see", {})).provider_state is None


def test_text_after_a_call_keeps_its_place() -> None:
    message = answered(("call", "look", {}), ("text", "Wait.", {}))
    assert [piece.kind for piece in iter_pieces(message, "acme")] == ["call", "text"]


def test_nothing_that_the_message_says_stands_in_the_state() -> None:
    message = answered(
        ("reasoning", "hidden thought", {"sign": "s"}), ("text", "public words", {}), ("call", "look", {})
    )
    assert "hidden" not in str(message.provider_state)
    assert "public" not in str(message.provider_state)


def test_what_was_taken_out_of_a_message_does_not_come_back() -> None:
    message = answered(("reasoning", "r", {"sign": "s"}), ("text", "the password is x", {}))
    redacted = message.model_copy(update={"content": "the password is [gone]"})
    assert [plain(piece) for piece in iter_pieces(redacted, "acme")] == [("text", "the password is [gone]", {})]


def test_reasoning_that_was_changed_does_not_go_back_with_its_signature() -> None:
    message = answered(("reasoning", "abc", {"sign": "s"}), ("text", "hi", {}))
    changed = message.model_copy(update={"reasoning": "ab"})
    assert [plain(piece) for piece in iter_pieces(changed, "acme")] == [("text", "hi", {})]


def test_a_call_that_was_taken_out_takes_the_pieces_with_it() -> None:
    message = answered(("reasoning", "r", {"sign": "s"}), ("call", "look", {}), ("call", "see", {}))
    fewer = message.model_copy(update={"tool_calls": message.tool_calls[:1]})
    assert [plain(piece) for piece in iter_pieces(fewer, "acme")] == [("call", "look", {})]


def test_another_vendor_gets_text_files_and_calls_and_knows_what_it_does_not_get() -> None:
    message = answered(("reasoning", "r", {"sign": "s"}), ("text", "hi", {}), ("file", PIXEL, {}), ("call", "look", {}))
    assert [piece.kind for piece in iter_pieces(message, "other")] == ["text", "file", "call"]
    assert find_foreign_states(message, "other") == ["acme"]
    assert find_foreign_states(message, "acme") == []


@given(
    st.recursive(
        st.none() | st.integers(-2, 3) | st.text("ab"),
        lambda inner: (
            st.lists(inner)
            | st.dictionaries(st.sampled_from(["text", "reasoning", "call", "file", "raw", "extra"]), inner)
        ),
        max_leaves=8,
    )
)
def test_any_state_is_read(state: Any) -> None:
    message = Message(role="assistant", content="hello", provider_state={"acme": state})
    assert "".join(str(piece.value) for piece in iter_pieces(message, "acme") if piece.kind == "text") in ("hello", "")
