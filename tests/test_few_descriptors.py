"""A process that may open few files: what cannot be opened is told as that, nothing hangs, and all is given back."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import pytest

from rxloop.testing import OfflineModel
from support.offline_server import serve_offline

CROWD = Path(__file__).parent / "support/processes/many_runs.py"

pytestmark = pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="descriptors are counted in /proc")


@pytest.mark.parametrize("transport", ["httpx", "aiohttp"])
async def test_two_hundred_runs_with_64_descriptors(transport: str, tmp_path: Path) -> None:
    with serve_offline(OfflineModel(delay=0.02)) as url:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-W", "error", CROWD, url, transport, tmp_path, stdout=asyncio.subprocess.PIPE
        )
        async with asyncio.timeout(60):
            out, _ = await process.communicate()
    assert process.returncode == 0
    told = json.loads(out)
    refused = "connection True True"
    assert set(told["crowd"]) == {"answered", refused}
    assert sum(told["crowd"].values()) == 200
    assert told["crowd"]["answered"] > 20
    assert (told["no socket"], told["no file"]) == (refused, [True, True])
    assert (told["waits"], told["goes on"], told["again"]) == (True, "Hi.", "answered")
    assert told["left"] == 0
