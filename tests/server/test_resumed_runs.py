"""Runs that clients of the HTTP API resume after their end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from rxloop import Agent, MemoryEventLog, Runtime, tool
from rxloop.client import Client
from rxloop.errors import ApiError, RateLimited
from rxloop.server import Principal, api, bearer
from rxloop.testing import ScriptedModel, call
from support.api_server import serve_app

AUTH = bearer({"ann-key": "ann", "bob-key": "bob", "team-key": Principal("team", frozenset({"others"}))})


@tool(approve="Sure?")
async def pay() -> str:
    """Pays."""
    return "paid"


@asynccontextmanager
async def serve(*turns: Any, **options: Any) -> AsyncGenerator[tuple[Runtime, str]]:
    agent = Agent(ScriptedModel(*turns), name="clerk", tools=[pay], thoughts=False)
    runtime = Runtime({"clerk": agent}, log=MemoryEventLog(), grace=0.2)
    async with runtime, serve_app(api(runtime, auth=AUTH, **options)) as url:
        yield runtime, url


async def test_client_resumes_a_failed_run_and_waits_for_its_end() -> None:
    async with serve(RateLimited("busy"), "Done.") as (_, url), Client(url, token="ann-key") as client:
        failed = await client.start("clerk", "Go.", wait=10)
        assert failed.error is not None
        assert (failed.state, failed.error.retryable) == ("failed", True)
        ended = await client.resume(failed.task_id, after=failed.cursor, wait=10)
        again = await client.resume(failed.task_id, after=failed.cursor)
    assert (ended.state, ended.content) == ("completed", "Done.")
    assert again.cursor == ended.cursor


async def test_simultaneous_requests_resume_a_run_once() -> None:
    async with serve(RateLimited("busy"), "Done.", "Again.") as (runtime, url), Client(url, token="ann-key") as client:
        failed = await client.start("clerk", "Go.", wait=10)
        await asyncio.gather(*(client.resume(failed.task_id, after=failed.cursor, wait=10) for _ in range(5)))
        events = await runtime.log.read(failed.task_id)
    assert [event.kind for event in events].count("llm-call") == 2


async def test_completed_run_is_not_resumed() -> None:
    async with serve("Done.") as (_, url), Client(url, token="ann-key") as client:
        ended = await client.start("clerk", "Go.", wait=10)
        with pytest.raises(ApiError, match="the run is completed, or its failure is permanent; fork it") as refused:
            await client.resume(ended.task_id)
    assert (refused.value.status, refused.value.code) == (409, "run_over")


async def test_waiting_run_requires_answers() -> None:
    async with serve(call("pay")) as (_, url), Client(url, token="ann-key") as client:
        waiting = await client.start("clerk", "Pay.", wait=10)
        with pytest.raises(ApiError, match="the run waits for answers") as refused:
            await client.resume(waiting.task_id)
    assert (refused.value.status, list(refused.value.fields or ())) == (422, ["inputs"])


async def test_only_the_owner_and_principals_with_the_scope_resume_a_run() -> None:
    async with serve(RateLimited("busy"), "Done.") as (_, url), Client(url, token="ann-key") as ann:
        failed = await ann.start("clerk", "Go.", wait=10)
        async with Client(url, token="bob-key") as bob:
            with pytest.raises(ApiError) as refused:
                await bob.resume(failed.task_id)
        assert refused.value.status == 404
        async with Client(url, token="team-key") as team:
            ended = await team.resume(failed.task_id, wait=10)
    assert ended.state == "completed"


async def test_run_that_a_later_run_has_ended_is_not_resumed() -> None:
    async with serve(call("pay"), "Later.") as (_, url), Client(url, token="ann-key") as client:
        waiting = await client.start("clerk", "Pay.", context_id="c", wait=10)
        await client.start("clerk", "Never mind.", context_id="c", wait=10)
        superseded = await client.record(waiting.task_id)
        with pytest.raises(ApiError, match="a later run of the conversation has ended this run") as refused:
            await client.resume(waiting.task_id)
    assert (superseded.state, superseded.reason, refused.value.code) == ("canceled", "superseded", "run_over")
