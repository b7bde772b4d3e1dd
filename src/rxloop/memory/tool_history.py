"""Fold of tool calls from the events of a run, and statistics of several runs."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise
from math import ceil

from rxloop.memory.words import find_words
from rxloop.protocol.events import ContentCompleteEvent, Event, StatusUpdateEvent, TaskEvent, ToolCompleteEvent
from rxloop.protocol.json_data import canonical_json
from rxloop.protocol.messages import ToolCall
from rxloop.protocol.visibility import PREDICTED
from rxloop.state.history import THINK_ALOUD

_FOLDED = frozenset((TaskEvent, ToolCompleteEvent, ContentCompleteEvent, StatusUpdateEvent))

_MAX_ARGUMENTS, _MAX_ERROR, _MAX_RESULT = 2_000, 200, 20_000
"""Maximum sizes in characters: recorded arguments, recorded errors, and results compared with messages."""

_MAX_FAILED, _MAX_COMPARISONS, _MAX_COMPARED = 20, 10, 100
"""Maximum number of failed calls to correct, of later calls that each of them is compared with, and of compared
characters of arguments, because long texts often share words.
"""

_KEY = re.compile(r'"\w+":')
"""JSON key, which is excluded from comparisons."""


@dataclass(slots=True)
class ToolCallRecord:
    """Tool call of an earlier run.

    Attributes:
        name: Name of the tool.
        arguments: Arguments as JSON with sorted keys, or as text if they are not JSON. Long ones are truncated.
        step: Model call that requested the call.
        code: Reason of a failure, as in `ToolCompleteEvent.code`, or an empty string.
        error: Beginning of the error that the model received, or an empty string.
        seconds: Duration.
        size: Length of the result in characters.
        used: For calls that `op.predict_context` made: True if the run later used the result or repeated the call, and
            otherwise False. None for calls of the model.
        correction: Arguments of a later successful call of the same tool in the same run, if this call failed and the
            arguments are equal or share a word. Otherwise an empty string.
    """

    name: str
    arguments: str
    step: str | None
    code: str
    error: str
    seconds: float
    size: int
    used: bool | None = None
    correction: str = ""

    @property
    def is_useful(self) -> bool:
        """True if the call succeeded and, if predicted, its result was used."""
        return not self.code and self.used is not False


@dataclass(slots=True, eq=False)
class RunCalls:
    """Fold of the events of a run to its tool calls.

    Calls of nested runs and copied events at the start of a fork belong to other runs. Thoughts are not calls.

    Attributes:
        task_id: Id of the run.
        agent: Name of the agent.
        created: Time of the first event in milliseconds since 1970.
        completed: True if the run has completed.
        calls: Calls in the order of their completion.
    """

    task_id: str = ""
    agent: str = ""
    created: int = 0
    completed: bool = False
    calls: list[ToolCallRecord] = field(default_factory=list[ToolCallRecord])
    _copied: int = 0
    _failed: Sequence[tuple[ToolCallRecord, int]] = ()
    """Recent failed calls without a correction, and the number of later calls that they were compared with."""
    _steps: Collection[str | None] = ()
    """Steps of predicted calls."""
    _prompt: str = ""
    """User message, until the model has answered."""
    _unused: Sequence[tuple[ToolCallRecord, set[str]]] = ()
    """Unused predicted calls, with the words that only occur in their results."""

    def add(self, events: Iterable[Event]) -> None:
        """Add the next durable events."""
        for event in events:
            if type(event) not in _FOLDED or event.parent_task_id is not None:
                continue
            if isinstance(event, TaskEvent):
                self.task_id, self.created, self.agent = event.task_id, event.timestamp, event.agent_name
                self._copied = event.fork_seq or 0
                self._prompt = event.messages[-1].text if event.messages else ""
            elif event.seq <= self._copied:
                continue
            elif isinstance(event, ToolCompleteEvent):
                self._add_call(event)
            elif isinstance(event, ContentCompleteEvent):
                self._add_message(event)
            elif isinstance(event, StatusUpdateEvent):
                self.completed = event.state == "completed"
                if self.completed:
                    # No later message can use their results or correct them.
                    self._unused = self._failed = ()

    def _add_call(self, event: ToolCompleteEvent) -> None:
        if event.name == THINK_ALOUD:
            return
        call = ToolCallRecord(
            name=share(event.name),
            arguments=_encode_arguments(event.call),
            step=event.step and share(event.step),
            code="" if event.success else event.code or "error",
            error="" if event.success else share(event.content[:_MAX_ERROR]),
            seconds=event.duration,
            size=len(event.content),
        )
        self.calls.append(call)
        later = [*self._failed[1 - _MAX_FAILED :], (call, 0)] if call.code else self._correct_failed(call)
        self._failed = [*later]
        if event.step in self._steps:
            call.used = False
            words = set(find_words(event.content[:_MAX_RESULT] if event.success else ""))
            self._unused = [*self._unused, (call, words.difference(find_words(f"{self._prompt} {call.arguments}")))]

    def _correct_failed(self, call: ToolCallRecord) -> Iterator[tuple[ToolCallRecord, int]]:
        """Set the correction of the failed calls that a successful call corrects, and yield those to correct later."""
        for failed, compared in self._failed:
            # Calls in the same message cannot respond to the error.
            if failed.name == call.name and failed.step != call.step:
                compared += 1
                failed.correction = call.arguments if _is_variant(failed, call) else ""
            if not failed.correction and compared < _MAX_COMPARISONS:
                yield failed, compared

    def _add_message(self, event: ContentCompleteEvent) -> None:
        if PREDICTED in event.metadata:
            self._steps = (*self._steps, event.step)
            return
        self._prompt = ""
        if self._unused:
            calls = [(call.name, _encode_arguments(call)) for call in event.tool_calls]
            words = set(find_words(" ".join([event.content, *(arguments for _, arguments in calls)])))
            for call, result in self._unused:
                call.used = (call.name, call.arguments) in calls or _is_enough(result & words, len(result))
            self._unused = [each for each in self._unused if not each[0].used]


def drop_old_calls(runs: Iterable[RunCalls], limit: int) -> int:
    """Drop the calls of the oldest runs, so that about `limit` calls remain, and return their number.

    Args:
        runs: All runs of an owner, newest first.
        limit: Number of calls after which all calls of older runs are dropped.
    """
    count = 0
    for run in runs:
        if count >= limit:
            run.calls.clear()
        count += len(run.calls)
    return count


@lru_cache(maxsize=1_000)
def share(text: str) -> str:
    """Return an equal string that earlier calls share. Python 3.12 would never free a string from `sys.intern`."""
    return text


def _encode_arguments(call: ToolCall) -> str:
    return (call.raw or "" if call.error is not None else canonical_json(call.arguments))[:_MAX_ARGUMENTS]


def _is_enough(shared: set[str], size: int) -> bool:
    """Return True if a message shares a number, two words, or the only word with a result."""
    return len(shared) >= min(2, size or 2) or any(character.isdigit() for word in shared for character in word)


def _is_variant(failed: ToolCallRecord, succeeded: ToolCallRecord) -> bool:
    """Return True if the second call may be a correction, because its values are equal or share a word."""
    a, b = (_KEY.sub(" ", call.arguments)[:_MAX_COMPARED] for call in (failed, succeeded))
    return a == b or not set(find_words(a)).isdisjoint(find_words(b))


@dataclass(slots=True)
class ToolStats:
    """Statistics of a tool.

    Attributes:
        calls: Number of calls.
        failures: Number of failed calls by code.
        corrected: Number of failed calls that were followed by a successful call in the same run.
        repeats: Number of calls with the same arguments as an earlier call of the same run.
        hits: Number of predicted calls whose results were used.
        misses: Number of other predicted calls.
        seconds: Durations of the executed calls.
    """

    calls: int = 0
    failures: Counter[str] = field(default_factory=Counter[str])
    corrected: int = 0
    repeats: int = 0
    hits: int = 0
    misses: int = 0
    seconds: list[float] = field(default_factory=list[float])

    def percentile(self, percent: int) -> float:
        """Return a percentile of the durations in seconds, or 0.0 if no call was executed."""
        ordered = sorted(self.seconds)
        return ordered[max(ceil(len(ordered) * percent / 100) - 1, 0)] if ordered else 0.0


@dataclass(slots=True)
class ToolHistory:
    """Statistics of the tools in several runs.

    Attributes:
        tools: Statistics by tool name.
        sequences: Number of pairs of successive calls of different tools, by their names.
    """

    tools: dict[str, ToolStats] = field(default_factory=dict[str, ToolStats])
    sequences: Counter[tuple[str, str]] = field(default_factory=Counter[tuple[str, str]])

    def add(self, run: RunCalls) -> None:
        """Add a run."""
        earlier: set[tuple[str, str]] = set()
        for call in run.calls:
            stats = self.tools.setdefault(call.name, ToolStats())
            stats.calls += 1
            stats.corrected += bool(call.correction)
            stats.repeats += (call.name, call.arguments) in earlier
            stats.hits += call.used is True
            stats.misses += call.used is False
            earlier.add((call.name, call.arguments))
            if call.code:
                stats.failures[call.code] += 1
            if call.seconds:
                stats.seconds.append(call.seconds)
        self.sequences.update((a.name, b.name) for a, b in pairwise(run.calls) if a.name != b.name)
