"""What a message of a client begins: a run, a steering message, an answer."""

from __future__ import annotations

import re

import orjson
from a2a.types import a2a_pb2 as pb
from a2a.utils.errors import InvalidParamsError

from rxloop.pipeline.values import RunRecord
from rxloop.protocol.messages import Message
from rxloop.protocol.visibility import PUBLIC_METADATA
from rxloop.server.a2a.calls import Asked
from rxloop.server.a2a.parts import answers_of, content_of, metadata_of
from rxloop.server.a2a.task import TaskFold
from rxloop.server.host import Host
from rxloop.server.questions import answer
from rxloop.server.refusals import Refused
from rxloop.server.starting import start

_ID = re.compile(r"[A-Za-z0-9._:~-]{1,128}")


async def starting(host: Host, agent: str, asked: Asked, params: pb.SendMessageRequest) -> RunRecord:
    """Start a run with a message; with an `Idempotency-Key` once, however often it is sent.

    Raises:
        InvalidParamsError: The message cannot be said, or the conversation is somebody else's.
        Refused: Too many runs go on, or the key stands for another message.
    """
    message = params.message
    context_id = message.context_id or None
    for value, what in ((message.message_id, "messageId"), (context_id, "contextId")):
        if value is not None and not _ID.fullmatch(value):
            raise InvalidParamsError(f"a {what} has 1 to 128 letters, digits or any of . _ : ~ -")
    prompt = Message.user(content_of(message), message_id=message.message_id)
    given = metadata_of(params.metadata) | metadata_of(message.metadata)
    key = asked.request.headers.get("idempotency-key")
    if key is not None and not 0 < len(key) <= 200:
        raise InvalidParamsError("an Idempotency-Key has 1 to 200 characters")
    try:
        return await start(
            host,
            asked.principal,
            agent,
            [prompt],
            key=None if key is None else orjson.dumps(["a2a", asked.principal.id, key]).decode(),
            request=message.SerializeToString(deterministic=True),
            context_id=context_id,
            metadata={PUBLIC_METADATA: given} if given else {},
        )
    except Refused as refused:
        if refused.status != 404:
            raise
        raise InvalidParamsError("this contextId cannot be used") from None


async def going_on(host: Host, record: RunRecord, message: pb.Message, task: TaskFold) -> None:
    """Answer the questions of a run that waits, or say something to one that goes on.

    Raises:
        InvalidParamsError: Nobody can tell what it answers.
        Refused: The run does not wait for that, or the answer does not fit.
        RunOver: The run is over.
    """
    host.check_open()
    if task.pending:
        await answer(host, record, answers_of(message, task.pending))
    else:
        said = Message.user(content_of(message), message_id=message.message_id)
        await host.runtime.say(record.task_id, said)
