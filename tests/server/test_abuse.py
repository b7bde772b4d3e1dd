"""A hostile client and an honest one at a real server process, with counted descriptors and memory."""

from __future__ import annotations

import asyncio
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import httpx
import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def load_benchmark() -> Any:
    sys.path.insert(0, str(BENCHMARKS))
    try:
        return import_module("abuse")
    finally:
        sys.path.remove(str(BENCHMARKS))


abuse = load_benchmark()

pytestmark = pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="descriptors are counted in /proc")

KINDS = (
    "idle connections",
    "slow bodies",
    "slow readers",
    "many streams",
    "many sessions",
    "many messages",
    "wide JSON",
)
"""Kinds of abuse that hold something, or that would block the event loop."""
MAX_MEMORY = 250
"""Memory in MB that docs/server.md allows for a principal."""


def count_descriptors(pid: int) -> int:
    return len([*Path(f"/proc/{pid}/fd").iterdir()])


@pytest.mark.parametrize("kind", KINDS)
async def test_abuse_of_one_client_leaves_others_served(kind: str, tmp_path: Path) -> None:
    async with abuse.serve(tmp_path) as (url, pid):
        headers = {"authorization": f"Bearer {abuse.KEYS['user0']}"}
        async with httpx.AsyncClient(base_url=url, headers=headers, timeout=60) as honest:
            assert (await honest.post("/runs?wait=30", json={"input": "Hi"})).status_code == 200
            memory, descriptors = abuse.read_memory(pid), count_descriptors(pid)
            hostile = abuse.Hostile(url)
            await abuse.KINDS[kind](hostile)
            during = await honest.post("/runs?wait=30", json={"input": "Hi"})
            assert abuse.read_memory(pid) - memory < MAX_MEMORY
            for writer in hostile.sockets:
                writer.transport.abort()
            await hostile.http.aclose()
            while count_descriptors(pid) > descriptors + 5:  # noqa: ASYNC110 (another process)
                await asyncio.sleep(0.01)
            after = await honest.post("/runs?wait=30", json={"input": "Hi"})
        assert [each.json()["content"] for each in (during, after)] == ["It is warm."] * 2
        assert not [status for status in hostile.statuses if status >= 500 and status != 503]
        if kind in ("many sessions", "many messages"):
            assert hostile.statuses[429]
