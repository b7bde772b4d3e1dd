"""Snapshot of a run: everything that decides how it continues, from one call of the log."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from rxloop.pipeline.records import ConversationPage, Mark, RunRecord
from rxloop.protocol.commands import Command
from rxloop.protocol.events import Event, State
from rxloop.state.fold import fold_all
from rxloop.state.run_state import RunState

WAITING: tuple[State, ...] = ("input-required", "auth-required")
"""States of a run that waits for an answer."""
NOTHING_DONE = 3
"""Number of events of a run that ended before it did anything: its task, its start and its end."""


class HistoryQuery(NamedTuple):
    """The part of the conversation before a run that a snapshot includes."""

    after: Mark | None
    """The end of an earlier page, as for `EventLog.read_conversation`."""
    version: int
    """The version of the folds that the caller understands."""


@dataclass(frozen=True)
class Snapshot:
    """A run, the commands sent to it, and its neighbours in the conversation.

    The parts are read in the order of the fields. So a command may be missing among the events that it became in the
    meantime, and none is missing among the commands.
    """

    record: RunRecord
    events: Sequence[Event]
    """All durable events of the run."""
    commands: Sequence[tuple[int, Command]]
    """Commands with their numbers, in order: all of them, or those after the mail of an earlier snapshot."""
    waiting: Sequence[RunRecord]
    """Earlier runs of the conversation that wait for answers, the newest one first."""
    later: RunRecord | None
    """First later run of the conversation that has begun, and so has dropped the questions of this run."""
    history: ConversationPage | None
    """Earlier runs of the conversation, if the caller asked for them."""

    @property
    def task_id(self) -> str:
        """The run."""
        return self.record.task_id

    @cached_property
    def state(self) -> RunState:
        """The fold of the events."""
        return fold_all(self.events)

    @property
    def new_commands(self) -> Sequence[tuple[int, Command]]:
        """The commands that no event has applied yet."""
        return [command for command in self.commands if command[0] > self.state.mail]


def has_begun(state: State, seq: int) -> bool:
    """Return True if a run with that many events has begun, and so has dropped the questions before it.

    A run that ended before it did anything has not begun, such as one that was cancelled while it waited.
    """
    return state != "submitted" and not (state in ("canceled", "failed") and seq <= NOTHING_DONE)


def find_neighbours(task_id: str, records: Sequence[RunRecord]) -> tuple[list[RunRecord], RunRecord | None]:
    """Return the fields `waiting` and `later` of the snapshot of a run.

    Args:
        task_id: The run.
        records: The runs of its conversation, in order.
    """
    place = next((place for place, record in enumerate(records) if record.task_id == task_id), len(records))
    waiting = [record for record in reversed(records[:place]) if record.state in WAITING]
    return waiting, next((record for record in records[place + 1 :] if has_begun(record.state, record.seq)), None)
