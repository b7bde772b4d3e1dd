"""Custom event log in Redis. Run `pip install redis`, start a server, and pass its URL to this program.

Several processes may share it: of two writers of a run, the second one fails. Six methods do not promise more:
- Leases and commands are in memory, so start, answer and cancel a run in the same process, or override their methods.
- Redis stores events on disk according to its configuration. By default, a crash loses those after the last snapshot.
- Each append and each read loads the whole run, and `list_runs` loads all runs.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Sequence
from typing import Any

import orjson
import redis.asyncio
from redis.exceptions import RedisError, WatchError
from typing_extensions import Unpack

from rxloop import Agent, Event, EventLog, RunRecord
from rxloop.errors import EventLogError
from rxloop.pipeline.records import RunFilter, RunQuery, Until
from rxloop.storage.rules import check_append, make_unknown_run_error, poll_events
from rxloop.testing import ScriptedModel


class RedisEventLog(EventLog):
    """Event log with a list of batches per run, and a list of all runs."""

    def __init__(self, url: str, prefix: str = "rxloop:") -> None:
        self._redis: Any = redis.asyncio.from_url(url)
        self._prefix, self._runs = f"{prefix}run:", f"{prefix}runs"

    async def append(self, task_id: str, events: Sequence[Event], *, expected_seq: int, writer: str = "") -> None:
        key = self._prefix + task_id
        try:
            async with self._redis.pipeline() as transaction:
                # Redis refuses the transaction if another writer has changed the key since.
                await transaction.watch(key)
                stored, last = _decode(await transaction.lrange(key, 0, -1))
                seq = expected_seq
                new = check_append(task_id, events, stored, expected_seq=seq, writer=writer, last_writer=last)
                if not new:
                    return
                transaction.multi()
                batch = {"writer": writer, "events": [event.to_json().decode() for event in new]}
                transaction.rpush(key, orjson.dumps(batch))
                if not stored:
                    transaction.rpush(self._runs, task_id)
                await transaction.execute()
        except WatchError:
            # The check now finds the events of the other writer.
            await self.append(task_id, events, expected_seq=expected_seq, writer=writer)
        except RedisError as error:
            raise EventLogError(f"run {task_id} was not stored: {error}") from error

    async def read(self, task_id: str, *, after_seq: int = 0, deltas: bool = False) -> Sequence[Event]:
        try:
            events, _ = _decode(await self._redis.lrange(self._prefix + task_id, 0, -1))
        except RedisError as error:
            raise EventLogError(f"run {task_id} was not read: {error}") from error
        if not events:
            raise make_unknown_run_error(task_id)
        return [event for event in events if event.seq > after_seq]

    def follow(
        self, task_id: str, *, after_seq: int = 0, deltas: bool = False, until: Until = "attempt"
    ) -> AsyncIterator[Event]:
        return poll_events(self, task_id, after_seq=after_seq, until=until)

    async def get_record(self, task_id: str) -> RunRecord:
        return RunRecord.from_events(task_id, await self.read(task_id))

    async def list_runs(self, **query: Unpack[RunQuery]) -> Sequence[RunRecord]:
        try:
            task_ids = [task_id.decode() for task_id in await self._redis.lrange(self._runs, 0, -1)]
        except RedisError as error:
            raise EventLogError(f"the runs were not read: {error}") from error
        return RunFilter(**query).select([await self.get_record(task_id) for task_id in task_ids])

    async def aclose(self) -> None:
        await self._redis.aclose()


def _decode(batches: Sequence[bytes]) -> tuple[list[Event], str]:
    """Return the events of a run and the last writer."""
    decoded = [orjson.loads(batch) for batch in batches]
    events = [Event.from_json(text) for batch in decoded for text in batch["events"]]
    return events, decoded[-1]["writer"] if decoded else ""


async def main(url: str, prefix: str = "rxloop:") -> None:
    """Ask two questions in a conversation, using a new log object for the second question."""
    for question, answer in (("My name is Ann.", "Hello, Ann."), ("Who am I?", "You are Ann.")):
        log = RedisEventLog(url, prefix)
        result = await Agent(ScriptedModel(answer), log=log).run(question, context_id="ann")
        print(len(result.messages), result.output)
        await log.aclose()


if __name__ == "__main__":
    if len(sys.argv) == 2:
        asyncio.run(main(sys.argv[1]))
    else:
        print("usage: python redis_event_log.py redis://127.0.0.1:6379/0")
