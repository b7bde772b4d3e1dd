"""DNS lookups of webhook hosts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from typing_extensions import override

from rxloop.server.a2a.webhook_addresses import UnsafeAddress, resolve_addresses


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
