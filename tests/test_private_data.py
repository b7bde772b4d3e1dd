"""Absence of private data, which contains a marker, from public data."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from typing import Any

import orjson
import pytest

from rxloop import (
    Agent,
    AnyEvent,
    Event,
    Limits,
    MemoryEventLog,
    Message,
    ModelSettings,
    SlidingWindowCompressor,
    Thoughts,
    ToolCall,
    follow,
    op,
    replay,
    tool,
)
from rxloop.errors import AttemptError, ServerError
from rxloop.operators import View
from rxloop.pipeline.run_context import RunContext
from rxloop.protocol.events import (
    ContentCompleteEvent,
    InputRequiredEvent,
    ThoughtStreamEvent,
    ToolCompleteEvent,
    public_events,
)
from rxloop.providers import Retry, anthropic_messages, fallback, google_gemini, openai_responses
from rxloop.run.handle import Run
from rxloop.run.result import Result
from rxloop.testing import ScriptedModel, call
from rxloop.tools.agent_tools import AgentTools
from support.http_server import Reply, start_server

MARK = "PLANTED"
METADATA = {"tenant": MARK, "public": {"title": "Oslo"}}


@tool(name=f"peek_{MARK}", hidden=True)
async def peek(ctx: RunContext[Any], at: str = "") -> str:
    """Look in secret."""
    ctx.progress(f"{MARK} half")
    return f"{MARK} result of {at}"


@tool(name=f"ask_{MARK}", hidden=True)
async def ask(ctx: RunContext[Any]) -> str:
    """Ask in secret."""
    return await ctx.ask(f"{MARK}?", str, options=[MARK])


@tool(name=f"pay_{MARK}", hidden=True, approve=True)
async def pay(amount: str) -> str:
    """Pay in secret."""
    return f"{MARK} paid"


@tool(name=f"fail_{MARK}", hidden=True)
async def fail() -> str:
    """Fail in secret."""
    raise ValueError("the reason is for the log of the house")


@tool
async def look(at: str) -> str:
    """Look at something."""
    return f"{at} is blue"


@tool
async def decide(ctx: RunContext[Any]) -> str:
    """Ask openly."""
    return await ctx.ask("Which secret?", str)


TOOLS = [peek, ask, pay, fail, look, decide]


def call_hidden(each: Any, id: str = "", **arguments: Any) -> Any:
    """Return a call of a hidden tool that contains the marker in all fields."""
    return call(each.definition.name, _id=f"{id or 'id'}-{MARK}", **arguments)


def make_agent(*turns: Any, log: MemoryEventLog | None = None, **options: Any) -> Agent[Any, str]:
    options = {"tools": TOOLS, "instructions": f"{MARK}: be brief.", **options}
    return Agent(ScriptedModel(*turns), log=log or MemoryEventLog(), **options)


async def join(frames: AsyncIterator[bytes]) -> bytes:
    return b"".join([frame async for frame in frames])


async def assert_marker_is_absent(run: Run[Any], log: Any, caplog: pytest.LogCaptureFixture) -> list[AnyEvent]:
    """Check that the public data of a run does not contain the marker, and return its events."""
    events = [event async for event in run]
    shown = [event async for event in run.pipe(op.public())]
    recorded = await log.read(run.task_id)
    assert any(MARK.encode() in event.to_json() for event in recorded), "nothing was planted"
    leaves: dict[str, bytes | str] = {
        "live": await join(run.sse(heartbeat=None)),
        "after": await join(run.sse(after=events[0].cursor, heartbeat=None)),
        "replay": await join(replay(log, run.task_id).sse(heartbeat=None)),
        "follow": await join(follow(log, run.task_id).sse(heartbeat=None)),
        "public JSON": b"".join(event.to_json(public=True) for event in [*events, *recorded]),
        "op.public": b"".join(event.to_json() for event in shown),
        "external": b"".join(event.to_json() for event in public_events(recorded)),
        "reprs": repr(events) + repr(recorded) + repr(run),
    }
    try:
        result: Result[Any] = await run
    except AttemptError as error:
        result = error.result
    leaves["result"] = repr(result)
    thoughts = result.thoughts
    leaves["drawings"] = thoughts.tree() + thoughts.to_mermaid() + thoughts.to_dot() + thoughts.to_html()
    leaves["drawing as JSON"] = thoughts.to_json()
    changes: list[bytes] = []
    run.pipe(op.graph_deltas()).subscribe(lambda delta: changes.append(delta.to_json()))
    leaves["changes of the drawing"] = b"".join(changes)
    leaves["logging"] = "\n".join(
        each.getMessage() for each in caplog.records if each.levelno >= logging.WARNING and each.name == "rxloop"
    )
    for source, text in leaves.items():
        found = text.decode() if isinstance(text, bytes) else text
        assert MARK not in found, f"{source}: {found[max(found.index(MARK) - 300, 0) : found.index(MARK) + 60]}"
    assert "Oslo" in str(leaves["follow"])
    return events


async def test_hidden_tool_call_is_not_public(caplog: pytest.LogCaptureFixture) -> None:
    log = MemoryEventLog()
    both = [call_hidden(peek, at=MARK), call("look", at="the sky")]
    run = make_agent(both, "Blue.", log=log).run("Look.", metadata=METADATA)
    events = await assert_marker_is_absent(run, log, caplog)

    message = next(event for event in events if isinstance(event, ContentCompleteEvent))
    assert [each.hidden for each in message.tool_calls] == [True, False]
    shown = message.to_public()
    assert isinstance(shown, ContentCompleteEvent)
    assert [each.name for each in shown.tool_calls] == ["look"]
    assert shown.left_out == [0]


async def test_failure_of_a_hidden_tool_is_not_public(caplog: pytest.LogCaptureFixture) -> None:
    log = MemoryEventLog()
    await assert_marker_is_absent(
        make_agent(call_hidden(fail), "Sorry.", log=log).run("Go.", metadata=METADATA), log, caplog
    )
    assert "failed" in caplog.text


async def test_result_for_an_unknown_tool_does_not_reveal_hidden_tools(caplog: pytest.LogCaptureFixture) -> None:
    log = MemoryEventLog()
    near = call(f"peek{MARK[:-1]}"[:-6] + "x", _id="n")
    events = await assert_marker_is_absent(
        make_agent(near, "Sorry.", log=log).run("Go.", metadata=METADATA), log, caplog
    )
    answer = next(event for event in events if isinstance(event, ToolCompleteEvent))
    assert "look" in answer.content


def test_suggestions_for_an_unknown_tool_omit_hidden_tools() -> None:
    text = AgentTools(TOOLS).explain_unavailable(f"peek-{MARK}s", [each.definition.name for each in TOOLS])
    assert MARK not in text.replace(f"peek-{MARK}s", "")


async def test_disabled_hidden_tool_is_not_public(caplog: pytest.LogCaptureFixture) -> None:
    @tool(name=f"off_{MARK}", hidden=True, enabled=lambda ctx: False)
    async def off() -> str:
        return MARK

    log = MemoryEventLog()
    agent = make_agent(call_hidden(off, at=MARK), "Sorry.", log=log, tools=[off, look])
    await assert_marker_is_absent(agent.run("Go.", metadata=METADATA), log, caplog)


async def test_hidden_tool_of_a_toolset_is_not_public(caplog: pytest.LogCaptureFixture) -> None:
    class Family:
        async def tools(self, ctx: RunContext[Any]) -> list[Any]:
            return [peek]

    log = MemoryEventLog()
    agent = make_agent(call_hidden(peek, at=MARK), "Blue.", log=log, tools=[Family(), look])
    await assert_marker_is_absent(agent.run("Go.", metadata=METADATA), log, caplog)


@pytest.mark.parametrize(
    "asks", [lambda: call_hidden(ask), lambda: call_hidden(pay, amount=MARK)], ids=["asks", "needs an approval"]
)
async def test_question_of_a_hidden_tool_and_its_answer_are_not_public(
    caplog: pytest.LogCaptureFixture, asks: Callable[[], Any]
) -> None:
    log = MemoryEventLog()
    agent = make_agent(asks(), "Done.", log=log)
    run = agent.run("Go.", metadata=METADATA)
    await assert_marker_is_absent(run, log, caplog)
    result = await run
    question = result.pending[0]
    assert MARK in question.prompt
    answer = MARK if question.options else True

    again = agent.resume(run.task_id, inputs={question.input_id: answer}, metadata=METADATA)
    await assert_marker_is_absent(again, log, caplog)
    assert (await again).content == "Done."


async def test_answer_to_a_public_question_is_not_public(caplog: pytest.LogCaptureFixture) -> None:
    log = MemoryEventLog()

    @tool
    async def ask_openly(ctx: RunContext[Any]) -> str:
        await ctx.ask("Which?", str)
        return "Thanks."

    agent = make_agent(call("ask_openly"), "Done.", log=log, tools=[ask_openly])
    run = agent.run("Go.", metadata=METADATA, on_input=lambda question: MARK)
    events = await assert_marker_is_absent(run, log, caplog)
    question = next(event for event in events if isinstance(event, InputRequiredEvent)).to_public()
    assert isinstance(question, InputRequiredEvent)
    assert question.input.prompt == "Which?"


async def test_thoughts_of_a_hidden_tool_do_not_refer_to_its_calls(caplog: pytest.LogCaptureFixture) -> None:
    log = MemoryEventLog()
    think = call("think_aloud", _id=f"t-{MARK}", thought="First the sky.", thought_type="planning")
    more = call(
        "think_aloud", _id=f"u-{MARK}", thought="Then the sea.", thought_type="planning", related_to=f"id-{MARK}"
    )
    again = call("think_aloud", _id=f"v-{MARK}", thought="Then all.", thought_type="planning", related_to=f"t-{MARK}")
    agent = make_agent([call_hidden(peek), think], [more, again], "Blue.", log=log, thoughts=Thoughts(hidden=True))
    events = await assert_marker_is_absent(agent.run("Look.", metadata=METADATA), log, caplog)
    thoughts = [event.to_public() for event in events if isinstance(event, ThoughtStreamEvent)]
    assert [each.content for each in thoughts if isinstance(each, ThoughtStreamEvent)] == [
        "First the sky.",
        "Then the sea.",
        "Then all.",
    ]


async def test_vendor_error_text_is_not_public(caplog: pytest.LogCaptureFixture) -> None:
    log = MemoryEventLog()
    run = make_agent(ServerError(f"500: {MARK}"), log=log).run("Go.", metadata=METADATA)
    events = await assert_marker_is_absent(run, log, caplog)
    assert events[-1].to_json().count(MARK.encode()) == 1
    with pytest.raises(AttemptError, match=MARK):
        await run


async def test_pipeline_error_is_not_public(caplog: pytest.LogCaptureFixture) -> None:
    def broken(source: Any) -> Any:
        raise RuntimeError(f"{MARK} in a closure")

    log = MemoryEventLog()
    run = make_agent("Hi", log=log, loop=op.standard(before_model=[broken])).run("Go.", metadata=METADATA)
    await assert_marker_is_absent(run, log, caplog)


async def test_limit_and_cancel_of_a_hidden_tool_are_not_public(caplog: pytest.LogCaptureFixture) -> None:
    log = MemoryEventLog()
    limited = make_agent(call_hidden(peek, at=MARK), call_hidden(peek), log=log, limits=Limits(iterations=1))
    await assert_marker_is_absent(limited.run("Go.", metadata=METADATA), log, caplog)

    @tool(name=f"stop_{MARK}", hidden=True)
    async def stop(ctx: RunContext[Any]) -> str:
        run.cancel("enough")
        return await ctx.ask(MARK, str)

    run = make_agent(call_hidden(stop), log=log, tools=[stop]).run("Go.", metadata=METADATA)
    await assert_marker_is_absent(run, log, caplog)


async def test_history_forks_and_passed_messages_are_not_public(caplog: pytest.LogCaptureFixture) -> None:
    log = MemoryEventLog()
    agent = make_agent([call_hidden(peek, at=MARK), call("look", at="it")], "Blue.", "Green.", "Red.", log=log)
    first = agent.run("Look.", metadata=METADATA, context_id="c")
    await assert_marker_is_absent(first, log, caplog)
    second = agent.run("And now?", metadata=METADATA, context_id="c")
    await assert_marker_is_absent(second, log, caplog)
    fork = agent.fork(first.task_id, at=1, prompt="Else?", metadata=METADATA)
    await assert_marker_is_absent(fork, log, caplog)

    history = (await first).messages
    by_hand = make_agent("Fine.", log=log).run([*history, "And Bergen?"], metadata=METADATA)
    await assert_marker_is_absent(by_hand, log, caplog)
    messages = [
        Message.system(MARK),
        Message.user("Hi"),
        Message.assistant("", tool_calls=[ToolCall(id=MARK, name=f"peek_{MARK}", arguments={"at": MARK})]),
        Message.tool(MARK, MARK),
        Message.user("So?"),
    ]
    await assert_marker_is_absent(make_agent("Fine.", log=log).run(messages, metadata=METADATA), log, caplog)


async def test_compressed_history_is_not_public(caplog: pytest.LogCaptureFixture) -> None:
    log = MemoryEventLog()
    agent = make_agent(
        [call_hidden(peek, at=MARK * 40)],
        [call_hidden(peek, at=MARK * 40)],
        [call_hidden(peek, at=MARK * 40)],
        "Done.",
        log=log,
        loop=op.standard(before_model=[op.compress(SlidingWindowCompressor(max_tokens=200))]),
    )
    events = await assert_marker_is_absent(agent.run("Go on." * 10, metadata=METADATA), log, caplog)
    assert any(event.kind == "context-compressed" for event in events)


@pytest.mark.parametrize("strategy", ["react", "rewoo"])
async def test_hidden_tools_of_strategies_are_not_public(caplog: pytest.LogCaptureFixture, strategy: str) -> None:
    from rxloop import strategies

    log = MemoryEventLog()
    plan = f'[{{"id": "E1", "tool": "peek_{MARK}", "arguments": {{"at": "{MARK}"}}}}]'
    turns = [call_hidden(peek, at=MARK), "Blue."] if strategy == "react" else [plan, "Blue."]
    agent = make_agent(*turns, log=log, strategy=getattr(strategies, strategy)())
    run = agent.run("Go.", metadata=METADATA)
    if strategy == "rewoo":
        # Text of the model itself is public.
        events = [event async for event in run]
        text = b"".join(
            event.to_json(public=True) for event in events if event.kind not in ("content-complete", "content-delta")
        )
        assert MARK.encode() not in text
        assert any(event.kind == "tool-complete" for event in events)
    else:
        await assert_marker_is_absent(run, log, caplog)


@pytest.mark.parametrize("view", ["repeats", "stalled while it works", "stalled while it asks"])
async def test_cancel_reason_of_a_view_is_not_public(caplog: pytest.LogCaptureFixture, view: str) -> None:
    @tool(name=f"hang_{MARK}", hidden=True)
    async def hang(at: str) -> str:
        await asyncio.Event().wait()
        return at

    async def wait_forever(question: Any) -> None:
        await asyncio.get_running_loop().create_future()

    log = MemoryEventLog()
    asked = call_hidden(hang, at=MARK) if view == "stalled while it works" else call_hidden(ask)
    turns = [call_hidden(peek, at=MARK)] * 3 if view == "repeats" else [asked]
    agent = make_agent(*turns, "Done.", log=log, tools=[*TOOLS, hang])
    run = agent.run("Oslo?", metadata=METADATA, on_input=wait_forever)
    view_operator: View[Event, Any] = op.repeats(3) if view == "repeats" else op.stalled(0.05)
    run.pipe(view_operator).subscribe(lambda each: run.cancel(str(each)))
    events = await assert_marker_is_absent(run, log, caplog)
    reason = {"repeats": "3 times", "stalled while it works": "awaited: tool (hidden)"}.get(view, "awaited: input")
    assert reason in events[-1].to_json(public=True).decode()


async def test_options_and_owner_of_a_run_are_not_public(caplog: pytest.LogCaptureFixture) -> None:
    log = MemoryEventLog()
    settings = ModelSettings(extra_body={"key": MARK}, headers={"authorization": f"Bearer {MARK}"}, stop=[MARK])
    run = make_agent("Oslo.", log=log).run("Where?", settings=settings, owner=MARK, metadata=METADATA)
    await assert_marker_is_absent(run, log, caplog)

    task = (await log.read(run.task_id))[0].to_json()
    assert task.count(MARK.encode()) == 4, "the owner, the metadata, the body and the stop; never a header"
    assert b"Bearer" not in task


async def test_vendor_signatures_and_encrypted_data_are_not_public(caplog: pytest.LogCaptureFixture) -> None:
    found = {"type": "web_search_result", "url": "https://e.org", "title": "Blue", "encrypted_content": MARK}
    searched = {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": [found]}
    claude: list[Any] = [
        {"type": "thinking", "thinking": "Hm.", "signature": MARK},
        {"type": "redacted_thinking", "data": MARK},
        {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {}},
        searched,
        {"type": "tool_use", "id": "toolu_1", "name": "look", "input": {"at": "it"}},
    ]
    gemini: list[Any] = [
        {"text": "Hm.", "thought": True, "thoughtSignature": MARK},
        {"functionCall": {"name": "look", "args": {"at": "it"}}, "thoughtSignature": MARK},
    ]
    gpt: list[Any] = [
        {"type": "reasoning", "id": f"rs_{MARK}", "summary": [], "encrypted_content": MARK},
        {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "look", "arguments": '{"at": "it"}'},
    ]
    text = {"content": [{"type": "text", "text": "Blue."}], "stop_reason": "end_turn"}
    answers: list[Any] = [
        {"content": claude, "stop_reason": "tool_use"},
        {"candidates": [{"content": {"role": "model", "parts": gemini}, "finishReason": "STOP"}]},
        {"id": f"resp_{MARK}", "status": "completed", "output": gpt},
        text,
    ]
    replies = [Reply([orjson.dumps(answer)], content_type="application/json") for answer in answers]
    busy = Reply([b"{}"], 529, content_type="application/json")
    async with start_server() as one, start_server() as two, start_server() as three:
        one.answer(replies[0], busy, busy, replies[3])
        two.answer(replies[1], busy)
        three.answer(replies[2])
        once: Any = {"stream": False, "retry": Retry(attempts=1), "api_key": "a-key"}
        model = fallback(
            anthropic_messages("claude-sonnet-4-5", base_url=one.base_url, **once),
            google_gemini("gemini-3-flash-preview", base_url=two.base_url, **once),
            openai_responses("gpt-5", base_url=three.base_url, **once),
        )
        log = MemoryEventLog()
        run = Agent(model, tools=TOOLS, log=log).run("Look.", metadata=METADATA)
        events = await assert_marker_is_absent(run, log, caplog)
        await model.aclose()
    messages = [event for event in events if isinstance(event, ContentCompleteEvent)]
    keys = [sorted(each.provider_state or {}) for each in messages]
    assert [each[:1] for each in keys[:2]] == [["anthropic"], ["google_gemini"]]
    assert keys[2][0].startswith("responses@")
