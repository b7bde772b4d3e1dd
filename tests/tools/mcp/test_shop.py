"""MCP server of the newest protocol: questions, sampling, roots, cancellation, changes and crashes."""

import asyncio
import contextlib
import logging
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from rxloop import Agent, Limits, SqliteEventLog, ToolsUnavailableEvent
from rxloop.errors import InvalidInput
from rxloop.protocol.events import InputRequiredEvent, ToolProgressEvent, ToolStartEvent, UsageEvent
from rxloop.protocol.messages import FilePart, ImagePart, Usage
from rxloop.storage import MemoryEventLog
from rxloop.testing import ScriptedModel, call, turn
from rxloop.tools.mcp import calls as _results
from rxloop.tools.mcp import mcp
from support.mcp_servers.runs import child_processes, collect_events, count_open_files, results, shop, wait_until


def read_effects(file: Path) -> list[str]:
    return file.read_text().splitlines() if file.exists() else []


async def test_form_is_a_question_that_another_process_can_answer(tmp_path: Path) -> None:
    done, path = tmp_path / "effects", tmp_path / "runs.db"

    async def attempt(*answers: Any, task: str | None = None) -> Any:
        # Simulate a restart: use a new agent, log and server process.
        async with contextlib.aclosing(SqliteEventLog(path)) as log:
            model = ScriptedModel("Booked.") if task else ScriptedModel(call("shop__book", city="Oslo"), "Booked.")
            async with Agent(model, tools=[shop(done)], log=log, thoughts=False) as agent:
                if task is None:
                    return await agent.run("Book it.")
                return await agent.resume(task, inputs=answers[0])

    first = await attempt()
    assert first.state == "input-required"
    assert [(each.prompt, each.input_kind) for each in first.pending] == [("shop asks: Which day for Oslo?", "data")]
    assert first.pending[0].answer_schema["anyOf"][0]["required"] == ["day"]
    second = await attempt({first.pending[0].input_id: {"day": 3}}, task=first.task_id)
    assert [each.prompt for each in second.pending] == ["shop asks: Oslo on 3 May: sure?"]
    assert read_effects(done) == []
    third = await attempt({second.pending[0].input_id: {"sure": True}}, task=first.task_id)
    assert third.messages[-2].text == "Oslo on 3 May: booked"
    assert read_effects(done) == ["booked Oslo"]


async def test_request_state_of_the_server_is_not_public(tmp_path: Path) -> None:
    log = MemoryEventLog()
    events = await collect_events([call("shop__book", city="Oslo")], shop(), log=log)
    [question_event] = [event for event in events if isinstance(event, InputRequiredEvent)]
    state = question_event.metadata["mcp"]["state"]
    assert state
    assert state not in question_event.to_json(public=True).decode()


async def test_on_input_answers_immediately_and_null_declines() -> None:
    answers = iter([{"day": 4, "month": "June"}, {"sure": False}])
    events = await collect_events([call("shop__book", city="Rome")], shop(), on_input=lambda question: next(answers))
    assert results(events)[0].content == "Rome on 4 June: not booked"
    declined = results(await collect_events([call("shop__book", city="Rome")], shop(), on_input=lambda question: None))[
        0
    ]
    assert not declined.success


async def test_timeout_of_a_call_does_not_count_the_answers_to_its_forms() -> None:  # P21
    answers = iter([{"day": 4, "month": "June"}, {"sure": True}])

    async def person(question: Any) -> Any:
        await asyncio.sleep(1.5)
        return next(answers)

    events = await collect_events([call("shop__book", city="Rome")], shop(timeout=2.0), on_input=person)
    assert results(events)[0].content == "Rome on 4 June: booked"


async def test_page_to_open_is_a_credential_question() -> None:
    agent = Agent(ScriptedModel(call("shop__sign_in"), "done"), tools=[shop()], log=MemoryEventLog(), thoughts=False)
    async with agent:
        first = await agent.run("Go.")
        assert first.state == "auth-required"
        assert [(each.provider, each.url) for each in first.pending] == [("shop", "https://shop.example/in")]
        result = await agent.resume(first.task_id, inputs={first.pending[0].input_id: "I was there."})
    assert result.messages[-2].text == "page: accept"


async def test_answer_that_does_not_fit_the_form_is_refused() -> None:
    log = MemoryEventLog()
    async with Agent(ScriptedModel(call("shop__book", city="Oslo"), "x"), tools=[shop()], log=log) as agent:
        first = await agent.run("Book it.")
        with pytest.raises(InvalidInput, match="'soon'"):
            await agent.resume(first.task_id, inputs={first.pending[0].input_id: {"day": "soon"}})


async def test_sampling_requires_an_option_and_its_tokens_are_counted() -> None:
    refused = results(await collect_events([call("shop__rhyme")], shop()))[0]
    assert not refused.success
    sampled = turn("Roses are red.", usage=Usage(input_tokens=7, output_tokens=5))
    model = ScriptedModel(call("shop__rhyme"), sampled, "done")
    async with Agent(model, tools=[shop(sampling=20)], thoughts=False) as agent:
        run = agent.run("Go.")
        events = [event async for event in run.events]
    assert results(events)[0].content == "Roses are red."
    assert model.requests[1].settings.max_tokens == 20
    assert model.requests[1].system[0].text == "You rhyme."
    assert (await run).usage.total_tokens == 12
    assert [event.input_tokens for event in events if isinstance(event, UsageEvent)] == [7]


async def test_roots_are_sent_when_configured(tmp_path: Path) -> None:
    [result] = results(await collect_events([call("shop__folders")], shop(roots=[tmp_path])))
    assert result.result == {"result": [tmp_path.as_uri()]}


async def test_progress_is_reported_and_cancellation_reaches_the_server(tmp_path: Path) -> None:
    done = tmp_path / "effects"
    async with Agent(ScriptedModel(call("shop__wait")), tools=[shop(done)]) as agent:
        run = agent.run("Go.")
        async for event in run.events:
            if isinstance(event, ToolProgressEvent):
                assert event.message == "begun"
                assert event.fraction == 0.25
                run.cancel()
        await wait_until(lambda: read_effects(done) == ["begun", "stopped"])
    assert read_effects(done) == ["begun", "stopped"]


async def test_call_that_exceeds_its_timeout_is_cancelled(tmp_path: Path) -> None:
    [cut] = results(await collect_events([call("shop__wait")], shop(tmp_path / "effects", timeout=0.5)))
    assert "timed out after 0.5 s" in cut.content


async def test_crashed_server_fails_the_call_and_is_restarted_for_the_next(tmp_path: Path) -> None:
    done = tmp_path / "effects"
    model = ScriptedModel(
        call("shop__pay", once=str(tmp_path / "a")), call("shop__pay", once=str(tmp_path / "a")), "done"
    )
    async with Agent(model, tools=[shop(done)], thoughts=False) as agent:
        run = agent.run("Go.")
        first, second = results([event async for event in run.events])
    assert not first.success
    assert "it is not known whether it took effect" in first.content
    assert second.content == "paid"
    assert read_effects(done) == ["paid", "paid"], "it was not repeated"


async def test_read_only_call_is_repeated_after_a_crash(tmp_path: Path) -> None:
    [result] = results(await collect_events([call("shop__die", once=str(tmp_path / "a"))], shop(tmp_path / "effects")))
    assert result.content == "alive"
    assert read_effects(tmp_path / "effects") == ["died", "died"]


async def test_server_killed_between_calls_is_restarted_without_an_error() -> None:
    before = child_processes()
    async with Agent(ScriptedModel(call("shop__echo", text="1"), "done"), tools=[shop()]) as agent:
        await agent.run("Go.")
        [server] = child_processes() - before
        os.kill(server, signal.SIGKILL)
        await wait_until(lambda: server not in child_processes())
        # Let the reader notice the closed pipe.
        for _ in range(200):
            await asyncio.sleep(0)
        run = agent.run("Again.", model=ScriptedModel(call("shop__echo", text="2"), "done"))
        events = [event async for event in run.events]
    assert [event.content for event in results(events)] == ["2"]
    assert not [event for event in events if isinstance(event, ToolsUnavailableEvent)]


async def test_added_tool_is_offered_in_the_next_request_despite_repeated_notifications() -> None:
    model = ScriptedModel(call("shop__grow", name="young"), call("shop__young"), "done")
    async with Agent(model, tools=[shop()], thoughts=False) as agent:
        run = agent.run("Go.")
        answers = results([event async for event in run.events])
    assert answers[1].content == "young has grown"


async def test_server_that_cannot_be_started_is_reported_with_its_output(caplog: pytest.LogCaptureFixture) -> None:
    says = "import os, sys; sys.exit('no shop for ' + os.environ['SHOP_TOKEN'])"
    broken = mcp(sys.executable, "-c", says, env={"SHOP_TOKEN": "planted-0451"}, name="broken")
    with caplog.at_level(logging.DEBUG, "rxloop"):
        events = await collect_events([], broken)
    [missing] = [event for event in events if isinstance(event, ToolsUnavailableEvent)]
    assert missing.toolset == "broken"
    assert "no shop for [redacted]" in missing.reason
    assert "planted-0451" not in caplog.text


async def test_thousand_calls_leave_nothing() -> None:
    tasks, children = asyncio.all_tasks(), child_processes()
    async with Agent(ScriptedModel(), tools=[shop()], thoughts=False) as agent:
        opened = 0
        for turns in range(20):
            calls = [call("shop__echo", text=str(number)) for number in range(50)]
            run = agent.run("Go.", model=ScriptedModel(calls, "done"), limits=Limits(tool_failures=None))
            assert [event.content for event in results([event async for event in run.events])] == list(
                map(str, range(50))
            )
            if not turns:
                opened = count_open_files()
        assert count_open_files() <= opened
        await asyncio.sleep(0)
        server = [task for task in asyncio.all_tasks() - tasks if task.get_name().startswith("rxloop-tool")]
        assert server == []
        assert len(child_processes() - children) == 1
    assert asyncio.all_tasks() == tasks
    assert child_processes() == children


async def test_two_agents_share_a_process_that_ends_with_the_last() -> None:
    before, server = child_processes(), shop()
    first = Agent(ScriptedModel("a"), tools=[server])
    second = Agent(ScriptedModel("a", call("shop__echo", text="still there"), "b"), tools=[server])
    await asyncio.gather(first.run("Hi"), second.run("Hi"))
    assert len(child_processes() - before) == 1
    await first.aclose()
    run = second.run("Hi")
    assert [event.content for event in results([event async for event in run.events])] == ["still there"]
    await second.aclose()
    assert child_processes() == before


async def test_each_call_has_its_own_arguments_in_the_log(tmp_path: Path) -> None:
    events = await collect_events([call("shop__echo", text="a"), call("shop__echo", text="b")], shop())
    assert [event.call.arguments["text"] for event in events if isinstance(event, ToolStartEvent)] == ["a", "b"]


async def test_images_audio_and_files_are_parts_within_the_limits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_results, "MAX_PART_BYTES", 20)
    [result] = results(await collect_events([call("shop__display")], shop()))
    assert result.parts == [
        ImagePart(data=b"\x89PNG\r", media_type="image/png"),
        FilePart(data=b"RIFF", media_type="audio/wav"),
        FilePart(data=b"%PDF", media_type="application/pdf", filename="menu.pdf"),
    ]
    assert result.content.splitlines() == [
        "Our window:",
        "[image/png, 5 bytes]",
        "[audio/wav, 4 bytes]",
        "[file:///menu.pdf, application/pdf, 4 bytes]",
        "[file:///a, bytes, 3 bytes]",
        "[image/png, 7 bytes]",
        "[image/png",
        "x: y, 6 bytes]",
        "[image/png, 30 bytes]",
    ]
    assert [each.get("leftOut", False) for each in result.result[1:3]] == [False, False]
    assert [each.get("size") for each in result.result[1:3]] == [5, 4]
    assert result.result[-1]["leftOut"]
