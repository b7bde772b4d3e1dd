"""Fold of the events of a run to its problems, such as failures, retries, stalls and open questions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rxloop.operators.views.repeats import Repeat, digest_call
from rxloop.operators.views.stalled import Activity, Stall, begins_attempt, get_step
from rxloop.protocol.events import (
    WAITING,
    AuthRequiredEvent,
    ContentCompleteEvent,
    ContextCompressedEvent,
    Event,
    InputReceivedEvent,
    InputRequiredEvent,
    LLMCallEvent,
    LLMFailedEvent,
    StatusUpdateEvent,
    ToolCompleteEvent,
    ToolsUnavailableEvent,
    ends_attempt,
)
from rxloop.protocol.http_api.inspection import ProblemCode, RunProblem

STALLED_AFTER = 30.0
"""Minimum duration of a stall in seconds."""

REPEATED_AFTER = 3
"""Minimum number of equal calls that count as a problem."""

MAX_TEXT = 200
"""Maximum number of characters in the text of a problem."""


_VALUE_SIZE = 200
"""Typical size of a value in bytes."""


@dataclass(slots=True)
class _Draft:
    """Problem that later events may change."""

    code: ProblemCode
    seq: int
    text: str
    until: int | None = None
    seconds: float | None = None
    count: int | None = None
    name: str | None = None


class ProblemFold:
    """Fold of the durable events of a run to its problems."""

    def __init__(self, *, internal: bool) -> None:
        """Create a fold without events.

        Args:
            internal: Whether to include data that clients must not receive.
        """
        self._internal = internal
        self.last: Event | None = None
        """Last event, or None before the first event."""
        self._drafts: list[_Draft] = []
        self._activity = Activity()
        self._requests: dict[Any, LLMCallEvent] = {}
        self._failures: dict[Any, _Draft] = {}
        """Problems of open model calls, by step."""
        self._questions: dict[str, tuple[Any, _Draft]] = {}
        """Slot and problem of each open question, by its id."""
        self._call_counts = Counter[tuple[str, str | None, bytes]]()
        self._repeats: dict[tuple[str, str | None, bytes], _Draft] = {}

    def add(self, events: Iterable[Event]) -> None:
        """Add durable events in order."""
        for event in events:
            self._check_silence(event)
            shown = event if self._internal else event.to_public()
            if shown is not None:
                self._check(shown)
            self._activity.add(event)
            self.last = event

    @property
    def count(self) -> int:
        """Number of problems in the events added so far."""
        return len(self._drafts) + len(self._questions)

    @property
    def size(self) -> int:
        """Number of values in memory."""
        last = 0 if self.last is None else self.last.decoded_size // _VALUE_SIZE
        return self.count + len(self._call_counts) + len(self._requests) + last

    def collect(self, task_id: str, *, now: int | None = None) -> list[RunProblem]:
        """Return the problems in the order of their first events.

        Args:
            task_id: Task id of the run.
            now: Current time in milliseconds, used to find a stall after the last event.
        """
        drafts = [*self._drafts, *(draft for _, draft in self._questions.values())]
        last = self.last
        if now is not None and last is not None and not ends_attempt(last):
            drafts += self._find_stalls(last, now, None)
        problems = [RunProblem(task_id=task_id, **asdict(draft)) for draft in drafts]
        return sorted(problems, key=lambda problem: problem.seq)

    def _note(self, code: ProblemCode, event: Event, text: str, **fields: Any) -> _Draft:
        draft = _Draft(code, event.seq, _shorten(text), **fields)
        self._drafts.append(draft)
        return draft

    # -- stalls

    def _check_silence(self, event: Event) -> None:
        last = self.last
        if isinstance(event, ContentCompleteEvent):
            self._check_message(event)
        elif last is not None and not ends_attempt(last) and not begins_attempt(event):
            self._drafts += self._find_stalls(last, event.timestamp, event.seq)

    def _find_stalls(self, last: Event, time: int, until: int | None) -> list[_Draft]:
        """Return the stall between two durable events, if any.

        The deltas of model calls are not in the log, so these calls are checked when their messages are complete. Time
        that the run spends waiting for a person is not a stall.
        """
        seconds = round((time - last.timestamp) / 1000, 1)
        activity = self._activity
        if seconds < STALLED_AFTER or activity.models or activity.questions:
            return []
        stall = Stall(seconds, calls=tuple(activity.awaited_calls()))
        return [_Draft("stalled", last.seq, _shorten(str(stall)), until, seconds)]

    def _check_message(self, event: ContentCompleteEvent) -> None:
        request = self._requests.pop(get_step(event), None)
        self._failures.pop(get_step(event), None)
        if request is None or event.finish_reason == "canceled":
            return
        # Without deltas, nothing came before the message was complete.
        seconds = (event.timestamp - request.timestamp) / 1000
        if event.first_token is not None:
            seconds = max(event.first_token, event.longest_silence or 0.0)
        if seconds >= STALLED_AFTER:
            text = str(Stall(round(seconds, 1), (request.model,)))
            self._note("stalled", request, text, until=event.seq, seconds=round(seconds, 1), name=request.model)

    # -- other problems

    def _check(self, event: Event) -> None:
        match event:
            case LLMCallEvent():
                self._check_call(event)
            case LLMFailedEvent():
                self._add_failure(event)
            case ContentCompleteEvent():
                self._count_calls(event)
            case ToolCompleteEvent():
                self._check_result(event)
            case InputRequiredEvent() | AuthRequiredEvent():
                slot = (get_step(event), event.input.index)
                name = None if event.input.call is None else event.input.call.name
                draft = _Draft("waits", event.seq, _shorten(event.input.prompt), name=name)
                self._questions[event.input_id] = slot, draft
            case InputReceivedEvent():
                self._questions.pop(event.input_id, None)
            case ContextCompressedEvent(budget_unmet=True):
                text = f"the context could not be compressed below {event.tokens_after:,} tokens"
                self._note("cut_unmet", event, text)
            case ToolsUnavailableEvent():
                text = event.reason or "the tools of this toolset are missing"
                self._note("tools_unavailable", event, text, name=event.toolset)
            case StatusUpdateEvent():
                self._check_status(event)
            case _:
                pass

    def _check_call(self, event: LLMCallEvent) -> None:
        step = get_step(event)
        draft, is_repeated = self._failures.get(step), step in self._activity.models
        if draft is not None:
            draft.code, draft.until = "retried", event.seq
        elif is_repeated:
            text = "the request failed and was sent again"
            self._failures[step] = self._note("retried", event, text, count=1, name=event.model)
        self._requests[step] = event

    def _add_failure(self, event: LLMFailedEvent) -> None:
        step = get_step(event)
        draft = self._failures.get(step)
        request = self._requests.get(step)
        if draft is None:
            name = None if request is None else request.model
            draft = self._failures[step] = self._note("model_failed", event, "", name=name)
        draft.code = "model_failed" if event.retry_in is None else "retried"
        draft.count, draft.until = (draft.count or 0) + 1, event.seq
        draft.text = _shorten(f"{event.error.code}: {event.error.message}")
        if request is not None:
            draft.seconds = round((event.timestamp - request.timestamp) / 1000, 1)

    def _count_calls(self, event: ContentCompleteEvent) -> None:
        if event.finish_reason == "canceled":
            return
        for call in event.tool_calls:
            key = (event.task_id, event.branch, digest_call(call))
            self._call_counts[key] += 1
            count = self._call_counts[key]
            if count < REPEATED_AFTER:
                continue
            if key not in self._repeats:
                self._repeats[key] = self._note("repeated", event, "", name=call.name)
            draft = self._repeats[key]
            draft.count, draft.until = count, event.seq
            draft.text = _shorten(str(Repeat(call, count, event.task_id, event.branch, event.step)))

    def _check_result(self, event: ToolCompleteEvent) -> None:
        slot = (get_step(event), event.index)
        self._questions = {key: each for key, each in self._questions.items() if each[0] != slot}
        if event.success or "canceled" in (event.code, event.error):
            return
        code: ProblemCode = "tool_failed" if slot in self._activity.calls else "refused"
        seconds = round(event.duration, 3) or None
        self._note(code, event, event.error or event.content, seconds=seconds, name=event.name)

    def _check_status(self, event: StatusUpdateEvent) -> None:
        for input_id in event.discarded:
            self._questions.pop(input_id, None)
        if not event.final or event.parent_task_id is not None:
            return
        if event.state not in (*WAITING, "working"):
            self._questions.clear()
        if event.state == "failed":
            text = event.error.message if event.error is not None else event.reason or "the run failed"
            self._note("run_failed", event, text, name=event.error.code if event.error is not None else event.reason)


_SEVERITY: tuple[ProblemCode, ...] = (
    *("run_failed", "orphaned", "model_failed", "tool_failed", "tools_unavailable", "cut_unmet"),
    *("stalled", "waits", "repeated", "refused", "retried"),
)


def find_severest(problems: Sequence[RunProblem], count: int) -> list[RunProblem]:
    """Return the most severe problems, in their original order."""
    order = sorted(range(len(problems)), key=lambda i: (_SEVERITY.index(problems[i].code), i))
    return [problems[i] for i in sorted(order[:count])]


def _shorten(text: str) -> str:
    line = " ".join(text[: 4 * MAX_TEXT].split())
    return line if len(line) <= MAX_TEXT else line[: MAX_TEXT - 1] + "\u2026"
