"""Validation of answers to the questions of a run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from rxloop.errors import InvalidEvent, InvalidInput, NotAsked, ToolError
from rxloop.pipeline.records import RunRecord
from rxloop.protocol.events import SUPERSEDED, WAITING
from rxloop.protocol.json_data import freeze_json
from rxloop.protocol.messages import get_tool_error
from rxloop.state.run_state import RunState
from rxloop.support.json_schema import find_mismatch, quote_value
from rxloop.tools.result import encode_result


def new_answers(task_id: str, state: RunState, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the answers that the run does not have yet; equal answers that it has are skipped.

    Credentials are checked but not returned: see `find_credentials`.

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
                    f"{quote_value(state.answers[input_id])}, which {quote_value(value)} cannot replace"
                )
            continue
        _check(task_id, state, input_id, value)
        if state.pending[input_id].secret:
            continue
        new[input_id] = _stored(input_id, value)
    return new


def _stored(input_id: str, value: Any) -> Any:
    try:
        return freeze_json(value, f"the answer to {input_id!r}")
    except InvalidEvent as error:
        raise InvalidInput(str(error)) from error


def find_credentials(state: RunState, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the answers that are credentials, by the id of the question."""
    found: dict[str, Any] = {}
    for input_id, value in inputs.items():
        question = state.pending.get(input_id)
        if question is not None and question.secret and not state.finished:
            # Ciphertext is the same whether it has stood in a log or not.
            found[input_id] = value if question.public_key is None else freeze_json(value, "the credential")
    return found


def find_plain_credentials(state: RunState, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the credentials that are not encrypted, which no log may store; None declines, and is not one."""
    given = find_credentials(state, inputs)
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
        raise InvalidInput(f"{quote_value(value)} is none of the options of {question.prompt!r}: {question.options}")
    if question.input_kind == "tool":
        _check_result(input_id, value)
        if get_tool_error(value) is not None:
            return
    wrong = find_mismatch(value, question.answer_schema)
    if wrong is not None:
        raise InvalidInput(f"{quote_value(value)} does not answer {question.prompt!r} ({input_id}): {wrong}")


def _check_result(input_id: str, value: Any) -> None:
    """Check that a tool may have the result of a client."""
    try:
        encode_result(value)
    except ToolError as error:
        raise InvalidInput(f"the result for {input_id!r} cannot be taken: {error}") from error


def _written(value: Any) -> str:
    """Return a value as JSON with sorted keys, in which `true` is not 1."""
    return json.dumps(value, sort_keys=True, default=str)


def check_waiting(task_id: str, state: RunState) -> None:
    """Check that a run does not wait for an answer.

    A run that was killed between its question and its pause does not wait yet: it continues up to the question.

    Raises:
        InvalidInput: The run waits.
    """
    if state.pending and state.state in WAITING:
        waiting = ", ".join(state.pending)
        raise InvalidInput(f"the run {task_id} waits for {waiting}: give inputs={{...}} or on_input=")


def check_not_dropped(task_id: str, state: RunState, later: RunRecord | None) -> None:
    """Check that no later run of the conversation has dropped the questions of this one.

    The later run continued without an answer, so an answer now would make two versions of one history.

    Args:
        task_id: The run.
        state: The state of the run.
        later: The first later run of its conversation that has begun, if there is one.

    Raises:
        NotAsked: A later run has begun.
    """
    if later is not None and state.pending:
        raise make_dropped_error(task_id, state, later.task_id, later.context_id)


def is_superseded(state: RunState) -> bool:
    """Return True if a later run of the conversation has ended a run because it waited for an answer."""
    return state.state == "canceled" and state.reason == SUPERSEDED


def check_not_superseded(task_id: str, state: RunState) -> None:
    """Check that no later run of the conversation has ended this run because it waited for an answer.

    Raises:
        NotAsked: A later run has ended it.
    """
    if is_superseded(state):
        said = state.error.message if state.error is not None else "a later run of its conversation dropped it"
        raise NotAsked(f"the run {task_id} does not wait for an answer any more: {said}. {_ASK_ANEW}")


_ASK_ANEW = (
    "Ask anew in a new run, or go on from the question apart from the conversation: "
    "agent.fork(task_id, at=seq, on_input=...)"
)


def describe_drop(later: str, context_id: str) -> str:
    """Return the text for a later run of a conversation that dropped the questions of an earlier one."""
    return f"the later run {later} of the conversation {context_id} dropped its questions"


def make_dropped_error(task_id: str, state: RunState, later: str, context_id: str) -> NotAsked:
    """Return the error for an answer to questions that a later run of the conversation has dropped."""
    return NotAsked(
        f"the run {task_id} does not wait for {', '.join(state.pending)} any more: {describe_drop(later, context_id)}. "
        f"{_ASK_ANEW}"
    )
