"""Consistency checks based on the log, effects, acknowledgements and followers."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations, pairwise, takewhile
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
    is_superseded,
)
from rxloop.state.fold import fold_all
from rxloop.testing.chaos.report import ACTIVE, Digest, Kind, Report, Violation, Witness, compute_digest, summarize

Expect = str | Callable[[str, str], bool]
"""Expected output or predicate. A predicate accepts a prompt and an output."""

_FINISHED = ("completed", "failed")

_CALLS = (LLMCallEvent, ToolStartEvent)
"""Events for model and tool calls."""


class Checker:
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
        self._unfinished: set[str] = set()

    async def check(self, log: EventLog, witnesses: Sequence[Witness]) -> None:
        """Check all runs in start order.

        Args:
            log: Event log with the runs.
            witnesses: Observations by clients, one per run.
        """
        # Unfinished runs continue while they are checked, so read the notes of the workers before the logs.
        effects, acknowledged = list(self._read_lines("effects")), list(self._read_lines("acknowledged"))
        for witness in witnesses:
            task_id = witness.task_id
            try:
                self._records[task_id] = await log.get_record(task_id)
                self._logs[task_id] = await log.read(task_id)
            except UnknownRun:
                self._add("lost", task_id, "is missing from the log although its start was acknowledged")
        stored = [witness for witness in witnesses if witness.task_id in self._logs]
        self._unfinished = {w.task_id for w in stored if w.unfinished or self._records[w.task_id].state in ACTIVE}
        for witness in stored:
            self._check_start(witness)
            self._check_attempts(witness.task_id)
            self._check_results(witness.task_id)
            self._check_output(witness)
            self._check_idle(witness, stored)
            self._check_follower(witness)
            self._check_answers(witness)
            self._check_cancel(witness, stored)
        for earlier, later in combinations(stored, 2):
            if earlier.context_id == later.context_id:
                self._check_order(earlier.task_id, later.task_id)
        self._check_effects(effects, {witness.context_id for witness in stored})
        self._check_checkpoints(acknowledged)
        self._measure_takeovers()

    def _add(self, kind: Kind, task_id: str, message: str) -> None:
        self.report.violations.append(Violation(kind, f"run {task_id} {message}", task_id))

    # -- one run

    def _check_start(self, witness: Witness) -> None:
        first = next(iter(self._logs[witness.task_id]), None)
        if not isinstance(first, TaskEvent) or first.context_id != witness.context_id:
            self._add("lost", witness.task_id, "does not start with the task event of its conversation")
        elif witness.prompt and (not first.messages or first.messages[-1].text != witness.prompt):
            self._add("lost", witness.task_id, f"was started with {witness.prompt!r}, but has another prompt")

    def _check_attempts(self, task_id: str) -> None:
        events, record = self._logs[task_id], self._records[task_id]
        if [event.seq for event in events] != list(range(1, len(events) + 1)):
            self._add("broken", task_id, "has gaps in its sequence numbers")
        for before, event in pairwise(events):
            status = _get_own_status(event)
            begins = status is not None and status.resumed
            if event.attempt not in (before.attempt, before.attempt + 1) or (event.attempt > before.attempt) != begins:
                self._add("broken", task_id, f"has interleaved attempts at event {event.seq}")
            end = _get_own_status(before)
            if end is None or not end.final:
                continue
            if event.attempt == before.attempt:
                self._add("broken", task_id, f"continues after the end of its attempt at event {event.seq}")
            if end.state in _FINISHED or end.state == "canceled":
                self._add("broken", task_id, f"continues after its end at event {event.seq}")
        if events and task_id not in self._unfinished:
            state = fold_all(events).state
            last = events[-1]
            if (record.state, record.seq, record.attempt) != (state, last.seq, last.attempt):
                self._add("broken", task_id, f"is {state}, but its record has the state {record.state}")
        self._check_grammar(task_id, events)

    def _check_grammar(self, task_id: str, events: Sequence[Event]) -> None:
        broken: list[Exception] = []
        from_iterable(events).pipe(grammar()).subscribe(on_error=broken.append)
        for error in broken:
            # Incomplete runs are reported as unfinished, so ignore them here.
            if not (isinstance(error, GrammarError) and error.rule == "final-missing"):
                self._add("broken", task_id, f"violates the grammar: {error}")

    def _check_results(self, task_id: str) -> None:
        events = self._logs[task_id]
        results = Counter((e.task_id, e.step, e.index) for e in events if isinstance(e, ToolCompleteEvent))
        answers = Counter((e.task_id, e.input_id) for e in events if isinstance(e, InputReceivedEvent))
        for key, count in [*results.items(), *answers.items()]:
            if count > 1:
                self._add("result", task_id, f"has {count} results for {key}")

    def _check_output(self, witness: Witness) -> None:
        state = self._records[witness.task_id].state
        self.report.states[state] += 1
        if self._expect is None or state not in _FINISHED:
            return
        final = _find_last_end(self._logs[witness.task_id])
        if state == "failed":
            self._add("output", witness.task_id, f"failed: {final.describe() if final else 'unknown reason'}")
            return
        output = (final.content if final else None) or ""
        right = output == self._expect if isinstance(self._expect, str) else self._expect(witness.prompt, output)
        if not right:
            self._add("output", witness.task_id, f"has the output {output!r} for {witness.prompt!r}")

    def _check_idle(self, witness: Witness, started: Sequence[Witness]) -> None:
        task_id, state = witness.task_id, self._records[witness.task_id].state
        if task_id in self._unfinished:
            self._add("unfinished", task_id, f"was not idle when the time limit ended (now {state})")
            return
        if state != "input-required":
            return
        # Waiting is only allowed if a later run has dropped the question.
        if not self._has_later_run(witness, started):
            reason = "; ".join(witness.refused.values()) or "no client received its question"
            self._add("stuck", task_id, f"is stuck waiting for an answer ({reason})")

    def _has_later_run(self, witness: Witness, started: Sequence[Witness]) -> bool:
        """Return True if a later run of the conversation has begun, which ends runs that wait for an answer."""
        later = [other for other in started[started.index(witness) + 1 :] if other.context_id == witness.context_id]
        return any(self._records[other.task_id].state != "submitted" for other in later)

    def _check_follower(self, witness: Witness) -> None:
        task_id, received = witness.task_id, witness.received
        stored = [summarize(event) for event in self._logs[task_id]]
        state = self._records[task_id].state
        if witness.failed is not None:
            self._add("follower", task_id, f"has a failed follower: {witness.failed}")
        if received[: len(stored)] != stored[: len(received)] or len(received) > len(stored):
            count = len([*takewhile(lambda pair: pair[0] == pair[1], zip(received, stored, strict=False))])
            self._add("follower", task_id, f"has a follower whose event {count + 1} differs from the log")
        elif task_id in self._unfinished:
            return
        elif len(received) < len(stored):
            self._add("follower", task_id, f"has {len(stored)} events, but its follower received {len(received)}")
        elif state in (*_FINISHED, "canceled") and not witness.reached_end and witness.failed is None:
            self._add("follower", task_id, f"is {state}, but the stream of its follower did not end")

    def _check_answers(self, witness: Witness) -> None:
        events, state = self._logs[witness.task_id], self._records[witness.task_id].state
        applied = {event.input_id for event in events if isinstance(event, InputReceivedEvent)}
        # A cancel or failure can prevent an acknowledged answer from being applied.
        if state in ("canceled", "failed") or witness.task_id in self._unfinished:
            return
        for input_id in witness.answered:
            if input_id not in applied:
                self._add("answer", witness.task_id, f"did not apply the acknowledged answer to {input_id}")

    def _check_cancel(self, witness: Witness, started: Sequence[Witness]) -> None:
        task_id, events, state = witness.task_id, self._logs[witness.task_id], self._records[witness.task_id].state
        was_dropped = any(map(is_superseded, events)) and self._has_later_run(witness, started)
        if state == "canceled" and not witness.cancel_requested and not was_dropped:
            self._add("cancel", task_id, "is canceled, but no client requested it")
        at = witness.cancelled_at
        if at is None:
            return
        end = _find_last_end(events)
        if state != "canceled" and not (state in _FINISHED and end is not None and end.timestamp <= at):
            self._add("cancel", task_id, f"is {state} although its cancel was acknowledged")
        if any(isinstance(event, _CALLS) and event.timestamp > at for event in events):
            self._add("cancel", task_id, "continued after its cancel was acknowledged")

    # -- several runs

    def _check_order(self, earlier: str, later: str) -> None:
        """Check that runs in the same conversation do not overlap."""
        calls = [event.timestamp for event in self._logs[later] if isinstance(event, _CALLS)]
        # A run that was cancelled before acting does not wait for earlier runs.
        if not calls:
            return
        started = calls[0]
        # An unfinished run can become idle after its log is read, and the later run can start before its own is read.
        if earlier in self._unfinished and started > self._logs[earlier][-1].timestamp:
            return
        states = [e for e in map(_get_own_status, self._logs[earlier]) if e is not None and e.timestamp <= started]
        if not states or not states[-1].final:
            self._add("order", later, f"started before run {earlier} of the same conversation was idle")
        elif any(isinstance(event, _CALLS) and event.timestamp > started for event in self._logs[earlier]):
            self._add("order", later, f"overlaps with run {earlier} of the same conversation")

    def _check_effects(self, lines: Sequence[dict[str, Any]], contexts: set[str]) -> None:
        events = [event for log in self._logs.values() for event in log if isinstance(event, ToolStartEvent)]
        stored_calls = Counter(event.idempotency_key for event in events)
        calls: Counter[str] = Counter()
        for line in lines:
            if line["context"] not in contexts:
                continue
            key, tool = line["key"], line["tool"]
            calls[key] += 1
            if calls[key] == 2 or (calls[key] == 1 and stored_calls[key] > 1):
                self._add("effect", _parse_run_id(key), f"called tool {tool} twice for call {key}")
            if calls[key] == 1 and not stored_calls[key]:
                self._add("effect", _parse_run_id(key), f"called tool {tool} for call {key} before it was stored")
        self.report.effects = len(calls)

    def _check_checkpoints(self, lines: Sequence[dict[str, Any]]) -> None:
        digests: dict[tuple[str, int], Digest] = {}
        for line in lines:
            events = self._logs.get(line["task"])
            if events is None:
                continue
            self.report.acknowledged += 1
            seq, attempt = int(line["seq"]), int(line["attempt"])
            key = line["task"], attempt
            digest = digests[key] = digests.get(key) or compute_digest(events, attempt)
            # Lost and rewritten events can have the same seq and attempt, but have a different digest.
            if digest.get(seq) != line["digest"]:
                self._add("lost", line["task"], f"lost the acknowledged checkpoint at event {seq} of attempt {attempt}")

    def _measure_takeovers(self) -> None:
        owners = {(line["task"], line["attempt"]): line["pid"] for line in self._read_lines("attempts")}
        for task_id, events in self._logs.items():
            for before, event in pairwise(events):
                if event.attempt == before.attempt or ends_attempt(before):
                    continue
                faults = self._faults.get(owners.get((task_id, before.attempt), 0), ())
                for at, kind in reversed([fault for fault in faults if fault[0] <= event.timestamp]):
                    self.report.take_overs.setdefault(kind, []).append((event.timestamp - at) / 1000)
                    break

    def _read_lines(self, name: str) -> Iterator[dict[str, Any]]:
        file = self._folder / name
        if file.exists():
            # A worker may still be writing the last line.
            yield from map(json.loads, file.read_text(encoding="utf-8").split("\n")[:-1])


def _parse_run_id(key: str) -> str:
    """Return the run id from an idempotency key with the format `run:step:index`."""
    return key.rsplit(":", 2)[0]


def _get_own_status(event: Event) -> StatusUpdateEvent | None:
    """Return the event if it is a status update for the run itself, excluding nested runs."""
    return event if isinstance(event, StatusUpdateEvent) and event.parent_task_id is None else None


def _find_last_end(events: Sequence[Event]) -> StatusUpdateEvent | None:
    return next((e for e in map(_get_own_status, reversed(events)) if e is not None and e.final), None)
