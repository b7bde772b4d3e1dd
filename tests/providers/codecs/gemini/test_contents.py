"""Histories, also of other vendors, as Gemini's contents."""

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


def result(name: str, text: str, **fields: Any) -> dict[str, Any]:
    return {"functionResponse": {"name": f"look_{name}", "response": {"output": text}, **fields}}


def user(*parts: Any) -> dict[str, Any]:
    return {"role": "user", "parts": [{"text": part} if isinstance(part, str) else part for part in parts]}


def test_a_conversation_is_turns_of_user_and_model() -> None:
    assert encode_contents(HI, Message.assistant("hello"), Message.user("and?")) == [
        user("hi"),
        {"role": "model", "parts": [{"text": "hello"}]},
        user("and?"),
    ]


def test_turns_of_one_side_are_one_turn() -> None:
    messages = [HI, Message.user("you"), Message.assistant("a"), Message.assistant("b"), Message.user("c")]
    assert encode_contents(*messages) == [
        user("hi", "you"),
        {"role": "model", "parts": [{"text": "a"}, {"text": "b"}]},
        user("c"),
    ]


def test_the_system_prompt_stands_beside_and_later_words_of_the_system_are_the_user_s() -> None:
    request = {"system": (Message.system("be"),), "tail": (Message.system("now"),)}
    sent = encode_body([Message.system("brief"), HI, Message.system("then"), Message.system("")], request=request)
    assert sent["systemInstruction"] == {"parts": [{"text": "be"}, {"text": "brief"}]}
    assert sent["contents"] == [user("hi", "<system>\nthen\n</system>", "<system>\nnow\n</system>")]


def test_results_of_calls_stand_together_in_the_order_of_the_calls() -> None:
    messages = [HI, calls("a", "b"), Message.tool("b", "2"), Message.tool("a", "1"), Message.user("so?")]
    assert encode_contents(*messages, model=TWO)[2:] == [user(result("a", "1"), result("b", "2")), user("so?")]


def test_two_calls_of_one_id_have_a_result_each() -> None:
    twice = Message.assistant(tool_calls=[ToolCall(id="0", name="look_0"), ToolCall(id="0", name="look_0")])
    found = encode_contents(HI, twice, Message.tool("0", "1"), Message.tool("0", "2"), model=TWO)
    assert found[2] == user(result("0", "1"), result("0", "2"))


def test_a_call_without_a_result_gets_one_and_a_result_without_a_call_is_a_text() -> None:
    told = NoticeRecorder()
    found = encode_contents(HI, calls("a"), Message.tool("b", "?"), Message.user("so?"), model=TWO, notices=told)
    missing = {"functionResponse": {"name": "look_a", "response": {"error": "There is no result."}}}
    assert found[2:] == [user(missing), user("The result of a call that is not shown:", "?", "so?")]
    assert len(told.notices) == 1
    assert "'b'" in told.notices[0]


def test_an_own_call_without_a_result_keeps_its_id() -> None:
    answer = read_message(chunk({"functionCall": {"name": "x", "id": "v1"}, "thoughtSignature": "c2ln"}, finish="STOP"))
    assert encode_contents(HI, to_message(answer))[2]["parts"][0]["functionResponse"]["id"] == "v1"


def test_the_user_begins_and_has_the_last_word() -> None:
    assert [turn["role"] for turn in encode_contents(Message.assistant("a"))] == ["user", "model", "user"]
    assert encode_contents() == [user("(The conversation begins with an answer.)")]


def test_empty_texts_are_left_out() -> None:
    messages = [HI, Message.assistant(""), Message.user([TextPart(text=""), TextPart(text="you")])]
    assert encode_contents(*messages) == [user("hi", "you")]


def test_calls_of_other_vendors_are_told_to_be_unsigned_where_a_signature_is_looked_for() -> None:
    told = NoticeRecorder()
    history = [HI, calls("a", "b", text="I look."), Message.tool("a", "1"), Message.tool("b", "2")]
    parts = encode_contents(*history, model=THREE, notices=told)[1]["parts"]
    assert [part.get("thoughtSignature") for part in parts] == [None, UNSIGNED, None]
    assert "id" not in parts[1]["functionCall"]
    assert len(told.notices) == 1
    assert encode_contents(*history, model=TWO, notices=told)[1]["parts"][1].get("thoughtSignature") is None
    assert len(told.notices) == 1


def test_what_is_left_out_of_a_message_is_told_once() -> None:
    told, to = NoticeRecorder(), make_codec(TWO)
    message = calls("a", provider_state={"reasoning_details": [{"data": "x"}]})
    for _ in range(3):
        encode_body([HI, message, Message.tool("a", "1")], codec=to, notices=told)
    assert len(told.notices) == 1
    assert "reasoning_details" in told.notices[0]


def test_a_signature_is_no_good_on_another_of_google_s_platforms() -> None:
    answer = read_message(chunk({"functionCall": {"name": "x", "id": "v1"}, "thoughtSignature": "c2ln"}, finish="STOP"))
    history = [HI, to_message(answer), Message.tool("v1", "1")]
    told = NoticeRecorder()
    assert encode_contents(*history, notices=told)[1]["parts"][0]["thoughtSignature"] == "c2ln"
    other = replace(PRESETS["google"], name="vertex")
    parts = encode_body(history, codec=make_codec(THREE, other), notices=told)["contents"][1]["parts"]
    assert parts == [{"functionCall": {"name": "x", "args": {}}, "thoughtSignature": UNSIGNED}]
    assert any("google_gemini" in each for each in told.notices)


def test_a_call_whose_arguments_are_no_json_goes_without_any() -> None:
    bad = Message.assistant(tool_calls=[ToolCall.parse("a", "look_a", "{oops")])
    assert encode_contents(HI, bad, Message.tool("a", "no"), model=TWO)[1]["parts"] == [
        {"functionCall": {"name": "look_a", "args": {}}}
    ]


def test_a_name_that_other_vendors_let_pass_is_made_fit() -> None:
    odd = Message.assistant(tool_calls=[ToolCall(id="a", name="3d/é")])
    found = encode_contents(HI, odd, Message.tool("a", "1"), model=TWO)
    assert found[1]["parts"][0]["functionCall"]["name"] == "_3d__"
    assert found[2]["parts"][0]["functionResponse"]["name"] == "_3d__"


def test_images_and_files_are_shown() -> None:
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
def test_words_stand_for_files_of_other_types(part: ImagePart | FilePart) -> None:
    told = NoticeRecorder()
    assert encode_contents(Message.user([part]), notices=told) == [user(part.placeholder)]
    assert part.placeholder in told.notices[0]


def test_an_image_of_another_vendor_s_model_goes_as_words() -> None:
    told = NoticeRecorder()
    found = encode_contents(HI, Message.assistant([TextPart(text="Here."), PNG]), HI, notices=told)
    assert found[1]["parts"] == [{"text": "Here."}, {"text": PNG.placeholder}]
    assert len(told.notices) == 1


def test_results_have_their_images_inside_where_the_model_takes_them_there() -> None:
    history = [HI, calls("a"), Message.tool("a", [TextPart(text="a cat"), PNG]), Message.user("so?")]
    inside = encode_contents(*history, model=THREE)
    assert inside[2:] == [user(result("a", "a cat", parts=[SHOWN])), user("so?")]
    beside = encode_contents(*history, model=TWO)
    assert beside[2:] == [user(result("a", "a cat")), user("The result of look_a has:", SHOWN, "so?")]


def test_results_have_other_files_beside_them() -> None:
    film = FilePart(data=b"M", media_type="video/mp4")
    found = encode_contents(HI, calls("a", "b"), Message.tool("a", [film]), Message.tool("b", "2"), model=THREE)
    assert found[2] == user(result("a", ""), result("b", "2"))
    assert found[3]["parts"][1] == {"inlineData": {"mimeType": "video/mp4", "data": "TQ=="}}


def test_a_result_says_what_it_could_not_show() -> None:
    told = NoticeRecorder()
    packed = FilePart(data=b"PK", media_type="application/zip", filename="a.zip")
    found = encode_contents(HI, calls("a"), Message.tool("a", [TextPart(text="done"), packed]), notices=told)
    assert found[2] == user(result("a", f"done\n{packed.placeholder}"))
    assert any("a.zip" in each for each in told.notices)


def test_a_message_is_encoded_once_for_each_rule_that_it_depends_on() -> None:
    to, history = make_codec(THREE), [HI, calls("a"), Message.tool("a", "1")]
    first = to.encode(ModelRequest(messages=history), ignore_notice)
    for message in history:
        object.__setattr__(message, "content", "changed behind its back")
    assert to.encode(ModelRequest(messages=history), ignore_notice) == first
    assert make_codec(THREE).encode(ModelRequest(messages=history), ignore_notice) == first
    assert b"changed" in make_codec(TWO).encode(ModelRequest(messages=history), ignore_notice)


def test_a_result_that_answers_another_call_is_encoded_for_that_one() -> None:
    answer = Message.tool("a", "1")
    encode_contents(HI, calls("a"), answer, model=TWO)
    other = Message.assistant(tool_calls=[ToolCall(id="a", name="listen")])
    found = encode_contents(HI, other, answer, model=TWO)
    assert found[2]["parts"][0]["functionResponse"]["name"] == "listen"


def test_half_a_character_does_not_stop_a_request() -> None:
    assert make_codec().encode(ModelRequest(messages=[Message.user("a\ud83d")]), ignore_notice)
