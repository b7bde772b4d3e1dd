"""Requests have equal bytes with and without cached parts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typing_extensions import override

from rxloop.pipeline.requests import ModelRequest
from rxloop.protocol.messages import Message, ToolCall
from rxloop.protocol.settings import CachePoint, ModelSettings, PromptCache
from rxloop.providers import PRESETS
from rxloop.providers.codecs import Codec
from rxloop.providers.codecs.anthropic import AnthropicCodec
from rxloop.providers.codecs.chat import ChatCodec
from rxloop.providers.codecs.fields import find_output_limit
from rxloop.providers.codecs.message_cache import build_messages
from rxloop.providers.codecs.responses import ResponsesCodec
from rxloop.providers.codecs.tools import encode_in_parts
from rxloop.state.history import History, StoredMessages
from support.histories import COMPRESSORS, WordCounter, compress, histories, long_history
from support.vendors.codecs import ignore_notice
from support.vendors.other_vendors import LOOK, OTHER_VENDORS
from support.vendors.recorded_histories import read_history
from support.vendors.recordings import needs_recordings, recording_names

CHAINED = "gpt that goes on from stored answers"


def make_codec(name: str) -> Codec:
    if name != CHAINED:
        return OTHER_VENDORS[name].make_codec()
    wire = ResponsesCodec("gpt-5", PRESETS["openai_responses"], stream=True, chain=True)
    wire.url("https://api.example.com/v1")
    return wire


NAMES = [*OTHER_VENDORS, CHAINED]
POINTS = st.lists(st.sampled_from(["tools", "system", "newest"]) | st.integers(-4, 12), max_size=3)
Encode = Callable[[Sequence[Message]], bytes]


def copy_messages(messages: Sequence[Message]) -> list[Message]:
    """Return the same messages without cached forms."""
    return [Message.model_validate(message.model_dump()) for message in messages]


def make_encoders(name: str, points: list[CachePoint] | None = None, **fields: Any) -> tuple[Encode, Encode]:
    """Create encoders with and without the cache."""
    cache = None if points is None else PromptCache(points=points)
    request = partial(ModelRequest, tools=(LOOK,), settings=ModelSettings(prompt_cache=cache), **fields)
    keeping, plain = make_codec(name), make_codec(name)
    return (
        lambda messages: keeping.encode(request(messages=messages), ignore_notice),
        lambda messages: plain.encode(request(messages=copy_messages(messages)), ignore_notice),
    )


class CountingSequence(list[Message | StoredMessages]):
    """Sequence that counts accesses."""

    looks = 0

    def __getitem__(self, index: Any) -> Any:
        self.looks += 1
        return super().__getitem__(index)


@pytest.mark.parametrize("name", OTHER_VENDORS)
def test_encode_reads_only_the_new_messages_of_a_history(name: str) -> None:
    wire, history = OTHER_VENDORS[name].make_codec(), History(long_history(200))
    wire.encode(ModelRequest(messages=history, tools=(LOOK,)), ignore_notice)
    call = ToolCall(id="new", name="look")
    longer = history.append(Message.assistant("", tool_calls=[call]), Message.tool("new", "It is blue."))
    longer._items = watched = CountingSequence(longer._items)
    wire.encode(ModelRequest(messages=longer, tools=(LOOK,)), ignore_notice)
    assert 0 < watched.looks < 15


@pytest.mark.parametrize("kind", [History, list[Message]])
@pytest.mark.parametrize("name", NAMES)
async def test_parts_of_a_long_conversation_do_not_change_the_bytes(
    name: str, kind: Callable[[Sequence[Message]], Sequence[Message]]
) -> None:
    in_parts, plain = make_encoders(name, ["tools", -1], tail=(Message.user("Files: none"),))
    messages, calls = kind(copy_messages(long_history(150))), 0

    def encode() -> bytes:
        nonlocal calls
        calls += 1
        return in_parts(messages)

    assert await encode_in_parts(encode) == plain(messages)
    # Claude encodes the system prompt and the newest message separately.
    assert calls >= 3


@pytest.mark.parametrize("kind", [History, list[Message]])
async def test_other_tasks_run_between_the_parts_of_a_conversation(
    kind: Callable[[Sequence[Message]], Sequence[Message]],
) -> None:
    messages, turns, turn = kind(list(map(Message.user, map(str, range(1_050))))), list[int](), 0

    class Texts(list[str]):
        @override
        def copy(self) -> Texts:
            return Texts(self)

    def add(texts: Texts, index: int, message: Message) -> None:
        turns.append(turn)
        texts.append(message.text)

    async def count_turns() -> None:
        nonlocal turn
        while True:
            turn += 1
            await asyncio.sleep(0)

    counter = asyncio.create_task(count_turns())
    encoded = await encode_in_parts(lambda: ",".join(build_messages(messages, "key", Texts, add)).encode())
    counter.cancel()
    assert encoded == ",".join(map(str, range(1_050))).encode()
    assert max(turns.count(each) for each in {*turns}) <= 100


@pytest.mark.parametrize("limit", [None, 2_000])
@pytest.mark.parametrize("name", NAMES)
def test_output_limit_is_found_without_parsing_the_messages(
    name: str, limit: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = ModelRequest(messages=History(long_history(400)), settings=ModelSettings(max_tokens=limit))
    body, parsed, loads = make_codec(name).encode(request, ignore_notice), list[int](), orjson.loads

    def watch(data: bytes) -> Any:
        parsed.append(len(data))
        return loads(data)

    monkeypatch.setattr(orjson, "loads", watch)
    found = find_output_limit(body)
    assert found == limit or (limit is None and found in loads(body).values())
    assert sum(parsed) < 2_000 < len(body)


@pytest.mark.parametrize(
    ("body", "limit"),
    [
        (b'{"messages":[{"content":"1"}],"max_tokens":9}', 9),
        (b'{"a":{"b":1,"messages":[]},"max_tokens":9,"messages":[]}', 9),
        (b'{"a":1,"messages":[{"input":{"max_tokens":5}}],"tools":[]}', None),
        (b'{"a":1,"contents":[],"generationConfig":{"maxOutputTokens":9}}', 9),
        (b'{"max_tokens":true,"messages":[]}', None),
        (b'"max_tokens":', None),
    ],
)
def test_output_limit_is_found_in_other_bodies(body: bytes, limit: int | None) -> None:
    assert find_output_limit(body) == limit


@settings(max_examples=60, deadline=None)
@given(st.data(), st.sampled_from(NAMES), histories(), st.none() | POINTS)
def test_cached_parts_do_not_change_the_bytes(
    data: st.DataObject, name: str, messages: list[Message], points: list[CachePoint] | None
) -> None:
    keeping, plain = make_encoders(
        name, points, tail=(Message.user("Files: none"),), system=(Message.system("Be brief."),)
    )
    versions = [History()]
    for _ in range(data.draw(st.integers(1, 8))):
        # Continue from the newest version, or fork an older one.
        older = data.draw(st.sampled_from([versions[-1], *versions]))
        more = data.draw(st.integers(1, max(1, len(messages) - len(older))))
        versions.append(older.append(*messages[len(older) : len(older) + more]))
        assert keeping(versions[-1]) == plain(versions[-1])


@settings(max_examples=30, deadline=None)
@given(st.data(), histories())
def test_codecs_that_share_a_history_do_not_share_their_cache(data: st.DataObject, messages: list[Message]) -> None:
    wires = {name: make_encoders(name) for name in OTHER_VENDORS}
    history = History()
    for message in messages:
        history = history.append(message)
        keeping, plain = wires[data.draw(st.sampled_from(sorted(wires)))]
        assert keeping(history) == plain(history)


@pytest.mark.parametrize("name", OTHER_VENDORS)
def test_repeated_call_ids_are_resolved_within_their_branch(name: str) -> None:
    def repeat() -> list[Message]:
        return [Message.assistant("", tool_calls=[ToolCall(id="0", name="look")]), Message.tool("0", "It is blue.")]

    keeping, plain = make_encoders(name)
    trunk = History([Message.user("Look."), *repeat()])
    keeping(trunk)
    for words in ("And left?", "And right?"):
        branch = trunk.append(*repeat(), Message.user(words))
        assert keeping(branch) == plain(branch)


def test_claude_container_and_thinking_are_known_from_cached_parts() -> None:
    code = {"type": "code_execution_20250825", "name": "code_execution"}
    settings = ModelSettings(thinking_budget=2_000, server_tools=[code])
    first = {"anthropic_container": "c1"}
    thought = {"anthropic": [{"reasoning": 1, "extra": {"signature": "s"}}, {"call": 0}]}
    plain, binding = make_codec("claude"), AnthropicCodec("claude-fable-5-1", PRESETS["anthropic"], stream=True)
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


def test_presets_with_different_orders_share_a_history_but_not_the_cache() -> None:
    openai = PRESETS["openai"]
    history = History([*long_history(1), Message.user("And?")])
    for preset in (openai, replace(openai, assistant_after_tool=True), openai):
        body = ChatCodec("m", preset, stream=True).encode(ModelRequest(messages=history), ignore_notice)
        assert (b"Understood." in body) == preset.assistant_after_tool


def test_cached_parts_of_another_cache_lifetime_are_not_used() -> None:
    wire, history = make_codec("claude"), History(long_history(3))
    for ttl in ("5m", "1h", "5m"):
        cached = ModelSettings(prompt_cache=PromptCache(points=[1], ttl=ttl))
        body = wire.encode(ModelRequest(messages=history, settings=cached), ignore_notice)
        assert body == make_codec("claude").encode(
            ModelRequest(messages=copy_messages(history), settings=cached), ignore_notice
        )


def test_cached_parts_beyond_a_cache_breakpoint_are_not_used() -> None:
    wire, messages = make_codec("claude"), long_history(3)
    history, bodies = History(messages), list[bytes]()
    for points in list[list[CachePoint]](([], ["newest"], [-2], [])):
        cached = ModelSettings(prompt_cache=PromptCache(points=points))
        bodies.append(wire.encode(ModelRequest(messages=history, settings=cached), ignore_notice))
        assert bodies[-1] == make_codec("claude").encode(
            ModelRequest(messages=copy_messages(messages), settings=cached), ignore_notice
        )
    assert bodies[0] == bodies[3] != bodies[1]


@settings(max_examples=30, deadline=None)
@given(st.data(), st.sampled_from(NAMES), histories())
def test_edit_in_the_middle_is_detected(data: st.DataObject, name: str, messages: list[Message]) -> None:
    keeping, plain = make_encoders(name)
    keeping(History(messages))
    place = data.draw(st.integers(0, max(0, len(messages) - 1)))
    edited = [*messages[:place], *(each.model_copy(update={"content": "[gone]"}) for each in messages[place:][:1])]
    history = History([*edited, *messages[place + 1 :]])
    assert keeping(history) == plain(history)
    assert keeping(history.append(Message.user("And?"))) == plain(history.append(Message.user("And?")))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("compressor", COMPRESSORS)
def test_compressed_history_has_the_same_bytes_as_without_the_cache(name: str, compressor: str) -> None:
    keeping, plain = make_encoders(name)
    history = History(long_history(20))
    keeping(history)
    shorter = compress(COMPRESSORS[compressor](300), history, WordCounter()).messages
    assert len(shorter) < len(history)
    assert keeping(shorter) == plain(shorter)
    assert keeping(History(shorter)) == plain(shorter)
    assert keeping(history.append(Message.user("And?"))) == plain([*history, Message.user("And?")])


@needs_recordings
@pytest.mark.parametrize("api", ["chat", "resp", "msgs", "gen"])
async def test_recorded_histories_have_the_same_bytes(api: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GEMINI_API_KEY"):
        monkeypatch.setenv(variable, "a-key")
    wrong: list[str] = []
    for recorded in recording_names(api=api):
        messages = await read_history(recorded)
        for name in NAMES:
            keeping, plain = make_encoders(name)
            history = History()
            for message in messages:
                history = history.append(message)
                if message.role != "tool" and keeping(history) != plain(history):
                    wrong.append(f"{recorded} up to {len(history)}, to {name}")
    assert not wrong, "\n".join(wrong[:40])
