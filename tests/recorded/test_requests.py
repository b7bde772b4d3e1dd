"""Recorded requests, compared with the requests that the model has received."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

import orjson
import pytest

from rxloop import (
    Agent,
    Event,
    EventLog,
    ImagePart,
    LLMCallEvent,
    LLMFailedEvent,
    MemoryEventLog,
    Message,
    ModelRequest,
    ModelSettings,
    RunContext,
    Scratchpad,
    Signal,
    SlidingWindowCompressor,
    TextPart,
    op,
    tool,
)
from rxloop.context import TextWorkspace
from rxloop.protocol.http_api.requests import SentRequest
from rxloop.protocol.messages import ErrorInfo
from rxloop.protocol.step_events import RecordedPart
from rxloop.recorded.request import RequestFold
from rxloop.recorded.requests import RequestListFold
from rxloop.state.run_state import RunState, initial_state
from rxloop.storage.conversation import conversation
from rxloop.testing import ScriptedModel, call, turn
from support.long_runs import UNLIMITED, look, look_calls, request_messages
from support.strategy_cases import CASES, Case, add, turn_by_step

WINDOW = SlidingWindowCompressor(2_700)


def list_calls(events: Sequence[Event]) -> list[LLMCallEvent]:
    return [event for event in events if isinstance(event, LLMCallEvent)]


def rebuild(events: Sequence[Event], seq: int, before: RunState | None = None, *, internal: bool = True) -> SentRequest:
    fold = RequestFold(before or initial_state(), seq, internal=internal)
    # Decode the events, because only their JSON is stored.
    fold.add([Event.from_json(event.to_json()) for event in events])
    request = fold.make_request(events[0].task_id, seq)
    assert request is not None
    return request


def check_sums(request: SentRequest) -> None:
    parts, tools = sum(part.tokens for part in request.parts), sum(tool.tokens for tool in request.tools)
    assert parts + tools == request.tokens.estimated


async def check_exact(
    log: EventLog, task_id: str, requests: Sequence[ModelRequest], *, key: str = ""
) -> list[SentRequest]:
    """Compare the recorded requests of a run with the requests that the model has received."""
    events = list(await log.read(task_id))
    before = await conversation(log, key, before=task_id) if key else None
    calls = list_calls(events)
    rebuilt = [rebuild(events, event.seq, before) for event in calls]
    together = RequestFold(before or initial_state(), None, internal=True)
    together.add([Event.from_json(event.to_json()) for event in events])
    assert [together.make_request(task_id, seq) for seq in together.sizes] == rebuilt
    assert len(rebuilt) == len(requests)
    for sent, event, request in zip(requests, calls, rebuilt, strict=True):
        assert request.exact
        assert [part.message for part in request.parts] == request_messages(sent)
        assert [(each.name, each.description, each.parameters) for each in request.tools] == [
            (each.name, each.description, each.parameters) for each in sent.tools
        ]
        assert request.step == sent.step
        check_sums(request)
        assert event.parts is not None
        assert sum(dict(event.parts).values()) == event.estimated_input_tokens
        assert sum(part.tokens for part in request.parts if part.origin == "history") == event.parts.history
    return rebuilt


@op.on(ModelRequest)
async def mask_name(request: ModelRequest, ctx: RunContext[Any]) -> AsyncIterator[Signal]:
    """Replace a name in all messages."""
    yield request.replace(
        messages=[
            each.model_copy(update={"content": each.text.replace("Ann", "[name]")}) if "Ann" in each.text else each
            for each in request.messages
        ]
    )


async def run_agent(model: ScriptedModel, *operators: Any, **options: Any) -> tuple[MemoryEventLog, str]:
    log = MemoryEventLog()
    loop = op.standard(before_model=operators)
    agent_options: dict[str, Any] = {"tools": [look], "loop": loop, "limits": UNLIMITED, "log": log, **options}
    agent = Agent(model, **agent_options)
    return log, (await agent.run("Ann wants to find the crate.")).task_id


async def test_plain_requests_are_rebuilt_exactly() -> None:
    model = ScriptedModel(*look_calls(3), "Done.")
    settings = ModelSettings(temperature=0.2, tool_choice="auto", headers={"x-key": "secret"})
    log, task_id = await run_agent(model, instructions="Be brief.", settings=settings)
    first, second, *_ = await check_exact(log, task_id, model.requests)
    assert [part.origin for part in second.parts] == ["system", "task", "history", "history"]
    assert [part.change for part in second.parts] == ["same", "same", "new", "new"]
    assert {tool.change for tool in second.tools} == {"same"}
    assert {part.change for part in first.parts} == {"new"}
    assert first.settings == {"temperature": 0.2, "tool_choice": "auto"}
    assert first.previous is None
    assert second.previous == first.seq
    assert first.answer is not None
    assert first.answer > first.seq


async def test_usual_request_has_a_small_record_and_texts_are_stored_once() -> None:
    model = ScriptedModel(*look_calls(20), "Done.")
    log, task_id = await run_agent(model, instructions="Be brief. " * 100)
    first, *later = list_calls(await log.read(task_id))
    assert first.request is not None
    assert len(first.request.texts) > 2
    for event in later:
        assert event.request is not None
        assert not event.request.texts
        size = len(event.to_json()) - len(event.model_copy(update={"request": None, "parts": None}).to_json())
        assert size < 200


async def test_instructions_of_a_function_are_recorded() -> None:
    def instruct(ctx: RunContext[Any]) -> str:
        return f"This is {ctx.task_id}."

    model = ScriptedModel(*look_calls(1), "Done.")
    log, task_id = await run_agent(model, instructions=instruct)
    first, *_ = await check_exact(log, task_id, model.requests)
    assert first.parts[0].message == Message.system(f"This is {task_id}.")


async def test_masked_name_is_in_the_request_and_the_name_in_the_history() -> None:
    model = ScriptedModel("Hello Ann.", *look_calls(3), "Done.")
    log = MemoryEventLog()
    agent = Agent(model, tools=[look], loop=op.standard(before_model=[mask_name]), log=log)
    first = await agent.run("I am Ann.", context_id="c")
    second = await agent.run("Find the crate, Ann.", context_id="c")
    await check_exact(log, first.task_id, model.requests[:1])
    (_, request, *_) = await check_exact(log, second.task_id, model.requests[1:], key="c")
    masked = [part for part in request.parts if part.original is not None]
    history = [part.original.text for part in masked if part.original]
    assert history == ["I am Ann.", "Hello Ann.", "Find the crate, Ann."]
    sent = [part.message.text for part in masked if part.message]
    assert sent == [text.replace("Ann", "[name]") for text in history]
    assert [part.origin for part in masked] == ["history", "history", "task"]
    assert {part.change for part in masked} == {"same"}


async def test_records_of_edited_messages_do_not_repeat_them() -> None:
    model = ScriptedModel(*[turn("Ann", calls=[each]) for each in look_calls(30)], "Done.")
    log, task_id = await run_agent(model, mask_name)
    await check_exact(log, task_id, model.requests)
    sizes = [len(event.to_json()) for event in list_calls(await log.read(task_id))]
    assert max(sizes[10:]) < 1_000


@pytest.mark.parametrize("phase", [op.compress(WINDOW), op.thinking_phase(WINDOW)], ids=["compress", "thinking"])
async def test_compressed_requests_are_rebuilt_exactly(phase: Any) -> None:
    model = ScriptedModel(*look_calls(30), "Done.")
    log, task_id = await run_agent(model, phase, instructions="Be brief.")
    requests = await check_exact(log, task_id, model.requests)
    left_out = [request for request in requests if request.left_out]
    assert left_out
    last = requests[-1]
    sent = {part.index for part in last.parts if part.index is not None}
    omitted = {each.index for each in last.left_out}
    assert not sent & omitted
    assert sent | omitted == set(range(1 + 2 * 30))
    assert {each.why for each in last.left_out} == {"overflow"}
    assert all(each.text and each.tokens for each in last.left_out)
    assert [part.origin for part in last.parts].count("summary") == 1


async def test_thinking_phase_adds_a_note() -> None:
    model = ScriptedModel(*look_calls(3), "Done.")
    log, task_id = await run_agent(model, op.thinking_phase(WINDOW))
    requests = await check_exact(log, task_id, model.requests)
    assert [part.origin for part in requests[-1].parts][-1] == "note"


async def test_workspace_is_recorded_with_its_origin() -> None:
    pad = Scratchpad(title="Notes")

    @op.on(ModelRequest)
    async def write(request: ModelRequest, ctx: RunContext[Any]) -> AsyncIterator[Signal]:
        pad["count"] = str(request.iteration)
        yield request

    model = ScriptedModel(*look_calls(3), "Done.")
    operators = write, op.workspace(TextWorkspace("The plan.", title="Plan")), op.workspace(pad)
    log, task_id = await run_agent(model, *operators, instructions="Be brief.")
    requests = await check_exact(log, task_id, model.requests)
    parts = requests[-1].parts
    assert [part.origin for part in parts if part.index is None] == ["system", "workspace", "workspace"]
    assert [part.change for part in parts if part.index is None] == ["same", "same", "rewritten"]


async def test_added_removed_and_moved_messages_are_recorded() -> None:
    @op.on(ModelRequest)
    async def rearrange(request: ModelRequest, ctx: RunContext[Any]) -> AsyncIterator[Signal]:
        task, *others = request.messages
        yield request.replace(messages=[Message.user("Before."), task, *others[2:], Message.user("After.")])

    model = ScriptedModel(*look_calls(4), "Done.")
    log, task_id = await run_agent(model, rearrange)
    *_, last = await check_exact(log, task_id, model.requests)
    assert [part.origin for part in last.parts if part.index is None] == ["note", "note"]
    assert [(each.index, each.why) for each in last.left_out] == [(1, "operator"), (2, "operator")]


async def test_tools_that_appear_and_disappear_are_recorded() -> None:
    @tool(enabled=lambda ctx: ctx.state.iteration == 1)
    def peek() -> str:
        """Peek."""
        return "seen"

    model = ScriptedModel(*look_calls(3), "Done.")
    log, task_id = await run_agent(model, tools=[look, peek], thoughts=False)
    requests = await check_exact(log, task_id, model.requests)
    assert [[tool.name for tool in request.tools] for request in requests] == [
        ["look"],
        ["look", "peek"],
        ["look"],
        ["look"],
    ]
    assert [tool.change for tool in requests[1].tools] == ["same", "new"]
    texts = [event.request.texts for event in list_calls(await log.read(task_id)) if event.request]
    assert [len(each) for each in texts] == [2, 2, 0, 0]


async def test_images_of_edited_messages_are_not_stored_again() -> None:
    image = ImagePart(data=b"\x89PNG\r\n\x1a\n" + b"x" * 50_000, media_type="image/png")

    @op.on(ModelRequest)
    async def edit(request: ModelRequest, ctx: RunContext[Any]) -> AsyncIterator[Signal]:
        first, *others = request.messages
        changed = first.model_copy(update={"content": [TextPart(text="What is [it]?"), *first.media]})
        yield request.replace(messages=[changed, *others])

    log, model = MemoryEventLog(), ScriptedModel("A cat.")
    agent = Agent(model, loop=op.standard(before_model=[edit]), log=log)
    result = await agent.run(Message.user([TextPart(text="What is it?"), image]))
    await check_exact(log, result.task_id, model.requests)
    (event,) = list_calls(await log.read(result.task_id))
    assert len(event.to_json()) < 10_000


async def test_resumed_run_records_the_same_texts_only_once() -> None:
    log = MemoryEventLog()
    loop = op.standard(before_model=[op.compress(WINDOW)])
    whole = ScriptedModel(*look_calls(12), "Done.")
    options: dict[str, Any] = {"tools": [look], "limits": UNLIMITED, "loop": loop, "instructions": "Be brief."}
    first = await Agent(whole, log=log, **options).run("Find the crate.")
    events = list(await log.read(first.task_id))
    cut = [at for at, event in enumerate(events) if event.kind == "context-compressed"][-1] + 1
    copy = MemoryEventLog()
    await copy.append(first.task_id, events[:cut], expected_seq=0)
    step = int(events[cut - 1].step or 0)
    remaining = ScriptedModel(*look_calls(12)[step - 1 :], "Done.")
    await Agent(remaining, log=copy, **options).resume(first.task_id)
    await check_exact(copy, first.task_id, [*whole.requests[: step - 1], *remaining.requests])
    calls = list_calls(await copy.read(first.task_id))
    digests = [digest for event in calls if event.request for digest in event.request.texts]
    assert len(digests) == len({*digests})


async def test_nested_agents_share_recorded_texts() -> None:
    inner = ScriptedModel(*[each for number in range(3) for each in (call("look", place=number), "Found.")])
    helper = Agent(inner, name="helper", tools=[look], instructions="Help.")
    outer = ScriptedModel(*[call("helper", prompt=f"Look at {number}.") for number in range(3)], "Done.")
    log = MemoryEventLog()
    agent = Agent(outer, tools=[helper.as_tool()], log=log, instructions="Delegate.")
    result = await agent.run("Find the crate.")
    events = list(await log.read(result.task_id))
    own = [event for event in list_calls(events) if event.parent_task_id is None]
    nested = [event for event in list_calls(events) if event.parent_task_id is not None]
    for requests, calls in ((outer.requests, own), (inner.requests, nested)):
        assert len(calls) == len(requests)
        for sent, event in zip(requests, calls, strict=True):
            request = rebuild(events, event.seq)
            assert request.exact
            assert [part.message for part in request.parts] == request_messages(sent)
            check_sums(request)
    digests = [digest for event in list_calls(events) for digest in (event.request.texts if event.request else ())]
    assert len(digests) == len({*digests})


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
async def test_requests_of_strategies_are_rebuilt_exactly(case: Case) -> None:
    log, model = MemoryEventLog(), ScriptedModel(*[turn_by_step(case.turns)] * 20)
    result = await Agent(model, tools=[add], strategy=case.strategy(), log=log).run("How much is two and two?")
    await check_exact(log, result.task_id, model.requests)


async def test_fork_has_the_texts_of_the_copied_requests() -> None:
    log, model = MemoryEventLog(), ScriptedModel(*look_calls(3), "Done.", "Other.")
    agent = Agent(model, tools=[look], log=log, instructions="Be brief.")
    first = await agent.run("Find the crate.")
    checkpoint = next(event for event in await log.read(first.task_id) if event.kind == "checkpoint")
    fork = await agent.fork(first.task_id, at=checkpoint.seq, prompt="Stop.")
    await check_exact(log, fork.task_id, [model.requests[0], model.requests[-1]])


async def test_request_of_an_old_log_is_rebuilt_without_its_layers() -> None:
    model = ScriptedModel(*look_calls(12), "Done.")
    log, task_id = await run_agent(model, op.compress(WINDOW), instructions="Be brief.")
    removed = {"request": None, "parts": None}
    events = [
        event.model_copy(update=removed) if isinstance(event, LLMCallEvent) else event
        for event in await log.read(task_id)
    ]
    for sent, event in zip(model.requests, list_calls(events), strict=True):
        request = rebuild(events, event.seq)
        assert not request.exact
        unknown, *parts = request.parts
        assert (unknown.origin, unknown.message) == ("system", None)
        assert [part.message for part in parts] == list(sent.messages)
        check_sums(request)


async def test_record_without_its_texts_is_not_exact() -> None:
    model = ScriptedModel(*look_calls(1), "Done.")
    log, task_id = await run_agent(model, instructions="Be brief.")
    events: list[Event] = []
    for event in await log.read(task_id):
        if isinstance(event, LLMCallEvent) and event.request is not None:
            event = event.model_copy(update={"request": event.request.model_copy(update={"texts": {}})})
        events.append(event)
    for event in list_calls(events):
        request = rebuild(events, event.seq)
        assert not request.exact
        assert request.parts[0].message is None
        check_sums(request)


@pytest.mark.parametrize(
    "changes",
    [
        {"messages": [(0, 10**12)]},
        {"messages": [(-2, 0)]},
        {"messages": [(1, 0)]},
        {"base": 1, "same": 10**12, "messages": []},
        {"messages": [RecordedPart(text="unknown", index=10**12)]},
        {"messages": [RecordedPart(text="unknown", index=-1)]},
        {"system": [RecordedPart(text="unknown")]},
        {"tools": "unknown"},
        {"texts": {"unknown": 1}, "tail": [RecordedPart(text="unknown")]},
    ],
)
async def test_invalid_record_is_not_exact(changes: dict[str, Any]) -> None:
    log, task_id = await run_agent(ScriptedModel(*look_calls(1), "Done."))
    events: list[Event] = []
    for event in await log.read(task_id):
        if isinstance(event, LLMCallEvent) and event.request is not None:
            event = event.model_copy(update={"request": event.request.model_copy(update=changes)})
        events.append(event)
    for event in list_calls(events):
        request = rebuild(events, event.seq)
        assert not request.exact
        check_sums(request)
    fold = RequestListFold(initial_state(), internal=True, limit=10)
    fold.add(events)
    assert not any(row.exact for row in fold.make_rows())


async def test_record_of_a_history_with_another_length_is_not_exact() -> None:
    log, task_id = await run_agent(ScriptedModel(*look_calls(1), "Done."))
    events = [
        event.model_copy(update={"message_count": event.message_count + 1})
        if isinstance(event, LLMCallEvent)
        else event
        for event in await log.read(task_id)
    ]
    assert not any(rebuild(events, event.seq).exact for event in list_calls(events))


async def test_events_of_other_versions_are_decoded() -> None:
    log, task_id = await run_agent(ScriptedModel("Done."))
    (event,) = list_calls(await log.read(task_id))
    data = orjson.loads(event.to_json())
    later = {**data, "request": {**data["request"], "future": 1, "system": [{"text": "a", "future": 1}]}}
    decoded = Event.from_json(orjson.dumps(later))
    assert isinstance(decoded, LLMCallEvent)
    assert decoded.request is not None
    assert [part.text for part in decoded.request.system] == ["a"]
    earlier = {name: value for name, value in data.items() if name not in ("request", "parts", "window")}
    decoded = Event.from_json(orjson.dumps(earlier))
    assert isinstance(decoded, LLMCallEvent)
    assert (decoded.request, decoded.parts, decoded.window) == (None, None, None)
    assert orjson.loads(decoded.to_json()) == earlier
    assert b"request" not in event.to_json(public=True)
    public = Event.from_json(event.to_json(public=True))
    assert isinstance(public, LLMCallEvent)
    assert public.parts == event.parts


async def test_failed_tries_are_listed_with_their_times() -> None:
    log, task_id = await run_agent(ScriptedModel("Done."))
    events = list(await log.read(task_id))
    (event,) = list_calls(events)
    error = ErrorInfo(code="rate_limited", message="slow down")
    ids: dict[str, Any] = {"task_id": task_id, "step": event.step, "seq": event.seq, "attempt": 1, "status": 429}
    times = (event.timestamp + 1_500, 2.0), (event.timestamp + 4_000, 1.0)
    failures = [
        LLMFailedEvent(error=error, retryable=True, retry_in=retry_in, timestamp=time, **ids)
        for time, retry_in in times
    ]
    at = events.index(event) + 1
    events[at:at] = failures
    tries = rebuild(events, event.seq).tries
    assert [(each.status, each.code, each.seconds) for each in tries] == [
        (429, "rate_limited", 1.5),
        (429, "rate_limited", 0.5),
    ]
    assert rebuild(events, event.seq, internal=False).tries == []


async def test_list_shows_which_messages_each_request_contained() -> None:
    model = ScriptedModel(*[turn("", calls=[each]) for each in look_calls(30)], "Done.")
    log, task_id = await run_agent(model, op.compress(WINDOW))
    events = list(await log.read(task_id))
    fold = RequestListFold(initial_state(), internal=False, limit=100)
    fold.add(events)
    rows = fold.make_rows()
    for row, sent in zip(rows, model.requests, strict=True):
        assert row.parts is not None
        assert sum(dict(row.parts).values()) == row.tokens.estimated
        history = sent.ctx.state.messages[: row.history]
        unchanged = [history[index] for first, last in row.sent for index in range(first, last + 1)]
        assert unchanged == [each for each in sent.messages if any(each is other for other in history)]
    assert rows[-1].sent[0] == (0, 0)
    assert len({row.sent[-1][0] for row in rows}) > 3


async def test_list_continues_after_its_limit() -> None:
    model = ScriptedModel(*look_calls(5), "Done.")
    log, task_id = await run_agent(model)
    events = list(await log.read(task_id))
    seqs = [event.seq for event in list_calls(events)]
    first = RequestListFold(initial_state(), internal=True, limit=4)
    first.add(events)
    assert [row.seq for row in first.make_rows()] == seqs[:4]
    assert first.is_full
    second = RequestListFold(initial_state(), internal=True, after=seqs[3], limit=4)
    second.add(events)
    assert [row.seq for row in second.make_rows()] == seqs[4:]
    assert not second.is_full
