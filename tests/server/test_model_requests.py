"""Model requests over HTTP."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from rxloop import Agent, LLMCallEvent, MemoryEventLog, ModelSettings, SlidingWindowCompressor, Usage, op, tool
from rxloop.client import Client
from rxloop.errors import ApiError
from rxloop.testing import ScriptedModel, call, turn
from support.api_server import serve_api
from support.hidden_tools import MARK, peek
from support.long_runs import UNLIMITED, look, look_calls, request_messages


@tool
async def seek(place: int) -> str:
    """Seek somewhere."""
    return "nothing"


def make_agent(*turns: Any, **options: Any) -> Agent[Any, Any]:
    return Agent(ScriptedModel(*turns), name="clerk", limits=UNLIMITED, **options)


async def test_request_has_its_parts_tools_and_answer() -> None:
    usage = Usage(input_tokens=90, cached_tokens=40, output_tokens=7)
    first_turn = turn(calls=[call("seek", place=1)], usage=usage)
    agent = make_agent(first_turn, "Done.", tools=[seek], instructions="Be brief.", thoughts=False)
    async with serve_api(agent) as served, Client(served.url, token="root-key") as root:
        run = await root.start(None, "Go.", wait=10)
        events = await root.events(run.task_id, internal=True)
        first, second = [event for event in events if isinstance(event, LLMCallEvent)]
        request = await root.model_request(run.task_id, first.seq, internal=True)
        later = await root.model_request(run.task_id, second.seq, internal=True)
        page = await root.model_requests(run.task_id, internal=True)
    assert request.exact
    assert [part.message.text for part in request.parts if part.message] == ["Be brief.", "Go."]
    assert [each.name for each in request.tools] == ["seek"]
    assert request.tools[0].parameters is not None
    assert (request.tokens.counted, request.tokens.cached, request.tokens.output) == (90, 40, 7)
    assert sum(part.tokens for part in [*request.parts, *request.tools]) == request.tokens.estimated
    answer = next(event for event in events if event.seq == request.answer)
    assert (answer.kind, answer.step) == ("content-complete", "1")
    assert (later.previous, [part.change for part in later.parts]) == (first.seq, ["same", "same", "new", "new"])
    assert [row.seq for row in page.requests] == [first.seq, second.seq]
    assert page.requests[0].parts == first.parts
    assert page.requests[0].tokens == request.tokens
    assert page.requests[1].sent == [(0, 2)]


async def test_agent_without_records_logs_neither_system_prompt_nor_tools() -> None:
    options: dict[str, Any] = {"tools": [seek], "instructions": MARK, "thoughts": False}
    agents = [make_agent(call("seek", place=1), "Done.", **options, record_requests=each) for each in (True, False)]
    pages: list[list[int]] = []
    for agent in agents:
        async with serve_api(agent) as served, Client(served.url, token="root-key") as root:
            run = await root.start(None, "Go.", wait=10)
            events = await root.events(run.task_id, internal=True)
            *_, last = [event for event in events if isinstance(event, LLMCallEvent)]
            request = await root.model_request(run.task_id, last.seq, internal=True)
            pages.append([row.tokens.estimated for row in (await root.model_requests(run.task_id)).requests])
        log = "".join(event.model_dump_json() for event in events)
        is_recorded = agent is agents[0]
        assert (MARK in log, "Seek somewhere." in log, request.exact) == (is_recorded, is_recorded, is_recorded)
        texts = [part.message.text for part in request.parts if part.message]
        assert texts[-3:] == ["Go.", "", "nothing"]
    assert pages[0] == pages[1]


async def test_public_request_keeps_the_sums_but_no_internal_data() -> None:
    turns = [call(f"peek_{MARK}", _id=f"x-{MARK}", at=MARK), call("seek", place=1)], "Done."
    agent = make_agent(*turns, tools=[peek, seek], instructions=f"{MARK} system", settings=ModelSettings(stop=[MARK]))
    async with serve_api(agent) as served, Client(served.url, token="root-key") as root:
        run = await root.start(None, "Go.", wait=10)
        events = await root.events(run.task_id, internal=True)
        *_, last = [event for event in events if isinstance(event, LLMCallEvent)]
        whole = await root.model_request(run.task_id, last.seq, internal=True)
        request = await root.model_request(run.task_id, last.seq)
        async with httpx.AsyncClient(headers={"authorization": "Bearer root-key"}) as http:
            path = f"{served.url}/runs/{run.task_id}"
            texts = [(await http.get(f"{path}/{each}")).text for each in ("requests", f"requests/{last.seq}", "events")]
    assert MARK in whole.model_dump_json()
    assert all(MARK not in text for text in texts)
    assert request.tokens == whole.tokens
    assert [part.tokens for part in request.parts] == [part.tokens for part in whole.parts]
    assert [part.hidden for part in request.parts] == [True, False, False, True, False]
    tools = [(each.name, each.hidden, each.parameters) for each in request.tools]
    assert tools[:2] == [("", True, None), ("seek", True, None)]
    assert (request.settings, request.tries) == ({}, [])


async def test_request_of_another_owner_or_event_is_not_found() -> None:
    async with serve_api(make_agent("Hi.")) as served:
        async with Client(served.url, token="ann-key") as ann, Client(served.url, token="bob-key") as bob:
            run = await ann.start(None, "Go.", wait=10)
            (seq,) = [row.seq for row in (await ann.model_requests(run.task_id)).requests]
            for client, number in ((bob, seq), (ann, 1), (ann, 0), (ann, 10**20)):
                with pytest.raises(ApiError) as raised:
                    await client.model_request(run.task_id, number)
                assert raised.value.status == 404
            with pytest.raises(ApiError) as raised:
                await bob.model_requests(run.task_id)
            assert raised.value.status == 404
            with pytest.raises(ApiError) as raised:
                await ann.model_request(run.task_id, seq, internal=True)
            assert raised.value.status == 403
            with pytest.raises(ApiError) as raised:
                await ann.model_requests(run.task_id, internal=True)
            assert raised.value.status == 403


async def test_requests_of_hidden_nested_runs_are_only_sent_to_trusted_clients() -> None:
    helper = Agent(ScriptedModel(f"{MARK} answer"), name="helper")
    agent = make_agent(call("helper", prompt="Go."), "Done.", tools=[helper.as_tool(hidden=True)])
    async with serve_api(agent) as served, Client(served.url, token="root-key") as root:
        run = await root.start(None, "Go.", wait=10)
        public = (await root.model_requests(run.task_id)).requests
        whole = (await root.model_requests(run.task_id, internal=True)).requests
        (nested,) = [row for row in whole if row.run is not None]
        assert nested.agent_path == ["helper"]
        assert [row.seq for row in public] == [row.seq for row in whole if row is not nested]
        assert (await root.model_request(run.task_id, nested.seq, internal=True)).exact
        with pytest.raises(ApiError) as raised:
            await root.model_request(run.task_id, nested.seq)
        assert raised.value.status == 404


async def test_requests_of_a_conversation_contain_the_messages_of_earlier_runs() -> None:
    model = ScriptedModel(*look_calls(12), "Done.", "Again.")
    loop = op.standard(before_model=[op.compress(SlidingWindowCompressor(2_700))])
    agent = Agent(model, name="clerk", tools=[look], loop=loop, limits=UNLIMITED)
    log = MemoryEventLog()
    async with serve_api(agent, log=log) as served, Client(served.url, token="root-key") as root:
        await root.start(None, "Find the crate.", context_id="c", wait=10)
        run = await root.start(None, "And now?", context_id="c", wait=10)
        page = await root.model_requests(run.task_id, internal=True)
        (row,) = page.requests
        request = await root.model_request(run.task_id, row.seq, internal=True)
    assert request.exact
    assert [part.message for part in request.parts] == request_messages(model.requests[-1])
    assert [part.origin for part in request.parts if part.index == row.history - 1] == ["task"]
    assert request.left_out
    assert (page.next, row.history) == (None, 1 + 2 * 12 + 2)


async def test_pages_of_requests_continue_each_other() -> None:
    async with serve_api(make_agent(*look_calls(4), "Done.", tools=[look])) as served:
        async with Client(served.url, token="ann-key") as ann:
            run = await ann.start(None, "Go.", wait=10)
            whole = await ann.model_requests(run.task_id)
            first = await ann.model_requests(run.task_id, limit=3)
            assert first.next is not None
            second = await ann.model_requests(run.task_id, limit=3, after=first.next)
    assert whole.requests == [*first.requests, *second.requests]
    assert second.next is None
