"""Tests of histories encoded as Gemini contents."""

from __future__ import annotations

from base64 import b64encode
from dataclasses import replace
from typing import Any

import pytest

from rxloop.pipeline.requests import ModelRequest
from rxloop.protocol.messages import FilePart, ImagePart, Message, TextPart, ToolCall
from rxloop.providers import PRESETS
from rxloop.providers.codecs.gemini.contents import UNSIGNED
from support.vendors.codecs import ignore_notice
from support.vendors.gemini import (
    THREE,
    TWO,
    NoticeRecorder,
    chunk,
    encode_body,
    encode_contents,
    make_codec,
    read_message,
)
from support.vendors.messages import to_message

HI = Message.user("hi")
PNG = ImagePart(data=b"\x89PNG", media_type="image/png")
SHOWN = {"inlineData": {"mimeType": "image/png", "data": b64encode(b"\x89PNG").decode()}}


def calls(*ids: str, text: str = "", **fields: Any) -> Message:
    made = tuple(ToolCall(id=each, name=f"look_{each}", arguments={"at": each}) for each in ids)
    return Message(role="assistant", content=text, tool_calls=made, **fields)


def result_part(name: str, text: str, **fields: Any) -> dict[str, Any]:
    return {"functionResponse": {"name": f"look_{name}", "response": {"output": text}, **fields}}


def user_turn(*parts: Any) -> dict[str, Any]:
    return {"role": "user", "parts": [{"text": part} if isinstance(part, str) else part for part in parts]}


def test_conversation_is_encoded_as_user_and_model_turns() -> None:
    assert encode_contents(HI, Message.assistant("hello"), Message.user("and?")) == [
        user_turn("hi"),
        {"role": "model", "parts": [{"text": "hello"}]},
        user_turn("and?"),
    ]


def test_consecutive_turns_of_one_role_are_merged() -> None:
    messages = [HI, Message.user("you"), Message.assistant("a"), Message.assistant("b"), Message.user("c")]
    assert encode_contents(*messages) == [
        user_turn("hi", "you"),
        {"role": "model", "parts": [{"text": "a"}, {"text": "b"}]},
        user_turn("c"),
    ]


def test_later_system_messages_are_sent_as_user_text() -> None:
    request = {"system": (Message.system("be"),), "tail": (Message.system("now"),)}
    sent = encode_body([Message.system("brief"), HI, Message.system("then"), Message.system("")], request=request)
    assert sent["systemInstruction"] == {"parts": [{"text": "be"}, {"text": "brief"}]}
    assert sent["contents"] == [user_turn("hi", "<system>\nthen\n</system>", "<system>\nnow\n</system>")]


def test_tool_results_are_grouped_in_call_order() -> None:
    messages = [HI, calls("a", "b"), Message.tool("b", "2"), Message.tool("a", "1"), Message.user("so?")]
    assert encode_contents(*messages, model=TWO)[2:] == [
        user_turn(result_part("a", "1"), result_part("b", "2")),
        user_turn("so?"),
    ]


def test_calls_with_the_same_id_keep_their_results() -> None:
    twice = Message.assistant(tool_calls=[ToolCall(id="0", name="look_0"), ToolCall(id="0", name="look_0")])
    found = encode_contents(HI, twice, Message.tool("0", "1"), Message.tool("0", "2"), model=TWO)
    assert found[2] == user_turn(result_part("0", "1"), result_part("0", "2"))


def test_missing_result_is_added_and_unmatched_result_is_sent_as_text() -> None:
    notices = NoticeRecorder()
    found = encode_contents(HI, calls("a"), Message.tool("b", "?"), Message.user("so?"), model=TWO, notices=notices)
    missing = {"functionResponse": {"name": "look_a", "response": {"error": "There is no result."}}}
    assert found[2:] == [user_turn(missing), user_turn("The result of a call that is not shown:", "?", "so?")]
    assert len(notices.notices) == 1
    assert "'b'" in notices.notices[0]


def test_added_result_has_the_id_of_the_native_call() -> None:
    answer = read_message(chunk({"functionCall": {"name": "x", "id": "v1"}, "thoughtSignature": "c2ln"}, finish="STOP"))
    assert encode_contents(HI, to_message(answer))[2]["parts"][0]["functionResponse"]["id"] == "v1"


def test_conversation_starts_and_ends_with_the_user() -> None:
    assert [turn["role"] for turn in encode_contents(Message.assistant("a"))] == ["user", "model", "user"]
    assert encode_contents() == [user_turn("(The conversation begins with an answer.)")]


def test_empty_texts_are_omitted() -> None:
    messages = [HI, Message.assistant(""), Message.user([TextPart(text=""), TextPart(text="you")])]
    assert encode_contents(*messages) == [user_turn("hi", "you")]


def test_foreign_calls_are_marked_as_unsigned_when_the_model_requires_signatures() -> None:
    notices = NoticeRecorder()
    history = [HI, calls("a", "b", text="I look."), Message.tool("a", "1"), Message.tool("b", "2")]
    parts = encode_contents(*history, model=THREE, notices=notices)[1]["parts"]
    assert [part.get("thoughtSignature") for part in parts] == [None, UNSIGNED, None]
    assert "id" not in parts[1]["functionCall"]
    assert len(notices.notices) == 1
    assert encode_contents(*history, model=TWO, notices=notices)[1]["parts"][1].get("thoughtSignature") is None
    assert len(notices.notices) == 1


def test_notice_about_omitted_content_is_reported_once() -> None:
    notices, codec = NoticeRecorder(), make_codec(TWO)
    message = calls("a", provider_state={"reasoning_details": [{"data": "x"}]})
    for _ in range(3):
        encode_body([HI, message, Message.tool("a", "1")], codec=codec, notices=notices)
    assert len(notices.notices) == 1
    assert "reasoning_details" in notices.notices[0]


def test_signature_is_not_sent_to_another_google_platform() -> None:
    answer = read_message(chunk({"functionCall": {"name": "x", "id": "v1"}, "thoughtSignature": "c2ln"}, finish="STOP"))
    history = [HI, to_message(answer), Message.tool("v1", "1")]
    notices = NoticeRecorder()
    assert encode_contents(*history, notices=notices)[1]["parts"][0]["thoughtSignature"] == "c2ln"
    other = replace(PRESETS["google"], name="vertex")
    parts = encode_body(history, codec=make_codec(THREE, other), notices=notices)["contents"][1]["parts"]
    assert parts == [{"functionCall": {"name": "x", "args": {}}, "thoughtSignature": UNSIGNED}]
    assert any("google_gemini" in each for each in notices.notices)


def test_call_with_invalid_json_arguments_is_sent_without_arguments() -> None:
    bad = Message.assistant(tool_calls=[ToolCall.parse("a", "look_a", "{oops")])
    assert encode_contents(HI, bad, Message.tool("a", "no"), model=TWO)[1]["parts"] == [
        {"functionCall": {"name": "look_a", "args": {}}}
    ]


def test_invalid_function_name_is_replaced() -> None:
    odd = Message.assistant(tool_calls=[ToolCall(id="a", name="3d/é")])
    found = encode_contents(HI, odd, Message.tool("a", "1"), model=TWO)
    assert found[1]["parts"][0]["functionCall"]["name"] == "_3d__"
    assert found[2]["parts"][0]["functionResponse"]["name"] == "_3d__"


def test_images_and_files_are_sent() -> None:
    parts = [
        PNG,
        FilePart(data=b"%PDF", media_type="application/pdf"),
        FilePart(data=b"{}", media_type="application/json"),
        ImagePart(url="data:image/jpg;base64,AA=="),
        ImagePart(url="https://e.org/cat.webp?x=1"),
        FilePart(url="https://www.youtube.com/watch?v=1"),
        FilePart(url="https://generativelanguage.googleapis.com/v1beta/files/abc"),
        FilePart(url="gs://bucket/film.mp4"),
        FilePart(data=b"RIFF", media_type="audio/wav"),
    ]
    (turn,) = encode_contents(Message.user([TextPart(text="see"), *parts]))
    assert turn["parts"] == [
        {"text": "see"},
        SHOWN,
        {"inlineData": {"mimeType": "application/pdf", "data": "JVBERg=="}},
        {"inlineData": {"mimeType": "text/plain", "data": "e30="}},
        {"inlineData": {"mimeType": "image/jpeg", "data": "AA=="}},
        {"fileData": {"mimeType": "image/webp", "fileUri": "https://e.org/cat.webp?x=1"}},
        {"fileData": {"fileUri": "https://www.youtube.com/watch?v=1"}},
        {"fileData": {"fileUri": "https://generativelanguage.googleapis.com/v1beta/files/abc"}},
        {"fileData": {"mimeType": "video/mp4", "fileUri": "gs://bucket/film.mp4"}},
        {"inlineData": {"mimeType": "audio/wav", "data": "UklGRg=="}},
    ]


@pytest.mark.parametrize(
    "part",
    [
        FilePart(data=b"PK", media_type="application/zip", filename="a.zip"),
        ImagePart(data=b"GIF8", media_type="image/gif"),
        FilePart(url="https://e.org/what"),
        FilePart(url="http://["),
        ImagePart(url="data:image/png;base64,no!"),
        ImagePart(data=b"", media_type="image/png"),
    ],
)
def test_unsupported_file_is_sent_as_text_with_a_notice(part: ImagePart | FilePart) -> None:
    notices = NoticeRecorder()
    assert encode_contents(Message.user([part]), notices=notices) == [user_turn(part.placeholder)]
    assert part.placeholder in notices.notices[0]


def test_image_in_a_foreign_assistant_message_is_sent_as_text() -> None:
    notices = NoticeRecorder()
    found = encode_contents(HI, Message.assistant([TextPart(text="Here."), PNG]), HI, notices=notices)
    assert found[1]["parts"] == [{"text": "Here."}, {"text": PNG.placeholder}]
    assert len(notices.notices) == 1


def test_images_are_sent_inside_tool_results_when_the_model_supports_it() -> None:
    history = [HI, calls("a"), Message.tool("a", [TextPart(text="a cat"), PNG]), Message.user("so?")]
    inside = encode_contents(*history, model=THREE)
    assert inside[2:] == [user_turn(result_part("a", "a cat", parts=[SHOWN])), user_turn("so?")]
    beside = encode_contents(*history, model=TWO)
    assert beside[2:] == [user_turn(result_part("a", "a cat")), user_turn("The result of look_a has:", SHOWN, "so?")]


def test_other_files_are_sent_after_tool_results() -> None:
    film = FilePart(data=b"M", media_type="video/mp4")
    found = encode_contents(HI, calls("a", "b"), Message.tool("a", [film]), Message.tool("b", "2"), model=THREE)
    assert found[2] == user_turn(result_part("a", ""), result_part("b", "2"))
    assert found[3]["parts"][1] == {"inlineData": {"mimeType": "video/mp4", "data": "TQ=="}}


def test_tool_result_describes_an_unsupported_file() -> None:
    notices = NoticeRecorder()
    packed = FilePart(data=b"PK", media_type="application/zip", filename="a.zip")
    found = encode_contents(HI, calls("a"), Message.tool("a", [TextPart(text="done"), packed]), notices=notices)
    assert found[2] == user_turn(result_part("a", f"done\n{packed.placeholder}"))
    assert any("a.zip" in each for each in notices.notices)


def test_encoded_message_is_cached_per_model_rules() -> None:
    codec, history = make_codec(THREE), [HI, calls("a"), Message.tool("a", "1")]
    first = codec.encode(ModelRequest(messages=history), ignore_notice)
    for message in history:
        object.__setattr__(message, "content", "changed behind its back")
    assert codec.encode(ModelRequest(messages=history), ignore_notice) == first
    assert make_codec(THREE).encode(ModelRequest(messages=history), ignore_notice) == first
    assert b"changed" in make_codec(TWO).encode(ModelRequest(messages=history), ignore_notice)


def test_result_for_a_different_call_is_encoded_again() -> None:
    answer = Message.tool("a", "1")
    encode_contents(HI, calls("a"), answer, model=TWO)
    other = Message.assistant(tool_calls=[ToolCall(id="a", name="listen")])
    found = encode_contents(HI, other, answer, model=TWO)
    assert found[2]["parts"][0]["functionResponse"]["name"] == "listen"


def test_request_with_a_lone_surrogate_is_encoded() -> None:
    assert make_codec().encode(ModelRequest(messages=[Message.user("a\ud83d")]), ignore_notice)
