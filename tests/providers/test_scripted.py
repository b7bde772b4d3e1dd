from __future__ import annotations

from typing import Any

import pytest
from reactivex import abc

from rxloop.errors import ConfigurationError, ProviderError, RateLimited
from rxloop.pipeline.interfaces import Provider
from rxloop.pipeline.requests import ModelRequest, ToolDefinition
from rxloop.protocol.events import (
    ContentCompleteEvent,
    ContentDeltaEvent,
    Event,
    ThoughtDeltaEvent,
    ThoughtStreamEvent,
    ToolCallDeltaEvent,
    UsageEvent,
)
from rxloop.protocol.messages import Message, Usage
from rxloop.providers.script import ScriptedModel, ScriptExhausted, call, frames, turn
from rxloop.testing import assert_marbles, virtual_time

REQUEST = ModelRequest(messages=[Message.user("Weather?")])


class Reader:
    """Recording observer."""

    def __init__(self, model: ScriptedModel, request: ModelRequest = REQUEST) -> None:
        self.events: list[Event] = []
        self.errors: list[Exception] = []
        self.completed = False
        self.subscription: abc.DisposableBase = model.call(request).subscribe(
            self.events.append, self.errors.append, self._complete
        )

    def _complete(self) -> None:
        self.completed = True

    @property
    def kinds(self) -> list[str]:
        return [event.kind for event in self.events]

    @property
    def message(self) -> ContentCompleteEvent:
        assert self.completed, self.errors
        last = self.events[-1]
        assert isinstance(last, ContentCompleteEvent)
        return last


async def read(model: ScriptedModel) -> Reader:
    """Subscribe inside an event loop, as required by timed streams."""
    return Reader(model)


def test_scripted_model_is_a_provider() -> None:
    model: Provider = ScriptedModel(name="test:one")
    assert isinstance(model, Provider)
    assert model.name == "test:one"


def test_text_is_emitted_at_once_without_an_event_loop() -> None:
    reader = Reader(ScriptedModel("It is cold.\n"))
    assert reader.kinds == ["content-delta", "content-complete"]
    assert isinstance(reader.events[0], ContentDeltaEvent)
    assert reader.events[0].delta == reader.message.content == "It is cold.\n"
    assert (reader.message.finish_reason, reader.message.tool_calls) == ("stop", [])


def test_empty_text_has_no_delta() -> None:
    assert Reader(ScriptedModel("")).kinds == ["content-complete"]


def test_call_creates_a_message_with_one_tool_call() -> None:
    reader = Reader(ScriptedModel(call("get_weather", city="Oslo", days=2)))
    (made,) = reader.message.tool_calls
    assert (made.id, made.name, made.arguments) == ("call_1", "get_weather", {"city": "Oslo", "days": 2})
    assert reader.message.finish_reason == "tool_calls"
    assert isinstance(reader.events[0], ToolCallDeltaEvent)
    assert reader.events[0].fragment == made.raw == '{"city":"Oslo","days":2}'


def test_tool_arguments_may_have_any_name() -> None:
    reader = Reader(ScriptedModel(call("rename", name="a", self="b")))
    assert reader.message.tool_calls[0].arguments == {"name": "a", "self": "b"}


def test_list_creates_one_message() -> None:
    reader = Reader(ScriptedModel([call("a"), "I look ", "it up.", call("b")]))
    assert reader.kinds == ["content-delta", "tool-call-delta", "tool-call-delta", "content-complete"]
    assert reader.message.content == "I look it up."
    assert [made.name for made in reader.message.tool_calls] == ["a", "b"]


def test_call_ids_are_unique_within_the_model() -> None:
    again = call("a")
    model = ScriptedModel([again, again], call("b", "mine"), again)
    ids = [made.id for _ in range(3) for made in Reader(model).message.tool_calls]
    assert ids == ["call_1", "call_2", "mine", "call_4"]


def test_turn_supports_all_parts_of_an_answer() -> None:
    reader = Reader(
        ScriptedModel(
            turn(
                "Cut",
                calls=[call("a")],
                reasoning="Let me see.",
                usage=Usage(input_tokens=7, output_tokens=3, cached_tokens=2, reasoning_tokens=1),
                finish_reason="length",
                raw_finish_reason="max_tokens",
            )
        )
    )
    assert reader.kinds == [
        "thought-delta",
        "thought-stream",
        "content-delta",
        "tool-call-delta",
        "usage",
        "content-complete",
    ]
    delta, thought, usage = reader.events[0], reader.events[1], reader.events[4]
    assert isinstance(delta, ThoughtDeltaEvent)
    assert isinstance(thought, ThoughtStreamEvent)
    assert isinstance(usage, UsageEvent)
    assert delta.delta == thought.content == reader.message.reasoning == "Let me see."
    assert (thought.source, thought.index) == ("reasoning", -1)  # L30
    assert usage.usage == Usage(input_tokens=7, output_tokens=3, cached_tokens=2, reasoning_tokens=1)
    assert (reader.message.finish_reason, reader.message.raw_finish_reason) == ("length", "max_tokens")


def test_turns_may_have_thoughts() -> None:
    model = ScriptedModel("a", turn("b", reasoning="Otherwise."), turn("c", reasoning=""), reasoning="Hm.")
    readers = [Reader(model) for _ in range(3)]
    assert [reader.message.reasoning for reader in readers] == ["Hm.", "Otherwise.", ""]
    thoughts = [event for reader in readers for event in reader.events if isinstance(event, ThoughtStreamEvent)]
    assert len({thought.thought_id for thought in thoughts}) == len(thoughts) == 2


def test_exception_fails_the_request() -> None:
    error = RateLimited("slow down", retry_after=2)
    reader = Reader(ScriptedModel(error))
    assert (reader.events, reader.errors) == ([], [error])


def test_function_receives_the_request() -> None:
    def raise_error(request: ModelRequest) -> str:
        raise ZeroDivisionError

    model = ScriptedModel(lambda request: [f"You said {request.messages[-1].text}", call("a")], raise_error)
    assert Reader(model).message.content == "You said Weather?"
    assert isinstance(Reader(model).errors[0], ZeroDivisionError)


def test_exhausted_script_error_names_the_turn_count() -> None:
    model = ScriptedModel("a", "b")
    readers = [Reader(model) for _ in range(3)]
    (error,) = readers[2].errors
    assert isinstance(error, ScriptExhausted)
    assert isinstance(error, ProviderError)
    assert str(error) == "the script has 2 turns, this is request 3; add the answer to ScriptedModel(...)"


def test_turn_is_consumed_at_the_subscription() -> None:  # L52
    model = ScriptedModel("a")
    answer = model.call(REQUEST)
    assert model.requests == []
    answer.subscribe()
    assert model.requests == [REQUEST]


@pytest.mark.parametrize("wrong", [None, 5, {"text": "a"}, ["a", 5], [frames("a|")], ScriptedModel])
def test_invalid_turn_is_rejected_at_creation(wrong: Any) -> None:
    with pytest.raises(ConfigurationError):
        ScriptedModel("a", wrong)


def test_calls_of_hidden_tools_are_hidden() -> None:  # L29
    tool = ToolDefinition(name="think_aloud", description="", parameters={}, hidden=True)
    reader = Reader(ScriptedModel([call("think_aloud"), call("other")]), REQUEST.replace(tools=(tool,)))
    assert [event.public for event in reader.events] == [False, True, True]


def test_frames_emit_one_symbol_per_frame() -> None:
    with virtual_time():
        stream = ScriptedModel(frames("--The service--is slow.|")).call(REQUEST)
        assert_marbles(stream, "50ms d 75ms d 25ms (c|)")
        assert_marbles(ScriptedModel(frames("a|", frame=1)).call(REQUEST), "d 1s (c|)")
        assert_marbles(ScriptedModel(frames("-|")).call(REQUEST), "-(c|)")


def test_frames_keep_spaces_and_may_be_part_of_a_turn() -> None:
    model = ScriptedModel(turn(frames("-Let me -- see.|"), calls=[call("a")], reasoning="Hm."))
    with virtual_time() as time:
        reader = time.run(read(model))
        time.advance(1)
    assert reader.message.content == "Let me  see."
    assert [event.delta for event in reader.events if isinstance(event, ContentDeltaEvent)] == ["Let me ", " see."]
    assert reader.kinds[0] == "thought-delta"
    assert reader.message.tool_calls[0].name == "a"


def test_cross_fails_the_stream_after_earlier_symbols() -> None:
    with virtual_time() as time:
        model = ScriptedModel(frames("-a-#"))
        reader = time.run(read(model))
        time.advance(1)
    assert reader.kinds == ["content-delta"]
    assert isinstance(reader.errors[0], ProviderError)
    assert model.open == 0


@pytest.mark.parametrize("line", ["-|-", "a#b", "||"])
def test_symbols_after_the_end_of_frames_are_rejected(line: str) -> None:
    with pytest.raises(ConfigurationError, match="nothing can follow"):
        frames(line)


def test_dispose_closes_the_stream() -> None:  # L54
    model = ScriptedModel(frames("-a-b-c|"), frames("a"))
    with virtual_time() as time:
        reader = time.run(read(model))
        time.advance(0.03)
        assert model.open == 1
        time.at(0.03, reader.subscription.dispose)
        time.advance(0)
        assert model.open == 0
        time.advance(1)
        assert model.open == 0
        assert (reader.kinds, reader.completed, reader.errors) == (["content-delta"], False, [])

        endless = time.run(read(model))
        time.advance(100)
        assert (model.open, endless.kinds) == (1, ["content-delta"])
        time.at(time.now, endless.subscription.dispose)
        time.advance(0)
        assert model.open == 0


def test_stream_disposed_before_its_task_started_is_closed() -> None:
    model = ScriptedModel(frames("a|"))
    with virtual_time() as time:

        async def subscribe_and_dispose() -> None:
            Reader(model).subscription.dispose()

        time.run(subscribe_and_dispose())
        assert model.open == 0
        time.advance(1)
        assert model.open == 0


def test_concurrent_streams_are_counted() -> None:
    model = ScriptedModel(frames("--a|"), frames("----b|"), "now")
    with virtual_time() as time:
        readers = [time.run(read(model)) for _ in range(3)]
        assert model.open == 2
        time.advance(0.09)
        assert model.open == 1
        time.advance(1)
        assert model.open == 0
    assert [reader.message.content for reader in readers] == ["a", "b", "now"]
