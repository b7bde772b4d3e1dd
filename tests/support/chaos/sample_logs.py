"""Logs of correct and incorrect runs, to test the checkers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rxloop import Event
from rxloop.errors import UnknownRun
from rxloop.pipeline.records import RunRecord
from rxloop.protocol.events import (
    CheckpointEvent,
    ContentCompleteEvent,
    InputReceivedEvent,
    InputRequiredEvent,
    LLMCallEvent,
    StatusUpdateEvent,
    TaskEvent,
    ToolCompleteEvent,
    ToolStartEvent,
)
from rxloop.protocol.messages import Message, PendingInput, ToolCall, Usage
from rxloop.state.fold import fold_all
from rxloop.testing.chaos.checker import Expect, Judge
from rxloop.testing.chaos.report import Report, Witness, digest_of, seen

PAY = ToolCall(id="1", name="pay", arguments={})
KEY = "r:1:0"
QUESTION = PendingInput(input_id="q", prompt="May I?")


def stamp_events(events: Sequence[Event], task_id: str = "r", context_id: str = "c", begins: int = 0) -> list[Event]:
    """Return the events with ids, attempts and numbers, one second apart."""
    attempt, done = 1, list[Event]()
    for seq, event in enumerate(events, 1):
        place: dict[str, Any] = {"seq": seq, "timestamp": 1000 * (begins + seq)}
        if isinstance(event, StatusUpdateEvent) and event.resumed:
            attempt += 1
            place["after_seq"] = seq - 1
        if isinstance(event, ToolStartEvent):
            place["idempotency_key"] = f"{task_id}:1:0"
        ids = {"task_id": task_id, "context_id": context_id, "attempt": attempt}
        done.append(event.model_copy(update={**ids, **place}))
    return done


def task() -> TaskEvent:
    return TaskEvent(messages=[Message(role="user", content="Go")], model="m", agent_name="a")


def llm_call(step: str = "1") -> LLMCallEvent:
    return LLMCallEvent(iteration=0, model="m", message_count=1, tool_count=0, estimated_input_tokens=1, step=step)


def message(step: str = "1", *, calls: Sequence[ToolCall] = (), text: str = "") -> ContentCompleteEvent:
    reason = "tool_calls" if calls else "stop"
    return ContentCompleteEvent(content=text, tool_calls=[*calls], finish_reason=reason, step=step)


def tool_start() -> ToolStartEvent:
    return ToolStartEvent(call=PAY, step="1", idempotency_key=KEY)


def tool_result() -> ToolCompleteEvent:
    return ToolCompleteEvent(call=PAY, success=True, content="paid", step="1")


def checkpoint() -> CheckpointEvent:
    return CheckpointEvent(iteration=1, message_count=3, usage=Usage(), durable_seq=6)


def input_required() -> InputRequiredEvent:
    return InputRequiredEvent(input=QUESTION)


def input_received() -> InputReceivedEvent:
    return InputReceivedEvent(input_id="q", value=True)


def status(state: Any, **fields: Any) -> StatusUpdateEvent:
    return StatusUpdateEvent(state=state, **fields)


def resumed() -> StatusUpdateEvent:
    return status("working", resumed=True)


def end(state: Any = "completed") -> StatusUpdateEvent:
    return status(state, final=True, content="Done.")


PAID = [task(), status("working"), llm_call(), message(calls=[PAY]), tool_start(), tool_result()]
WHOLE = [*PAID, llm_call("2"), message("2", text="Done."), end()]
WAITS = [task(), status("working"), input_required(), status("input-required", final=True, pending=[QUESTION])]
ANSWERED = [*WAITS, resumed(), input_received(), llm_call(), message(text="Done."), end()]


class LogCase:
    """In-memory log with runs, and the observations of their clients."""

    keeps_deltas = False

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.logs: dict[str, list[Event]] = {}
        self.records: dict[str, RunRecord] = {}
        self.witnesses: list[Witness] = []
        self.faults: dict[int, list[tuple[int, str]]] = {}

    def add_run(self, events: Sequence[Event], *, state: str | None = None, **told: Any) -> list[Event]:
        """Add a run. By default, its follower has seen all events."""
        held = [*events]
        first, last = held[0], held[-1]
        now: Any = state or fold_all(held).state
        self.logs[first.task_id] = held
        self.records[first.task_id] = RunRecord(
            first.task_id, first.context_id, "a", now, last.attempt, last.seq, first.timestamp, last.timestamp
        )
        over = now in ("completed", "failed", "canceled")
        given: dict[str, Any] = {"prompt": "Go", "seen": [seen(event) for event in held], "saw_its_end": over, **told}
        self.witnesses.append(Witness(first.task_id, first.context_id, **given))
        return held

    def write_lines(self, name: str, *lines: dict[str, Any]) -> None:
        (self.folder / name).write_text("".join(json.dumps(line) + "\n" for line in lines))

    def effects(self, *keys: str) -> None:
        self.write_lines("effects", *({"key": key, "tool": "pay", "context": "c"} for key in keys))

    def acknowledge(self, events: Sequence[Event], seq: int, attempt: int) -> None:
        """Record a checkpoint as if a worker had stored these events."""
        digest = digest_of(events, attempt).at(seq)
        task_id = events[0].task_id
        self.write_lines("acknowledged", {"task": task_id, "seq": seq, "attempt": attempt, "digest": digest})

    async def get_record(self, task_id: str) -> RunRecord:
        if task_id not in self.records:
            raise UnknownRun(task_id)
        return self.records[task_id]

    async def read(self, task_id: str, *, after_seq: int = 0, deltas: bool = False) -> Sequence[Event]:
        return self.logs[task_id]

    async def report(self, expect: Expect | None = None) -> Report:
        judge, held = Judge(self.folder, self.faults, expect), self
        log: Any = held
        await judge.judge(log, self.witnesses)
        return judge.report

    async def check(self, expect: Expect | None = None) -> list[str]:
        """Return the violations that the checker reports."""
        return [str(each) for each in (await self.report(expect)).wrong]
