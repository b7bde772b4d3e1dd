"""Messages are sent back in their original pieces, except removed content."""

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


def make_message(*pieces: tuple[str, Any, dict[str, Any]]) -> Message:
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


def simplify(piece: Piece) -> tuple[str, Any, dict[str, Any]]:
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
def test_pieces_are_sent_back_as_received(pieces: list[tuple[str, Any, dict[str, Any]]]) -> None:
    message = make_message(*pieces)
    back = [simplify(piece) for piece in iter_pieces(message, "acme")]
    if message.provider_state is None:
        # Plain text and calls need no state. Adjacent texts are joined.
        assert all(kind in ("text", "call") and not extra for kind, _, extra in pieces)
        assert [value for kind, value, _ in back if kind == "call"] == [v for kind, v, _ in pieces if kind == "call"]
        assert "".join(value for kind, value, _ in back if kind == "text") == message.text
    else:
        assert back == pieces


def test_ordinary_message_needs_no_state() -> None:
    assert make_message(("text", "Hello.", {}), ("call", "look", {}), ("call", "see", {})).provider_state is None


def test_text_after_a_call_keeps_its_position() -> None:
    message = make_message(("call", "look", {}), ("text", "Wait.", {}))
    assert [piece.kind for piece in iter_pieces(message, "acme")] == ["call", "text"]


def test_state_does_not_repeat_the_content_of_the_message() -> None:
    message = make_message(
        ("reasoning", "hidden thought", {"sign": "s"}), ("text", "public words", {}), ("call", "look", {})
    )
    assert "hidden" not in str(message.provider_state)
    assert "public" not in str(message.provider_state)


def test_redacted_text_is_not_restored() -> None:
    message = make_message(("reasoning", "r", {"sign": "s"}), ("text", "the password is x", {}))
    redacted = message.model_copy(update={"content": "the password is [gone]"})
    assert [simplify(piece) for piece in iter_pieces(redacted, "acme")] == [("text", "the password is [gone]", {})]


def test_changed_reasoning_loses_its_signature() -> None:
    message = make_message(("reasoning", "abc", {"sign": "s"}), ("text", "hi", {}))
    changed = message.model_copy(update={"reasoning": "ab"})
    assert [simplify(piece) for piece in iter_pieces(changed, "acme")] == [("text", "hi", {})]


def test_removed_call_removes_its_pieces() -> None:
    message = make_message(("reasoning", "r", {"sign": "s"}), ("call", "look", {}), ("call", "see", {}))
    fewer = message.model_copy(update={"tool_calls": message.tool_calls[:1]})
    assert [simplify(piece) for piece in iter_pieces(fewer, "acme")] == [("call", "look", {})]


def test_other_vendor_gets_text_files_and_calls() -> None:
    message = make_message(
        ("reasoning", "r", {"sign": "s"}), ("text", "hi", {}), ("file", PIXEL, {}), ("call", "look", {})
    )
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
def test_any_state_can_be_read(state: Any) -> None:
    message = Message(role="assistant", content="hello", provider_state={"acme": state})
    assert "".join(str(piece.value) for piece in iter_pieces(message, "acme") if piece.kind == "text") in ("hello", "")
