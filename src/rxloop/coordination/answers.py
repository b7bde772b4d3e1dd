"""Validation of the answers to a run's questions."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

from rxloop.errors import InvalidEvent, InvalidInput, NotAsked, ToolError
from rxloop.pipeline.event_log import EventLog
from rxloop.pipeline.log_retry import read_log
from rxloop.pipeline.records import HistoryQuery, RunRecord, Snapshot
from rxloop.protocol.commands import AnswerCommand, Command
from rxloop.protocol.events import SUPERSEDED, WAITING
from rxloop.protocol.json_data import freeze_json
from rxloop.protocol.messages import PendingInput, get_tool_error
from rxloop.state.run_state import RunState
from rxloop.support.json_schema import StepBudget, find_mismatch, find_mismatch_off_loop, quote_value
from rxloop.tools.result import encode_result


def find_new_answers(task_id: str, state: RunState, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return only new answers, skipping those already recorded with an equal value.

    Credentials are validated, but left to `find_credentials`. Answers from outside must be passed to `validate_answers`
    before, so that long validations do not block the event loop.

    Raises:
        NotAsked: The run isn't waiting for one of the answers, or has recorded a different one.
        InvalidInput: An answer doesn't fit its question.
    """
    new: dict[str, Any] = {}
    budget = StepBudget()
    for input_id, value in inputs.items():
        if input_id in state.answers:
            if _serialize(_freeze(input_id, value)) != _serialize(state.answers[input_id]):
                raise NotAsked(
                    f"{input_id!r} of run {task_id} was already answered with "
                    f"{quote_value(state.answers[input_id])} and cannot be changed to {quote_value(value)}"
                )
            continue
        _check(task_id, state, input_id, value)
        question = state.pending[input_id]
        if question.secret:
            continue
        answer = _freeze(input_id, value)
        if _needs_validation(question, answer):
            mismatch = find_mismatch(answer, question.answer_schema, budget)
            if mismatch is not None:
                error = InvalidInput(
                    f"{quote_value(value)} does not answer {question.prompt!r} ({input_id}): {mismatch}"
                )
                error.input_id, error.mismatch = input_id, mismatch
                raise error
        new[input_id] = answer
    return new


async def validate_answers(state: RunState, inputs: Mapping[str, Any]) -> None:
    """Validate long answers in a thread. `find_new_answers` then has the results without blocking the event loop."""
    budget = StepBudget()
    for input_id, value in inputs.items():
        question = state.pending.get(input_id)
        if question is None or question.secret or input_id in state.answers:
            continue
        with suppress(InvalidInput):
            answer = _freeze(input_id, value)
            if _needs_validation(question, answer):
                await find_mismatch_off_loop(answer, question.answer_schema, budget)


async def validate_commands(state: RunState, commands: Iterable[tuple[int, Command]]) -> None:
    """Validate the long answers of commands; see `validate_answers`."""
    for _, command in commands:
        if isinstance(command, AnswerCommand):
            await validate_answers(state, command.inputs)


async def read_snapshot(
    event_log: EventLog, task_id: str, *, since: Snapshot | None = None, history: HistoryQuery | None = None
) -> Snapshot:
    """Read the state and the pending commands of a run, and validate the long answers in these commands.

    Args:
        event_log: Log with the run.
        task_id: Id of the run.
        since: Earlier snapshot, so that only newer events are read.
        history: Query for the history of the conversation.

    Raises:
        EventLogError: See `read_log`.
    """
    snapshot = await read_log(event_log.snapshot, task_id, since=since, history=history)
    await snapshot.fold()
    if any(isinstance(command, AnswerCommand) for _, command in snapshot.commands):
        await validate_commands(snapshot.state, snapshot.new_commands)
    return snapshot


def _needs_validation(question: PendingInput, answer: Any) -> bool:
    return question.input_kind != "tool" or get_tool_error(answer) is None


def _freeze(input_id: str, value: Any) -> Any:
    try:
        return freeze_json(value, f"the answer to {input_id!r}")
    except InvalidEvent as error:
        raise InvalidInput(str(error)) from error


def find_credentials(state: RunState, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return only the credentials, keyed by question id."""
    credentials: dict[str, Any] = {}
    for input_id, value in inputs.items():
        question = state.pending.get(input_id)
        if question is not None and question.secret and not state.finished:
            # Ciphertext is returned even if it has been logged before.
            credentials[input_id] = value if question.public_key is None else freeze_json(value, "the credential")
    return credentials


def find_plain_credentials(state: RunState, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return only unencrypted credentials, which must not be logged. A None declines the question and is left out."""
    credentials = find_credentials(state, inputs)
    return {
        key: value for key, value in credentials.items() if value is not None and state.pending[key].public_key is None
    }


def _check(task_id: str, state: RunState, input_id: str, value: Any) -> None:
    question = state.pending.get(input_id)
    if question is None or state.finished:
        open_ids = (", ".join(state.pending) if not state.finished else "") or "nothing"
        raise NotAsked(f"run {task_id} is {state.state} and not waiting for {input_id!r}; it is waiting for {open_ids}")
    if question.secret:
        # Keep the secret itself out of all error messages.
        if question.public_key is not None and not isinstance(value, str | bytes | None):
            raise InvalidInput(f"the credential for {input_id!r} must be ciphertext, as str or bytes")
        return
    if not question.allows(value):
        raise InvalidInput(f"answer to {question.prompt!r} must be one of {question.options}, got {quote_value(value)}")
    if question.input_kind == "tool":
        _check_result(input_id, value)


def _check_result(input_id: str, value: Any) -> None:
    """Check that a client's result can be encoded as a tool result."""
    try:
        encode_result(value)
    except ToolError as error:
        raise InvalidInput(f"invalid result for {input_id!r}: {error}") from error


def _serialize(value: Any) -> str:
    """Serialize a value so that `true` and 1 compare as different."""
    return json.dumps(value, sort_keys=True, default=str)


def check_waiting(task_id: str, state: RunState) -> None:
    """Check that the run isn't waiting for an answer.

    A run killed after asking, but before pausing, isn't considered waiting. It continues up to the question.

    Raises:
        InvalidInput: The run is waiting.
    """
    if state.pending and state.state in WAITING:
        open_ids = ", ".join(state.pending)
        raise InvalidInput(f"run {task_id} is waiting for {open_ids}; pass inputs={{...}} or on_input=")


def check_not_dropped(task_id: str, state: RunState, later: RunRecord | None) -> None:
    """Check that no later run in the conversation has dropped these questions.

    The later run has continued without an answer, so answering now would fork the history.

    Args:
        task_id: Id of the run.
        state: Current run state.
        later: First later run to start in the same conversation, if any.

    Raises:
        NotAsked: A later run has started.
    """
    if later is not None and state.pending:
        raise make_dropped_error(task_id, state, later.task_id, later.context_id)


def is_superseded(state: RunState) -> bool:
    """Return True if a later run ended this one while it was waiting for an answer."""
    return state.state == "canceled" and state.reason == SUPERSEDED


def check_not_superseded(task_id: str, state: RunState) -> None:
    """Check that no later run ended this one while it was waiting for an answer.

    Raises:
        NotAsked: A later run ended this run.
    """
    if is_superseded(state):
        reason = state.error.message if state.error is not None else "a later run of its conversation dropped it"
        raise NotAsked(f"run {task_id} is no longer waiting for an answer: {reason}. {_ASK_AGAIN}")


_ASK_AGAIN = "Ask again in a new run, or fork the run at the question: agent.fork(task_id, at=seq, on_input=...)"


def describe_drop(later: str, context_id: str) -> str:
    """Describe how a later run dropped the questions, for error messages."""
    return f"the later run {later} of the conversation {context_id} dropped its questions"


def make_dropped_error(task_id: str, state: RunState, later: str, context_id: str) -> NotAsked:
    """Create the error raised when answering questions dropped by a later run."""
    return NotAsked(
        f"run {task_id} is no longer waiting for {', '.join(state.pending)}: {describe_drop(later, context_id)}. "
        f"{_ASK_AGAIN}"
    )
