"""Which runs somebody wants to see."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, TypedDict

import orjson

from rxloop.errors import ConfigurationError
from rxloop.eventlog.rules import FINISHED
from rxloop.pipeline.values import RunRecord
from rxloop.protocol.events import State
from rxloop.protocol.storable import storable


class Choice(TypedDict, total=False):
    """The arguments of `EventLog.runs` that say what a record has to be like."""

    context_id: str | None
    unfinished: bool
    states: Collection[State] | None
    agent_name: str | None
    owner: str | None
    since: int | None
    until: int | None
    metadata: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What somebody wants of the records of runs: a `Choice`, with what it leaves out."""

    context_id: str | None = None
    unfinished: bool = False
    states: Collection[State] | None = None
    agent_name: str | None = None
    owner: str | None = None
    since: int | None = None
    until: int | None = None
    metadata: Mapping[str, Any] | None = None

    def matches(self, record: RunRecord) -> bool:
        """Whether a record is like that."""
        pairs = (
            (self.context_id, record.context_id),
            (self.agent_name, record.agent_name),
            (self.owner, record.owner),
        )
        return (
            all(wanted is None or wanted == found for wanted, found in pairs)
            and (not self.unfinished or record.state not in FINISHED)
            and (self.states is None or record.state in self.states)
            and (self.since is None or record.created >= self.since)
            and (self.until is None or record.created < self.until)
            and all(
                key in record.metadata and as_json(record.metadata[key]) == as_json(value)
                for key, value in (self.metadata or {}).items()
            )
        )


def as_json(value: Any) -> str:
    """Write a value of metadata so that equal ones are written alike."""
    return orjson.dumps(storable(value, "metadata"), option=orjson.OPT_SORT_KEYS).decode()


def check_limit(limit: int | None) -> None:
    """Check how many runs somebody wants.

    Raises:
        ConfigurationError: It is less than one.
    """
    if limit is not None and limit < 1:
        raise ConfigurationError(f"limit={limit!r}: give the number of runs of a page, from 1, or None for all")
