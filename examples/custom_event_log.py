"""Custom event log that stores JSON lines, with six methods."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import orjson
from typing_extensions import Unpack

from rxloop import Agent, Event, EventLog, RunRecord
from rxloop.pipeline.records import RunFilter, RunQuery, Until
from rxloop.storage.rules import check_append, make_unknown_run_error, poll_events
from rxloop.testing import ScriptedModel


class FolderEventLog(EventLog):
    """Event log with a file per run and a line per batch. Lines truncated by a crash are overwritten.

    It does not support multiple processes, because files are not locked.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        files = sorted(root.glob("*.jsonl"))
        self._files = {str(orjson.loads(file.read_bytes().split(b"\n")[0])["run"]): file for file in files}

    def _load(self, task_id: str) -> tuple[list[Event], str, int]:
        """Return the events of a run along with the last writer and the size of all complete lines."""
        if task_id not in self._files:
            raise make_unknown_run_error(task_id)
        lines = self._files[task_id].read_bytes().split(b"\n")[:-1]
        batches = [orjson.loads(line) for line in lines]
        events = [Event.from_json(text) for batch in batches for text in batch["events"]]
        return events, batches[-1]["writer"], sum(len(line) + 1 for line in lines)

    async def append(self, task_id: str, events: Sequence[Event], *, expected_seq: int, writer: str = "") -> None:
        stored, last_writer, size = self._load(task_id) if task_id in self._files else ([], "", 0)
        new = check_append(task_id, events, stored, expected_seq=expected_seq, writer=writer, last_writer=last_writer)
        if not new:
            return
        file = self._files.get(task_id, self._root / f"{len(self._files):09}.jsonl")
        batch = {"run": task_id, "writer": writer, "events": [event.to_json().decode() for event in new]}
        with file.open("r+b" if size else "xb") as lines:
            lines.truncate(size)
            lines.seek(size)
            lines.write(orjson.dumps(batch) + b"\n")
            lines.flush()
            os.fsync(lines.fileno())
        self._files[task_id] = file

    async def read(self, task_id: str, *, after_seq: int = 0, deltas: bool = False) -> Sequence[Event]:
        return [event for event in self._load(task_id)[0] if event.seq > after_seq]

    def follow(
        self, task_id: str, *, after_seq: int = 0, deltas: bool = False, until: Until = "attempt"
    ) -> AsyncIterator[Event]:
        return poll_events(self, task_id, after_seq=after_seq, until=until)

    async def get_record(self, task_id: str) -> RunRecord:
        return RunRecord.from_events(task_id, self._load(task_id)[0])

    async def list_runs(self, **query: Unpack[RunQuery]) -> Sequence[RunRecord]:
        return RunFilter(**query).select(
            RunRecord.from_events(task_id, self._load(task_id)[0]) for task_id in self._files
        )

    async def aclose(self) -> None:
        """Do nothing, because no files are kept open."""


async def main() -> None:
    """Ask two questions in a conversation, using a new log object for the second question."""
    with TemporaryDirectory() as folder:
        first = Agent(ScriptedModel("Hello, Ann."), log=FolderEventLog(Path(folder)))
        await first.run("My name is Ann.", context_id="ann")

        log = FolderEventLog(Path(folder))
        second = Agent(ScriptedModel("You are Ann."), log=log)
        result = await second.run("Who am I?", context_id="ann")
        print(result.output)
        for record in await log.list_runs(context_id="ann"):
            print(record.state, record.seq, "events")


if __name__ == "__main__":
    asyncio.run(main())
