"""Client messages after reconnecting."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from rxloop import Agent, MemoryEventLog, RunContext, tool
from rxloop.server import bearer
from rxloop.testing import ScriptedModel, call, frames, turn
from support.api_server import TOKENS
from support.clients.agui import Client, node, serve_agui
from support.processes.services import CLIENTS, COPILOTKIT
from support.random_runs import TOOLS, InterruptedAnswer, Model, RandomRun

pytestmark = pytest.mark.service("node-clients")

STUMBLING = RandomRun(
    turns=(
        InterruptedAnswer(
            "Hm.", "So I ", turn(frames("So-we-see-|", 0.002), calls=[call("work", "0"), call("muse", "0")])
        ),
        turn("Ask.", calls=[call("child", "0", prompt="deep go")], reasoning="Who knows?"),
    ),
    last=turn(frames("It-is-done-.|", 0.002), reasoning="Is it?"),
)


def stable_messages(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    # Clients before 1.0 keep discarded reasoning messages, but without content.
    shown = [each for each in messages if each["role"] != "reasoning" or each["content"]]
    return [each for each in shown if each.get("activityType") != "rxloop.tool-progress"]


@pytest.mark.parametrize("packages", [CLIENTS, COPILOTKIT], ids=["1.0", "before-1.0"])
@pytest.mark.parametrize("keeps_deltas", [True, False])
async def test_client_cut_off_at_any_event_has_all_messages_after_reconnecting(
    keeps_deltas: bool, packages: Path
) -> None:
    log = MemoryEventLog(keep_deltas=keeps_deltas)
    async with node(packages) as clients, serve_agui(STUMBLING.agent(), log=log, on_disconnect="keep") as served:
        whole = (await clients.agent(served.url, "whole").send("Go.")).check()
        for cut in range(1, len(whole.events), 5 if keeps_deltas else 11):
            client = clients.agent(served.url, f"t{cut}")
            assert len((await client.send("Go.", cut_after=cut)).events) == cut
            stream = (await client.connect()).check()
            fresh = (await clients.agent(served.url, f"t{cut}").connect()).check()
            assert stable_messages(stream.messages) == fresh.messages
            assert [each.get("content") for each in stream.messages if each["role"] == "assistant"][-1] == "Itisdone."
            assert len(stable_messages(stream.messages)) == len(stable_messages(whole.messages))


@pytest.mark.parametrize("packages", [CLIENTS, COPILOTKIT], ids=["1.0", "before-1.0"])
async def test_discarded_reasoning_is_removed_and_activities_are_kept(packages: Path) -> None:
    turns = (call("muse", "0"), InterruptedAnswer("Wrong.", "So I ", turn("Well.", reasoning="Right.")))
    async with node(packages) as clients, serve_agui(RandomRun(turns=turns).agent()) as served:
        stream = (await clients.agent(served.url, "t").send("Go.")).check()
    assert [each["content"] for each in stream.messages if each["role"] == "reasoning" and each["content"]] == [
        "Right."
    ]
    [activity] = [each for each in stream.messages if each["role"] == "activity"]
    assert [each["content"] for each in activity["content"]["thoughts"]] == [
        "from tool",
        "from sequential",
        "from strategy",
    ]


async def test_repeated_run_id_starts_one_run() -> None:
    model = Model(lambda request: frames("It is-7 C.|", 0.001))
    agent = Agent(model, thoughts=False, name="clerk")
    async with node() as clients, serve_agui(agent) as served:
        client = clients.agent(served.url, "t")
        first = (await client.send("Weather?", runId="r1")).check()
        again = (await client.run(runId="r1")).check()
        other = await client.send("Another?", runId="r1")
    assert len(model.requests) == 1
    assert again.messages == first.messages
    assert other.types == ["RUN_ERROR"]
    assert other.last["code"] == "key_used"


async def test_new_client_gets_the_earlier_messages() -> None:
    agent = Agent(Model(lambda request: f"{len(request.messages)}"), thoughts=False, name="clerk")
    async with node() as clients, serve_agui(agent) as served:
        client = clients.agent(served.url, "t")
        for text in ("One", "Two", "Three"):
            stream = (await client.send(text)).check()
        fresh = (await clients.agent(served.url, "t").connect()).check()
    assert fresh.messages == stream.messages
    assert [each["content"] for each in stream.messages] == ["One", "1", "Two", "3", "Three", "5"]


async def test_thread_of_another_owner_looks_like_an_unknown_thread() -> None:
    agent = Agent(Model(lambda request: "a secret"), tools=TOOLS, thoughts=False, name="clerk")
    async with node() as clients, serve_agui(agent) as served:
        await clients.agent(served.url, "t").send("Go.")
        bob: Client = clients.agent(served.url, "t", token="bob-key")
        nowhere = clients.agent(served.url, "nowhere", token="bob-key")
        foreign, unknown = await bob.connect(runId="r"), await nowhere.connect(runId="r")
        assert [foreign.types, foreign.messages] == [unknown.types, []]
        assert "secret" not in str(foreign)
        first, fresh = await bob.send("Go."), await nowhere.send("Go.")
        assert first.types == fresh.types
        assert [each["content"] for each in first.messages] == ["Go.", "a secret"]


@pytest.mark.parametrize("packages", [CLIENTS, COPILOTKIT], ids=["1.0", "before-1.0"])
@pytest.mark.parametrize("keeps_deltas", [True, False])
async def test_order_of_concurrent_nested_agents_after_connecting(keeps_deltas: bool, packages: Path) -> None:
    # The message of `slow` starts first, and the message of `fast` is complete first.
    texts = {"slow": "1------2|", "fast": "--3-4|"}
    children = [Agent(ScriptedModel(frames(text, 0.05)), name=name, thoughts=False) for name, text in texts.items()]
    tools = [child.as_tool(description="Answers.") for child in children]
    model = ScriptedModel([call(name, prompt="Go.") for name in texts], "Done.")
    agent = Agent(model, tools=tools, name="clerk", thoughts=False)
    log = MemoryEventLog(keep_deltas=keeps_deltas)
    async with node(packages) as clients, serve_agui(agent, log=log) as served:
        client = clients.agent(served.url, "t")
        live = (await client.send("Go.")).check()
        again = (await client.connect()).check()
        fresh = (await clients.agent(served.url, "t").connect()).check()

    def list_answers(messages: list[dict[str, Any]]) -> list[str]:
        return [each["content"] for each in messages if each.get("subagentRunId") and each["role"] == "assistant"]

    assert list_answers(live.messages) == ["12", "34"]
    # From docs/agui.md: a log without deltas contains them in order of completion.
    assert list_answers(fresh.messages) == (["12", "34"] if keeps_deltas else ["34", "12"])
    assert again.messages == fresh.messages


async def test_running_tool_continues_to_report_progress_after_connecting() -> None:
    connected = asyncio.Event()

    def authenticate(request: Any) -> Any:
        if request.url.path == "/connect":
            connected.set()
        return bearer(TOKENS)(request)

    @tool
    async def toil(ctx: RunContext) -> str:
        """Work until a client connects, and half a second longer."""
        ctx.progress("early")
        await connected.wait()
        for number in range(50):
            await asyncio.sleep(0.01)
            ctx.progress(f"late {number}")
        return "worked"

    def list_progress(messages: list[dict[str, Any]]) -> list[str]:
        return [each["content"]["message"] for each in messages if each.get("activityType") == "rxloop.tool-progress"]

    agent = Agent(ScriptedModel(call("toil"), "Done."), tools=[toil], name="clerk", thoughts=False)
    async with node() as clients, serve_agui(agent, auth=authenticate, on_disconnect="keep") as served:
        cut = await clients.agent(served.url, "t").send("Toil.", cut_after=7)
        assert list_progress(cut.messages) == ["early"]
        connecting = (await clients.agent(served.url, "t").connect()).check()
        later = (await clients.agent(served.url, "t").connect()).check()
    [snapshot, *_] = connecting.select("MESSAGES_SNAPSHOT")
    assert list_progress(snapshot["messages"]) == []
    assert list_progress(connecting.messages) == ["late 49"]
    # From docs/agui.md: tool progress is not restored.
    assert list_progress(later.messages) == []
    assert connecting.messages[-1]["content"] == later.messages[-1]["content"] == "Done."
