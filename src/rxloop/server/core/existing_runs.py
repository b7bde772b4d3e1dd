"""Answering and forking existing runs on behalf of clients."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence, Set
from typing import Any

import orjson

from rxloop.coordination.answers import read_snapshot
from rxloop.errors import ConfigurationError, InvalidEvent, InvalidInput, NotAsked, NotPermitted, RunExists, RunOver
from rxloop.pipeline.records import RunRecord
from rxloop.protocol.events import WAITING
from rxloop.protocol.json_data import freeze_json
from rxloop.protocol.messages import Message, PendingInput, Prompt, public_question
from rxloop.protocol.refusals import is_refusal
from rxloop.protocol.settings import ModelSettings
from rxloop.recorded.questions import read_status
from rxloop.run.ownership import read_open_questions
from rxloop.server.core.caller_trace import find_trace_context
from rxloop.server.core.errors import Refused
from rxloop.server.core.gateway import Gateway, Principal
from rxloop.server.core.runs import REQUEST, check_digest, digest_request, find_started_run

log = logging.getLogger("rxloop")


async def list_pending_inputs(gateway: Gateway, record: RunRecord) -> Sequence[PendingInput]:
    """Return a run's unanswered questions, even if other calls are still in progress.

    Some questions are internal; see `public_question`.
    """
    return (await read_status(gateway.runtime.log, record)).pending


async def answer_run(
    gateway: Gateway,
    principal: Principal,
    record: RunRecord,
    inputs: Mapping[str, Any],
    messages: Sequence[Message] = (),
) -> None:
    """Answer a run's questions by `input_id`, which resumes the run. The principal must have access to the run.

    Args:
        gateway: Gateway of the run.
        principal: Sender of the answers.
        record: Record of the run.
        inputs: Answers by `input_id`.
        messages: User messages to add. If an answer is rejected, no message is added.

    Raises:
        Refused: If the principal may not answer one of the questions, the run does not wait for an answer, or an answer
            is invalid. The error message reveals nothing about internal questions.
    """
    gateway.check_accepting()
    pending = {each.input_id: each for each in await read_open_questions(gateway.runtime.log, record.task_id)}
    try:
        if not inputs.keys() <= pending.keys():
            await _check_answered(gateway, record, inputs.keys() - pending.keys())
        _check_may_answer(principal, [question for key, question in pending.items() if key in inputs], inputs)
        # Large numbers are stored as strings.
        size = len(orjson.dumps(freeze_json(dict(inputs), "inputs")))
        size += sum(len(each.model_dump_json()) for each in messages)
        async with gateway.reserve_command(record, size):
            await gateway.runtime.answer(record.task_id, inputs, messages=list(messages))
    except NotAsked:
        message = "the run is not waiting for this answer, or already has one; its open questions are in `pending`"
        raise Refused(409, "not_waiting", message) from None
    except InvalidEvent:
        raise Refused(
            422, "invalid_input", "an answer is nested too deeply, or has a number with too many digits"
        ) from None
    except InvalidInput as error:
        is_public = bool(pending) and all(public_question(each) is each for each in pending.values())
        message = str(error) if is_public else "the answer is invalid for this question"
        fields = {f"inputs.{error.input_id}": error.mismatch} if is_public and error.mismatch is not None else None
        raise Refused(422, "invalid_input", message, fields=fields) from None


async def resume_run(gateway: Gateway, principal: Principal, record: RunRecord, after: str | None) -> RunRecord:
    """Resume a canceled run, or a run that failed with a retryable error. The principal must have access to the run.

    Args:
        gateway: Gateway of the run.
        principal: Client that resumes the run.
        record: Record of the run.
        after: See `Runtime.resume`.

    Raises:
        Refused: If the run is over, waits for answers or was ended by a later run, or the principal has too many active
            runs.
    """
    if record.state in WAITING:
        fields = {"inputs": "required, because the run waits for answers"}
        raise Refused(422, "invalid", "the run waits for answers to the questions in `pending`", fields=fields)
    async with gateway.reserve_run(principal):
        try:
            return await gateway.runtime.resume(record.task_id, after=after)
        except RunOver:
            message = "the run is completed, or its failure is permanent; fork it, or start a new run"
            raise Refused(409, "run_over", message) from None
        except NotAsked:
            message = "a later run of the conversation has ended this run; fork it, or start a new run"
            raise Refused(409, "run_over", message) from None


async def _check_answered(gateway: Gateway, record: RunRecord, input_ids: Set[str]) -> None:
    """Check that questions that are not open were answered before.

    Ids can be guessed. An answer to a question that is asked after this check would not be checked.

    Raises:
        NotAsked: If one of the questions was not asked.
    """
    state = (await read_snapshot(gateway.runtime.log, record.task_id)).state
    if not input_ids <= state.answers.keys():
        raise NotAsked


def _check_may_answer(principal: Principal, questions: Sequence[PendingInput], inputs: Mapping[str, Any]) -> None:
    """Check that a principal may answer questions.

    Raises:
        Refused: If the principal may not answer questions of this kind, or grants a question that it cannot read.
    """
    for question in questions:
        if not principal.may_answer(question):
            raise Refused(
                403,
                "forbidden",
                "you may not answer this question; it stays in `pending` until a user who may answer it does, whose "
                "`Principal` allows it with `answers`",
            )
        is_hidden = not question.secret and public_question(question) is not question
        if is_hidden and "internal" not in principal.scopes and not is_refusal(inputs[question.input_id]):
            raise Refused(
                403,
                "forbidden",
                "you cannot read this question, so you may only refuse it with `false`; a user with the scope "
                "`internal` may grant it",
            )


async def fork_run(
    gateway: Gateway,
    principal: Principal,
    record: RunRecord,
    at: int,
    *,
    prompt: Prompt | None = None,
    results: Mapping[str, Any] | None = None,
    model: str | None = None,
    settings: ModelSettings | None = None,
    key: str | None = None,
    request: bytes = b"",
) -> RunRecord:
    """Fork a run, once per idempotency key. The principal must have access to the run.

    Without the scope `effects`, the fork is restricted; see `ForkOptions`. The caller checks that the principal may
    choose the model and the settings.

    Args:
        gateway: Gateway of the run.
        principal: Client that forks the run.
        record: Record of the run.
        at: `seq` of the last event to copy.
        prompt: See `ForkOptions`.
        results: See `ForkOptions`.
        model: Model of the fork.
        settings: Model settings of the fork.
        key: Idempotency key, as in `start_run`.
        request: Content of the request, as in `start_run`.

    Raises:
        Refused: If the model cannot be used, the principal has too many active runs, or may not replace one of the
            results, or the run has no such event or call, or the key was used for a different request.
    """
    digest = digest_request(b"%b %b" % (record.task_id.encode(), request))
    earlier = await _find_fork(gateway, principal, record, key, digest)
    if earlier is not None:
        return earlier
    restricted = "effects" not in principal.scopes
    if model is not None:
        _check_model(gateway, record, model)
    fork_id = None if key is None else gateway.runtime.derive_run_id(record.agent_name, key, principal.id or None)
    changes: dict[str, Any] = {"prompt": prompt, "results": results, "model": model, "settings": settings}
    # A fork copies the metadata of the original run, including the digest of its request.
    changes |= {"fork_id": fork_id, "metadata": {**find_trace_context(), REQUEST: digest}}
    async with gateway.reserve_run(principal):
        try:
            return await gateway.runtime.fork(record.task_id, at, restricted=restricted, **changes)
        except RunExists:
            # A concurrent request has used the key.
            earlier = await _find_fork(gateway, principal, record, key, digest)
            if earlier is None:
                raise
            return earlier
        except NotPermitted:
            message = "results of server tools require the scope `effects`; replace only results of client tools"
            raise Refused(403, "forbidden", message) from None
        except ConfigurationError:
            # Hide the original message, because it could contain names of internal calls.
            raise Refused(422, "invalid", "the event, or a call before it, does not exist") from None


async def _find_fork(
    gateway: Gateway, principal: Principal, record: RunRecord, key: str | None, digest: str
) -> RunRecord | None:
    """Return the run that an earlier request with the same key has created.

    Raises:
        Refused: If the key was used for a different request.
    """
    earlier = await find_started_run(gateway, principal, record.agent_name, key)
    if earlier is not None:
        check_digest(earlier, digest)
    return earlier


def _check_model(gateway: Gateway, record: RunRecord, model: str) -> None:
    """Check that the agent of a run can use a model, for example that its API key is set.

    Raises:
        Refused: If the model cannot be created.
    """
    agent = gateway.runtime.agents.get(record.agent_name)
    try:
        if agent is not None:
            agent.definition.resources.get_provider(model)
    except ConfigurationError as error:
        log.error("Clients cannot use the model %r: %s", model, error)
        raise Refused(503, "model", "the server cannot use this model") from None
