"""DNS lookups of webhook hosts."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from a2a.types import a2a_pb2 as pb
from typing_extensions import override

from rxloop import Agent
from rxloop.server import PushOptions
from rxloop.server.a2a import webhook_addresses
from rxloop.server.a2a.webhook_addresses import UnsafeAddress, post, resolve_addresses
from rxloop.support.threads import run_in_thread
from rxloop.testing import ScriptedModel
from support.clients.a2a import message_request, read_task, serve_a2a


class CountingExecutor(ThreadPoolExecutor):
    """Executor that counts its functions."""

    submitted = 0

    @override
    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        self.submitted += 1
        return super().submit(fn, *args, **kwargs)


async def test_webhook_host_is_resolved_outside_of_the_default_executor() -> None:
    with CountingExecutor(max_workers=1) as executor:
        asyncio.get_running_loop().set_default_executor(executor)
        assert await resolve_addresses(httpx.URL("https://93.184.216.34/hook"), owner=None) == ["93.184.216.34"]
        with pytest.raises(UnsafeAddress, match="public address"):
            await resolve_addresses(httpx.URL("https://localhost/hook"), owner=None)
        with pytest.raises(UnsafeAddress, match=r"cannot resolve the host 'no-such-host\.invalid'"):
            await resolve_addresses(httpx.URL("https://no-such-host.invalid/hook"), owner=None)
    assert executor.submitted == 0


async def test_webhook_with_a_private_address_is_sent_without_the_default_executor() -> None:
    def respond(request: httpx.Request) -> httpx.Response:
        assert request.headers["host"] == "localhost:8000"
        return httpx.Response(204 if request.url.host in ("127.0.0.1", "::1") else 500)

    with CountingExecutor(max_workers=1) as executor:
        asyncio.get_running_loop().set_default_executor(executor)
        async with httpx.AsyncClient(transport=httpx.MockTransport(respond)) as client:
            assert await post(client, "http://localhost:8000/hook", b"", {}, owner=None, allow_private=True) == 204
            with pytest.raises(UnsafeAddress, match=r"cannot resolve the host 'no-such-host\.invalid'"):
                await post(client, "http://no-such-host.invalid/hook", b"", {}, owner=None, allow_private=True)
    assert executor.submitted == 0


async def test_lookups_that_hang_leave_threads_for_other_work(monkeypatch: pytest.MonkeyPatch) -> None:
    released, lookups = threading.Event(), threading.Semaphore(0)

    def hang(*args: Any, **options: Any) -> Any:
        lookups.release()
        released.wait()
        raise OSError

    monkeypatch.setattr(socket, "getaddrinfo", hang)
    tasks = [
        asyncio.create_task(resolve_addresses(httpx.URL(f"https://{n}.example/hook"), owner=None)) for n in range(100)
    ]
    try:
        for _ in range(32):
            assert await run_in_thread(lambda: lookups.acquire(timeout=10))
        # The pool of the lookups is full.
        assert not lookups.acquire(blocking=False)
    finally:
        released.set()
        errors = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(isinstance(error, UnsafeAddress) for error in errors)


async def test_hanging_lookups_of_a_principal_leave_threads_for_other_principals(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    released, lookups = threading.Event(), threading.Semaphore(0)

    def resolve(host: str, *args: Any, **options: Any) -> Any:
        if host == "live.example":
            return [(None, None, None, "", ("93.184.216.34", 443))]
        lookups.release()
        released.wait()
        raise OSError

    async def look_up(host: str, owner: str) -> list[str]:
        return await resolve_addresses(httpx.URL(f"https://{host}.example/hook"), owner=owner)

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    tasks = [asyncio.create_task(look_up(f"dead-{n}", "mallory")) for n in range(100)]
    try:
        for _ in range(2):
            assert await run_in_thread(lambda: lookups.acquire(timeout=10))
        # Mallory gives up waiting, but the threads continue to wait for the name server.
        for task in tasks[:2]:
            task.cancel()
        assert await asyncio.wait_for(look_up("live", "ann"), 10) == ["93.184.216.34"]
        assert not lookups.acquire(blocking=False)
    finally:
        released.set()
        await asyncio.gather(*tasks, return_exceptions=True)
    assert await look_up("live", "mallory") == ["93.184.216.34"]


async def test_lookups_of_registration_and_delivery_count_for_their_principal(monkeypatch: pytest.MonkeyPatch) -> None:
    owners: asyncio.Queue[str | None] = asyncio.Queue()
    answers: list[Any] = [[(None, None, None, "", ("93.184.216.34", 443))]]

    async def run(function: Callable[[], Any], *, threads: Any, owner: str | None) -> Any:
        owners.put_nowait(owner)
        if not answers:
            raise OSError
        return answers.pop()

    monkeypatch.setattr(webhook_addresses, "run_in_thread", run)
    agent = Agent(ScriptedModel("Hi."), name="clerk")
    async with serve_a2a(agent, push=PushOptions(max_attempts=1)) as served, served.client(streaming=False) as client:
        webhook = pb.TaskPushNotificationConfig(url="https://hook.example/")
        config = pb.SendMessageConfiguration(task_push_notification_config=webhook)
        await read_task(client.send_message(message_request(config=config)))
        assert [await asyncio.wait_for(owners.get(), 10) for _ in range(2)] == ["ann", "ann"]
