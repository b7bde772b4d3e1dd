"""The answers that a run is resumed with: which of them are new, and whether they fit."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from rxloop.errors import InvalidEvent, InvalidInput, NotAsked, ToolError
from rxloop.pipeline.json_schema import misfit, shown
from rxloop.pipeline.values import RunRecord
from rxloop.protocol.events import State
from rxloop.protocol.questions import failure_of
from rxloop.protocol.storable import storable
from rxloop.state.run_state import RunState
from rxloop.tools import encode_result

WAITING = ("input-required", "auth-required")
"""The states of a run that waits for an answer."""
_NOTHING_DONE = 3
"""The events of a run that was over before it did anything: its task, that it is under way, and its end."""


def new_answers(task_id: str, state: RunState, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The answers that the run does not have yet; one that it has, and is equal, is passed over.

    Credentials are checked, and not among them: see `credentials`.

    Raises:
        NotAsked: The run does not wait for an answer, or has another one.
        InvalidInput: The answer does not fit the question.
    """
    new: dict[str, Any] = {}
    for input_id, value in inputs.items():
        if input_id in state.answers:
            if _written(_stored(input_id, value)) != _written(state.answers[input_id]):
                raise NotAsked(
                    f"{input_id!r} of the run {task_id} has its answer already: "
                    f"{shown(state.answers[input_id])}, which {shown(value)} cannot replace"
                )
            continue
        _check(task_id, state, input_id, value)
        if state.pending[input_id].secret:
            continue
        new[input_id] = _stored(input_id, value)
    return new


def _stored(input_id: str, value: Any) -> Any:
    try:
        return storable(value, f"the answer to {input_id!r}")
    except InvalidEvent as error:
        raise InvalidInput(str(error)) from error


def credentials(state: RunState, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the answers that are credentials, by the id of the question."""
    found: dict[str, Any] = {}
    for input_id, value in inputs.items():
        question = state.pending.get(input_id)
        if question is not None and question.secret and not state.finished:
            # Ciphertext is the same whether it has stood in a log or not.
            found[input_id] = value if question.public_key is None else storable(value, "the credential")
    return found


def plain_credentials(state: RunState, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Those that no log may have, since nobody has encrypted them; a person who declines gives none."""
    given = credentials(state, inputs)
    return {key: given[key] for key in given if given[key] is not None and state.pending[key].public_key is None}


def _check(task_id: str, state: RunState, input_id: str, value: Any) -> None:
    question = state.pending.get(input_id)
    if question is None or state.finished:
        waiting = (", ".join(state.pending) if not state.finished else "") or "nothing"
        raise NotAsked(f"the run {task_id} is {state.state} and does not wait for {input_id!r}; it waits for {waiting}")
    if question.secret:
        # With no word of the value itself.
        if question.public_key is not None and not isinstance(value, str | bytes | None):
            raise InvalidInput(f"the credential for {input_id!r} is to be ciphertext: a text, or bytes")
        return
    if question.options is not None and value not in question.options:
        raise InvalidInput(f"{shown(value)} is none of the options of {question.prompt!r}: {question.options}")
    if question.input_kind == "tool":
        _check_result(input_id, value)
        if failure_of(value) is not None:
            return
    wrong = misfit(value, question.answer_schema)
    if wrong is not None:
        raise InvalidInput(f"{shown(value)} does not answer {question.prompt!r} ({input_id}): {wrong}")


def _check_result(input_id: str, value: Any) -> None:
    """See that the result of a client is one that a tool may have."""
    try:
        encode_result(value)
    except ToolError as error:
        raise InvalidInput(f"the result for {input_id!r} cannot be taken: {error}") from error


def _written(value: Any) -> str:
    """A value as JSON, in which `true` is not 1, and keys have no order."""
    return json.dumps(value, sort_keys=True, default=str)


def check_waiting(task_id: str, state: RunState) -> None:
    """See that a run does not wait for answers of which none is given.

    One that was killed between its question and its pause does not wait yet: it may go on up to the question.

    Raises:
        InvalidInput: It waits.
    """
    if state.pending and state.state in WAITING:
        waiting = ", ".join(state.pending)
        raise InvalidInput(f"the run {task_id} waits for {waiting}: give inputs={{...}} or on_input=")


def check_not_let_go(task_id: str, state: RunState, records: Sequence[RunRecord]) -> None:
    """See that no later run of the conversation has let the questions of this one go.

    That one went on without an answer, and its model was told so: an answer now would make two courses of one history.

    Args:
        task_id: The run.
        state: Where it stands.
        records: The runs of its conversation, in order.

    Raises:
        NotAsked: There is such a run.
    """
    later = later_run(task_id, records)
    if later is not None and state.pending:
        raise let_go(task_id, state, later.task_id, later.context_id)


def let_go(task_id: str, state: RunState, later: str, context_id: str) -> NotAsked:
    """The error of an answer to questions that a later run of the conversation has let go."""
    return NotAsked(
        f"the run {task_id} does not wait for {', '.join(state.pending)} any more: the later run {later} of the "
        f"conversation {context_id} has let the question go. Ask anew in a new run, or go on from the question apart "
        "from the conversation: agent.fork(task_id, at=seq, on_input=...)"
    )


def later_run(task_id: str, records: Sequence[RunRecord]) -> RunRecord | None:
    """The first run of a conversation that was begun after this one."""
    place = next((place for place, record in enumerate(records) if record.task_id == task_id), len(records))
    return next((record for record in records[place + 1 :] if lets_go(record.state, record.seq)), None)


def lets_go(state: State, seq: int) -> bool:
    """Whether a run with that many events lets the questions before it go: nobody has begun one that does not.

    One that was over before it did anything was not begun either: it was cancelled while it waited, say.
    """
    return state != "submitted" and not (state in ("canceled", "failed") and seq <= _NOTHING_DONE)
