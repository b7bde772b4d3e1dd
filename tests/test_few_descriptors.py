"""Errors, hangs and leaks in a process with few file descriptors."""

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
async def test_two_hundred_runs_with_64_file_descriptors(transport: str, tmp_path: Path) -> None:
    with serve_offline(OfflineModel(delay=0.02)) as url:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-W", "error", CROWD, url, transport, tmp_path, stdout=asyncio.subprocess.PIPE
        )
        async with asyncio.timeout(60):
            out, _ = await process.communicate()
    assert process.returncode == 0
    report = json.loads(out)
    refused = "connection True True"
    assert set(report["crowd"]) == {"answered", refused}
    assert sum(report["crowd"].values()) == 200
    assert report["crowd"]["answered"] > 20
    assert (report["no socket"], report["no file"]) == (refused, [True, True])
    assert (report["waits"], report["goes on"], report["again"]) == (True, "Hi.", "answered")
    assert report["left"] == 0
