"""The judge: reads the log, the effects, the acknowledgements and what followers saw, and trusts nobody else."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from rxloop.pipeline.logs import EventLog
from rxloop.pipeline.values import RunRecord
from rxloop.protocol.events import Event, InputReceivedEvent, LLMCallEvent, StatusUpdateEvent, ToolCompleteEvent
from rxloop.testing.chaos.report import Report

Seen = tuple[int, int, str]
"""Of an event: `seq`, attempt and kind."""
_AT_REST = ("completed", "failed", "canceled", "input-required", "auth-required")


def seen(event: Event) -> Seen:
    """What a follower remembers of an event."""
    return event.seq, event.attempt, event.kind


class Judge:
    """Judges the runs that were started."""

    def __init__(self, folder: Path, faults: Mapping[int, Sequence[tuple[int, str]]]) -> None:
        """Judge by what the workers have left in a folder, and by what was done to them."""
        self._folder, self._faults = folder, faults
        self.report = Report()

    async def judge(
        self,
        log: EventLog,
        started: Mapping[str, Sequence[Seen] | None],
        answered: Sequence[tuple[str, str]] = (),
    ) -> None:
        """Judge the runs that were started.

        Args:
            log: Holds them.
            started: What the follower of each saw; None if nobody saw all of it.
            answered: The runs and questions whose answers were taken.
        """
        logs = {task_id: list(await log.read(task_id)) for task_id in started}
        records = [await log.record(task_id) for task_id in started]
        for record in records:
            self.report.states[record.state] += 1
            if record.state not in _AT_REST:
                self._wrong(record.task_id, f"is stuck: it is {record.state}")
            events = logs[record.task_id]
            self._one_writer(record.task_id, events)
            self._once(record.task_id, events)
            follower = started[record.task_id]
            if follower is not None and list(follower) != [seen(event) for event in events]:
                self._wrong(record.task_id, "was seen by its follower as something else than the log has")
        self._order(records, logs)
        self._answers(records, logs, answered)
        self._effects()
        self._acknowledged(logs)
        self._take_overs(logs)

    def _wrong(self, task_id: str, what: str) -> None:
        self.report.wrong.append(f"the run {task_id} {what}")

    def _one_writer(self, task_id: str, events: Sequence[Event]) -> None:
        if [event.seq for event in events] != list(range(1, len(events) + 1)):
            self._wrong(task_id, "has gaps in its numbers")
        for before, event in pairwise(events):
            ends = isinstance(before, StatusUpdateEvent) and before.final
            begins = isinstance(event, StatusUpdateEvent) and event.resumed
            if event.attempt < before.attempt or (event.attempt > before.attempt) != begins:
                self._wrong(task_id, f"has two attempts mixed up at {event.seq}")
            if ends and event.attempt == before.attempt:
                self._wrong(task_id, f"goes on after the end of its attempt at {event.seq}")
            if isinstance(before, StatusUpdateEvent) and before.final and before.state in ("completed", "failed"):
                self._wrong(task_id, f"goes on after its end at {event.seq}")

    def _once(self, task_id: str, events: Sequence[Event]) -> None:
        results = Counter(
            (event.step, event.branch, event.tool_call_id) for event in events if isinstance(event, ToolCompleteEvent)
        )
        answers = Counter(event.input_id for event in events if isinstance(event, InputReceivedEvent))
        for slot, count in [*results.items(), *answers.items()]:
            if count > 1:
                self._wrong(task_id, f"has {count} results for {slot}")

    def _order(self, records: Sequence[RunRecord], logs: Mapping[str, Sequence[Event]]) -> None:
        """A run begins after those before it in its conversation have come to rest."""
        last: dict[str, RunRecord] = {}
        for record in records:
            before = last.get(record.context_id)
            last[record.context_id] = record
            if before is None:
                continue
            # One that is cancelled before it begins waits for nobody.
            begun = next((e.timestamp for e in logs[record.task_id] if isinstance(e, LLMCallEvent)), None)
            rest = [e.timestamp for e in logs[before.task_id] if isinstance(e, StatusUpdateEvent) and e.final]
            if begun is not None and (not rest or begun < rest[0]):
                self._wrong(record.task_id, f"began before {before.task_id} was at rest, in the same conversation")

    def _answers(
        self,
        records: Sequence[RunRecord],
        logs: Mapping[str, Sequence[Event]],
        answered: Sequence[tuple[str, str]],
    ) -> None:
        waiting = {record.task_id for record in records if record.state in ("input-required", "auth-required")}
        for task_id, input_id in answered:
            received = [e for e in logs[task_id] if isinstance(e, InputReceivedEvent) and e.input_id == input_id]
            if task_id in waiting and not received:
                self._wrong(task_id, f"still waits for the answer to {input_id}, which it has got")

    def _effects(self) -> None:
        begun: Counter[str] = Counter()
        for line in self._lines("effects"):
            begun[line["key"]] += 1
            if begun[line["key"]] == 2:
                self.report.wrong.append(f"the tool {line['tool']} was begun twice for the call {line['key']}")
        self.report.effects = len(begun)

    def _acknowledged(self, logs: Mapping[str, Sequence[Event]]) -> None:
        for line in self._lines("acknowledged"):
            events = logs.get(line["task"])
            if events is None:
                continue
            self.report.acknowledged += 1
            seq, attempt = int(line["seq"]), int(line["attempt"])
            if len(events) < seq or events[seq - 1].attempt > attempt:
                self._wrong(line["task"], f"has lost what was acknowledged: {seq} of attempt {attempt}")

    def _take_overs(self, logs: Mapping[str, Sequence[Event]]) -> None:
        owners = {(line["task"], line["attempt"]): line["pid"] for line in self._lines("begun")}
        for task_id, events in logs.items():
            for before, event in pairwise(events):
                paused = isinstance(before, StatusUpdateEvent) and before.final
                if event.attempt == before.attempt or paused:
                    continue
                hits = self._faults.get(owners.get((task_id, before.attempt), 0), ())
                for at, kind in reversed([hit for hit in hits if hit[0] <= event.timestamp]):
                    self.report.take_overs.setdefault(kind, []).append((event.timestamp - at) / 1000)
                    break

    def _lines(self, name: str) -> Iterator[dict[str, Any]]:
        file = self._folder / name
        if file.exists():
            yield from map(json.loads, file.read_text(encoding="utf-8").splitlines())
