"""Property tests that requests match Google's types."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from rxloop.pipeline.requests import ToolDefinition
from rxloop.protocol.messages import FilePart, ImagePart, Message, TextPart, ToolCall
from support.vendors.gemini import THREE, TWO, chunk, encode_body, read_message
from support.vendors.messages import to_message

TEXTS = st.text(st.characters(codec="utf-8"), max_size=5)
IDS = st.sampled_from(["0", "call_1", "toolu_01", "v1"])
TYPES = st.sampled_from(["image/png", "image/gif", "application/pdf", "application/zip", "audio/wav", "text/csv"])
URLS = st.sampled_from(["https://e.org/a.png", "https://e.org/a", "data:image/png;base64,AA==", "gs://b/c.pdf"])
FILES: st.SearchStrategy[ImagePart | FilePart] = st.one_of(
    st.builds(lambda data, kind: ImagePart(data=data, media_type=kind), st.binary(max_size=3), TYPES),
    st.builds(lambda url: FilePart(url=url), URLS),
)
CONTENTS = TEXTS | st.lists(FILES | st.builds(lambda text: TextPart(text=text), TEXTS), max_size=3)
ARGUMENTS = st.dictionaries(TEXTS, st.none() | st.integers(-9, 9) | TEXTS | st.lists(TEXTS, max_size=2), max_size=2)
CALLS = st.builds(lambda id, arguments: ToolCall(id=id, name="look", arguments=arguments), IDS, ARGUMENTS)
STATES = st.sampled_from(
    [None, {"reasoning_details": [{"data": "x"}]}, {"anthropic": [{"raw": {"type": "redacted_thinking"}}]}]
)
SIGNED = st.sampled_from(["c2ln", "-_-_"])
OWN_PARTS = st.one_of(
    st.builds(lambda text: {"text": text}, TEXTS),
    st.builds(lambda text, signed: {"text": text, "thought": True, "thoughtSignature": signed}, TEXTS, SIGNED),
    st.builds(lambda text, signed: {"text": text, "thoughtSignature": signed}, TEXTS, SIGNED),
    st.builds(lambda args, id: {"functionCall": {"name": "look", "args": args, "id": id}}, ARGUMENTS, IDS),
    st.builds(lambda args: {"functionCall": {"name": "look", "args": args}, "thoughtSignature": "c2ln"}, ARGUMENTS),
    st.just({"executableCode": {"language": "PYTHON", "code": "1"}}),
    st.just({"inlineData": {"mimeType": "image/png", "data": "AAAA"}, "thoughtSignature": "c2ln"}),
)
OWN = st.lists(OWN_PARTS, max_size=4).map(lambda parts: to_message(read_message(chunk(*parts, finish="STOP"))))
FOREIGN = st.builds(
    lambda content, calls, state: Message(
        role="assistant", content=content, tool_calls=tuple(calls), provider_state=state, reasoning="hm"
    ),
    CONTENTS,
    st.lists(CALLS, max_size=3),
    STATES,
)
HISTORIES = st.lists(
    st.one_of(
        st.builds(Message.user, CONTENTS),
        st.builds(Message.system, TEXTS),
        st.builds(Message.tool, IDS, CONTENTS),
        OWN,
        FOREIGN,
    ),
    max_size=6,
)
LOOK = ToolDefinition("look", "", {"type": "object", "properties": {"at": {"type": "string"}}})
SETTINGS = st.fixed_dictionaries(
    {},
    optional={
        "temperature": st.floats(0, 2),
        "top_p": st.floats(0, 1),
        "max_tokens": st.integers(1, 99),
        "stop": st.lists(TEXTS, max_size=7),
        "seed": st.integers(),
        "tool_choice": st.sampled_from(["auto", "none", "required", "look"]),
        "parallel_tool_calls": st.booleans(),
        "reasoning_effort": st.sampled_from(["none", "minimal", "low", "medium", "high", "xhigh", "max"]),
        "thinking_budget": st.integers(-1, 99_999),
        "service_tier": st.sampled_from(["flex", "priority"]),
        "server_tools": st.lists(st.sampled_from([{"googleSearch": {}}, {"type": "web_search"}]), max_size=2),
    },
)
MODELS = st.sampled_from([THREE, TWO, "gemini-2.5-pro", "gemini-3.1-pro-preview", "gemini-2.0-flash", "gemma-3-27b-it"])


def check(contents: list[Any]) -> None:
    assert contents[0]["role"] == contents[-1]["role"] == "user"
    expected_results: list[str] = []
    for turn in contents:
        assert turn["parts"]
        results = [part["functionResponse"]["name"] for part in turn["parts"] if "functionResponse" in part]
        assert results == expected_results
        assert len(results) in (0, len(turn["parts"]))
        expected_results = [part["functionCall"]["name"] for part in turn["parts"] if "functionCall" in part]
        assert turn["role"] == ("model" if expected_results else turn["role"])
    roles = [turn["role"] for turn in contents]
    assert ("model", "model") not in pairwise(roles)


@given(HISTORIES, MODELS, SETTINGS, st.booleans())
def test_request_for_any_history_matches_google_types(
    history: list[Message], model: str, settings: dict[str, Any], tools: bool
) -> None:
    check(encode_body(history, model=model, tools=(LOOK,) if tools else (), **settings)["contents"])


@given(HISTORIES)
def test_first_call_of_gemini_3_turns_has_a_signature(history: list[Message]) -> None:
    for turn in encode_body(history, model=THREE)["contents"]:
        calls = [part for part in turn["parts"] if "functionCall" in part]
        assert not calls or "thoughtSignature" in calls[0]
