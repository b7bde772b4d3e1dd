"""Text search in recorded runs, with one run in memory at a time."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Iterator
from typing import TYPE_CHECKING

from typing_extensions import Unpack

from rxloop.errors import EventLogError, UnknownRun
from rxloop.pipeline.event_log import EventLog
from rxloop.protocol.events import ContentCompleteEvent, Event, MessageAddedEvent, StatusUpdateEvent, TaskEvent
from rxloop.protocol.messages import Message

if TYPE_CHECKING:
    from rxloop.pipeline.records import RunQuery, RunRecord

_PAGE_SIZE = 100


async def search_runs(log: EventLog, text: str, **query: Unpack[RunQuery]) -> AsyncGenerator[RunRecord]:
    """Yield the runs with a text in their questions or answers, newest first.

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
                events = await log.read(record.task_id)
            except EventLogError as error:
                if error.retryable or isinstance(error, UnknownRun):
                    raise
                continue
            if any(wanted in passage.casefold() for passage in _list_passages(events)):
                yield record
        if len(records) < _PAGE_SIZE:
            return
        after = records[-1].task_id


def _list_passages(events: Iterable[Event]) -> Iterator[str]:
    """Yield questions and answers on the main branch, excluding nested runs."""
    for event in events:
        if event.branch is not None or event.parent_task_id is not None:
            continue
        match event:
            case TaskEvent():
                yield from (message.text for message in event.messages if message.role == "user")
            case MessageAddedEvent(role="user"):
                yield Message(role="user", content=event.content).text
            case ContentCompleteEvent() | StatusUpdateEvent():
                yield event.content or ""
            case _:
                pass
