"""Fair scheduling of requests, in virtual time."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any

from rxloop import Agent, MemoryEventLog, ModelRequest, Runtime, tool
from rxloop.server import api, bearer
from rxloop.server.core.request_slots import (
    ABANDONED_PAUSE,
    ACTIVE_SECONDS,
    BODY_BURST,
    BODY_RATE,
    LARGE_BODY,
    MAX_PAUSE,
    MAX_PAUSES,
    SHARE,
    RequestSlots,
    release_slot,
)
from rxloop.testing import ScriptedModel, call
from support.api_server import make_client, serve_api
from support.asgi_client import send_request
from support.nested_agents import in_virtual_time


class Requests:
    """Requests that hold a slot until they are released."""

    def __init__(self) -> None:
        self.slots = RequestSlots()
        self.started: list[str] = []
        self.tasks: dict[str, asyncio.Task[None]] = {}
        self._released: dict[str, asyncio.Event] = {}

    async def start(self, *names: str) -> None:
        """Start requests, named for their principal and a number such as `ann1`."""
        for name in names:
            self._released[name] = asyncio.Event()
            self.tasks[name] = asyncio.create_task(self._hold(name))
        await asyncio.sleep(0.01)

    async def release(self, *names: str) -> None:
        for name in names:
            self._released[name].set()
        await asyncio.sleep(MAX_PAUSE + 0.01)

    async def _hold(self, name: str) -> None:
        principal, _, size = name.partition("/")
        async with self.slots.acquire(principal.rstrip("0123456789"), int(size or 0)):
            self.started.append(name)
            await self._released[name].wait()


def make_names(principal: str, count: int) -> list[str]:
    return [f"{principal}{number}" for number in range(count)]


@in_virtual_time
async def test_principal_without_competitors_does_not_wait() -> None:
    requests = Requests()
    await requests.start(*make_names("ann", 60))
    assert len(requests.started) == 60


@in_virtual_time
async def test_active_principals_share_the_slots_in_order() -> None:
    requests = Requests()
    await requests.start("bob0", *make_names("eve", 5))
    assert requests.started == ["bob0", "eve0", "eve1"]
    await requests.start("bob1")
    assert requests.started[3:] == ["bob1"]
    await requests.release("eve0")
    await requests.release("eve1")
    assert requests.started[4:] == ["eve2", "eve3"]


@in_virtual_time
async def test_request_with_a_large_body_needs_all_slots_of_its_principal() -> None:
    requests = Requests()
    large = f"eve0/{LARGE_BODY}"
    await requests.start("bob0", large, "eve1")
    assert requests.started == ["bob0", large]
    await requests.release(large)
    assert requests.started[2:] == ["eve1"]
    await requests.start(f"eve2/{LARGE_BODY}", f"eve3/{LARGE_BODY - 1}")
    assert requests.started[3:] == []
    await requests.release("eve1")
    assert requests.started[3:] == [f"eve2/{LARGE_BODY}"]


@in_virtual_time
async def test_principal_with_abandoned_requests_has_one_request_at_a_time() -> None:
    requests = Requests()
    await requests.start("bob0")
    requests.slots.note_abandoned("eve")
    await requests.start("eve0", "eve1", "bob1")
    assert requests.started == ["bob0", "eve0", "bob1"]
    await asyncio.sleep(ACTIVE_SECONDS + 0.1)
    await requests.release("eve0")
    await requests.start("eve2", "eve3")
    await requests.release("eve1")
    assert requests.started[3:] == ["eve1", "eve2", "eve3"]


@in_virtual_time
async def test_principal_without_slots_stays_active_for_a_second() -> None:
    requests = Requests()
    await requests.start("bob0")
    await requests.release("bob0")
    await requests.start(*make_names("eve", 5))
    assert requests.started[1:] == ["eve0", "eve1"]
    await asyncio.sleep(ACTIVE_SECONDS)
    await requests.release("eve0")
    assert requests.started[3:] == ["eve2", "eve3", "eve4"]


async def measure_pause(others: int, waiting: int, seconds: float, *, abandons: bool = False) -> float:
    """Return the time between the end of a request and the start of the next request of its principal."""
    slots, loop = RequestSlots(), asyncio.get_running_loop()
    times: list[float] = []

    async def hold() -> None:
        async with slots.acquire("eve", LARGE_BODY):
            times.append(loop.time())
            await asyncio.sleep(seconds)
            if abandons:
                slots.note_abandoned("eve")
            times.append(loop.time())

    for number in range(others):
        async with slots.acquire(f"bob{number}"):
            pass
    requests = [asyncio.create_task(hold()) for _ in range(1 + waiting)]
    await requests[0]
    if not waiting:
        requests.append(asyncio.create_task(hold()))
    await asyncio.gather(*requests)
    return round(times[2] - times[1], 6)


@in_virtual_time
async def test_principal_with_queued_requests_pauses_for_each_other_principal() -> None:
    assert await measure_pause(others=1, waiting=1, seconds=0.02) == 0.02
    assert await measure_pause(others=3, waiting=1, seconds=0.02) == 0.06
    assert await measure_pause(others=10, waiting=5, seconds=0.02) == MAX_PAUSES * 0.02
    assert await measure_pause(others=10, waiting=1, seconds=0.5) == MAX_PAUSE


@in_virtual_time
async def test_principal_with_abandoned_requests_pauses_for_a_minimum_time() -> None:
    assert await measure_pause(others=3, waiting=1, seconds=0, abandons=True) == ABANDONED_PAUSE
    assert await measure_pause(others=3, waiting=1, seconds=0.02, abandons=True) == 0.06
    assert await measure_pause(others=0, waiting=1, seconds=0, abandons=True) <= 0


@in_virtual_time
async def test_principal_without_queued_requests_does_not_pause() -> None:
    assert await measure_pause(others=10, waiting=0, seconds=0.02) == 0
    assert await measure_pause(others=0, waiting=5, seconds=0.02) <= 0


@in_virtual_time
async def test_bodies_above_the_burst_are_read_at_the_body_rate_if_others_are_active() -> None:
    slots, loop = RequestSlots(), asyncio.get_running_loop()

    async def measure(principal: str) -> float:
        started = loop.time()
        for _ in range(2):
            await slots.pace_body(principal, BODY_BURST)
        return round(loop.time() - started, 6)

    assert await measure("eve") == 0
    await asyncio.sleep(2 * BODY_BURST / BODY_RATE + 0.01)
    async with slots.acquire("bob"):
        assert await measure("eve") == BODY_BURST / BODY_RATE
        assert await measure("ann") == BODY_BURST / BODY_RATE


@in_virtual_time
async def test_cancelled_request_neither_keeps_a_slot_nor_takes_one() -> None:
    requests = Requests()
    await requests.start("bob0", *make_names("eve", SHARE + 2))
    waiting = f"eve{SHARE}"
    requests.tasks[waiting].cancel()
    await requests.release("eve0")
    assert requests.started[-1] == f"eve{SHARE + 1}"
    requests.tasks["eve1"].cancel()
    await requests.start("eve9")
    assert requests.started[-1] == "eve9"


@in_virtual_time
async def test_request_cancelled_with_its_slot_gives_it_to_the_next_one() -> None:
    requests = Requests()
    await requests.start("bob0", *make_names("eve", SHARE + 2))
    # The request receives its slot and is cancelled before it continues.
    requests.tasks["eve0"].add_done_callback(lambda _: requests.tasks[f"eve{SHARE}"].cancel())
    await requests.release("eve0")
    assert requests.started[-1] == f"eve{SHARE + 1}"


@in_virtual_time
async def test_slot_is_released_once_before_a_long_wait() -> None:
    requests = Requests()
    async with AsyncExitStack() as waits:
        await requests.start("bob0")
        for _ in range(5):
            await waits.enter_async_context(requests.slots.acquire("eve"))
            release_slot()
            release_slot()
        await requests.start("eve0", "eve1", "eve2")
        assert requests.started[1:] == ["eve0", "eve1"]


async def test_requests_that_wait_for_runs_do_not_hold_slots() -> None:
    everyone = asyncio.Barrier(6)

    @tool
    async def meet() -> str:
        """Wait until all runs have called this tool."""
        await everyone.wait()
        return "met"

    def answer(request: ModelRequest) -> Any:
        return "Hello." if request.messages[-1].role == "tool" else call("meet")

    agent = Agent(ScriptedModel(*[answer] * 12), tools=[meet], name="clerk")
    async with serve_api(agent, log=MemoryEventLog()) as served:
        async with make_client(served.url) as ann, make_client(served.url, "bob-key") as bob:
            calls = [bob.post("/runs?wait=20", json={"input": "Hi"})]
            calls += [ann.post("/runs?wait=20", json={"input": "Hi"}) for _ in range(5)]
            responses = await asyncio.gather(*calls)
    assert [each.json()["content"] for each in responses] == ["Hello."] * 6


@in_virtual_time
async def test_request_is_dropped_if_its_client_disconnects_while_it_is_queued() -> None:
    async with Runtime({"clerk": Agent(ScriptedModel(*["Hello."] * 3), name="clerk")}, log=MemoryEventLog()) as runtime:
        app, slots = api(runtime, auth=bearer({"ann-key": "ann"})), runtime.log.local.get(RequestSlots)
        headers = {"authorization": "Bearer ann-key", "content-type": "application/json"}

        async def start(*, leaves: bool) -> asyncio.Task[Any]:
            request = send_request(app, "/runs", b'{"input": "Hi"}', headers, leaves=leaves)
            task = asyncio.create_task(request)
            await asyncio.sleep(0.01)
            return task

        async with AsyncExitStack() as others:
            for name in ("bob", "ann", "ann"):
                await others.enter_async_context(slots.acquire(name))
            abandoned, kept = await start(leaves=True), await start(leaves=False)
        assert (await abandoned).status == 499
        assert slots.has_abandoned("ann")
        assert (await kept).status == 202
        assert len(await runtime.log.list_runs()) == 1
        # Without a queue and a pause, the run starts, and the client can find it later.
        await asyncio.sleep(MAX_PAUSE)
        assert (await (await start(leaves=True))).status == 202


async def test_client_that_leaves_while_it_waits_for_its_run_has_abandoned_its_request() -> None:
    ends = asyncio.Event()

    @tool
    async def work() -> str:
        """Work until the end of the test."""
        await ends.wait()
        return "done"

    agent = Agent(ScriptedModel(call("work"), "Hello."), tools=[work], name="clerk")
    async with Runtime({"clerk": agent}, log=MemoryEventLog()) as runtime:
        app, slots = api(runtime, auth=bearer({"ann-key": "ann"})), runtime.log.local.get(RequestSlots)
        headers = {"authorization": "Bearer ann-key", "content-type": "application/json"}
        answer = await send_request(app, "/runs?wait=5", b'{"input": "Hi"}', headers, leaves=True)
        assert answer.status == 202
        assert slots.has_abandoned("ann")
        ends.set()
