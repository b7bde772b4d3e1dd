"""Content that OpenAI Responses does not accept."""

from __future__ import annotations

from rxloop.protocol.messages import FilePart, ImagePart, Message, ToolCall
from support.vendors.responses import encode, last_message, make_codec, read_events, reasoning, response


def test_reasoning_without_an_answer_is_omitted_with_one_notice() -> None:
    truncated = last_message(read_events(response(reasoning("Hm."), status="incomplete")))
    notices: list[str] = []
    by = make_codec()
    for _ in range(2):
        assert encode([Message.user("Hi"), truncated, Message.user("And?")], by, notices)["input"] == [
            {"role": "user", "content": "Hi"},
            {"role": "user", "content": "And?"},
        ]
    assert notices == ["openai_responses:gpt-5 does not receive reasoning without an answer"]


def test_unsupported_images_and_files_are_sent_as_text() -> None:
    notices: list[str] = []
    heic = ImagePart(data=b"h", media_type="image/heic")
    video = FilePart(data=b"v", media_type="video/mp4")
    [message] = encode([Message.user([heic, video])], notices=notices)["input"]
    assert message["content"] == [
        {"type": "input_text", "text": heic.placeholder},
        {"type": "input_text", "text": video.placeholder},
    ]
    assert notices == [
        f"openai_responses:gpt-5 does not accept {heic.placeholder}, {video.placeholder}; placeholders are sent"
    ]


def test_call_without_a_result_is_reported_once() -> None:
    notices: list[str] = []
    by = make_codec()
    history = [Message.user("Hi"), Message.assistant("", tool_calls=[ToolCall(id="a", name="look")])]
    for _ in range(2):
        encode(history, by, notices)
    assert len(notices) == 1
