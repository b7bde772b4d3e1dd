"""Runs that are killed while a tool writes an artifact, and go on in another process: every chunk once."""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from rxloop import ArtifactUpdateEvent
from rxloop.protocol.ids import make_id
from support.crash.artifact_writer import CHUNKS, stores

FILER = Path(__file__).parents[1] / "support/crash/artifact_writer.py"
ROUNDS = int(os.environ.get("RXLOOP_KILLS", "12")) // 12


@pytest.mark.parametrize("kind", ["folder", "sqlite"])
@pytest.mark.parametrize("number", range(ROUNDS))
def test_a_run_that_is_killed_while_it_writes_writes_every_chunk_once(kind: str, number: int, tmp_path: Path) -> None:
    task_id, kills, randomly = make_id(), 0, random.Random(f"{kind} {number}")
    while True:
        command = [sys.executable, str(FILER), str(tmp_path), kind, task_id]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            # Each chunk is a line, as soon as it is on the stream.
            lines = iter(process.stdout.readline, "")
            seen = [line for line, _ in zip(lines, range(randomly.randint(1, 25)), strict=False)]
            if "done\n" in seen or kills == 4:
                seen += lines
                assert process.wait() == 0
                break
            process.kill()
            kills += 1
    assert kills > 1

    async def look() -> None:
        log, store = stores(tmp_path, kind)
        expected = [f"line {n}\n" for n in range(CHUNKS)]
        [record] = await log.list_runs()
        content = await store.read(record.context_id, "report.md")
        assert content.decode().splitlines(keepends=True) == expected
        told = [event for event in await log.read(task_id) if isinstance(event, ArtifactUpdateEvent)]
        assert [event.index for event in told] == [*range(CHUNKS)]
        assert [event.data for event in told] == expected
        assert record.attempt == kills + 1
        await store.aclose()
        await log.aclose()

    asyncio.run(look())
