"""Official A2A client over both bindings, against a real server."""

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
    """Pay an amount."""
    return f"paid {amount}"


@tool
async def book(ctx: RunContext[Any]) -> str:
    """Book a flight."""
    ctx.progress("looking")
    return await ctx.ask("Where to?", str)


def make_clerk(*turns: Any, **options: Any) -> Agent[Any, Any]:
    return Agent(ScriptedModel(*turns), tools=[pay, book], thoughts=False, name="clerk", **options)


async def test_message_becomes_a_task_whose_answer_is_an_artifact(binding: str) -> None:
    async with serve_a2a(make_clerk("It is 7 C.")) as served, served.client(binding, streaming=False) as client:
        task = await read_task(client.send_message(message_request("Weather?")))
        again = await client.get_task(pb.GetTaskRequest(id=task.id))
    assert task == again
    assert task.status.state == pb.TASK_STATE_COMPLETED
    assert answer_text(task) == "It is 7 C."
    assert [(message.role, message.parts[0].text) for message in task.history] == [(pb.ROLE_USER, "Weather?")]


async def test_stream_starts_with_the_task_and_delivers_the_answer_in_pieces(binding: str) -> None:
    async with serve_a2a(make_clerk(frames("-It -is -7 C.|", 0.001))) as served, served.client(binding) as client:
        updates = await collect_responses(client.send_message(message_request()))
    assert updates[0].task.status.state == pb.TASK_STATE_SUBMITTED
    assert task_states(updates) == ["SUBMITTED", "WORKING", "COMPLETED"]
    pieces = [each.artifact_update for each in updates if each.HasField("artifact_update")]
    assert [(each.append, each.last_chunk) for each in pieces] == [(False, False), *[(True, False)] * 2, (False, True)]
    assert [*join_artifacts(updates).values()] == ["It is 7 C."]
    ours: Any = updates[-1].status_update.metadata["rxloop"]
    assert "usage" in ours


async def test_text_before_a_tool_call_is_a_status_and_not_the_answer(binding: str) -> None:
    turns = (turn(frames("-Let me -see.|", 0.001), calls=[call("book")]), frames("-To -Oslo.|", 0.001))
    async with serve_a2a(make_clerk(*turns)) as served, served.client(binding) as client:
        updates = await collect_responses(client.send_message(message_request()))
        task_id = updates[0].task.id
        continued = await collect_responses(client.send_message(message_request("Oslo", task_id=task_id)))
        task = await client.get_task(pb.GetTaskRequest(id=task_id))
    texts = [
        each.status_update.status.message.parts[0].text
        for each in updates
        if each.status_update.status.HasField("message")
    ]
    assert texts == ["Let me see.", "looking", "Where to?"]
    assert continued[0].task.status.state == pb.TASK_STATE_INPUT_REQUIRED
    assert task_states(continued) == ["INPUT_REQUIRED", "WORKING", "COMPLETED"]
    assert [*join_artifacts(updates + continued).values()] == ["To Oslo."] == [answer_text(task)]
    assert [message.parts[0].text for message in task.history] == ["Hi", "Let me see.", "Where to?"]


@pytest.mark.parametrize("how", ["text", "data", "value"])
async def test_question_is_answered_by_text_or_data(binding: str, how: str) -> None:
    async with serve_a2a(make_clerk(call("pay", amount=5), "It is paid.")) as served:
        async with served.client(binding, streaming=False) as client:
            task = await read_task(client.send_message(message_request()))
            assert task.status.state == pb.TASK_STATE_INPUT_REQUIRED
            text, data = task.status.message.parts
            inputs: Any = data.data.struct_value["inputs"]
            [question] = [dict(each) for each in inputs]
            assert question["prompt"] == text.text
            replies: Any = {
                "text": ("yes", None),
                "data": ("", {"inputs": {question["inputId"]: True}}),
                "value": ("", True),
            }
            words, value = replies[how]
            with pytest.raises(InvalidParamsError):
                await read_task(client.send_message(message_request("perhaps", task_id=task.id)))
            answered = await read_task(client.send_message(message_request(words, data=value, task_id=task.id)))
            events = await served.runtime.log.read(task.id)
    results = [each.result for each in events if isinstance(each, ToolCompleteEvent)]
    assert answered.id == task.id
    assert answered.context_id == task.context_id
    assert answer_text(answered) == "It is paid."
    assert results == ["paid 5"]


async def test_conversation_continues_in_a_new_task(binding: str) -> None:
    agent = make_clerk("Oslo.", "Bergen.")
    async with serve_a2a(agent) as served, served.client(binding, streaming=False) as client:
        first = await read_task(client.send_message(message_request("Where?")))
        second = await read_task(client.send_message(message_request("And then?", context_id=first.context_id)))
    assert second.id != first.id
    assert second.context_id == first.context_id
    model: Any = agent.model
    assert [message.text for message in model.requests[-1].messages] == ["Where?", "Oslo.", "And then?"]


async def test_client_that_returns_immediately_can_subscribe_later(binding: str) -> None:
    async with serve_a2a(make_clerk(frames("-It -is -warm.|", 0.05))) as served:
        async with served.client(binding, streaming=False) as client, served.client(binding) as reader:
            config = pb.SendMessageConfiguration(return_immediately=True)
            task = await read_task(client.send_message(message_request(config=config)))
            assert task.status.state in (pb.TASK_STATE_SUBMITTED, pb.TASK_STATE_WORKING)
            assert (await client.get_task(pb.GetTaskRequest(id=task.id))).id == task.id
            updates = await collect_responses(reader.subscribe(pb.SubscribeToTaskRequest(id=task.id)))
    assert updates[0].task.id == task.id
    assert task_states(updates)[-1] == "COMPLETED"
    assert [*join_artifacts(updates).values()] == ["It is warm."]


async def test_reconnected_subscriber_gets_the_complete_answer(binding: str) -> None:
    async with serve_a2a(make_clerk(frames("-a -b -c -d|", 0.02))) as served, served.client(binding) as client:
        stream = client.send_message(message_request())
        seen: list[pb.StreamResponse] = []
        async for each in stream:
            seen.append(each)
            if join_artifacts(seen):
                break
        await cast("Any", stream).aclose()
        # Subscribers always receive the complete text.
        remaining = await collect_responses(client.subscribe(pb.SubscribeToTaskRequest(id=seen[0].task.id)))
        assert [*join_artifacts(remaining).values()] == ["a b c d"] == [*join_artifacts(seen + remaining).values()]


async def test_cancelled_task_refuses_cancels_messages_and_subscriptions(binding: str) -> None:
    async with serve_a2a(make_clerk(frames("-and so on", 0.01))) as served:
        async with served.client(binding, streaming=False) as client, served.client(binding) as reader:
            config = pb.SendMessageConfiguration(return_immediately=True)
            task = await read_task(client.send_message(message_request(config=config)))
            final = await client.cancel_task(pb.CancelTaskRequest(id=task.id))
            assert final.status.state == pb.TASK_STATE_CANCELED
            with pytest.raises(TaskNotCancelableError):
                await client.cancel_task(pb.CancelTaskRequest(id=task.id))
            with pytest.raises(UnsupportedOperationError):
                await read_task(client.send_message(message_request("Go on", task_id=task.id)))
            with pytest.raises(UnsupportedOperationError):
                await collect_responses(reader.subscribe(pb.SubscribeToTaskRequest(id=task.id)))


async def test_invalid_combinations_of_ids_are_refused(binding: str) -> None:
    async with serve_a2a(make_clerk("Yes.", "No.")) as served, served.client(binding, streaming=False) as client:
        task = await read_task(client.send_message(message_request()))
        with pytest.raises(UnsupportedOperationError):
            await read_task(client.send_message(message_request(task_id=task.id)))
        with pytest.raises(InvalidParamsError):
            await read_task(client.send_message(message_request(task_id=task.id, context_id="another")))
        with pytest.raises(TaskNotFoundError):
            await read_task(client.send_message(message_request(task_id="01a20428-d3d7-7ba9-bf44-a933530ad41f")))
        with pytest.raises(InvalidParamsError):
            await read_task(client.send_message(message_request(context_id="..")))


async def test_message_to_a_working_task_steers_it(binding: str) -> None:
    gate = asyncio.Event()

    @tool
    async def work() -> str:
        """Wait for the test."""
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
        updates = await collect_responses(reader.subscribe(pb.SubscribeToTaskRequest(id=task.id)))
        final = await client.get_task(pb.GetTaskRequest(id=task.id))
    assert updates
    assert [message.parts[0].text for message in final.history] == ["Paint it", "In red"]
    assert "In red" in [message.text for message in model.requests[-1].messages]


async def test_tasks_are_listed_by_page_from_the_newest(binding: str) -> None:
    async with serve_a2a(make_clerk(*["Yes."] * 5)) as served, served.client(binding, streaming=False) as client:
        tasks = [await read_task(client.send_message(message_request(str(index)))) for index in range(5)]
        listed: list[str] = []
        token = ""
        while True:
            page = await client.list_tasks(pb.ListTasksRequest(page_size=2, page_token=token))
            listed += [task.id for task in page.tasks]
            assert page.total_size == 5
            assert page.page_size == 2
            assert not any(task.artifacts for task in page.tasks)
            token = page.next_page_token
            if not token:
                break
        assert sorted(listed) == sorted(task.id for task in tasks)
        assert len({*listed}) == 5
        one = await client.list_tasks(pb.ListTasksRequest(context_id=tasks[0].context_id, include_artifacts=True))
        assert [answer_text(task) for task in one.tasks] == ["Yes."]
        none = await client.list_tasks(pb.ListTasksRequest(status=pb.TASK_STATE_FAILED))
        assert len(none.tasks) == 0
        assert none.total_size == 0
        with pytest.raises(InvalidParamsError):
            await client.list_tasks(pb.ListTasksRequest(page_token="x"))


async def test_task_is_the_same_after_a_restart(binding: str, tmp_path: Any) -> None:
    log = SqliteEventLog(tmp_path / "runs.db")
    async with serve_a2a(make_clerk(call("pay", amount=5)), log=log) as served:
        async with served.client(binding, streaming=False) as client:
            task = await read_task(client.send_message(message_request()))
    await log.aclose()
    log = SqliteEventLog(tmp_path / "runs.db")
    async with serve_a2a(make_clerk("Paid."), log=log) as served:
        async with served.client(binding, streaming=False) as client:
            assert await client.get_task(pb.GetTaskRequest(id=task.id)) == task
            assert answer_text(await read_task(client.send_message(message_request("yes", task_id=task.id)))) == "Paid."
    await log.aclose()


async def test_task_can_be_read_and_cancelled_in_another_process(binding: str, tmp_path: Any) -> None:
    one, two = (SqliteEventLog(tmp_path / "runs.db") for _ in range(2))
    turns = (call("pay", amount=5), frames("-and so on", 0.02))
    async with serve_a2a(make_clerk(*turns), log=one) as here, serve_a2a(make_clerk(), log=two) as there:
        async with here.client(binding, streaming=False) as client, there.client(binding) as other:
            task = await read_task(client.send_message(message_request()))
            reading = asyncio.create_task(collect_responses(other.subscribe(pb.SubscribeToTaskRequest(id=task.id))))
            config = pb.SendMessageConfiguration(return_immediately=True)
            await read_task(client.send_message(message_request("yes", task_id=task.id, config=config)))
            while (await client.get_task(pb.GetTaskRequest(id=task.id))).status.state != pb.TASK_STATE_WORKING:
                pass
            final = await other.cancel_task(pb.CancelTaskRequest(id=task.id))
            updates = await reading
    assert final.status.state == pb.TASK_STATE_CANCELED
    assert task_states(updates) == ["INPUT_REQUIRED", "WORKING", "CANCELED"]
    await one.aclose()
    await two.aclose()


async def test_credential_is_requested_and_never_stored_or_sent(binding: str) -> None:
    @tool
    async def authenticate(ctx: RunContext[Any]) -> str:
        """Sign in."""
        token = await ctx.require_auth("github", url="https://github.com/login")
        return f"{len(token)} characters"

    agent: Agent[Any, Any] = Agent(
        ScriptedModel(call("authenticate"), "Done."), tools=[authenticate], thoughts=False, name="clerk"
    )
    async with serve_a2a(agent) as served, served.client(binding, streaming=False) as client:
        task = await read_task(client.send_message(message_request()))
        assert task.status.state == pb.TASK_STATE_AUTH_REQUIRED
        assert task.status.message.parts[0].text == "Sign in to github. https://github.com/login"
        final = await read_task(client.send_message(message_request("hunter-2", task_id=task.id)))
        events = await served.runtime.log.read(task.id)
    assert final.status.state == pb.TASK_STATE_COMPLETED
    assert b"hunter-2" not in b"".join(event.to_json() for event in events)
    assert "hunter-2" not in str(final)


async def test_several_questions_are_answered_one_by_one_by_their_ids(binding: str) -> None:
    calls = [call("pay", "a", amount=5), call("pay", "b", amount=6)]
    async with serve_a2a(make_clerk(calls, "Both.")) as served, served.client(binding, streaming=False) as client:
        task = await read_task(client.send_message(message_request()))
        inputs: Any = task.status.message.parts[1].data.struct_value["inputs"]
        first, second = (each["inputId"] for each in inputs)
        with pytest.raises(InvalidParamsError):
            await read_task(client.send_message(message_request("yes", task_id=task.id)))
        waiting = await read_task(client.send_message(message_request(data={"inputs": {first: True}}, task_id=task.id)))
        assert waiting.status.state == pb.TASK_STATE_INPUT_REQUIRED
        final = await read_task(client.send_message(message_request(data={"inputs": {second: False}}, task_id=task.id)))
        events = await served.runtime.log.read(task.id)
    assert answer_text(final) == "Both."
    assert [each.success for each in events if isinstance(each, ToolCompleteEvent)] == [True, False]


@pytest.mark.service("node-clients")
async def test_official_npm_client_gets_the_same_updates(binding: str) -> None:
    turns = (call("pay", amount=5), frames("-It -is -paid.|", 0.001), call("pay", amount=6))
    async with serve_a2a(make_clerk(*turns)) as served:
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


async def test_link_to_a_file_is_sent_as_a_url(binding: str) -> None:
    @tool
    async def publish(ctx: RunContext[Any]) -> str:
        """Publish a report."""
        await ctx.artifacts.link("report.pdf", "https://example.org/report.pdf", name="A report")
        return "published"

    agent = Agent(ScriptedModel(call("publish"), "Done."), tools=[publish], thoughts=False, name="clerk")
    async with serve_a2a(agent) as served, served.client(binding) as client:
        updates = await collect_responses(client.send_message(message_request("Publish")))
        [sent] = [
            each.artifact_update
            for each in updates
            if each.HasField("artifact_update") and each.artifact_update.artifact.artifact_id == "report.pdf"
        ]
        task = await client.get_task(pb.GetTaskRequest(id=sent.task_id))
    [stored] = [each for each in task.artifacts if each.artifact_id == "report.pdf"]
    assert (sent.append, sent.last_chunk) == (False, True)
    for artifact in (sent.artifact, stored):
        [part] = artifact.parts
        assert (part.url, part.media_type, artifact.name) == (
            "https://example.org/report.pdf",
            "application/pdf",
            "A report",
        )
