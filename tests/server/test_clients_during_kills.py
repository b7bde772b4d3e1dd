"""Chaos test with twenty official clients and two servers, whose processes are killed repeatedly.

`RXLOOP_CHAOS_KILLS=60 pytest -s tests/server/test_clients_during_kills.py` kills 60 workers, one every three seconds,
and a server every twenty seconds.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections import Counter
from collections.abc import Iterator
from itertools import cycle, islice

import pytest

from rxloop import PostgresEventLog
from rxloop.client import Client
from support.clients.replica_clients import (
    KINDS,
    MCP,
    ClientView,
    Node,
    OfficialClient,
    UnknownRun,
    find_mismatches,
    node,
    open_client,
)
from support.postgres.server import database
from support.processes.cluster import Cluster, cluster

KILLS = int(os.environ.get("RXLOOP_CHAOS_KILLS", "0"))
CLIENTS = 20
KILL_EVERY, KILL_SERVER_EVERY = 3.0, 20.0
TIMEOUT = 180.0
"""Timeout in seconds for all runs after the last kill."""

pytestmark = [
    pytest.mark.skipif(not KILLS, reason="takes long: set RXLOOP_CHAOS_KILLS to the number of kills"),
    pytest.mark.service("postgres"),
    pytest.mark.service("node-clients"),
    pytest.mark.timeout(KILLS * KILL_EVERY + 600),
]


@pytest.fixture
def processes(postgres_server: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("cluster")
    with database(postgres_server) as dsn, cluster(dsn, folder, workers=4) as started:
        yield started


class Load:
    """Load test that records mismatches between clients and the log."""

    def __init__(self, cluster: Cluster, log: PostgresEventLog, process: Node, api: Client) -> None:
        self._cluster, self._log, self._node, self._api = cluster, log, process, api
        self._random = random.Random(7)
        self.stop = asyncio.Event()
        self.counts: Counter[str] = Counter()
        self.errors: list[str] = []

    async def run_client(self, kind: str) -> None:
        """Hold conversations sequentially until `stop` is set."""
        while not self.stop.is_set():
            client = await open_client(self._node, kind, self._log)
            prompt = self._random.choice(("Tell", "Look and tell", "Pay 5", "Talk on"))
            cancelling = asyncio.create_task(self._cancel(client)) if prompt == "Talk on" else None
            try:
                shown = await self._converse(client, prompt)
            except UnknownRun:
                self.counts["unknown run"] += 1
                continue
            finally:
                if cancelling is not None:
                    cancelling.cancel()
            if shown is None:
                continue
            run = await self._log.get_record(await client.task_id())
            self.counts[f"{prompt}: {run.state}"] += 1
            self.counts["attempts"] += run.attempt
            errors = await find_mismatches(kind, shown, self._log, run.task_id)
            self.errors += [f"{run.task_id}, {prompt}, attempt {run.attempt}: {each}" for each in errors]

    async def _converse(self, client: OfficialClient, prompt: str) -> ClientView | None:
        connecting = client.send(self._random.choice(self._cluster.urls), prompt)
        while True:
            url = self._random.choice(self._cluster.urls)
            try:
                shown = await connecting
            except UnknownRun:
                raise
            except (ConnectionError, ExceptionGroup):
                self.counts["reconnected"] += 1
                await asyncio.sleep(0.5)
                connecting = client.reconnect(url)
                continue
            try:
                async with asyncio.timeout(5):
                    await client.task_id()
            except TimeoutError:
                # A starting or draining server has refused the request.
                self.counts[f"refused: {shown.state}"] += 1
                return None
            if (await self._log.get_record(await client.task_id())).state != "input-required":
                return shown
            connecting = client.answer(url, True)

    async def _cancel(self, client: OfficialClient) -> None:
        task_id = await client.task_id()
        await asyncio.sleep(self._random.uniform(1, 8))
        await self._api.cancel(task_id)

    async def kill_repeatedly(self) -> None:
        servers = cycle(self._cluster.servers)
        for number in range(1, KILLS + 1):
            await asyncio.sleep(KILL_EVERY)
            victims = [self._random.choice(self._cluster.workers)]
            if number % round(KILL_SERVER_EVERY / KILL_EVERY) == 0:
                victims.append(next(servers))
            for each in victims:
                await asyncio.to_thread(each.kill)
                each.restart()
                self.counts[f"killed a {each.name[:-1]}"] += 1
        self.stop.set()


async def test_clients_see_the_events_of_the_log_while_processes_are_killed(processes: Cluster) -> None:
    log = PostgresEventLog(processes.dsn)
    async with node() as process, processes.clients() as (api, _):
        load = Load(processes, log, process, api)
        kinds = islice(cycle([*KINDS, *MCP]), CLIENTS)
        clients = [asyncio.create_task(load.run_client(kind), name=kind) for kind in kinds]
        await load.kill_repeatedly()
        _, late = await asyncio.wait(clients, timeout=TIMEOUT)
        load.errors += [f"{each.get_name()} did not end" for each in late]
        for each in late:
            each.cancel()
        await asyncio.gather(*clients, return_exceptions=True)
    await log.aclose()
    print(*(f"{count:6} {outcome}" for outcome, count in sorted(load.counts.items())), *load.errors, sep="\n")
    assert [each.exception() for each in clients if not each.cancelled() and each.exception()] == []
    assert load.errors == []
    assert sum(load.counts[outcome] for outcome in load.counts if "completed" in outcome) > CLIENTS
