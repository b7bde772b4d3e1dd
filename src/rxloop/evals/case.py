"""Case of an experiment."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from os import PathLike
from pathlib import Path
from typing import Any, cast

import orjson
from pydantic_core import to_jsonable_python

from rxloop.errors import ConfigurationError
from rxloop.pipeline.event_log import EventLog
from rxloop.pipeline.log_retry import read_log
from rxloop.protocol.envelope import check_printable
from rxloop.protocol.events import Event, State, StatusUpdateEvent, TaskEvent
from rxloop.protocol.messages import Message, to_messages
from rxloop.state.run_state import get_final_history
from rxloop.storage.conversation import conversation

MARK = "rxloop.experiment"
"""Metadata key with the experiment's name. For a run of a judge, its value is the judged run."""


@dataclass(frozen=True, slots=True)
class Case:
    """One thing to ask, and what is known of the right answer.

    Attributes:
        input: What `agent.run` takes, or anything the experiment's `prompt=` can turn into it. In a case with
            `fork_of` it is what is said there, and may be None.
        expected: What scorers compare the answer with.
        id: Its name in reports, and in the ids of its runs; by default its place in the list, from 1.
        metadata: Whatever scorers and `prompt=` want to know besides.
        fork_of: A recorded run of the experiment's log, with whose beginning each run of this case begins.
        fork_at: The `seq` of the last event of it that is taken over.
    """

    input: Any = None
    expected: Any = None
    id: str = ""
    metadata: Mapping[str, Any] = field(default_factory=dict[str, Any])
    fork_of: str | None = None
    fork_at: int | None = None

    def __post_init__(self) -> None:
        if (self.fork_of is None) != (self.fork_at is None):
            raise ConfigurationError(f"the case {self.id!r} must have both fork_of and fork_at, or neither")
        if self.input is None and self.fork_of is None:
            raise ConfigurationError(
                f"the case {self.id!r} has no input; set a string, or a value that prompt= converts"
            )
        check_printable(self.id, "the id of a case")

    @classmethod
    def read(cls, path: str | PathLike[str]) -> list[Case]:
        """Read cases from a file with a JSON object in each line, whose keys are the attributes of a case.

        Args:
            path: The file; empty lines are passed over.

        Raises:
            ConfigurationError: A line is not such an object; the message names it.
        """
        cases: list[Case] = []
        for number, line in enumerate(Path(path).read_bytes().splitlines(), start=1):
            if line.strip():
                cases.append(_read(line, f"{path}, line {number}"))
        return cases

    @classmethod
    async def recorded(
        cls,
        log: EventLog,
        *,
        expected: bool = False,
        states: Collection[State] = ("completed",),
        agent_name: str | None = None,
        owner: str | None = None,
        since: int | None = None,
        until: int | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> list[Case]:
        """Make cases from the runs of a log: each has what the run was asked, and the conversation before it.

        Runs that an experiment has made are left out.

        Args:
            log: Holds the runs.
            expected: Take the recorded answer of each for the expected one.
            states: Only runs in these states.
            agent_name: Only runs of the agent of this name.
            owner: Only runs of this owner.
            since: Only runs created at this time or later, in milliseconds since 1970.
            until: Only runs created before this time.
            metadata: Only runs with these values in their metadata.
        """
        cases: list[Case] = []
        records = await read_log(
            log.list_runs,
            states=states,
            agent_name=agent_name,
            owner=owner,
            since=since,
            until=until,
            metadata=metadata,
        )
        for record in records:
            if MARK in record.metadata:
                continue
            events = await read_log(log.read, record.task_id)
            before = get_final_history(await conversation(log, record.context_id, before=record.task_id))
            first = events[0]
            asked = first.messages if isinstance(first, TaskEvent) else []
            cases.append(cls([*before, *asked], _answer(events) if expected else None, id=record.task_id))
        return cases


def _read(line: bytes, place: str) -> Case:
    try:
        values = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise ConfigurationError(f"{place} is not JSON: {error}") from error
    if not isinstance(values, dict):
        raise ConfigurationError(f'{place} is not an object: write {{"id": "oslo", "input": "...", "expected": "..."}}')
    fields = cast("dict[str, Any]", values)
    unknown = [name for name in fields if name not in Case.__dataclass_fields__]
    if unknown:
        known = ", ".join(Case.__dataclass_fields__)
        raise ConfigurationError(
            f"{place} has {unknown[0]!r}, which no case has: known are {known}; put it in metadata"
        )
    try:
        fields["id"] = str(fields.get("id", ""))
        return Case(**fields)
    except ConfigurationError as error:
        raise ConfigurationError(f"{place}: {error}") from error


def _answer(events: Sequence[Event]) -> str | None:
    last = next((event for event in reversed(events) if isinstance(event, StatusUpdateEvent) and event.final), None)
    return last.content if last is not None else None


def numbered(cases: Sequence[Case]) -> list[Case]:
    """Assign an id to each case without one.

    Args:
        cases: Cases of an experiment.

    Raises:
        ConfigurationError: An item is not a case, or an id occurs twice.
    """
    if not cases:
        raise ConfigurationError('an experiment needs a case: Case("What is 6 * 7?", expected="42")')
    wrong = next((case for case in cases if not isinstance(case, Case)), None)  # pyright: ignore[reportUnnecessaryIsInstance]
    if wrong is not None:
        raise ConfigurationError(f'{wrong!r} is not a case: Case("What is 6 * 7?", expected="42")')
    named = [case if case.id else replace(case, id=str(place)) for place, case in enumerate(cases, start=1)]
    seen: set[str] = set()
    for case in named:
        if case.id in seen:
            raise ConfigurationError(f"case ids must be unique, got {case.id!r} twice")
        seen.add(case.id)
    return named


def plain_input(case: Case) -> Any:
    """Return a case's input for a report, as text or JSON."""
    given = case.input
    if isinstance(given, Message):
        return given.text
    if isinstance(given, Sequence) and any(isinstance(each, Message) for each in given):  # pyright: ignore[reportUnknownVariableType]
        return "\n\n".join(f"{message.role}: {message.text}" for message in to_messages(given))  # pyright: ignore[reportUnknownArgumentType]
    return to_jsonable_python(given, fallback=str)
