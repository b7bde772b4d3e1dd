"""Streams of background responses starting after a sequence number."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from openai import BadRequestError

from rxloop import Agent, EventLog, MemoryEventLog, RunContext, SqliteEventLog, Usage, tool
from rxloop.testing import ScriptedModel, call, frames, turn
from support.clients.openai import serve_openai
from support.vendors.openai_checks import check_stream


@tool
async def weather(ctx: RunContext[Any], city: str) -> str:
    """Return the weather."""
    ctx.progress("looking")
    return f"7 C in {city}"


def make_agent() -> Agent[Any, Any]:
    """Create an agent, separately for each simulated process."""
    first = turn(frames("-Let -me -see.|", 0.002), calls=[call("weather", city="Oslo")], reasoning="Hm, well.")
    last = turn(frames("-It -is -7 -C.|", 0.002), usage=Usage(input_tokens=5, output_tokens=5))
    return Agent(ScriptedModel(first, last), tools=[weather], thoughts=False, name="clerk")


@pytest.mark.parametrize("keep", [True, False])
async def test_stream_after_each_number_continues_with_the_next_event(keep: bool, tmp_path: Path) -> None:
    def open_log() -> EventLog:
        return SqliteEventLog(tmp_path / "runs.db", keep_deltas=keep)

    here = open_log()
    async with serve_openai(make_agent(), log=here) as served, served.client() as client:
        stream = await client.responses.create(model="clerk", input="Go", background=True, stream=True)
        live = [event.to_dict() async for event in stream]
        assert check_stream(live)["status"] == "completed"
        deltas = [event["delta"] for event in live if event["type"] == "response.output_text.delta"]
        assert deltas == (["Let ", "me ", "see.", "It ", "is ", "7 ", "C."] if keep else ["Let me see.", "It is 7 C."])
        task_id: Any = live[0]["response"]
        for number in range(len(live)):
            again = await client.responses.retrieve(task_id["id"], stream=True, starting_after=number)
            assert [event.to_dict() async for event in again] == live[number + 1 :]
    await here.aclose()
    # A new server simulates a restart of the process.
    there = open_log()
    async with serve_openai(make_agent(), log=there) as served, served.client() as client:
        for number in range(len(live)):
            again = await client.responses.retrieve(task_id["id"], stream=True, starting_after=number)
            assert [event.to_dict() async for event in again] == live[number + 1 :]
        async with client.responses.stream(response_id=task_id["id"], starting_after=7) as stream:
            final = await stream.get_final_response()
        assert final.output_text == "Let me see.It is 7 C."
    await there.aclose()


async def test_live_readers_get_the_same_sequence_numbers() -> None:
    open_log = MemoryEventLog(keep_deltas=True)
    async with serve_openai(make_agent(), log=open_log) as served, served.client() as client:
        created = await client.responses.create(model="clerk", input="Go", background=True)

        async def read(after: int) -> list[Any]:
            stream = await client.responses.retrieve(created.id, stream=True, starting_after=after)
            return [event.to_dict() async for event in stream]

        first, *later_streams = await asyncio.gather(*(read(after) for after in range(12)))
    assert first[0]["sequence_number"] == 1
    for after, events in enumerate(later_streams, start=1):
        assert events == first[after:]


async def test_two_processes_send_the_same_events(tmp_path: Path) -> None:
    one, other = (SqliteEventLog(tmp_path / "runs.db", keep_deltas=True) for _ in range(2))
    async with serve_openai(make_agent(), log=one) as a, serve_openai(make_agent(), log=other) as b:
        async with a.client() as here, b.client() as there:
            stream = await here.responses.create(model="clerk", input="Go", background=True, stream=True)
            first = await anext(aiter(stream))
            assert first.type == "response.created"
            elsewhere = await there.responses.retrieve(first.response.id, stream=True)
            seen = [event.to_dict() async for event in elsewhere]
            assert seen == [first.to_dict(), *[event.to_dict() async for event in stream]]
    await one.aclose()
    await other.aclose()


async def test_foreground_response_cannot_be_streamed_again() -> None:
    async with serve_openai(make_agent()) as served, served.client() as client:
        response = await client.responses.create(model="clerk", input="Go")
        with pytest.raises(BadRequestError, match="background=true"):
            await client.responses.retrieve(response.id, stream=True)
