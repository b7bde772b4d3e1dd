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
from rxloop.testing.chaos.checker import Checker, Expect
from rxloop.testing.chaos.report import Report, Witness, compute_digest, summarize

PAY = ToolCall(id="1", name="pay", arguments={})
KEY = "r:1:0"
QUESTION = PendingInput(input_id="q", prompt="May I?")


def stamp_events(events: Sequence[Event], task_id: str = "r", context_id: str = "c", begins: int = 0) -> list[Event]:
    """Assign ids, attempts, sequence numbers and timestamps."""
    attempt, stamped = 1, list[Event]()
    for seq, event in enumerate(events, 1):
        fields: dict[str, Any] = {"seq": seq, "timestamp": 1000 * (begins + seq)}
        if isinstance(event, StatusUpdateEvent) and event.resumed:
            attempt += 1
            fields["after_seq"] = seq - 1
        if isinstance(event, ToolStartEvent):
            fields["idempotency_key"] = f"{task_id}:1:0"
        ids = {"task_id": task_id, "context_id": context_id, "attempt": attempt}
        stamped.append(event.model_copy(update={**ids, **fields}))
    return stamped


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
COMPLETED = [*PAID, llm_call("2"), message("2", text="Done."), end()]
WAITS = [task(), status("working"), input_required(), status("input-required", final=True, pending=[QUESTION])]
ANSWERED = [*WAITS, resumed(), input_received(), llm_call(), message(text="Done."), end()]


class LogCase:
    """In-memory log with observed runs."""

    keeps_deltas = False

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.logs: dict[str, list[Event]] = {}
        self.records: dict[str, RunRecord] = {}
        self.witnesses: list[Witness] = []
        self.faults: dict[int, list[tuple[int, str]]] = {}

    def add_run(self, events: Sequence[Event], *, state: str | None = None, **observations: Any) -> list[Event]:
        """Add a run, by default with a follower that has seen all events."""
        stored = [*events]
        first, last = stored[0], stored[-1]
        now: Any = state or fold_all(stored).state
        self.logs[first.task_id] = stored
        self.records[first.task_id] = RunRecord(
            first.task_id, first.context_id, "a", now, last.attempt, last.seq, first.timestamp, last.timestamp
        )
        over = now in ("completed", "failed", "canceled")
        fields: dict[str, Any] = {
            "prompt": "Go",
            "received": [summarize(event) for event in stored],
            "reached_end": over,
            **observations,
        }
        self.witnesses.append(Witness(first.task_id, first.context_id, **fields))
        return stored

    def write_lines(self, name: str, *lines: dict[str, Any]) -> None:
        (self.folder / name).write_text("".join(json.dumps(line) + "\n" for line in lines))

    def effects(self, *keys: str) -> None:
        self.write_lines("effects", *({"key": key, "tool": "pay", "context": "c"} for key in keys))

    def acknowledge(self, events: Sequence[Event], seq: int, attempt: int) -> None:
        """Record a checkpoint as if a worker had stored these events."""
        digest = compute_digest(events, attempt).get(seq)
        task_id = events[0].task_id
        self.write_lines("acknowledged", {"task": task_id, "seq": seq, "attempt": attempt, "digest": digest})

    async def get_record(self, task_id: str) -> RunRecord:
        if task_id not in self.records:
            raise UnknownRun(task_id)
        return self.records[task_id]

    async def read(self, task_id: str, *, after_seq: int = 0, deltas: bool = False) -> Sequence[Event]:
        return self.logs[task_id]

    async def report(self, expect: Expect | None = None) -> Report:
        checker, case = Checker(self.folder, self.faults, expect), self
        log: Any = case
        await checker.check(log, self.witnesses)
        return checker.report

    async def check(self, expect: Expect | None = None) -> list[str]:
        """Run the checker, returning the violations."""
        return [str(each) for each in (await self.report(expect)).violations]
