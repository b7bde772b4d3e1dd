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
from typing_extensions import override

from rxloop.server.a2a.webhook_addresses import UnsafeAddress, post, resolve_addresses
from rxloop.support.threads import run_in_thread


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
        assert await resolve_addresses(httpx.URL("https://93.184.216.34/hook")) == ["93.184.216.34"]
        with pytest.raises(UnsafeAddress, match="public address"):
            await resolve_addresses(httpx.URL("https://localhost/hook"))
        with pytest.raises(UnsafeAddress, match=r"cannot resolve the host 'no-such-host\.invalid'"):
            await resolve_addresses(httpx.URL("https://no-such-host.invalid/hook"))
    assert executor.submitted == 0


async def test_webhook_with_a_private_address_is_sent_without_the_default_executor() -> None:
    def respond(request: httpx.Request) -> httpx.Response:
        assert request.headers["host"] == "localhost:8000"
        return httpx.Response(204 if request.url.host in ("127.0.0.1", "::1") else 500)

    with CountingExecutor(max_workers=1) as executor:
        asyncio.get_running_loop().set_default_executor(executor)
        async with httpx.AsyncClient(transport=httpx.MockTransport(respond)) as client:
            assert await post(client, "http://localhost:8000/hook", b"", {}, allow_private=True) == 204
            with pytest.raises(UnsafeAddress, match=r"cannot resolve the host 'no-such-host\.invalid'"):
                await post(client, "http://no-such-host.invalid/hook", b"", {}, allow_private=True)
    assert executor.submitted == 0


async def test_lookups_that_hang_leave_threads_for_other_work(monkeypatch: pytest.MonkeyPatch) -> None:
    released, lookups = threading.Event(), threading.Semaphore(0)

    def hang(*args: Any, **options: Any) -> Any:
        lookups.release()
        released.wait()
        raise OSError

    monkeypatch.setattr(socket, "getaddrinfo", hang)
    tasks = [asyncio.create_task(resolve_addresses(httpx.URL(f"https://{n}.example/hook"))) for n in range(100)]
    try:
        for _ in range(8):
            assert await run_in_thread(lambda: lookups.acquire(timeout=10))
        # The pool of the lookups is full.
        assert not lookups.acquire(blocking=False)
    finally:
        released.set()
        errors = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(isinstance(error, UnsafeAddress) for error in errors)
