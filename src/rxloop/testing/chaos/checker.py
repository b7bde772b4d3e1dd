"""Consistency checks based on the log, effects, acknowledgements and followers."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

from reactivex import from_iterable

from rxloop.errors import GrammarError, UnknownRun
from rxloop.operators.views.grammar import grammar
from rxloop.pipeline.event_log import EventLog
from rxloop.pipeline.records import RunRecord
from rxloop.protocol.events import (
    Event,
    InputReceivedEvent,
    LLMCallEvent,
    StatusUpdateEvent,
    TaskEvent,
    ToolCompleteEvent,
    ToolStartEvent,
    ends_attempt,
)
from rxloop.state.fold import fold_all
from rxloop.testing.chaos.report import Digest, Kind, Report, Witness, Wrong, digest_of, seen

Expect = str | Callable[[str, str], bool]
"""Expected output or predicate. A predicate accepts a prompt and an output."""

_OVER = ("completed", "failed")

_UNDER_WAY = ("submitted", "working")

_ACTS = (LLMCallEvent, ToolStartEvent)
"""Events for model and tool calls."""


class Judge:
    """Checker for all runs of a scenario."""

    def __init__(
        self, folder: Path, faults: Mapping[int, Sequence[tuple[int, str]]], expect: Expect | None = None
    ) -> None:
        """Create a checker.

        Args:
            folder: Folder with files written by the workers.
            faults: Injected faults as pairs of time and kind, by process id.
            expect: Expected output.
        """
        self._folder, self._faults, self._expect = folder, faults, expect
        self.report = Report()
        self._logs: dict[str, Sequence[Event]] = {}
        self._records: dict[str, RunRecord] = {}

    async def judge(self, log: EventLog, witnesses: Sequence[Witness]) -> None:
        """Check all runs in start order.

        Args:
            log: Event log with the runs.
            witnesses: Observations by clients, one per run.
        """
        for witness in witnesses:
            task_id = witness.task_id
            try:
                self._records[task_id] = await log.get_record(task_id)
                self._logs[task_id] = await log.read(task_id)
            except UnknownRun:
                self._wrong("lost", task_id, "was started, and is not in the log")
        there = [witness for witness in witnesses if witness.task_id in self._logs]
        for witness in there:
            self._begun_as_told(witness)
            self._one_writer(witness.task_id)
            self._once(witness.task_id)
            self._output(witness)
            self._at_rest(witness, there)
            self._followed(witness)
            self._answered(witness)
            self._cancelled(witness)
        for earlier, later in combinations(there, 2):
            if earlier.context_id == later.context_id:
                self._in_order(earlier.task_id, later.task_id)
        self._effects({witness.context_id for witness in there})
        self._acknowledged()
        self._take_overs()

    def _wrong(self, kind: Kind, task_id: str, what: str) -> None:
        self.report.wrong.append(Wrong(kind, f"the run {task_id} {what}", task_id))

    # -- one run

    def _begun_as_told(self, witness: Witness) -> None:
        first = next(iter(self._logs[witness.task_id]), None)
        if not isinstance(first, TaskEvent) or first.context_id != witness.context_id:
            self._wrong("lost", witness.task_id, "does not begin with what was started")
        elif witness.prompt and (not first.messages or first.messages[-1].text != witness.prompt):
            self._wrong("lost", witness.task_id, f"was started with {witness.prompt!r}, and asks something else")

    def _one_writer(self, task_id: str) -> None:
        events, record = self._logs[task_id], self._records[task_id]
        if [event.seq for event in events] != list(range(1, len(events) + 1)):
            self._wrong("broken", task_id, "has gaps in its numbers")
        for before, event in pairwise(events):
            status = _own_status(event)
            begins = status is not None and status.resumed
            if event.attempt not in (before.attempt, before.attempt + 1) or (event.attempt > before.attempt) != begins:
                self._wrong("broken", task_id, f"has two attempts mixed up at {event.seq}")
            end = _own_status(before)
            if end is None or not end.final:
                continue
            if event.attempt == before.attempt:
                self._wrong("broken", task_id, f"goes on after the end of its attempt at {event.seq}")
            if end.state in _OVER or end.state == "canceled":
                self._wrong("broken", task_id, f"goes on after its end at {event.seq}")
        if events and record.state not in _UNDER_WAY:
            state = fold_all(events).state
            last = events[-1]
            if (record.state, record.seq, record.attempt) != (state, last.seq, last.attempt):
                self._wrong("broken", task_id, f"is {state} by its events, and {record.state} by its record")
        self._grammatical(task_id, events)

    def _grammatical(self, task_id: str, events: Sequence[Event]) -> None:
        broken: list[Exception] = []
        from_iterable(events).pipe(grammar()).subscribe(on_error=broken.append)
        for error in broken:
            # Incomplete runs are reported as stuck, so ignore them here.
            if not (isinstance(error, GrammarError) and error.rule == "final-missing"):
                self._wrong("broken", task_id, f"breaks the grammar: {error}")

    def _once(self, task_id: str) -> None:
        events = self._logs[task_id]
        results = Counter((e.task_id, e.step, e.index) for e in events if isinstance(e, ToolCompleteEvent))
        answers = Counter((e.task_id, e.input_id) for e in events if isinstance(e, InputReceivedEvent))
        for place, count in [*results.items(), *answers.items()]:
            if count > 1:
                self._wrong("result", task_id, f"has {count} results for {place}")

    def _output(self, witness: Witness) -> None:
        state = self._records[witness.task_id].state
        self.report.states[state] += 1
        if self._expect is None or state not in _OVER:
            return
        final = _last_end(self._logs[witness.task_id])
        if state == "failed":
            self._wrong("output", witness.task_id, f"failed: {final.describe() if final else 'nobody knows why'}")
            return
        output = (final.content if final else None) or ""
        right = output == self._expect if isinstance(self._expect, str) else self._expect(witness.prompt, output)
        if not right:
            self._wrong("output", witness.task_id, f"has the output {output!r} for {witness.prompt!r}")

    def _at_rest(self, witness: Witness, started: Sequence[Witness]) -> None:
        task_id, state = witness.task_id, self._records[witness.task_id].state
        if state in (*_OVER, "canceled", "auth-required"):
            return
        if state != "input-required":
            self._wrong("stuck", task_id, f"is stuck: it is {state}")
            return
        # Waiting is only allowed if a later run has dropped the question.
        after = started[started.index(witness) + 1 :]
        begun = [
            other
            for other in after
            if other.context_id == witness.context_id and self._records[other.task_id].state != "submitted"
        ]
        if not begun:
            why = "; ".join(witness.refused.values()) or "nobody was told of its question"
            self._wrong("stuck", task_id, f"is stuck: it waits for an answer ({why})")

    def _followed(self, witness: Witness) -> None:
        task_id, saw = witness.task_id, witness.seen
        held = [seen(event) for event in self._logs[task_id]]
        state = self._records[task_id].state
        if witness.failed is not None:
            self._wrong("follower", task_id, f"has a follower that failed: {witness.failed}")
        if saw[: len(held)] != held[: len(saw)] or len(saw) > len(held):
            at = next((n for n, (one, two) in enumerate(zip(saw, held, strict=False)) if one != two), len(held))
            self._wrong(
                "follower", task_id, f"was seen by its follower as something else than the log has, at {at + 1}"
            )
        elif len(saw) < len(held) and state not in _UNDER_WAY:
            self._wrong("follower", task_id, f"has {len(held)} events, and its follower saw {len(saw)}")
        elif state in (*_OVER, "canceled") and not witness.saw_its_end and witness.failed is None:
            self._wrong("follower", task_id, f"is {state}, and its follower was not told that this is all")

    def _answered(self, witness: Witness) -> None:
        events, state = self._logs[witness.task_id], self._records[witness.task_id].state
        received = {event.input_id for event in events if isinstance(event, InputReceivedEvent)}
        # A cancel or failure can prevent an acknowledged answer from being applied.
        if state in ("canceled", "failed"):
            return
        for input_id in witness.answered:
            if input_id not in received:
                self._wrong("answer", witness.task_id, f"never took the answer to {input_id}, which was acknowledged")

    def _cancelled(self, witness: Witness) -> None:
        task_id, events, state = witness.task_id, self._logs[witness.task_id], self._records[witness.task_id].state
        if state == "canceled" and not witness.cancelling:
            self._wrong("cancel", task_id, "is canceled, and nobody has cancelled it")
        at = witness.cancelled_at
        if at is None:
            return
        end = _last_end(events)
        if state != "canceled" and not (state in _OVER and end is not None and end.timestamp <= at):
            self._wrong("cancel", task_id, f"is {state}, though it was acknowledged that it is canceled")
        if any(isinstance(event, _ACTS) and event.timestamp > at for event in events):
            self._wrong("cancel", task_id, "went on after it was acknowledged that it is canceled")

    # -- several runs

    def _in_order(self, earlier: str, later: str) -> None:
        """Check that runs in the same conversation do not overlap."""
        acts = [event.timestamp for event in self._logs[later] if isinstance(event, _ACTS)]
        # A run that was cancelled before acting does not wait for earlier runs.
        if not acts:
            return
        begun = acts[0]
        states = [e for e in map(_own_status, self._logs[earlier]) if e is not None and e.timestamp <= begun]
        if not states or not states[-1].final:
            self._wrong("order", later, f"began before {earlier} was at rest, in the same conversation")
        elif any(isinstance(event, _ACTS) and event.timestamp > begun for event in self._logs[earlier]):
            self._wrong("order", later, f"went on beside {earlier}, in the same conversation")

    def _effects(self, contexts: set[str]) -> None:
        announced = Counter(
            e.idempotency_key for log in self._logs.values() for e in log if isinstance(e, ToolStartEvent)
        )
        begun: Counter[str] = Counter()
        for line in self._lines("effects"):
            if line["context"] not in contexts:
                continue
            key, tool = line["key"], line["tool"]
            begun[key] += 1
            if begun[key] == 2 or (begun[key] == 1 and announced[key] > 1):
                self._wrong("effect", _run_of(key), f"has begun the tool {tool} twice for the call {key}")
            if begun[key] == 1 and not announced[key]:
                self._wrong("effect", _run_of(key), f"has begun the tool {tool} for the call {key} before the log knew")
        self.report.effects = len(begun)

    def _acknowledged(self) -> None:
        digests: dict[tuple[str, int], Digest] = {}
        for line in self._lines("acknowledged"):
            events = self._logs.get(line["task"])
            if events is None:
                continue
            self.report.acknowledged += 1
            seq, attempt = int(line["seq"]), int(line["attempt"])
            key = line["task"], attempt
            digest = digests[key] = digests.get(key) or digest_of(events, attempt)
            # Lost and rewritten events can have the same seq and attempt, but have a different digest.
            if digest.at(seq) != line["digest"]:
                self._wrong("lost", line["task"], f"has lost what was acknowledged: {seq} of attempt {attempt}")

    def _take_overs(self) -> None:
        owners = {(line["task"], line["attempt"]): line["pid"] for line in self._lines("begun")}
        for task_id, events in self._logs.items():
            for before, event in pairwise(events):
                if event.attempt == before.attempt or ends_attempt(before):
                    continue
                hits = self._faults.get(owners.get((task_id, before.attempt), 0), ())
                for at, kind in reversed([hit for hit in hits if hit[0] <= event.timestamp]):
                    self.report.take_overs.setdefault(kind, []).append((event.timestamp - at) / 1000)
                    break

    def _lines(self, name: str) -> Iterator[dict[str, Any]]:
        file = self._folder / name
        if file.exists():
            yield from map(json.loads, file.read_text(encoding="utf-8").splitlines())


def _run_of(key: str) -> str:
    """Return the run id from an idempotency key with the format `run:step:index`."""
    return key.rsplit(":", 2)[0]


def _own_status(event: Event) -> StatusUpdateEvent | None:
    """Return the event if it is a status update for the run itself, excluding nested runs."""
    return event if isinstance(event, StatusUpdateEvent) and event.parent_task_id is None else None


def _last_end(events: Sequence[Event]) -> StatusUpdateEvent | None:
    return next((e for e in map(_own_status, reversed(events)) if e is not None and e.final), None)
