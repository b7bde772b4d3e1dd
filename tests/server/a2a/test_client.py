"""A2A by its official client, over both bindings, against a real server."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any, cast

import pytest
from a2a.types import a2a_pb2 as pb
from a2a.utils.errors import InvalidParamsError, TaskNotCancelableError, TaskNotFoundError, UnsupportedOperationError

from rxloop import Agent, RunContext, SqliteEventLog, ToolCompleteEvent, tool
from rxloop.testing import ScriptedModel, call, frames, turn
from support.clients.a2a import (
    BINDINGS,
    answer_text,
    collect_responses,
    join_artifacts,
    message_request,
    read_task,
    serve_a2a,
    task_states,
)
from support.processes.services import CLIENTS, NODE

pytestmark = pytest.mark.parametrize("binding", BINDINGS)


@tool(approve=True)
async def pay(amount: int) -> str:
    """Pay somebody."""
    return f"paid {amount}"


@tool
async def book(ctx: RunContext[Any]) -> str:
    """Book a flight."""
    ctx.progress("looking")
    return await ctx.ask("Where to?", str)


def clerk(*turns: Any, **options: Any) -> Agent[Any, Any]:
    return Agent(ScriptedModel(*turns), tools=[pay, book], thoughts=False, name="clerk", **options)


async def test_a_message_becomes_a_task_with_the_answer_as_an_artifact(binding: str) -> None:
    async with serve_a2a(clerk("It is 7 C.")) as served, served.client(binding, streaming=False) as client:
        task = await read_task(client.send_message(message_request("Weather?")))
        again = await client.get_task(pb.GetTaskRequest(id=task.id))
    assert task == again
    assert task.status.state == pb.TASK_STATE_COMPLETED
    assert answer_text(task) == "It is 7 C."
    assert [(message.role, message.parts[0].text) for message in task.history] == [(pb.ROLE_USER, "Weather?")]


async def test_a_stream_begins_with_the_task_and_tells_the_answer_piece_by_piece(binding: str) -> None:
    async with serve_a2a(clerk(frames("-It -is -7 C.|", 0.001))) as served, served.client(binding) as client:
        told = await collect_responses(client.send_message(message_request()))
    assert told[0].task.status.state == pb.TASK_STATE_SUBMITTED
    assert task_states(told) == ["SUBMITTED", "WORKING", "COMPLETED"]
    pieces = [each.artifact_update for each in told if each.HasField("artifact_update")]
    assert [(each.append, each.last_chunk) for each in pieces] == [(False, False), *[(True, False)] * 2, (False, True)]
    assert [*join_artifacts(told).values()] == ["It is 7 C."]
    ours: Any = told[-1].status_update.metadata["rxloop"]
    assert "usage" in ours


async def test_what_is_said_before_a_tool_call_is_a_status_and_not_the_answer(binding: str) -> None:
    turns = (turn(frames("-Let me -see.|", 0.001), calls=[call("book")]), frames("-To -Oslo.|", 0.001))
    async with serve_a2a(clerk(*turns)) as served, served.client(binding) as client:
        told = await collect_responses(client.send_message(message_request()))
        task_id = told[0].task.id
        on = await collect_responses(client.send_message(message_request("Oslo", task_id=task_id)))
        task = await client.get_task(pb.GetTaskRequest(id=task_id))
    said = [
        each.status_update.status.message.parts[0].text
        for each in told
        if each.status_update.status.HasField("message")
    ]
    assert said == ["Let me see.", "looking", "Where to?"]
    assert on[0].task.status.state == pb.TASK_STATE_INPUT_REQUIRED
    assert task_states(on) == ["INPUT_REQUIRED", "WORKING", "COMPLETED"]
    assert [*join_artifacts(told + on).values()] == ["To Oslo."] == [answer_text(task)]
    assert [message.parts[0].text for message in task.history] == ["Hi", "Let me see.", "Where to?"]


@pytest.mark.parametrize("how", ["text", "data", "value"])
async def test_a_question_is_answered_by_a_text_or_by_data(binding: str, how: str) -> None:
    async with serve_a2a(clerk(call("pay", amount=5), "It is paid.")) as served:
        async with served.client(binding, streaming=False) as client:
            asked = await read_task(client.send_message(message_request()))
            assert asked.status.state == pb.TASK_STATE_INPUT_REQUIRED
            text, data = asked.status.message.parts
            inputs: Any = data.data.struct_value["inputs"]
            [question] = [dict(each) for each in inputs]
            assert question["prompt"] == text.text
            said: Any = {
                "text": ("yes", None),
                "data": ("", {"inputs": {question["inputId"]: True}}),
                "value": ("", True),
            }
            words, value = said[how]
            # What does not fit changes nothing.
            with pytest.raises(InvalidParamsError):
                await read_task(client.send_message(message_request("perhaps", task_id=asked.id)))
            answered = await read_task(client.send_message(message_request(words, data=value, task_id=asked.id)))
            events = await served.runtime.log.read(asked.id)
    results = [each.result for each in events if isinstance(each, ToolCompleteEvent)]
    assert (answered.id, answered.context_id) == (asked.id, asked.context_id)
    assert answer_text(answered) == "It is paid."
    assert results == ["paid 5"]


async def test_a_conversation_goes_on_in_a_new_task(binding: str) -> None:
    agent = clerk("Oslo.", "Bergen.")
    async with serve_a2a(agent) as served, served.client(binding, streaming=False) as client:
        first = await read_task(client.send_message(message_request("Where?")))
        second = await read_task(client.send_message(message_request("And then?", context_id=first.context_id)))
    assert second.id != first.id
    assert second.context_id == first.context_id
    asked: Any = agent.model
    assert [message.text for message in asked.requests[-1].messages] == ["Where?", "Oslo.", "And then?"]


async def test_a_client_that_does_not_wait_reads_the_task_at_once_and_comes_back(binding: str) -> None:
    async with serve_a2a(clerk(frames("-It -is -warm.|", 0.05))) as served:
        async with served.client(binding, streaming=False) as client, served.client(binding) as reader:
            config = pb.SendMessageConfiguration(return_immediately=True)
            task = await read_task(client.send_message(message_request(config=config)))
            assert task.status.state in (pb.TASK_STATE_SUBMITTED, pb.TASK_STATE_WORKING)
            assert (await client.get_task(pb.GetTaskRequest(id=task.id))).id == task.id
            told = await collect_responses(reader.subscribe(pb.SubscribeToTaskRequest(id=task.id)))
    assert told[0].task.id == task.id
    assert task_states(told)[-1] == "COMPLETED"
    assert [*join_artifacts(told).values()] == ["It is warm."]


async def test_a_reader_that_was_cut_off_reads_on_and_has_the_same(binding: str) -> None:
    async with serve_a2a(clerk(frames("-a -b -c -d|", 0.02))) as served, served.client(binding) as client:
        stream = client.send_message(message_request())
        seen: list[pb.StreamResponse] = []
        async for each in stream:
            seen.append(each)
            if join_artifacts(seen):
                break
        await cast("Any", stream).aclose()
        # In the middle of a text, all of it comes.
        rest = await collect_responses(client.subscribe(pb.SubscribeToTaskRequest(id=seen[0].task.id)))
        assert [*join_artifacts(rest).values()] == ["a b c d"] == [*join_artifacts(seen + rest).values()]


async def test_a_task_is_cancelled_once_and_takes_no_more_messages(binding: str) -> None:
    async with serve_a2a(clerk(frames("-and so on", 0.01))) as served:
        async with served.client(binding, streaming=False) as client, served.client(binding) as reader:
            config = pb.SendMessageConfiguration(return_immediately=True)
            task = await read_task(client.send_message(message_request(config=config)))
            over = await client.cancel_task(pb.CancelTaskRequest(id=task.id))
            assert over.status.state == pb.TASK_STATE_CANCELED
            with pytest.raises(TaskNotCancelableError):
                await client.cancel_task(pb.CancelTaskRequest(id=task.id))
            with pytest.raises(UnsupportedOperationError):
                await read_task(client.send_message(message_request("Go on", task_id=task.id)))
            with pytest.raises(UnsupportedOperationError):
                await collect_responses(reader.subscribe(pb.SubscribeToTaskRequest(id=task.id)))


async def test_what_does_not_go_together_is_refused(binding: str) -> None:
    async with serve_a2a(clerk("Yes.", "No.")) as served, served.client(binding, streaming=False) as client:
        task = await read_task(client.send_message(message_request()))
        with pytest.raises(UnsupportedOperationError):
            await read_task(client.send_message(message_request(task_id=task.id)))
        with pytest.raises(InvalidParamsError):
            await read_task(client.send_message(message_request(task_id=task.id, context_id="another")))
        with pytest.raises(TaskNotFoundError):
            await read_task(client.send_message(message_request(task_id="01a20428-d3d7-7ba9-bf44-a933530ad41f")))
        with pytest.raises(InvalidParamsError):
            await read_task(client.send_message(message_request(context_id="..")))


async def test_a_message_to_a_task_that_goes_on_steers_it(binding: str) -> None:
    gate = asyncio.Event()

    @tool
    async def work() -> str:
        """Works."""
        await gate.wait()
        return "worked"

    model = ScriptedModel(call("work"), "Done, in red.")
    agent: Agent[Any, Any] = Agent(model, tools=[work], thoughts=False, name="clerk")
    async with (
        serve_a2a(agent) as served,
        served.client(binding) as reader,
        served.client(binding, streaming=False) as client,
    ):
        config = pb.SendMessageConfiguration(return_immediately=True)
        task = await read_task(client.send_message(message_request("Paint it", config=config)))
        await read_task(client.send_message(message_request("In red", task_id=task.id, config=config)))
        gate.set()
        told = await collect_responses(reader.subscribe(pb.SubscribeToTaskRequest(id=task.id)))
        over = await client.get_task(pb.GetTaskRequest(id=task.id))
    assert told
    assert [message.parts[0].text for message in over.history] == ["Paint it", "In red"]
    assert "In red" in [message.text for message in model.requests[-1].messages]


async def test_tasks_are_listed_from_the_newest_page_by_page(binding: str) -> None:
    async with serve_a2a(clerk(*["Yes."] * 5)) as served, served.client(binding, streaming=False) as client:
        made = [await read_task(client.send_message(message_request(str(place)))) for place in range(5)]
        found: list[str] = []
        token = ""
        while True:
            page = await client.list_tasks(pb.ListTasksRequest(page_size=2, page_token=token))
            found += [task.id for task in page.tasks]
            assert (page.total_size, page.page_size) == (5, 2)
            assert not any(task.artifacts for task in page.tasks)
            token = page.next_page_token
            if not token:
                break
        assert sorted(found) == sorted(task.id for task in made)
        assert len({*found}) == 5
        one = await client.list_tasks(pb.ListTasksRequest(context_id=made[0].context_id, include_artifacts=True))
        assert [answer_text(task) for task in one.tasks] == ["Yes."]
        none = await client.list_tasks(pb.ListTasksRequest(status=pb.TASK_STATE_FAILED))
        assert (len(none.tasks), none.total_size) == (0, 0)
        with pytest.raises(InvalidParamsError):
            await client.list_tasks(pb.ListTasksRequest(page_token="x"))


async def test_a_task_is_the_same_after_a_restart_and_in_another_process(binding: str, tmp_path: Any) -> None:
    log = SqliteEventLog(tmp_path / "runs.db")
    async with serve_a2a(clerk(call("pay", amount=5)), log=log) as served:
        async with served.client(binding, streaming=False) as client:
            asked = await read_task(client.send_message(message_request()))
    await log.aclose()
    log = SqliteEventLog(tmp_path / "runs.db")
    async with serve_a2a(clerk("Paid."), log=log) as served:
        async with served.client(binding, streaming=False) as client:
            assert await client.get_task(pb.GetTaskRequest(id=asked.id)) == asked
            assert (
                answer_text(await read_task(client.send_message(message_request("yes", task_id=asked.id)))) == "Paid."
            )
    await log.aclose()


async def test_a_task_is_read_and_cancelled_in_another_process(binding: str, tmp_path: Any) -> None:
    one, two = (SqliteEventLog(tmp_path / "runs.db") for _ in range(2))
    turns = (call("pay", amount=5), frames("-and so on", 0.02))
    async with serve_a2a(clerk(*turns), log=one) as here, serve_a2a(clerk(), log=two) as there:
        async with here.client(binding, streaming=False) as client, there.client(binding) as other:
            asked = await read_task(client.send_message(message_request()))
            reading = asyncio.create_task(collect_responses(other.subscribe(pb.SubscribeToTaskRequest(id=asked.id))))
            config = pb.SendMessageConfiguration(return_immediately=True)
            await read_task(client.send_message(message_request("yes", task_id=asked.id, config=config)))
            while (await client.get_task(pb.GetTaskRequest(id=asked.id))).status.state != pb.TASK_STATE_WORKING:
                pass
            over = await other.cancel_task(pb.CancelTaskRequest(id=asked.id))
            told = await reading
    assert over.status.state == pb.TASK_STATE_CANCELED
    assert task_states(told) == ["INPUT_REQUIRED", "WORKING", "CANCELED"]
    await one.aclose()
    await two.aclose()


async def test_a_credential_is_asked_for_and_stays_out_of_everything(binding: str) -> None:
    @tool
    async def sign_in(ctx: RunContext[Any]) -> str:
        """Sign in."""
        token = await ctx.require_auth("github", url="https://github.com/login")
        return f"{len(token)} characters"

    agent: Agent[Any, Any] = Agent(
        ScriptedModel(call("sign_in"), "Done."), tools=[sign_in], thoughts=False, name="clerk"
    )
    async with serve_a2a(agent) as served, served.client(binding, streaming=False) as client:
        asked = await read_task(client.send_message(message_request()))
        assert asked.status.state == pb.TASK_STATE_AUTH_REQUIRED
        assert asked.status.message.parts[0].text == "Sign in to github. https://github.com/login"
        over = await read_task(client.send_message(message_request("hunter-2", task_id=asked.id)))
        events = await served.runtime.log.read(asked.id)
    assert over.status.state == pb.TASK_STATE_COMPLETED
    assert b"hunter-2" not in b"".join(event.to_json() for event in events)
    assert "hunter-2" not in str(over)


async def test_several_questions_are_answered_by_their_ids_one_after_the_other(binding: str) -> None:
    calls = [call("pay", "a", amount=5), call("pay", "b", amount=6)]
    async with serve_a2a(clerk(calls, "Both.")) as served, served.client(binding, streaming=False) as client:
        asked = await read_task(client.send_message(message_request()))
        inputs: Any = asked.status.message.parts[1].data.struct_value["inputs"]
        first, second = (each["inputId"] for each in inputs)
        with pytest.raises(InvalidParamsError):
            await read_task(client.send_message(message_request("yes", task_id=asked.id)))
        waits = await read_task(client.send_message(message_request(data={"inputs": {first: True}}, task_id=asked.id)))
        assert waits.status.state == pb.TASK_STATE_INPUT_REQUIRED
        over = await read_task(client.send_message(message_request(data={"inputs": {second: False}}, task_id=asked.id)))
        events = await served.runtime.log.read(asked.id)
    assert answer_text(over) == "Both."
    assert [each.success for each in events if isinstance(each, ToolCompleteEvent)] == [True, False]


@pytest.mark.service("node-clients")
async def test_the_official_client_of_npm_is_told_the_same(binding: str) -> None:
    turns = (call("pay", amount=5), frames("-It -is -paid.|", 0.001), call("pay", amount=6))
    async with serve_a2a(clerk(*turns)) as served:
        program = Path(__file__).with_name("client.mjs")
        node = await asyncio.create_subprocess_exec(
            str(NODE), program, CLIENTS, served.url, binding, stdout=asyncio.subprocess.PIPE
        )
        seen = json.loads((await node.communicate())[0])
    names = [f"TASK_STATE_{name}" for name in ("SUBMITTED", "WORKING", "INPUT_REQUIRED", "WORKING", "COMPLETED")]
    refused = {"JSONRPC": "JsonRpcTaskNotCancelableError", "HTTP+JSON": "RestTaskNotCancelableError"}[binding]
    assert seen == {
        "states": names,
        "answer": "It is paid.",
        "kept": "It is paid.",
        "over": "TASK_STATE_CANCELED",
        "refused": refused,
    }
