from __future__ import annotations

import asyncio
from contextlib import ExitStack

import httpx

from rxloop.providers._pool import STREAMS_PER_CLIENT, ClientPool


async def test_every_few_streams_have_a_client_of_their_own() -> None:
    pool = ClientPool()
    with ExitStack() as streams:
        lent = [streams.enter_context(pool.lease()) for _ in range(STREAMS_PER_CLIENT + 1)]
        assert len(set(map(id, lent))) == len(pool.clients) == 2
    with pool.lease() as again:
        assert again is lent[0]
    await pool.aclose()
    assert all(client.is_closed for client in lent)


async def test_nothing_is_made_before_the_first_stream_and_a_closed_pool_makes_anew() -> None:
    pool = ClientPool()
    assert pool.clients == []
    await pool.aclose()
    with pool.lease() as client:
        assert not client.is_closed
    await pool.aclose()
    await pool.aclose()


def test_each_event_loop_has_its_own_clients() -> None:
    pool = ClientPool()
    seen: list[httpx.AsyncClient] = []

    async def stream() -> None:
        with pool.lease() as client:
            seen.append(client)
        assert pool.clients == [client]

    asyncio.run(stream())
    asyncio.run(stream())
    assert seen[0] is not seen[1]


async def test_a_client_of_the_users_is_used_and_never_closed() -> None:
    async with httpx.AsyncClient() as own:
        pool = ClientPool(own)
        with pool.lease() as client:
            assert client is own
        await pool.aclose()
        assert not own.is_closed
