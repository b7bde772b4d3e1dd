"""What a wire has built of a history is no part of what it sends: a request has the same bytes without it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rxloop.pipeline.requests import ModelRequest
from rxloop.protocol.messages import Message, ToolCall
from rxloop.protocol.settings import CachePoint, ModelSettings, PromptCache
from rxloop.providers import PRESETS
from rxloop.providers.codecs import Codec
from rxloop.providers.codecs.anthropic import AnthropicCodec
from rxloop.providers.codecs.chat import ChatCodec
from rxloop.providers.codecs.responses import ResponsesCodec
from rxloop.state.history import History, StoredMessages
from support.histories import COMPRESSORS, WordCounter, compress, histories, long_history
from support.vendors.codecs import ignore_notice
from support.vendors.other_vendors import LOOK, OTHER_VENDORS
from support.vendors.recorded_histories import read_history
from support.vendors.recordings import needs_recordings, recording_names

CHAINED = "gpt that goes on from stored answers"


def made(name: str) -> Codec:
    if name != CHAINED:
        return OTHER_VENDORS[name].make_codec()
    wire = ResponsesCodec("gpt-5", PRESETS["openai_responses"], stream=True, chain=True)
    wire.url("https://api.example.com/v1")
    return wire


NAMES = [*OTHER_VENDORS, CHAINED]
POINTS = st.lists(st.sampled_from(["tools", "system", "newest"]) | st.integers(-4, 12), max_size=3)
Encode = Callable[[Sequence[Message]], bytes]


def anew(messages: Sequence[Message]) -> list[Message]:
    """The same messages, of which nothing is kept."""
    return [Message.model_validate(message.model_dump()) for message in messages]


def encoding(name: str, points: list[CachePoint] | None = None, **fields: Any) -> tuple[Encode, Encode]:
    """What encodes with all that is kept, and without."""
    cache = None if points is None else PromptCache(points=points)
    request = partial(ModelRequest, tools=(LOOK,), settings=ModelSettings(prompt_cache=cache), **fields)
    keeping, plain = made(name), made(name)
    return (
        lambda messages: keeping.encode(request(messages=messages), ignore_notice),
        lambda messages: plain.encode(request(messages=anew(messages)), ignore_notice),
    )


class Watched(list[Message | StoredMessages]):
    """A store that counts the looks at its messages."""

    looks = 0

    def __getitem__(self, index: Any) -> Any:
        self.looks += 1
        return super().__getitem__(index)


@pytest.mark.parametrize("name", OTHER_VENDORS)
def test_a_request_looks_at_what_is_new_in_the_history_and_at_nothing_else(name: str) -> None:
    wire, history = OTHER_VENDORS[name].make_codec(), History(long_history(200))
    wire.encode(ModelRequest(messages=history, tools=(LOOK,)), ignore_notice)
    call = ToolCall(id="new", name="look")
    longer = history.append(Message.assistant("", tool_calls=[call]), Message.tool("new", "It is blue."))
    longer._items = watched = Watched(longer._items)
    wire.encode(ModelRequest(messages=longer, tools=(LOOK,)), ignore_notice)
    assert 0 < watched.looks < 15


@settings(max_examples=60, deadline=None)
@given(st.data(), st.sampled_from(NAMES), histories(), st.none() | POINTS)
def test_a_request_has_the_same_bytes_with_what_was_built_before(
    data: st.DataObject, name: str, messages: list[Message], points: list[CachePoint] | None
) -> None:
    keeping, plain = encoding(name, points, tail=(Message.user("Files: none"),), system=(Message.system("Be brief."),))
    versions = [History()]
    for _ in range(data.draw(st.integers(1, 8))):
        # On from the newest version, or from an older one, as a fork goes.
        older = data.draw(st.sampled_from([versions[-1], *versions]))
        more = data.draw(st.integers(1, max(1, len(messages) - len(older))))
        versions.append(older.append(*messages[len(older) : len(older) + more]))
        assert keeping(versions[-1]) == plain(versions[-1])


@settings(max_examples=30, deadline=None)
@given(st.data(), histories())
def test_wires_that_share_a_history_do_not_mix_what_they_have_built(
    data: st.DataObject, messages: list[Message]
) -> None:
    wires = {name: encoding(name) for name in OTHER_VENDORS}
    history = History()
    for message in messages:
        history = history.append(message)
        keeping, plain = wires[data.draw(st.sampled_from(sorted(wires)))]
        assert keeping(history) == plain(history)


@pytest.mark.parametrize("name", OTHER_VENDORS)
def test_ids_that_are_used_again_are_those_of_their_own_branch(name: str) -> None:
    def again() -> list[Message]:
        return [Message.assistant("", tool_calls=[ToolCall(id="0", name="look")]), Message.tool("0", "It is blue.")]

    keeping, plain = encoding(name)
    trunk = History([Message.user("Look."), *again()])
    keeping(trunk)
    for words in ("And left?", "And right?"):
        branch = trunk.append(*again(), Message.user(words))
        assert keeping(branch) == plain(branch)


def test_what_claude_is_in_the_middle_of_and_has_thought_is_known_of_what_was_built_before() -> None:
    code = {"type": "code_execution_20250825", "name": "code_execution"}
    settings = ModelSettings(thinking_budget=2_000, server_tools=[code])
    first = {"anthropic_container": "c1"}
    thought = {"anthropic": [{"reasoning": 1, "extra": {"signature": "s"}}, {"call": 0}]}
    plain, binding = made("claude"), AnthropicCodec("claude-fable-5-1", PRESETS["anthropic"], stream=True)
    history = History([Message.user("Look.")])
    for number in range(4):
        call = ToolCall(id=f"{number}", name="look")
        said = Message(role="assistant", tool_calls=(call,), provider_state=thought if number else first, reasoning="h")
        history = history.append(said, Message.tool(call.id, "It is blue."))
        request = ModelRequest(messages=history, tools=(LOOK,), settings=settings)
        body = orjson.loads(plain.encode(request, ignore_notice))
        assert (body["container"], "thinking" in body) == ("c1", False)
        bound = binding.encode(request.replace(messages=History([*history]), settings=ModelSettings()), ignore_notice)
        assert (b"block_binding" in bound) == (number > 0)
    for words in ("And left?", "And right?"):
        history = history.append(Message.user(words))
        assert b"block_binding" in binding.encode(ModelRequest(messages=history), ignore_notice)


def test_endpoints_that_want_another_order_share_a_history_and_not_what_was_built_of_it() -> None:
    openai = PRESETS["openai"]
    history = History([*long_history(1), Message.user("And?")])
    for preset in (openai, replace(openai, assistant_after_tool=True), openai):
        body = ChatCodec("m", preset, stream=True).encode(ModelRequest(messages=history), ignore_notice)
        assert (b"Understood." in body) == preset.assistant_after_tool


def test_what_was_built_for_another_time_in_the_cache_is_not_sent() -> None:
    wire, history = made("claude"), History(long_history(3))
    for ttl in ("5m", "1h", "5m"):
        cached = ModelSettings(prompt_cache=PromptCache(points=[1], ttl=ttl))
        body = wire.encode(ModelRequest(messages=history, settings=cached), ignore_notice)
        assert body == made("claude").encode(ModelRequest(messages=anew(history), settings=cached), ignore_notice)


def test_what_was_built_beyond_a_place_of_the_cache_is_not_sent_in_its_stead() -> None:
    wire, messages = made("claude"), long_history(3)
    history, bodies = History(messages), list[bytes]()
    for points in list[list[CachePoint]](([], ["newest"], [-2], [])):
        cached = ModelSettings(prompt_cache=PromptCache(points=points))
        bodies.append(wire.encode(ModelRequest(messages=history, settings=cached), ignore_notice))
        assert bodies[-1] == made("claude").encode(
            ModelRequest(messages=anew(messages), settings=cached), ignore_notice
        )
    assert bodies[0] == bodies[3] != bodies[1]


@settings(max_examples=30, deadline=None)
@given(st.data(), st.sampled_from(NAMES), histories())
def test_an_edit_in_the_middle_is_seen(data: st.DataObject, name: str, messages: list[Message]) -> None:
    keeping, plain = encoding(name)
    keeping(History(messages))
    place = data.draw(st.integers(0, max(0, len(messages) - 1)))
    edited = [*messages[:place], *(each.model_copy(update={"content": "[gone]"}) for each in messages[place:][:1])]
    history = History([*edited, *messages[place + 1 :]])
    assert keeping(history) == plain(history)
    assert keeping(history.append(Message.user("And?"))) == plain(history.append(Message.user("And?")))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("compressor", COMPRESSORS)
def test_a_compressed_history_is_sent_as_if_nothing_had_been_kept(name: str, compressor: str) -> None:
    keeping, plain = encoding(name)
    history = History(long_history(20))
    keeping(history)
    shorter = compress(COMPRESSORS[compressor](300), history, WordCounter()).messages
    assert len(shorter) < len(history)
    assert keeping(shorter) == plain(shorter)
    assert keeping(History(shorter)) == plain(shorter)
    assert keeping(history.append(Message.user("And?"))) == plain([*history, Message.user("And?")])


@needs_recordings
@pytest.mark.parametrize("api", ["chat", "resp", "msgs", "gen"])
async def test_recorded_histories_are_sent_with_the_same_bytes(api: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GEMINI_API_KEY"):
        monkeypatch.setenv(variable, "a-key")
    wrong: list[str] = []
    for recorded in recording_names(api=api):
        messages = await read_history(recorded)
        for name in NAMES:
            keeping, plain = encoding(name)
            history = History()
            for message in messages:
                history = history.append(message)
                if message.role != "tool" and keeping(history) != plain(history):
                    wrong.append(f"{recorded} up to {len(history)}, to {name}")
    assert not wrong, "\n".join(wrong[:40])
