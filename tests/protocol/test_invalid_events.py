"""Errors for values that cannot be stored in an event log."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from typing import Any

import orjson
import pytest
from reactivex import operators as rx

from rxloop import (
    Agent,
    ConfigurationError,
    ContentCompleteEvent,
    CustomEvent,
    Event,
    Message,
    RunContext,
    RunError,
    SqliteEventLog,
    ToolCall,
    ToolRequest,
    op,
    tool,
)
from rxloop.errors import InvalidEvent, InvalidInput
from rxloop.operators import on
from rxloop.protocol.envelope import EVENT_TYPES, UnknownEvent
from rxloop.protocol.events import StatusUpdateEvent, ThoughtStreamEvent, ToolCompleteEvent, ToolStartEvent
from rxloop.stream.sources import emit
from rxloop.testing import ScriptedModel, call
from support.http_server import Reply, chat_model, delta, sse, start_server, text_reply
from support.runs import collect


def nest(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


class FixedProvider:
    """Provider that answers with a fixed message."""

    name = "says"

    def __init__(self, message: ContentCompleteEvent) -> None:
        self.message = message

    def call(self, request: Any) -> Any:
        return emit(self.message)

    async def aclose(self) -> None: ...


def custom_data(event: Event) -> Any:
    return event.data if isinstance(event, CustomEvent) else None


def make_agent(function: Any, tmp_path: Any, *turns: Any, **options: Any) -> Agent[Any, Any]:
    log = SqliteEventLog(tmp_path / "runs.db")
    model = ScriptedModel(*(turns or (call(function.__name__), "Done.")))
    return Agent(model, tools=[tool(function)], log=log, **options)


@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_tool_that_emits_an_invalid_event_fails_and_the_run_continues(kind: str, tmp_path: Any) -> None:
    async def emit_async(ctx: RunContext[Any]) -> str:
        """Emit."""
        ctx.emit(CustomEvent(name="x", data={"socket": object()}))
        return "never"

    def emit_sync(ctx: RunContext[Any]) -> str:
        """Emit, in a thread."""
        ctx.emit(CustomEvent(name="x", data={"socket": object()}))
        return "never"

    agent = make_agent(emit_async if kind == "async" else emit_sync, tmp_path)
    run = agent.run("q")
    events = await collect(run)
    [failed] = [event for event in events if isinstance(event, ToolCompleteEvent)]
    assert "custom: data['socket']: must be a string, number, list, dict or other JSON data, got type object" in (
        failed.error or ""
    )
    assert (await run).output == "Done."
    assert [event.to_json() for event in await agent.log.read(run.task_id)] == [  # type: ignore[union-attr]
        event.to_json() for event in events if event.durable
    ]
    await agent.log.aclose()  # type: ignore[union-attr]


async def test_file_name_with_invalid_unicode_harms_neither_readers_nor_the_log(tmp_path: Any) -> None:
    async def list_files(ctx: RunContext[Any]) -> str:
        """List."""
        ctx.progress("reading caf\udce9.txt")
        ctx.emit(CustomEvent(name="file", data={"name": "caf\udce9.txt", "caf\udce9": b"\xff"}))
        return "ok"

    agent = make_agent(list_files, tmp_path)
    run = agent.run("q")
    frames = [frame async for frame in run.sse()]
    assert "reading caf\ufffd.txt".encode() in b"".join(frames)
    assert (await run).output == "Done."
    [data] = filter(None, map(custom_data, await agent.log.read(run.task_id)))  # type: ignore[union-attr]
    assert data == {"name": "caf\ufffd.txt", "caf\ufffd": "_w=="}
    await agent.log.aclose()  # type: ignore[union-attr]


@pytest.mark.parametrize("depth", [101, 150, 199, 250, 300, 900, 5_000, 100_000])
async def test_arguments_nested_too_deeply_fail_the_call_and_the_conversation_continues(
    depth: int, tmp_path: Any
) -> None:
    async def f(a: Any) -> str:
        """Take anything."""
        return "never"

    raw = '{"a":' + "[" * depth + "]" * depth + "}"
    chunk = delta("tool_calls", tool_calls=[{"index": 0, "id": "1", "function": {"name": "f", "arguments": raw}}])
    async with start_server() as server:
        server.answer(Reply(sse(chunk)), text_reply("Sorry."), text_reply("Yes."))
        provider = chat_model(server)
        agent = Agent(provider, tools=[tool(f)], log=SqliteEventLog(tmp_path / "runs.db"))
        run = agent.run("q", context_id="c")
        frames = [frame async for frame in run.sse()]
        assert (await run).output == "Sorry."
        assert (await agent.run("Still there?", context_id="c")).output == "Yes."
        events = await agent.log.read(run.task_id)  # type: ignore[union-attr]
        [message] = [event for event in events if isinstance(event, ContentCompleteEvent) and event.tool_calls]
        assert message.tool_calls[0].arguments == {}
        assert message.tool_calls[0].raw == raw
        assert re.search("100 deep|depth limit|20,000 argument values", message.tool_calls[0].error or "")
        assert frames
        await provider.aclose()
        await agent.log.aclose()  # type: ignore[union-attr]


async def test_result_nested_too_deeply_fails_the_call(tmp_path: Any) -> None:
    async def f() -> Any:
        """Return a deeply nested list."""
        return nest(120)

    agent = make_agent(f, tmp_path)
    events = await collect(agent.run("q"))
    [answer] = [event for event in events if isinstance(event, ToolCompleteEvent)]
    problem = "nested more than 100 deep, or in itself: give it flatter, or as a text"
    assert answer.error == f"The tool ran, but what it returned (of type list) cannot be written as JSON: {problem}"
    await agent.log.aclose()  # type: ignore[union-attr]


async def test_change_by_a_subscriber_does_not_affect_tools_log_and_others() -> None:
    paid: list[dict[str, Any]] = []

    async def pay(card: dict[str, str]) -> str:
        """Pay."""
        paid.append(card)
        return "paid"

    def mask(event: Event) -> None:
        if isinstance(event, ToolStartEvent):
            event.call.arguments["card"]["number"] = "***"

    run = Agent(ScriptedModel(call("pay", card={"number": "4111"}), "Done."), tools=[tool(pay)]).run("q")
    errors: list[Exception] = []
    run.events.subscribe(mask, on_error=errors.append)
    events = await collect(run)
    assert paid == [{"number": "4111"}]
    [start] = [event for event in events if isinstance(event, ToolStartEvent)]
    assert start.arguments == {"card": {"number": "4111"}}
    assert ["events are immutable" in str(error) for error in errors] == [True]


async def test_tool_may_change_its_arguments() -> None:
    @tool
    async def f(rows: list[int], more: dict[str, Any]) -> int:
        """Sort."""
        rows.sort()
        more["seen"] = True
        more["list"].append(1)
        return len(rows)

    class Raw:
        definition = f.definition
        timeout = None
        idempotent = approve = False

        def enabled(self, ctx: Any) -> bool:
            return True

        async def call(self, arguments: dict[str, Any], ctx: Any) -> int:
            arguments["rows"].sort()
            arguments["more"]["list"].append(1)
            arguments.clear()
            return 1

    for each in (f, Raw()):
        model = ScriptedModel(call("f", rows=[2, 1], more={"list": []}), "Done.")
        events = await collect(Agent(model, tools=[each]).run("q"))
        [answer] = [event for event in events if isinstance(event, ToolCompleteEvent)]
        assert answer.success
        assert answer.call.arguments == {"rows": [2, 1], "more": {"list": []}}
        assert orjson.loads(answer.call.raw or "") == answer.call.arguments


async def test_guard_sees_frozen_arguments_and_may_replace_them() -> None:
    paths: list[Any] = []

    @tool
    async def f(path: str) -> str:
        """Read."""
        paths.append(path)
        return path

    @on(ToolRequest)
    async def guard(request: ToolRequest, ctx: RunContext[Any]) -> AsyncIterator[ToolRequest]:
        with pytest.raises(TypeError, match="events are immutable"):
            request.call.arguments["path"] = "b"
        yield request.replace(path="c")

    agent = Agent(ScriptedModel(call("f", path="a"), "Done."), tools=[f], loop=op.standard(before_tools=[guard]))
    assert (await agent.run("q")).output == "Done."
    assert paths == ["c"]


async def test_operator_that_makes_an_invalid_event_fails_the_run(tmp_path: Any) -> None:
    def spoil(event: Any) -> Any:
        return event.model_copy(update={"metadata": {"at": object()}}) if event is not None else event

    log = SqliteEventLog(tmp_path / "runs.db")
    loop = op.standard(at_end=[rx.map(lambda each: spoil(each) if isinstance(each, ContentCompleteEvent) else each)])
    run = Agent(ScriptedModel("Hi."), loop=loop, log=log).run("q")
    with pytest.raises(RunError, match=r"content-complete: metadata\['at'\]: must be .* got type object"):
        await run
    assert (await log.read(run.task_id))[-1].final  # type: ignore[attr-defined]
    await log.aclose()


async def test_provider_that_makes_an_invalid_message_fails_the_run(tmp_path: Any) -> None:
    log = SqliteEventLog(tmp_path / "runs.db")
    bad = ContentCompleteEvent(content="Hi.", provider_state={"deep": nest(120)})
    run = Agent(FixedProvider(bad), log=log).run("q")
    with pytest.raises(RunError, match="content-complete: provider_state"):
        await run
    assert (await log.read(run.task_id))[-1].final  # type: ignore[attr-defined]
    await log.aclose()


async def test_lone_surrogates_in_provider_state_are_replaced() -> None:
    model = FixedProvider(ContentCompleteEvent(content="a\ud800", provider_state={"x": ["\udcff"]}))
    events = await collect(Agent(model).run("q"))
    [message] = [event for event in events if isinstance(event, ContentCompleteEvent)]
    assert message.content == "a\ufffd"
    assert message.provider_state == {"x": ["\ufffd"]}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"metadata": {"db": object()}}, r"metadata\['db'\]: must be .* got type object.*deps="),
        ({"context_id": "a\ud800"}, "context_id"),
        ({"context_id": "a\nevent: forged"}, "context_id"),
    ],
)
async def test_invalid_run_options_are_refused_before_the_run_starts(options: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        Agent(ScriptedModel("Hi."), log=None).run("q", **options)


async def test_answer_that_cannot_be_written_is_refused_and_the_run_still_waits(tmp_path: Any) -> None:
    async def ask_for_dict(ctx: RunContext[Any]) -> str:
        """Ask."""
        return str(await ctx.ask("What?", dict))

    agent = make_agent(ask_for_dict, tmp_path)
    paused = await agent.run("q")
    [question] = paused.pending
    with pytest.raises(InvalidInput, match=r"the answer to .* got type object"):
        await agent.resume(paused.task_id, inputs={question.input_id: {"x": object()}})
    assert (await agent.resume(paused.task_id, inputs={question.input_id: {"x": 1}})).output == "Done."
    await agent.log.aclose()  # type: ignore[union-attr]


async def test_results_of_a_fork_are_normalised(tmp_path: Any) -> None:
    async def f() -> str:
        """Return a string."""
        return "x"

    agent = make_agent(f, tmp_path, call("f"), "Done.", "Again.", "Again.")
    run = agent.run(Message.user("q"))
    await run
    [answer] = [event for event in await agent.log.read(run.task_id) if event.kind == "tool-complete"]  # type: ignore[union-attr]
    forked = agent.fork(run.task_id, at=answer.seq, results={"1/0": "caf\udce9"})
    [completed] = [event for event in await collect(forked) if isinstance(event, ToolCompleteEvent)]
    assert completed.result == "caf\ufffd"
    await agent.log.aclose()  # type: ignore[union-attr]


def test_event_nested_too_deeply_is_a_configuration_error() -> None:
    for depth in (201, 5_000, 100_000):
        data = b'{"version":1,"kind":"custom","name":"x","data":' + b"[" * depth + b"]" * depth + b"}"
        for each in (data, data.decode(), data.replace(b"custom", b"strange")):
            with pytest.raises(ConfigurationError, match="event"):
                Event.from_json(each)


def test_unreadable_arguments_keep_their_text() -> None:
    raw = '{"a":' + "[" * 101 + "]" * 101 + "}"
    tool_call = ToolCall.parse("1", "f", raw)
    assert tool_call.arguments == {}
    assert tool_call.raw == raw
    advice = "must not be nested more than 100 deep, or in itself; flatten it or pass a string"
    assert tool_call.error == f"the arguments['a'][0][0][0]...: {advice}"


async def test_custom_thought_gets_an_id_when_it_is_published() -> None:
    @tool
    async def f(ctx: RunContext[Any]) -> str:
        """Think."""
        for text in ("a", "b"):
            ctx.emit(ThoughtStreamEvent(content=text))
        ctx.emit(ThoughtStreamEvent(thought_id="mine", content="c"))
        return "x"

    events = await collect(Agent(ScriptedModel(call("f"), "Done."), tools=[f]).run("q"))
    thoughts = [event for event in events if isinstance(event, ThoughtStreamEvent)]
    assert [(thought.thought_id, thought.index) for thought in thoughts] == [("t1", 0), ("t2", 1), ("mine", 2)]


class Disguised(Event):
    """Event whose kind is passed to the constructor."""

    kind: str = "disguised"


EVENT_TYPES.pop("disguised")


@pytest.mark.parametrize(
    ("event", "message"),
    [
        (Disguised(kind="status-update"), "'status-update' cannot be encoded as JSON and decoded again"),
        (Disguised(kind="task"), "'task' cannot be encoded as JSON and decoded again"),
        (Disguised(kind="content-complete"), "must be unique, got 'content-complete' of ContentCompleteEvent"),
        (Disguised(kind="two\nlines"), "line ends"),
        (UnknownEvent(kind="task"), "'task' cannot be encoded as JSON and decoded again"),
    ],
)
async def test_event_with_the_kind_of_another_class_is_refused(event: Event, message: str, tmp_path: Any) -> None:
    errors: list[str] = []

    @tool
    async def emit_event(ctx: RunContext[Any]) -> str:
        """Emit the event."""
        try:
            ctx.emit(event.model_copy())
        except InvalidEvent as error:
            errors.append(str(error))
        return "ok"

    log = SqliteEventLog(tmp_path / "runs.db")
    result = await Agent(ScriptedModel(call("emit_event"), "done"), tools=[emit_event], log=log).run("Go")

    assert result.output == "done"
    assert message in errors[0]
    assert [event.kind for event in await log.read(result.task_id)].count("status-update") == 2
    assert (await Agent(ScriptedModel("again"), log=log).run("Go on", context_id=result.context_id)).output == "again"
    await log.aclose()


def test_class_with_a_used_kind_is_refused_with_both_names() -> None:
    both = r"SameName must be unique, got 'status-update' of rxloop\.protocol\.run_events\.StatusUpdateEvent"
    with pytest.raises(ConfigurationError, match=both):

        class SameName(Event):  # pyright: ignore[reportUnusedClass]
            kind: str = "status-update"

    assert EVENT_TYPES["status-update"] is StatusUpdateEvent


def test_redefined_class_replaces_the_previous_one() -> None:
    def cell(annotation: type) -> Any:
        fields: dict[str, Any] = {"kind": str, "value": annotation}
        return type("Cell", (Event,), {"__module__": __name__, "__annotations__": fields, "kind": "cell"})

    first, second = cell(int), cell(str)
    try:
        assert type(Event.from_json(second(value="one").to_json())) is second is not first
    finally:
        EVENT_TYPES.pop("cell")
