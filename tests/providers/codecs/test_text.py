"""Thoughts in the text, and control tokens, through the real provider."""

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


def content(answer: StreamResult) -> str:
    message = answer.events[-1]
    assert isinstance(message, ContentCompleteEvent)
    # L49
    assert message.content == streamed_text(answer)
    return message.content


def thoughts(answer: StreamResult) -> list[ThoughtStreamEvent]:
    return [event for event in answer.events if isinstance(event, ThoughtStreamEvent)]


def shown(events: list[Any]) -> list[tuple[str, str]]:
    """Kind and text of each event, adjacent deltas joined."""
    rows: list[tuple[str, str]] = []
    for event in events:
        said = event.delta if isinstance(event, ContentDeltaEvent | ThoughtDeltaEvent) else event.content
        if rows and rows[-1][0] == event.kind and event.kind.endswith("delta"):
            rows[-1] = (event.kind, rows[-1][1] + said)
        else:
            rows.append((event.kind, said))
    return rows


async def test_a_thought_in_one_chunk_stands_between_the_deltas_around_it(server: Server) -> None:
    # L40
    answer = await ask(server, "a <thinking>x</thinking> b")
    assert shown(answer.events) == [
        ("content-delta", "a "),
        ("thought-delta", "x"),
        ("thought-stream", "x"),
        ("content-delta", " b"),
        ("content-complete", "a  b"),
    ]
    (thought,) = thoughts(answer)
    assert (thought.source, thought.thought_id, thought.thought_type, thought.step) == (
        "tag",
        "s1.t1",
        "thinking",
        "s1",
    )
    assert not thought.incomplete


async def test_the_answer_is_the_same_wherever_it_is_cut(server: Server) -> None:
    # L41
    whole = "a <think id='p'>x < y</think>\n b <T> <thought content='z'/>c<|im_end|>"
    expected = shown((await ask(server, whole)).events)
    assert expected[-1] == ("content-complete", "a \n b <T> c")
    for cut in range(len(whole) + 1):
        assert shown((await ask(server, whole[:cut], whole[cut:])).events) == expected
    assert shown((await ask(server, *whole)).events) == expected


async def test_an_open_thought_is_live_and_its_tag_is_never_in_a_delta(server: Server) -> None:
    answer = await ask(server, "<thi", "nk>so", " it", " is</", "think", ">", "yes")
    assert shown(answer.events[:4]) == [("thought-delta", "so it is"), ("thought-stream", "so it is")]
    deltas = [event for event in answer.events if isinstance(event, ThoughtDeltaEvent)]
    assert [(event.delta, event.index, event.step) for event in deltas] == [
        ("so", 0, "s1"),
        (" it", 1, "s1"),
        (" is", 2, "s1"),
    ]
    assert content(answer) == "yes"


async def test_a_tag_without_a_body_is_a_thought(server: Server) -> None:
    # L42
    answer = await ask(server, 'a<thought type="planning" content="First, look."/>b')
    (thought,) = thoughts(answer)
    assert (thought.content, thought.thought_type, content(answer)) == ("First, look.", "planning", "ab")


async def test_attributes_fill_the_fields_of_the_event(server: Server) -> None:
    # L43
    answer = await ask(
        server, '<think id="p" type="decision" verbosity="brief" confidence="0.5" related_to="q" mood="good">x</think>'
    )
    (thought,) = thoughts(answer)
    assert (thought.thought_id, thought.thought_type, thought.verbosity) == ("p", "decision", "brief")
    assert (thought.confidence, thought.related_to, thought.metadata) == (0.5, "q", {"mood": "good"})


async def test_an_attribute_that_does_not_fit_is_kept_and_breaks_nothing(server: Server) -> None:
    # L43
    (thought,) = thoughts(await ask(server, "<think type=musing confidence=2>x</think>"))
    assert (thought.thought_type, thought.confidence) == ("thinking", None)
    assert thought.metadata == {"type": "musing", "confidence": "2"}


async def test_an_answer_that_ends_inside_a_thought_has_it_marked_incomplete(server: Server) -> None:
    # L44
    answer = await ask(server, "a<think>so </thi")
    (thought,) = thoughts(answer)
    assert (thought.content, thought.incomplete, content(answer)) == ("so </thi", True, "a")


async def test_nested_tags_of_one_name_leak_nothing(server: Server) -> None:
    # L45
    answer = await ask(server, "<think>a<think>b</think>c</think>d")
    assert (thoughts(answer)[0].content, content(answer)) == ("a<think>b</think>c", "d")


async def test_other_markup_is_the_same_to_the_letter(server: Server) -> None:
    # L46
    words = ["<b>1 < 2</b> ", "List<", "T>", " <thin", "g/> <think about", " it> <", "|im_end|> a[0", "]"]
    assert content(await ask(server, *words)) == "".join(words)


async def test_tags_in_a_fenced_block_are_left_as_text(server: Server) -> None:
    # L47
    words = ["See:\n``", "`xml\n<think>", "x</think>\n", "```\n"]
    answer = await ask(server, *words, "<think>y</think>")
    assert content(answer) == "".join(words)
    assert [thought.content for thought in thoughts(answer)] == ["y"]


async def test_deltas_keep_flowing_behind_a_stray_tag(server: Server) -> None:
    # L48
    words = ["x: List<T> = ", *(f"{i} " for i in range(500))]
    answer = await ask(server, *words)
    assert [event.delta for event in answer.events[:-1]] == words


async def test_several_thoughts_in_one_chunk_keep_their_order_and_are_counted(server: Server) -> None:
    # L50
    server.answer(text_reply("a<think>1</think><think id='two'>2</think>b<think>3</think>"))
    provider = chat_model(server)
    result = await Agent(provider, thoughts=False).run("hi")
    await provider.aclose()
    assert [(thought.index, thought.content) for thought in result.thoughts] == [(0, "1"), (1, "2"), (2, "3")]
    assert [thought.thought_id for thought in result.thoughts] == ["1.t1", "two", "1.t3"]


@pytest.mark.parametrize(("keep", "wanted"), [(False, "a b"), (True, "a <think>x</think>b")])
async def test_tags_are_absent_from_the_history_unless_they_are_to_be_kept(
    server: Server, keep: bool, wanted: str
) -> None:
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


async def test_thoughts_that_are_kept_are_in_the_deltas_as_well(server: Server) -> None:
    # L49
    answer = await ask(server, "a <thi", "nk>x</think> b", keep_thoughts=True)
    assert content(answer) == "a <think>x</think> b"
    assert [thought.content for thought in thoughts(answer)] == ["x"]


@pytest.mark.parametrize("empty", ["<think>\n\n</think>", "<think></think>", "<think/>"])
async def test_a_thought_without_a_word_is_no_event(server: Server, empty: str) -> None:
    answer = await ask(server, f"{empty}\n\nHello")
    assert (thoughts(answer), content(answer)) == ([], "\n\nHello")


async def test_whitespace_is_never_trimmed(server: Server) -> None:
    # L61
    assert content(await ask(server, " \n", "<think>x</think>", "  ", "a ", "\n")) == " \n  a \n"
    assert content(await ask(server, " ", "\n ")) == " \n "


async def test_control_tokens_at_the_very_end_come_off_across_chunks(server: Server) -> None:
    # L62
    assert content(await ask(server, "Use <|im_end|> or [INST]", " \n<|im", "_end|", "><|endoftext|>")) == (
        "Use <|im_end|> or [INST] \n"
    )
    assert content(await ask(server, "a[/IN", "ST]")) == "a"
    assert content(await ask(server, "a[/IN")) == "a[/IN"


async def test_control_tokens_come_off_a_thought_that_the_answer_ends_in(server: Server) -> None:
    # L62
    answer = await ask(server, "<think>so<|im_", "end|>")
    assert (thoughts(answer)[0].content, content(answer)) == ("so", "")


async def test_half_a_control_token_at_the_end_stays_where_it_stands(server: Server) -> None:
    # L62
    answer = await ask(server, "<think>so<|im_", "end")
    assert (thoughts(answer)[0].content, content(answer)) == ("so<|im_end", "")


@pytest.mark.parametrize(
    ("written", "name"),
    [("search<|channel|>commentary", "search"), ("search<|im_end|>", "search"), ("find.it", "find.it")],
)
async def test_the_name_of_a_tool_is_cut_to_one_that_was_offered(server: Server, written: str, name: str) -> None:
    # L62, L63
    call = {"index": 0, "id": "c", "function": {"name": written, "arguments": "{}"}}
    server.answer(Reply(sse(delta(tool_calls=[call]), delta("tool_calls"))))
    provider = chat_model(server)
    events = (await collect(provider.call(REQUEST))).events
    await provider.aclose()
    assert [call.name for call in events[-1].tool_calls] == [name]
    (piece,) = [event for event in events if isinstance(event, ToolCallDeltaEvent)]
    assert (piece.name, piece.hidden) == (name, name == "search")


async def test_an_answer_that_is_not_streamed_means_the_same(server: Server) -> None:
    message = {"role": "assistant", "content": "<think>x</think>\nHello<|im_end|>"}
    body = orjson.dumps({"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]})
    server.answer(Reply([body], content_type="application/json"))
    provider = chat_model(server, stream=False)
    answer = await collect(provider.call(REQUEST))
    await provider.aclose()
    assert shown(answer.events) == [
        ("thought-delta", "x"),
        ("thought-stream", "x"),
        ("content-delta", "\nHello"),
        ("content-complete", "\nHello"),
    ]


async def test_both_can_be_switched_off(server: Server) -> None:
    words = ["<think>x</think>", "Hello<|im_end|>"]
    answer = await ask(server, *words, thought_tags=False, sanitize=False)
    assert [event.delta for event in answer.events[:-1]] == words
    assert content(answer) == "".join(words)


async def test_the_names_of_the_tags_can_be_given(server: Server) -> None:
    answer = await ask(server, "<plan>x</plan><think>y</think>", thought_tags=["plan"])
    assert ([thought.content for thought in thoughts(answer)], content(answer)) == (["x"], "<think>y</think>")
    assert content(await ask(server, "<plan>x</plan>", thought_tags="plan")) == ""


def rules(preset: str, **options: Any) -> TextRules:
    return vars(openai_chat("m", preset=preset, **options))["_rules"]


def test_the_preset_says_what_is_done_and_an_argument_overrules_it() -> None:
    assert rules("openai") == TextRules(thought_tags=THOUGHT_TAGS)
    assert rules("openai", sanitize=True) == TextRules(thought_tags=THOUGHT_TAGS, strip=TEMPLATE_TOKENS)
    assert rules("ollama") == TextRules(thought_tags=THOUGHT_TAGS, strip=TEMPLATE_TOKENS)
    assert rules("ollama", thought_tags=False, sanitize=False) == TextRules()
    # What a vendor's own protocol gives as text is text.
    chat = [preset for preset in PRESETS.values() if preset.wire in ("openai", "openai_chat")]
    assert all(preset.thought_tags == THOUGHT_TAGS for preset in chat)


def test_a_name_that_is_none_is_refused_where_it_is_given() -> None:
    with pytest.raises(ConfigurationError, match="got '<think>'"):
        rules("openai", thought_tags=["<think>"])


@given(
    st.lists(st.sampled_from(FRAGMENTS) | st.text(max_size=3), max_size=20).map("".join),
    st.lists(st.integers(0, 1000), max_size=12),
    st.booleans(),
)
def test_the_deltas_add_up_to_the_content_whatever_comes_and_however_it_is_cut(
    whole: str, cuts: list[int], keep: bool
) -> None:
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
        return ([] if keep else shown(events)), answer.content

    marks = sorted({0, len(whole), *(cut % (len(whole) + 1) for cut in cuts)})
    assert read(*(whole[a:b] for a, b in pairwise(marks))) == read(whole) == read(*whole)


THINKS_FIRST = replace(PRESETS["vllm"], thinks_first=True)


@pytest.mark.parametrize("stream", [True, False])
async def test_a_server_that_puts_the_opening_tag_into_the_prompt(server: Server, stream: bool) -> None:
    words = ("\nThe user", " greets.\n</th", "ink>\n\nHello", " there")
    body = {"choices": [{"message": {"role": "assistant", "content": "".join(words)}, "finish_reason": "stop"}]}
    server.answer(text_reply(*words) if stream else Reply([orjson.dumps(body)], content_type="application/json"))
    model = openai_chat("m", preset=THINKS_FIRST, base_url=server.base_url, stream=stream)
    answer = await collect(model.call(REQUEST))
    (thought,) = [event for event in answer.events if isinstance(event, ThoughtStreamEvent)]
    assert (thought.content, thought.incomplete) == ("\nThe user greets.\n", False)
    assert answer.events[-1].content == "\n\nHello there" == streamed_text(answer)
    await model.aclose()


async def test_reasoning_in_a_field_of_its_own_is_the_thought_instead(server: Server) -> None:
    server.answer(Reply(sse(delta(reasoning_content="Hmm."), delta("stop", content="Hello"))))
    model = openai_chat("m", preset=THINKS_FIRST, base_url=server.base_url)
    answer = await collect(model.call(REQUEST))
    assert (answer.events[-1].content, answer.events[-1].reasoning) == ("Hello", "Hmm.")
    await model.aclose()


def test_a_closing_tag_alone_is_text_where_the_preset_does_not_say_otherwise() -> None:
    assert not any(preset.thinks_first for preset in PRESETS.values())
    assert not vars(openai_chat("m", preset=THINKS_FIRST, thought_tags=False))["_rules"].thinks_first
    events: list[Event] = []
    answer = AnswerText(events.append, "1", TextRules(thought_tags=THOUGHT_TAGS))
    answer.write("Hmm.</think>Hello")
    answer.finish()
    assert answer.content == "Hmm.</think>Hello"
