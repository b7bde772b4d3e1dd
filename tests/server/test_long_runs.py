"""States and graphs of long runs, computed without blocking the event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from typing_extensions import override

from rxloop import Agent, Event, MemoryEventLog
from rxloop.server import Principal, ServerLimits
from rxloop.testing import ScriptedModel
from support.api_server import make_client, serve_api

PATHS = ["state", "graph", "graph?form=mermaid", "graph?form=html"]


class WatchedEvents(list[Event]):
    """Events that record the threads that iterate over them."""

    def __init__(self, events: Any, threads: list[threading.Thread]) -> None:
        super().__init__(events)
        self._threads = threads

    @override
    def __iter__(self) -> Iterator[Event]:
        self._threads.append(threading.current_thread())
        return super().__iter__()


class WatchedLog(MemoryEventLog):
    """Event log that returns watched events."""

    def __init__(self) -> None:
        super().__init__()
        self.threads: list[threading.Thread] = []

    @override
    async def read(self, *args: Any, **options: Any) -> Any:
        return WatchedEvents(await super().read(*args, **options), self.threads)


def make_clerk() -> Agent[Any, Any]:
    return Agent(ScriptedModel("Hello."), name="clerk")


@pytest.mark.parametrize("path", PATHS)
async def test_events_are_folded_by_one_thread_outside_of_the_event_loop(path: str) -> None:
    log = WatchedLog()
    async with serve_api(make_clerk(), log=log) as served, make_client(served.url) as ann:
        task_id = (await ann.post("/runs?wait=10", json={"input": "Hi"})).json()["taskId"]
        log.threads.clear()
        responses = await asyncio.gather(*[ann.get(f"/runs/{task_id}/{path}") for _ in range(10)])
        assert {each.status_code for each in responses} == {200}
        assert len(log.threads) == 10
        assert threading.current_thread() not in log.threads
        assert len(set(log.threads)) == 1


@pytest.mark.parametrize("path", PATHS)
async def test_request_for_a_fold_counts_as_a_stream(path: str) -> None:
    limits = ServerLimits(streams=1)
    async with serve_api(make_clerk(), limits=limits) as served, make_client(served.url) as ann:
        task_id = (await ann.post("/runs?wait=10", json={"input": "Hi"})).json()["taskId"]
        with served.gateway.reserve_stream(Principal("ann")):
            refused = await ann.get(f"/runs/{task_id}/{path}")
        accepted = await ann.get(f"/runs/{task_id}/{path}")
    assert (refused.status_code, refused.json()["error"]["code"]) == (429, "too_many")
    assert refused.headers["retry-after"]
    assert accepted.status_code == 200
