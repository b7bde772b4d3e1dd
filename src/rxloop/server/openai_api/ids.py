"""The ids of responses, and of what a response asks: each names its run, so that any process finds it."""

from __future__ import annotations

import re
from typing import NamedTuple

_ID = re.compile(r"([0-9a-f-]{36})(?:\.([1-9][0-9]{0,5}))?")

_LATER = ":response:"


class ResponseId(NamedTuple):
    """A run from its beginning, or from an answer to its questions, until it comes to rest: one response."""

    task_id: str
    turn: int

    def __str__(self) -> str:
        return self.task_id if self.turn == 1 else f"{self.task_id}.{self.turn}"


def read_response_id(value: str) -> ResponseId | None:
    """Read the id of a response; None for what is none."""
    found = _ID.fullmatch(value)
    if found is None or found[2] == "1":
        return None
    return ResponseId(found[1], int(found[2] or 1))


def approval_id(task_id: str, input_id: str) -> str:
    """The id of a question, for `approval_request_id`."""
    return f"mcpr_{task_id}:{input_id}"


def run_of(id: str) -> str:
    """The run that an id of `approval_id`, or of the slot of a call, names."""
    return id.removeprefix("mcpr_").partition(":")[0]


def later(id: str, turn: int) -> str:
    """The id of an item that several responses of a run may have."""
    return id if turn == 1 else f"{id}{_LATER}{turn}"


def question_of(id: str) -> str:
    """The question that an id names, whichever response it was put in."""
    return id.partition(_LATER)[0]
