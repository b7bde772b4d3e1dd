"""Runs started, answered and steered by A2A messages."""

from __future__ import annotations

from collections.abc import Collection

import orjson
from a2a.types import a2a_pb2 as pb

from rxloop.coordination.answers import read_snapshot
from rxloop.pipeline.records import RunRecord
from rxloop.protocol.messages import Message
from rxloop.protocol.visibility import PUBLIC_METADATA
from rxloop.run.ownership import read_open_questions
from rxloop.server.a2a.calls import A2aRequest
from rxloop.server.a2a.parts import convert_content, read_answers, read_inputs, read_metadata
from rxloop.server.a2a.task_fold import TaskFold
from rxloop.server.core.adapter import check_id
from rxloop.server.core.existing_runs import answer_run
from rxloop.server.core.gateway import Gateway, Principal
from rxloop.server.core.runs import read_idempotency_key, start_run


async def start_task(gateway: Gateway, agent: str, request: A2aRequest, params: pb.SendMessageRequest) -> RunRecord:
    """Start a run with a message, once per `Idempotency-Key`.

    Raises:
        InvalidParamsError: If the message is invalid.
        Refused: If there are too many active runs, or the key was used for a different message.
    """
    message = params.message
    context_id = message.context_id or None
    check_id(message.message_id, "messageId")
    if context_id is not None:
        check_id(context_id, "contextId")
    prompt = Message.user(convert_content(message), message_id=message.message_id)
    metadata = read_metadata(params.metadata) | read_metadata(message.metadata)
    key = read_idempotency_key(request.http)
    return await start_run(
        gateway,
        request.principal,
        agent,
        [prompt],
        key=None if key is None else orjson.dumps(["a2a", request.principal.id, key]).decode(),
        request=message.SerializeToString(deterministic=True),
        context_id=context_id,
        metadata={PUBLIC_METADATA: metadata} if metadata else {},
    )


async def continue_task(
    gateway: Gateway, principal: Principal, record: RunRecord, message: pb.Message, task: TaskFold
) -> None:
    """Answer a waiting run or send a message to an active run.

    Raises:
        InvalidParamsError: If the message does not identify the question that it answers.
        Refused: If the run does not wait for an answer, or an answer is invalid.
        RunOver: If the run is over.
    """
    gateway.check_accepting()
    pending = task.pending
    if not pending and (inputs := read_inputs(message)):
        # Answers are allowed while other calls are still in progress.
        pending = [
            each for each in await read_open_questions(gateway.runtime.log, record.task_id) if each.input_id in inputs
        ]
        if not pending and not inputs.keys().isdisjoint(await _list_answered(gateway, record)):
            # A late answer is refused instead of being sent to the model as a message.
            await answer_run(gateway, principal, record, inputs)
            return
    if pending:
        await answer_run(gateway, principal, record, read_answers(message, pending))
    else:
        steering = Message.user(convert_content(message), message_id=message.message_id)
        async with gateway.reserve_command(record, len(steering.model_dump_json())):
            await gateway.runtime.send(record.task_id, steering)


async def _list_answered(gateway: Gateway, record: RunRecord) -> Collection[str]:
    """Return the ids of answered questions."""
    return (await read_snapshot(gateway.runtime.log, record.task_id)).state.answers.keys()
