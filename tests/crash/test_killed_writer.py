"""Runs killed while a tool writes an artifact, and resumed in another process."""

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

PROGRAM = Path(__file__).parents[1] / "support/crash/artifact_writer.py"
ROUNDS = int(os.environ.get("RXLOOP_KILLS", "12")) // 12


@pytest.mark.parametrize("kind", ["folder", "sqlite"])
@pytest.mark.parametrize("number", range(ROUNDS))
def test_run_killed_while_it_writes_an_artifact_writes_each_chunk_once(kind: str, number: int, tmp_path: Path) -> None:
    task_id, kills, rng = make_id(), 0, random.Random(f"{kind} {number}")
    while True:
        command = [sys.executable, str(PROGRAM), str(tmp_path), kind, task_id]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            # The process prints a line for each published chunk.
            lines = iter(process.stdout.readline, "")
            output = [line for line, _ in zip(lines, range(rng.randint(1, 25)), strict=False)]
            if "done\n" in output or kills == 4:
                output += lines
                assert process.wait() == 0
                break
            process.kill()
            kills += 1
    assert kills > 1

    async def check_artifact() -> None:
        log, store = stores(tmp_path, kind)
        expected = [f"line {n}\n" for n in range(CHUNKS)]
        [record] = await log.list_runs()
        content = await store.read(record.context_id, "report.md")
        assert content.decode().splitlines(keepends=True) == expected
        updates = [event for event in await log.read(task_id) if isinstance(event, ArtifactUpdateEvent)]
        assert [event.index for event in updates] == [*range(CHUNKS)]
        assert [event.data for event in updates] == expected
        # A process that is killed before it has read the stored chunks starts no attempt.
        assert 1 < record.attempt <= kills + 1
        await store.aclose()
        await log.aclose()

    asyncio.run(check_artifact())
