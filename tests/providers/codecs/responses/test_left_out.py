"""What of a conversation OpenAI's Responses refuse, and what is sent in its place."""

from __future__ import annotations

from rxloop.protocol.messages import FilePart, ImagePart, Message, ToolCall
from support.vendors.responses import encode, last_message, make_codec, read_events, reasoning, response


def test_reasoning_that_nothing_came_of_is_left_out_and_told_once() -> None:
    cut = last_message(read_events(response(reasoning("Hm."), status="incomplete")))
    told: list[str] = []
    by = make_codec()
    for _ in range(2):
        assert encode([Message.user("Hi"), cut, Message.user("And?")], by, told)["input"] == [
            {"role": "user", "content": "Hi"},
            {"role": "user", "content": "And?"},
        ]
    assert told == ["openai_responses:gpt-5 does not receive reasoning without an answer"]


def test_words_stand_for_images_and_files_that_are_not_read() -> None:
    told: list[str] = []
    heic = ImagePart(data=b"h", media_type="image/heic")
    video = FilePart(data=b"v", media_type="video/mp4")
    [message] = encode([Message.user([heic, video])], notices=told)["input"]
    assert message["content"] == [
        {"type": "input_text", "text": heic.placeholder},
        {"type": "input_text", "text": video.placeholder},
    ]
    assert told == [
        f"openai_responses:gpt-5 does not accept {heic.placeholder}, {video.placeholder}; placeholders are sent"
    ]


def test_a_call_without_a_result_is_told_once() -> None:
    told: list[str] = []
    by = make_codec()
    history = [Message.user("Hi"), Message.assistant("", tool_calls=[ToolCall(id="a", name="look")])]
    for _ in range(2):
        encode(history, by, told)
    assert len(told) == 1
