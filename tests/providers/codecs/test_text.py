"""Thought tags and control tokens, read by a real provider."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rxloop import Agent
from rxloop.errors import ConfigurationError
from rxloop.pipeline.requests import ModelRequest, ToolDefinition
from rxloop.protocol.events import (
    ContentCompleteEvent,
    ContentDeltaEvent,
    Event,
    ThoughtDeltaEvent,
    ThoughtStreamEvent,
    ToolCallDeltaEvent,
)
from rxloop.protocol.messages import Message
from rxloop.providers import PRESETS, openai_chat
from rxloop.providers.codecs.text import AnswerText, TextRules
from rxloop.providers.vendors import TEMPLATE_TOKENS, THOUGHT_TAGS
from support.http_server import Reply, Server, StreamResult, chat_model, collect, delta, sse, streamed_text, text_reply

SEARCH = ToolDefinition("search", "Searches.", {"type": "object", "properties": {}}, hidden=True)
REQUEST = ModelRequest(messages=[Message.user("hi")], tools=(SEARCH,), step="s1")
FRAGMENTS = (
    *"<>/`[\n x",
    "<think>",
    "</think>",
    "<think id=a>",
    "```\n",
    "<|im_end|>",
    "</s>",
    "<thin",
    "<|im_",
    "<T>",
)


async def ask(server: Server, *words: str, **options: Any) -> StreamResult:
    server.answer(text_reply(*words))
    provider = chat_model(server, **options)
    answer = await collect(provider.call(REQUEST))
    await provider.aclose()
    assert answer.error is None
    return answer


def read_content(answer: StreamResult) -> str:
    message = answer.events[-1]
    assert isinstance(message, ContentCompleteEvent)
    # L49
    assert message.content == streamed_text(answer)
    return message.content


def list_thoughts(answer: StreamResult) -> list[ThoughtStreamEvent]:
    return [event for event in answer.events if isinstance(event, ThoughtStreamEvent)]


def summarize(events: list[Any]) -> list[tuple[str, str]]:
    """Return kind and text of each event, with adjacent deltas joined."""
    rows: list[tuple[str, str]] = []
    for event in events:
        said = event.delta if isinstance(event, ContentDeltaEvent | ThoughtDeltaEvent) else event.content
        if rows and rows[-1][0] == event.kind and event.kind.endswith("delta"):
            rows[-1] = (event.kind, rows[-1][1] + said)
        else:
            rows.append((event.kind, said))
    return rows


async def test_thought_in_one_chunk_is_emitted_between_its_neighbouring_deltas(server: Server) -> None:
    # L40
    answer = await ask(server, "a <thinking>x</thinking> b")
    assert summarize(answer.events) == [
        ("content-delta", "a "),
        ("thought-delta", "x"),
        ("thought-stream", "x"),
        ("content-delta", " b"),
        ("content-complete", "a  b"),
    ]
    (thought,) = list_thoughts(answer)
    assert (thought.source, thought.thought_id, thought.thought_type, thought.step) == (
        "tag",
        "s1.t1",
        "thinking",
        "s1",
    )
    assert not thought.incomplete


async def test_answer_is_independent_of_read_boundaries(server: Server) -> None:
    # L41
    whole = "a <think id='p'>x < y</think>\n b <T> <thought content='z'/>c<|im_end|>"
    expected = summarize((await ask(server, whole)).events)
    assert expected[-1] == ("content-complete", "a \n b <T> c")
    for cut in range(len(whole) + 1):
        assert summarize((await ask(server, whole[:cut], whole[cut:])).events) == expected
    assert summarize((await ask(server, *whole)).events) == expected


async def test_open_thought_is_streamed_without_its_tag(server: Server) -> None:
    answer = await ask(server, "<thi", "nk>so", " it", " is</", "think", ">", "yes")
    assert summarize(answer.events[:4]) == [("thought-delta", "so it is"), ("thought-stream", "so it is")]
    deltas = [event for event in answer.events if isinstance(event, ThoughtDeltaEvent)]
    assert [(event.delta, event.index, event.step) for event in deltas] == [
        ("so", 0, "s1"),
        (" it", 1, "s1"),
        (" is", 2, "s1"),
    ]
    assert read_content(answer) == "yes"


async def test_self_closing_tag_is_a_thought(server: Server) -> None:
    # L42
    answer = await ask(server, 'a<thought type="planning" content="First, look."/>b')
    (thought,) = list_thoughts(answer)
    assert (thought.content, thought.thought_type, read_content(answer)) == ("First, look.", "planning", "ab")


async def test_attributes_set_the_fields_of_the_event(server: Server) -> None:
    # L43
    answer = await ask(
        server, '<think id="p" type="decision" verbosity="brief" confidence="0.5" related_to="q" mood="good">x</think>'
    )
    (thought,) = list_thoughts(answer)
    assert (thought.thought_id, thought.thought_type, thought.verbosity) == ("p", "decision", "brief")
    assert (thought.confidence, thought.related_to, thought.metadata) == (0.5, "q", {"mood": "good"})


async def test_invalid_attribute_is_kept_in_the_metadata(server: Server) -> None:
    # L43
    (thought,) = list_thoughts(await ask(server, "<think type=musing confidence=2>x</think>"))
    assert (thought.thought_type, thought.confidence) == ("thinking", None)
    assert thought.metadata == {"type": "musing", "confidence": "2"}


async def test_answer_that_ends_within_a_thought_marks_it_incomplete(server: Server) -> None:
    # L44
    answer = await ask(server, "a<think>so </thi")
    (thought,) = list_thoughts(answer)
    assert (thought.content, thought.incomplete, read_content(answer)) == ("so </thi", True, "a")


async def test_nested_tags_of_one_name_belong_to_the_thought(server: Server) -> None:
    # L45
    answer = await ask(server, "<think>a<think>b</think>c</think>d")
    assert (list_thoughts(answer)[0].content, read_content(answer)) == ("a<think>b</think>c", "d")


async def test_other_markup_is_unchanged(server: Server) -> None:
    # L46
    words = ["<b>1 < 2</b> ", "List<", "T>", " <thin", "g/> <think about", " it> <", "|im_end|> a[0", "]"]
    assert read_content(await ask(server, *words)) == "".join(words)


async def test_tags_in_a_fenced_block_are_text(server: Server) -> None:
    # L47
    words = ["See:\n``", "`xml\n<think>", "x</think>\n", "```\n"]
    answer = await ask(server, *words, "<think>y</think>")
    assert read_content(answer) == "".join(words)
    assert [thought.content for thought in list_thoughts(answer)] == ["y"]


async def test_deltas_after_a_stray_tag_are_not_delayed(server: Server) -> None:
    # L48
    words = ["x: List<T> = ", *(f"{i} " for i in range(500))]
    answer = await ask(server, *words)
    assert [event.delta for event in answer.events[:-1]] == words


async def test_thoughts_in_one_chunk_are_numbered_in_order(server: Server) -> None:
    # L50
    server.answer(text_reply("a<think>1</think><think id='two'>2</think>b<think>3</think>"))
    provider = chat_model(server)
    result = await Agent(provider, thoughts=False).run("hi")
    await provider.aclose()
    assert [(thought.index, thought.content) for thought in result.thoughts] == [(0, "1"), (1, "2"), (2, "3")]
    assert [thought.thought_id for thought in result.thoughts] == ["1.t1", "two", "1.t3"]


@pytest.mark.parametrize(("keep", "wanted"), [(False, "a b"), (True, "a <think>x</think>b")])
async def test_tags_are_removed_from_the_history_unless_configured(server: Server, keep: bool, wanted: str) -> None:
    # L51
    server.answer(text_reply("a <thi", "nk>x</think>", "b"), text_reply("c"))
    provider = chat_model(server, keep_thoughts=keep)
    agent = Agent(provider, thoughts=False)
    result = await agent.run("hi")
    await agent.run([*result.messages, "go on"])
    await provider.aclose()
    assert [thought.content for thought in result.thoughts] == ["x"]
    assert (result.output, result.messages[-1].content) == (wanted, wanted)
    assert server.requests[1].body["messages"][1]["content"] == wanted


async def test_kept_thoughts_are_also_in_the_deltas(server: Server) -> None:
    # L49
    answer = await ask(server, "a <thi", "nk>x</think> b", keep_thoughts=True)
    assert read_content(answer) == "a <think>x</think> b"
    assert [thought.content for thought in list_thoughts(answer)] == ["x"]


@pytest.mark.parametrize("empty", ["<think>\n\n</think>", "<think></think>", "<think/>"])
async def test_empty_thought_is_not_an_event(server: Server, empty: str) -> None:
    answer = await ask(server, f"{empty}\n\nHello")
    assert (list_thoughts(answer), read_content(answer)) == ([], "\n\nHello")


async def test_whitespace_is_kept(server: Server) -> None:
    # L61
    assert read_content(await ask(server, " \n", "<think>x</think>", "  ", "a ", "\n")) == " \n  a \n"
    assert read_content(await ask(server, " ", "\n ")) == " \n "


async def test_trailing_control_tokens_are_removed_across_chunks(server: Server) -> None:
    # L62
    assert read_content(await ask(server, "Use <|im_end|> or [INST]", " \n<|im", "_end|", "><|endoftext|>")) == (
        "Use <|im_end|> or [INST] \n"
    )
    assert read_content(await ask(server, "a[/IN", "ST]")) == "a"
    assert read_content(await ask(server, "a[/IN")) == "a[/IN"


async def test_control_tokens_after_a_final_thought_are_removed(server: Server) -> None:
    # L62
    answer = await ask(server, "<think>so<|im_", "end|>")
    assert (list_thoughts(answer)[0].content, read_content(answer)) == ("so", "")


async def test_partial_control_token_is_kept(server: Server) -> None:
    # L62
    answer = await ask(server, "<think>so<|im_", "end")
    assert (list_thoughts(answer)[0].content, read_content(answer)) == ("so<|im_end", "")


@pytest.mark.parametrize(
    ("written", "name"),
    [("search<|channel|>commentary", "search"), ("search<|im_end|>", "search"), ("find.it", "find.it")],
)
async def test_tool_name_is_cut_to_an_offered_one(server: Server, written: str, name: str) -> None:
    # L62, L63
    call = {"index": 0, "id": "c", "function": {"name": written, "arguments": "{}"}}
    server.answer(Reply(sse(delta(tool_calls=[call]), delta("tool_calls"))))
    provider = chat_model(server)
    events = (await collect(provider.call(REQUEST))).events
    await provider.aclose()
    assert [call.name for call in events[-1].tool_calls] == [name]
    (piece,) = [event for event in events if isinstance(event, ToolCallDeltaEvent)]
    assert (piece.name, piece.hidden) == (name, name == "search")


async def test_answer_without_streaming_has_the_same_result(server: Server) -> None:
    message = {"role": "assistant", "content": "<think>x</think>\nHello<|im_end|>"}
    body = orjson.dumps({"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]})
    server.answer(Reply([body], content_type="application/json"))
    provider = chat_model(server, stream=False)
    answer = await collect(provider.call(REQUEST))
    await provider.aclose()
    assert summarize(answer.events) == [
        ("thought-delta", "x"),
        ("thought-stream", "x"),
        ("content-delta", "\nHello"),
        ("content-complete", "\nHello"),
    ]


async def test_tags_and_control_tokens_can_be_ignored(server: Server) -> None:
    words = ["<think>x</think>", "Hello<|im_end|>"]
    answer = await ask(server, *words, thought_tags=False, sanitize=False)
    assert [event.delta for event in answer.events[:-1]] == words
    assert read_content(answer) == "".join(words)


async def test_tag_names_are_configurable(server: Server) -> None:
    answer = await ask(server, "<plan>x</plan><think>y</think>", thought_tags=["plan"])
    assert ([thought.content for thought in list_thoughts(answer)], read_content(answer)) == (["x"], "<think>y</think>")
    assert read_content(await ask(server, "<plan>x</plan>", thought_tags="plan")) == ""


def find_rules(preset: str, **options: Any) -> TextRules:
    return vars(openai_chat("m", preset=preset, **options))["_rules"]


def test_arguments_override_the_text_rules_of_a_preset() -> None:
    assert find_rules("openai") == TextRules(thought_tags=THOUGHT_TAGS)
    assert find_rules("openai", sanitize=True) == TextRules(thought_tags=THOUGHT_TAGS, strip=TEMPLATE_TOKENS)
    assert find_rules("ollama") == TextRules(thought_tags=THOUGHT_TAGS, strip=TEMPLATE_TOKENS)
    assert find_rules("ollama", thought_tags=False, sanitize=False) == TextRules()
    # Text of a native protocol needs no rules.
    chat = [preset for preset in PRESETS.values() if preset.wire in ("openai", "openai_chat")]
    assert all(preset.thought_tags == THOUGHT_TAGS for preset in chat)


def test_invalid_tag_name_is_rejected_at_creation() -> None:
    with pytest.raises(ConfigurationError, match="got '<think>'"):
        find_rules("openai", thought_tags=["<think>"])


@given(
    st.lists(st.sampled_from(FRAGMENTS) | st.text(max_size=3), max_size=20).map("".join),
    st.lists(st.integers(0, 1000), max_size=12),
    st.booleans(),
)
def test_deltas_add_up_to_the_content_at_any_read_boundaries(whole: str, cuts: list[int], keep: bool) -> None:
    # L41, L49
    def read(*pieces: str) -> tuple[list[tuple[str, str]], str]:
        events: list[Event] = []
        answer = AnswerText(
            events.append, "1", TextRules(thought_tags=THOUGHT_TAGS, keep_thoughts=keep, strip=TEMPLATE_TOKENS)
        )
        for piece in pieces:
            answer.write(piece)
        answer.finish()
        deltas = [event for event in events if isinstance(event, ContentDeltaEvent)]
        assert [event.index for event in deltas] == list(range(len(deltas)))
        assert "".join(event.delta for event in deltas) == answer.content
        return ([] if keep else summarize(events)), answer.content

    marks = sorted({0, len(whole), *(cut % (len(whole) + 1) for cut in cuts)})
    assert read(*(whole[a:b] for a, b in pairwise(marks))) == read(whole) == read(*whole)


THINKS_FIRST = replace(PRESETS["vllm"], thinks_first=True)


@pytest.mark.parametrize("stream", [True, False])
async def test_opening_tag_in_the_prompt_is_not_required_in_the_answer(server: Server, stream: bool) -> None:
    words = ("\nThe user", " greets.\n</th", "ink>\n\nHello", " there")
    body = {"choices": [{"message": {"role": "assistant", "content": "".join(words)}, "finish_reason": "stop"}]}
    server.answer(text_reply(*words) if stream else Reply([orjson.dumps(body)], content_type="application/json"))
    model = openai_chat("m", preset=THINKS_FIRST, base_url=server.base_url, stream=stream)
    answer = await collect(model.call(REQUEST))
    (thought,) = [event for event in answer.events if isinstance(event, ThoughtStreamEvent)]
    assert (thought.content, thought.incomplete) == ("\nThe user greets.\n", False)
    assert answer.events[-1].content == "\n\nHello there" == streamed_text(answer)
    await model.aclose()


async def test_reasoning_field_takes_precedence_over_thinks_first(server: Server) -> None:
    server.answer(Reply(sse(delta(reasoning_content="Hmm."), delta("stop", content="Hello"))))
    model = openai_chat("m", preset=THINKS_FIRST, base_url=server.base_url)
    answer = await collect(model.call(REQUEST))
    assert (answer.events[-1].content, answer.events[-1].reasoning) == ("Hello", "Hmm.")
    await model.aclose()


def test_closing_tag_without_an_opening_tag_is_text_by_default() -> None:
    assert not any(preset.thinks_first for preset in PRESETS.values())
    assert not vars(openai_chat("m", preset=THINKS_FIRST, thought_tags=False))["_rules"].thinks_first
    events: list[Event] = []
    answer = AnswerText(events.append, "1", TextRules(thought_tags=THOUGHT_TAGS))
    answer.write("Hmm.</think>Hello")
    answer.finish()
    assert answer.content == "Hmm.</think>Hello"
