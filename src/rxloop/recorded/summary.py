"""Summary and state of a run for lists, and search for runs with a text in their questions, answers or tool names."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from typing_extensions import Unpack

from rxloop.errors import EventLogError, UnknownRun
from rxloop.operators.views.cost import Spending
from rxloop.pipeline.event_log import EventLog
from rxloop.protocol.events import (
    ContentCompleteEvent,
    Event,
    MessageAddedEvent,
    ServerToolEvent,
    StatusUpdateEvent,
    TaskEvent,
    ToolCompleteEvent,
    ToolStartEvent,
    UsageEvent,
)
from rxloop.protocol.http_api import RunInfo, StateInfo
from rxloop.protocol.http_api.inspection import RunProblem
from rxloop.protocol.messages import Message, public_question
from rxloop.protocol.visibility import PUBLIC_METADATA, redact_error, select_public_messages
from rxloop.recorded.follow import read_chunks, read_first
from rxloop.recorded.problems import ProblemFold
from rxloop.state.run_state import RunState

if TYPE_CHECKING:
    from rxloop.pipeline.records import RunQuery, RunRecord

_PAGE_SIZE = 100
"""Number of records read at once by a search."""

MAX_TITLE = 120
"""Maximum number of characters in a title."""

RATE_BINS = 12
"""Maximum number of parts of a token rate."""


@dataclass(frozen=True, slots=True)
class RunSummary:
    """Facts about a run that its record does not contain."""

    title: str = ""
    fork_of: str | None = None
    seconds: float | None = None
    """Time from the first to the last event, excluding events that a fork has copied. None if it follows from the times
    of the record, because only the first event was read."""
    first_token: float | None = None
    calls: int | None = None
    """Number of started tool calls, or None if only the first event was read."""
    problems: int | None = None
    """Number of problems, or None if only the first event was read."""
    token_rate: list[int] | None = None
    """Tokens in equal parts of `seconds`, or None if only the first event was read."""
    dollars: float | None = None
    """Cost in US dollars, or None if no model with a price was used or only the first event was read."""


class TokenRate:
    """Tokens of a run in at most `RATE_BINS` equal parts of its time."""

    def __init__(self) -> None:
        """Create an empty rate."""
        self._start: int | None = None
        self._width = 1_000
        self._bins: list[int] = []

    def add(self, time: int, tokens: int) -> None:
        """Add tokens at a time in milliseconds. The width of the parts grows with the time."""
        if self._start is None:
            self._start = time
        elapsed = max(time - self._start, 0)
        while elapsed >= self._width * RATE_BINS:
            self._width *= 2
            self._bins = [sum(self._bins[i : i + 2]) for i in range(0, len(self._bins), 2)]
        index = elapsed // self._width
        self._bins += [0] * (index + 1 - len(self._bins))
        self._bins[index] += tokens

    @property
    def bins(self) -> list[int]:
        """Tokens in each part."""
        return list(self._bins)


class SummaryFold:
    """Fold of the events of a run to its summary and its problems."""

    def __init__(self, *, internal: bool = False) -> None:
        """Create a fold without events.

        Args:
            internal: Whether to include problems that clients must not receive.
        """
        self._problems = ProblemFold(internal=internal)
        self._title, self._calls = "", 0
        self._fork_of: str | None = None
        self._copied, self._start = 0, 0
        self._first_token: float | None = None
        self._has_message = False
        self._rate = TokenRate()
        self._spending, self._is_priced = Spending(None), False

    @property
    def last(self) -> Event | None:
        """Last event, or None before the first event."""
        return self._problems.last

    @property
    def size(self) -> int:
        """Number of values in memory."""
        return 1 + self._problems.size

    def add(self, events: Iterable[Event]) -> None:
        """Add durable events in order."""
        for event in events:
            self._problems.add((event,))
            if event.seq <= self._copied + 1:
                # Copied events may be days older than the fork.
                self._start, self._rate = event.timestamp, TokenRate()
                self._rate.add(self._start, 0)
            self._is_priced |= self._spending.add(event)
            match event.to_public():
                case TaskEvent() as task if task.parent_task_id is None:
                    self._title, self._fork_of = make_title(task), task.fork_of
                    self._copied = task.fork_seq or 0
                case ContentCompleteEvent() as message if not self._has_message:
                    self._has_message, self._first_token = True, message.first_token
                case ToolStartEvent():
                    self._calls += 1
                case UsageEvent() as usage if usage.seq > self._copied:
                    self._rate.add(usage.timestamp, usage.input_tokens + usage.output_tokens)
                case _:
                    pass

    def make_summary(self, task_id: str) -> RunSummary:
        """Return the summary of the events added so far."""
        return RunSummary(
            title=self._title,
            fork_of=self._fork_of,
            seconds=None if self.last is None else max(self.last.timestamp - self._start, 0) / 1000,
            first_token=self._first_token,
            calls=self._calls,
            problems=self._problems.count,
            token_rate=self._rate.bins,
            # Sums of small numbers have errors far below the smallest price.
            dollars=round(self._spending.dollars, 9) if self._is_priced else None,
        )

    def collect_problems(self, task_id: str, *, now: int | None = None) -> list[RunProblem]:
        """Return the problems of the events added so far; see `ProblemFold.collect`."""
        return self._problems.collect(task_id, now=now)


async def summarize_start(log: EventLog, record: RunRecord) -> RunSummary:
    """Return the summary of the first event of a run."""
    first = await read_first(log, record.task_id)
    return RunSummary(make_title(first), first.fork_of) if isinstance(first, TaskEvent) else RunSummary()


def make_title(task: TaskEvent) -> str:
    """Return the beginning of the last message that started a run, on a single line."""
    texts = [message.text for message in task.messages if message.role == "user"]
    return shorten_line(texts[-1]) if texts else ""


def shorten_line(text: str, max_length: int = MAX_TITLE) -> str:
    """Return the beginning of a text on a single line."""
    line = " ".join(text[: 4 * max_length].split())
    return line if len(line) <= max_length else line[: max_length - 1] + "\u2026"


def contains_text(events: Iterable[Event], text: str, *, internal: bool = False) -> bool:
    """Return True if the questions, answers or tool names of a run contain a text.

    Args:
        events: Durable events.
        text: Text in casefolded form.
        internal: Whether to search data that clients must not receive.
    """
    shown = events if internal else (event.to_public() for event in events)
    return any(text in passage.casefold() for event in shown for passage in _list_passages(event))


async def search_runs(log: EventLog, text: str, **query: Unpack[RunQuery]) -> AsyncGenerator[RunRecord]:
    """Yield the runs with a text in their questions, answers or tool names, newest first.

    Upper and lower case are not distinguished. Unreadable runs are skipped, because they should not prevent a search.

    Args:
        log: Event log.
        text: Text to find.
        **query: Filters for the runs.
    """
    wanted, after = text.casefold(), None
    while True:
        records = await log.list_runs(**{**query, "newest_first": True, "after": after, "limit": _PAGE_SIZE})
        for record in records:
            try:
                if await _has_text(log, record, wanted):
                    yield record
            except EventLogError as error:
                if error.retryable or isinstance(error, UnknownRun):
                    raise
        if len(records) < _PAGE_SIZE:
            return
        after = records[-1].task_id


async def _has_text(log: EventLog, record: RunRecord, text: str) -> bool:
    async with aclosing(read_chunks(log, record.task_id, last_seq=record.seq)) as chunks:
        async for chunk in chunks:
            if contains_text(chunk, text, internal=True):
                return True
    return False


def _list_passages(event: Event | None) -> Iterator[str]:
    match event:
        case TaskEvent():
            yield from (message.text for message in event.messages if message.role == "user")
        case MessageAddedEvent(role="user"):
            yield Message(role="user", content=event.content).text
        case ContentCompleteEvent() | StatusUpdateEvent():
            yield event.content or ""
        case ToolStartEvent() | ToolCompleteEvent() | ServerToolEvent():
            yield event.name
        case _:
            pass


# -- state


def make_run_info(record: RunRecord, **fields: Any) -> RunInfo:
    """Convert the record of a run to its JSON model.

    Args:
        record: Record of the run.
        **fields: Further fields, or other values of fields.
    """
    values: dict[str, Any] = {
        "task_id": record.task_id,
        "context_id": record.context_id,
        "agent": record.agent_name,
        "state": record.state,
        "attempt": record.attempt,
        "seq": record.seq,
        "cursor": record.cursor,
        "created": record.created,
        "updated": record.updated,
        "metadata": dict(record.metadata.get(PUBLIC_METADATA) or {}),
        "usage": record.usage,
        "error": None if record.error is None else redact_error(record.error, None),
    }
    return RunInfo(**{**values, **fields})


def make_state_info(task_id: str, seq: int, state: RunState, messages: Sequence[Message] | None = None) -> StateInfo:
    """Convert a run state to its JSON model, including internal data.

    Args:
        task_id: Task id of the run.
        seq: `seq` of the last event of the state.
        state: State of the run.
        messages: Messages to include instead of all messages of the state.
    """
    batch = state.batch
    return StateInfo(
        task_id=task_id,
        seq=seq,
        attempt=state.attempt,
        state=state.state,
        reason=state.reason,
        error=state.error,
        iteration=state.iteration,
        messages=list(state.messages if messages is None else messages),
        calls=[] if batch is None else [batch.calls[index] for index in batch.open],
        pending=list(state.pending.values()),
        goals=list(state.goals or ()),
        content=state.content,
        usage=state.usage,
    )


def redact_state(info: StateInfo) -> StateInfo:
    """Remove internal data from a state, following the rules for events."""
    return info.model_copy(
        update={
            "messages": list(select_public_messages(info.messages)),
            "calls": [each for each in info.calls if not each.hidden],
            "pending": [public_question(each) for each in info.pending],
            "error": None if info.error is None else redact_error(info.error, info.reason),
        }
    )
