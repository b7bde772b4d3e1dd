"""What a message of a client begins: a run, a steering message, an answer."""

from __future__ import annotations

import re
from hashlib import sha256
from typing import Any

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

_ID = re.compile(r"[A-Za-z0-9._:~-]{1,128}")
_REQUEST = "request"
"""In the metadata of a run that was started with a key: a digest of the message, for whoever uses the key again."""


async def starting(host: Host, agent: str, asked: Asked, params: pb.SendMessageRequest) -> RunRecord:
    """Start a run with a message; with an `Idempotency-Key` once, however often it is sent.

    Raises:
        Refused: The conversation is somebody else's, or too many runs go on.
        InvalidParamsError: The message cannot be said.
    """
    message, principal = params.message, asked.principal
    context_id, owner = message.context_id or None, principal.id or None
    for value, what in ((message.message_id, "messageId"), (context_id, "contextId")):
        if value is not None and not _ID.fullmatch(value):
            raise InvalidParamsError(f"a {what} has 1 to 128 letters, digits or any of . _ : ~ -")
    prompt = Message.user(content_of(message), message_id=message.message_id)
    metadata: dict[str, Any] = {}
    given = metadata_of(params.metadata) | metadata_of(message.metadata)
    if given:
        metadata[PUBLIC_METADATA] = given
    key = asked.request.headers.get("idempotency-key")
    if key is not None:
        if not 0 < len(key) <= 200:
            raise InvalidParamsError("an Idempotency-Key has 1 to 200 characters")
        metadata[_REQUEST] = sha256(message.SerializeToString(deterministic=True)).hexdigest()
        key = orjson.dumps(["a2a", owner, key]).decode()
    async with host.starting(principal):
        await _check_context(host, asked, context_id)
        record = await host.runtime.start(
            agent, [prompt], key=key, context_id=context_id, owner=owner, metadata=metadata
        )
        try:
            # Somebody else may have begun the conversation at the same moment.
            await _check_context(host, asked, context_id)
        except InvalidParamsError:
            await host.runtime.cancel(record.task_id, "the conversation is somebody else's")
            raise
    if key is not None and record.metadata.get(_REQUEST) != metadata[_REQUEST]:
        raise InvalidParamsError("this Idempotency-Key stands for another message")
    return record


async def _check_context(host: Host, asked: Asked, context_id: str | None) -> None:
    if context_id is not None:
        try:
            await host.check_context(asked.principal, context_id)
        except Refused:
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
