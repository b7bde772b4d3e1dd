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

METADATA_KEY = "rxloop.experiment"
"""Metadata key for the experiment's name. Runs of judges use it for the judged run's id."""


@dataclass(frozen=True, slots=True)
class Case:
    """Input with an optional expected answer.

    Attributes:
        input: Prompt for `agent.run`, or a value that the experiment's `prompt=` converts to one. For a fork, it is a
            new message and may be None.
        expected: Expected answer, for scorers.
        id: Id in reports and in the ids of runs. The default is the position in the list, starting at 1.
        metadata: Additional data for scorers and `prompt=`.
        fork_of: Run in the experiment's log to fork.
        fork_at: `seq` of the last event to copy.
    """

    input: Any = None
    expected: Any = None
    id: str = ""
    metadata: Mapping[str, Any] = field(default_factory=dict[str, Any])
    fork_of: str | None = None
    fork_at: int | None = None

    def __post_init__(self) -> None:
        if (self.fork_of is None) != (self.fork_at is None):
            raise ConfigurationError(f"case {self.id!r} must have both fork_of and fork_at, or neither")
        if self.input is None and self.fork_of is None:
            raise ConfigurationError(f"case {self.id!r} has no input; set a string, or a value for prompt=")
        check_printable(self.id, "the id of a case")

    @classmethod
    def read(cls, path: str | PathLike[str]) -> list[Case]:
        """Read cases from a JSONL file. Supported keys are the attributes of `Case`.

        Args:
            path: Path of the file. Empty lines are skipped.

        Raises:
            ConfigurationError: A line is not a valid case. The message contains the line number.
        """
        cases: list[Case] = []
        for number, line in enumerate(Path(path).read_bytes().splitlines(), start=1):
            if line.strip():
                cases.append(_parse_case(line, f"{path}, line {number}"))
        return cases

    @classmethod
    async def from_log(
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
        """Create cases from recorded runs, including the conversation before each run.

        Runs made by experiments are omitted.

        Args:
            log: Event log.
            expected: Whether to use the recorded answers as expected ones.
            states: States of the runs to include.
            agent_name: Only include runs of this agent.
            owner: Only include runs of this owner.
            since: Only include runs created at or after this time, in milliseconds since 1970.
            until: Only include runs created before this time, in milliseconds since 1970.
            metadata: Only include runs with these metadata values.
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
            if METADATA_KEY in record.metadata:
                continue
            events = await read_log(log.read, record.task_id)
            before = get_final_history(await conversation(log, record.conversation, before=record.task_id))
            first = events[0]
            prompt = first.messages if isinstance(first, TaskEvent) else []
            cases.append(cls([*before, *prompt], _find_answer(events) if expected else None, id=record.task_id))
        return cases


def append_case(path: Path, case: Mapping[str, Any]) -> int:
    """Append a case to a JSONL file, which is created if it does not exist. Return the number of cases in the file.

    Args:
        path: Path of the file.
        case: Attributes of `Case`, as JSON.

    Raises:
        ConfigurationError: The file is not valid, or already contains a case with this id. It is not changed.
        OSError: The file cannot be written.
    """
    known = Case.read(path) if path.exists() else []
    if any(each.id == case["id"] for each in known):
        raise ConfigurationError(f"{path.name} already contains a case with the id {case['id']!r}; remove its line")
    # A file edited by hand may lack the last line break.
    ends_in_line = path.exists() and not path.read_bytes().endswith(b"\n") and path.stat().st_size > 0
    with path.open("ab") as file:
        file.write(b"\n" * ends_in_line + orjson.dumps(dict(case)) + b"\n")
    return len(known) + 1


def _parse_case(line: bytes, location: str) -> Case:
    try:
        values = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise ConfigurationError(f"{location} is not valid JSON: {error}") from error
    if not isinstance(values, dict):
        raise ConfigurationError(
            f'{location} must be an object such as {{"id": "oslo", "input": "...", "expected": "..."}}'
        )
    fields = cast("dict[str, Any]", values)
    unknown = [name for name in fields if name not in Case.__dataclass_fields__]
    if unknown:
        allowed = ", ".join(Case.__dataclass_fields__)
        raise ConfigurationError(
            f"{location} has unknown field {unknown[0]!r}, expected {allowed}; use metadata for other data"
        )
    try:
        fields["id"] = str(fields.get("id", ""))
        return Case(**fields)
    except ConfigurationError as error:
        raise ConfigurationError(f"{location}: {error}") from error


def _find_answer(events: Sequence[Event]) -> str | None:
    last = next((event for event in reversed(events) if isinstance(event, StatusUpdateEvent) and event.final), None)
    return last.content if last is not None else None


def assign_ids(cases: Sequence[Case]) -> list[Case]:
    """Assign numbers to the cases that do not have an id.

    Args:
        cases: Cases of an experiment.

    Raises:
        ConfigurationError: There are no cases, an item is not a `Case`, or an id is not unique.
    """
    if not cases:
        raise ConfigurationError("cases must not be empty")
    invalid = next((case for case in cases if not isinstance(case, Case)), None)  # pyright: ignore[reportUnnecessaryIsInstance]
    if invalid is not None:
        raise ConfigurationError(f'cases must be Case objects, such as Case("What is 6 * 7?"), got {invalid!r}')
    identified = [case if case.id else replace(case, id=str(position)) for position, case in enumerate(cases, start=1)]
    ids: set[str] = set()
    for case in identified:
        if case.id in ids:
            raise ConfigurationError(f"case ids must be unique, got {case.id!r} twice")
        ids.add(case.id)
    return identified


def format_input(case: Case) -> Any:
    """Return a case's input for a report, as text or JSON."""
    value = case.input
    if isinstance(value, Message):
        return value.text
    if isinstance(value, Sequence) and any(isinstance(each, Message) for each in value):  # pyright: ignore[reportUnknownVariableType]
        return "\n\n".join(f"{message.role}: {message.text}" for message in to_messages(value))  # pyright: ignore[reportUnknownArgumentType]
    return to_jsonable_python(value, fallback=str)
