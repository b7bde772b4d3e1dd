"""Summary of a run for lists, and text search in the public data of a run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from rxloop.protocol.events import (
    ContentCompleteEvent,
    Event,
    MessageAddedEvent,
    ServerToolEvent,
    StatusUpdateEvent,
    TaskEvent,
    ToolCompleteEvent,
    ToolStartEvent,
)
from rxloop.protocol.messages import Message
from rxloop.recorded.problems import ProblemFold

MAX_TITLE = 120
"""Maximum number of characters in a title."""


@dataclass(frozen=True, slots=True)
class RunSummary:
    """Facts about a run that its record does not contain."""

    title: str = ""
    fork_of: str | None = None
    first_token: float | None = None
    calls: int | None = None
    """Number of started tool calls, or None if only the first event was read."""
    problems: int | None = None
    """Number of problems, or None if only the first event was read."""


class SummaryFold:
    """Fold of the events of a run to its summary, which only contains data for clients."""

    def __init__(self) -> None:
        """Create a fold without events."""
        self._problems = ProblemFold(internal=False)
        self._title, self._calls = "", 0
        self._fork_of: str | None = None
        self._first_token: float | None = None
        self._has_message = False

    @property
    def last(self) -> Event | None:
        """Last event, or None before the first event."""
        return self._problems.last

    def add(self, events: Iterable[Event]) -> None:
        """Add durable events in order."""
        for event in events:
            self._problems.add((event,))
            match event.to_public():
                case TaskEvent() as task if task.parent_task_id is None:
                    self._title, self._fork_of = make_title(task), task.fork_of
                case ContentCompleteEvent() as message if not self._has_message:
                    self._has_message, self._first_token = True, message.first_token
                case ToolStartEvent():
                    self._calls += 1
                case _:
                    pass

    def make_summary(self, task_id: str) -> RunSummary:
        """Return the summary of the events added so far."""
        problems = len(self._problems.collect(task_id))
        return RunSummary(self._title, self._fork_of, self._first_token, self._calls, problems)


def summarize_start(first: Event | None) -> RunSummary:
    """Return the summary of a run of which only the first event was read."""
    return RunSummary(make_title(first), first.fork_of) if isinstance(first, TaskEvent) else RunSummary()


def make_title(task: TaskEvent) -> str:
    """Return the beginning of the last message that started a run, on a single line."""
    texts = [message.text for message in task.messages if message.role == "user"]
    line = " ".join(texts[-1][: 4 * MAX_TITLE].split()) if texts else ""
    return line if len(line) <= MAX_TITLE else line[: MAX_TITLE - 1] + "\u2026"


def contains_text(events: Iterable[Event], text: str) -> bool:
    """Return True if the questions, answers or tool names of public events contain a text.

    Args:
        events: Durable events.
        text: Text in casefolded form.
    """
    return any(text in passage.casefold() for event in events for passage in _list_passages(event.to_public()))


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
