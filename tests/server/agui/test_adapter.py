"""Frames, refusals, cancellation and shutdown of the AG-UI adapter."""

from __future__ import annotations

import asyncio
from typing import Any

import orjson
import pytest
from ag_ui.core import Event
from ag_ui.encoder import EventEncoder
from pydantic import TypeAdapter

from rxloop import Agent, CustomEvent, RunContext, tool
from rxloop.testing import ScriptedModel, call, frames
from support.clients.agui import node, serve_agui
from support.clients.agui_posts import RUN_INPUT, post
from support.faulty_components import PLANTED
from support.random_runs import SHOW_MAP, InterruptedAnswer, RandomRun, turn

SECRETS = RandomRun(
    turns=(
        InterruptedAnswer(
            "Hm.", "So I ", turn("Well.", reasoning="See.", calls=[call("planted_secret", PLANTED, planted=PLANTED)])
        ),
        [call("muse", "0"), call("write", "0"), call("work", "0"), call("child", "0", prompt="secret")],
        call("planted_question", PLANTED),
    )
)


async def test_frames_equal_those_of_the_official_encoder_and_contain_no_secrets() -> None:
    official: TypeAdapter[Any] = TypeAdapter(Event)
    async with serve_agui(SECRETS.agent()) as served:
        written, events = await post(f"{served.url}/", RUN_INPUT)
        connected, _ = await post(f"{served.url}/connect", {**RUN_INPUT, "runId": "c"})
    assert events[-1]["outcome"]["type"] == "interrupt"
    assert {"CUSTOM", "ACTIVITY_DELTA", "MESSAGES_SNAPSHOT", "SUBAGENT_FINISHED"} <= {each["type"] for each in events}
    for frame in [*written, *connected]:
        assert PLANTED.encode() not in frame
        encoded = EventEncoder().encode(official.validate_json(frame[6:]))
        assert orjson.loads(encoded[6:]) == orjson.loads(frame[6:])
        if b"_CONTENT" in frame or b"_ARGS" in frame:
            assert encoded.encode() == frame


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"{", "bad_request"),
        (b"[" * 100_000, "bad_request"),
        ({}, "invalid"),
        ({**RUN_INPUT, "threadId": ".."}, "invalid"),
        ({**RUN_INPUT, "runId": "r" * 256}, "invalid"),
        ({**RUN_INPUT, "messages": []}, "nothing_new"),
        ({**RUN_INPUT, "messages": [{"id": "m", "role": "user", "content": 5}]}, "invalid"),
        ({**RUN_INPUT, "messages": [{"id": f"m{n}", "role": "user", "content": "x"} for n in range(65)]}, "invalid"),
        ({**RUN_INPUT, "messages": [{"id": "m", "role": "user", "content": "x" * (1 << 20)}]}, "too_large"),
        ({**RUN_INPUT, "resume": [{"interruptId": "x", "status": "resolved"}]}, None),
        (
            {
                **RUN_INPUT,
                "messages": [
                    {
                        "id": "m",
                        "role": "user",
                        "content": [{"type": "document", "source": {"type": "url", "value": "file:///etc/passwd"}}],
                    }
                ],
            },
            "invalid",
        ),
    ],
)
async def test_invalid_request_is_answered_with_a_run_error_only(body: Any, code: str | None) -> None:
    async with serve_agui(Agent(ScriptedModel("Done."), thoughts=False, name="clerk")) as served:
        _, events = await post(f"{served.url}/", body)
        if code is not None:
            assert [each["type"] for each in events] == ["RUN_ERROR"]
            assert events[0]["code"] == code
            assert await served.runtime.log.list_runs() == []


async def test_request_with_an_invalid_token_is_refused() -> None:
    async with serve_agui(Agent(ScriptedModel("Done."), thoughts=False, name="clerk")) as served:
        _, events = await post(f"{served.url}/", RUN_INPUT, authorization="Bearer nobody")
    assert [(each["type"], each["code"]) for each in events] == [("RUN_ERROR", "unauthorized")]


async def test_application_state_is_sent_as_a_snapshot() -> None:
    @tool
    async def paint(ctx: RunContext[Any]) -> str:
        """Paint."""
        ctx.emit(CustomEvent(name="page", data={"color": "red", "none": None}))
        return "painted"

    agent = Agent(ScriptedModel(call("paint"), "Done."), tools=[paint], thoughts=False, name="clerk")
    async with serve_agui(agent, state="page") as served:
        _, events = await post(f"{served.url}/", RUN_INPUT)
    [state] = [each for each in events if each["type"] == "STATE_SNAPSHOT"]
    assert state["snapshot"] == {"color": "red", "none": None}


@pytest.mark.service("node-clients")
async def test_client_that_disconnects_cancels_the_run() -> None:
    agent = Agent(ScriptedModel(frames("on -and -on", 0.001)), thoughts=False, name="clerk")
    async with node() as clients, serve_agui(agent) as served:
        stopped = await clients.agent(served.url, "t").send("Go.", abort_after=3)
        assert stopped.error is None
        async for event in served.runtime.follow((await served.runtime.log.list_runs())[0].task_id):
            if event.kind == "status-update" and getattr(event, "final", False):
                break
        [record] = await served.runtime.log.list_runs()
    assert record.state == "canceled"


async def test_drained_server_sends_a_run_error() -> None:
    agent = Agent(ScriptedModel(frames("on -and -on", 0.001)), thoughts=False, name="clerk")
    async with serve_agui(agent) as served:
        asking = asyncio.create_task(post(f"{served.url}/", RUN_INPUT))
        async for event in served.runtime.events:
            if event.kind == "content-delta":
                break
        await served.app.drain(0.1)
        _, events = await asking
    assert [(each["type"], each.get("code")) for each in events][-1] == ("RUN_ERROR", "draining")


@pytest.mark.parametrize(
    ("declared", "outcome"),
    [
        ({"protocolVersion": "1.0"}, {"type": "success", "pendingToolCallIds": [...]}),
        ({"protocolVersion": "1.1"}, {"type": "success", "pendingToolCallIds": [...]}),
        ({"protocolVersion": "0.9"}, None),
        ({}, None),
    ],
)
async def test_pending_calls_are_listed_for_clients_that_accept_the_list(declared: Any, outcome: Any) -> None:
    agent = Agent(ScriptedModel([call("show_map", "0", city="Oslo")]), thoughts=False, name="clerk")
    body = {**{key: value for key, value in RUN_INPUT.items() if key != "protocolVersion"}, **declared}
    async with serve_agui(agent) as served:
        _, events = await post(f"{served.url}/", {**body, "tools": [SHOW_MAP]})
    [called] = [each for each in events if each["type"] == "TOOL_CALL_START"]
    expected = outcome and {**outcome, "pendingToolCallIds": [called["toolCallId"]]}
    assert events[-1].get("outcome") == expected
    assert ("protocolVersion" in events[0]) == (outcome is not None)


@pytest.mark.parametrize("declared", [True, False])
async def test_cancelled_outcome_is_sent_to_clients_that_accept_it(declared: bool) -> None:
    began = asyncio.Event()

    @tool
    async def toil() -> None:
        """Work forever."""
        began.set()
        await asyncio.Event().wait()

    agent = Agent(ScriptedModel(call("toil")), tools=[toil], thoughts=False, name="clerk")
    body = {key: value for key, value in RUN_INPUT.items() if declared or key != "protocolVersion"}
    async with serve_agui(agent) as served:
        posting = asyncio.create_task(post(f"{served.url}/", body))
        await began.wait()
        [record] = await served.runtime.log.list_runs()
        await served.runtime.cancel(record.task_id)
        _, events = await posting
        _, connected = await post(f"{served.url}/connect", {**body, "runId": "c"})
    for ended in (events[-1], connected[-1]):
        assert ended["type"] == "RUN_FINISHED"
        assert ended.get("outcome") == ({"type": "cancelled"} if declared else None)
