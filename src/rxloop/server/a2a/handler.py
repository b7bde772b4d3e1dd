"""A2A operations on a runtime and its event log."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Collection
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import Any

import orjson
from a2a.server.context import ServerCallContext
from a2a.server.request_handlers.request_handler import RequestHandler
from a2a.types import a2a_pb2 as pb
from a2a.utils.errors import (
    ExtendedAgentCardNotConfiguredError,
    InvalidParamsError,
    PushNotificationNotSupportedError,
    TaskNotCancelableError,
    TaskNotFoundError,
    UnsupportedOperationError,
)
from a2a.utils.input_mode_validator import validate_input_modes
from a2a.utils.proto_utils import validate_proto_required_fields
from a2a.utils.task import (
    ListTasksCursor,
    apply_history_length,
    decode_list_tasks_cursor,
    encode_list_tasks_cursor,
    validate_history_length,
    validate_page_size,
)
from starlette.requests import Request
from typing_extensions import override

from rxloop.errors import RunOver
from rxloop.operators.views.filters import until_final
from rxloop.pipeline.log_retry import read_log
from rxloop.pipeline.records import RunRecord
from rxloop.protocol.events import Event
from rxloop.protocol.ids import read_cursor
from rxloop.protocol.messages import Message
from rxloop.protocol.run_events import State
from rxloop.protocol.visibility import PUBLIC_METADATA
from rxloop.recorded.follow import OVER
from rxloop.server.a2a.calls import Asked, asked_of
from rxloop.server.a2a.parts import answers_of, content_of, inputs_of, metadata_of
from rxloop.server.a2a.push import Push
from rxloop.server.a2a.task_fold import STATES, TaskFold, Update, folded, updates
from rxloop.server.core.adapter import check_id
from rxloop.server.core.errors import Refused
from rxloop.server.core.gateway import Gateway, Principal
from rxloop.server.core.runs import answer_run, cancel_run, list_pending_inputs, read_idempotency_key, start_run
from rxloop.server.core.stream import read_to_end, wait_disconnected


async def starting(gateway: Gateway, agent: str, asked: Asked, params: pb.SendMessageRequest) -> RunRecord:
    """Start a run with a message, once per `Idempotency-Key`.

    Raises:
        InvalidParamsError: If the message is invalid, or the conversation belongs to another principal.
        Refused: If there are too many active runs, or the key was used for a different message.
    """
    message = params.message
    context_id = message.context_id or None
    check_id(message.message_id, "messageId")
    if context_id is not None:
        check_id(context_id, "contextId")
    prompt = Message.user(content_of(message), message_id=message.message_id)
    given = metadata_of(params.metadata) | metadata_of(message.metadata)
    key = read_idempotency_key(asked.request)
    try:
        return await start_run(
            gateway,
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


async def going_on(gateway: Gateway, record: RunRecord, message: pb.Message, task: TaskFold) -> None:
    """Answer a waiting run or send a message to an active run.

    Raises:
        InvalidParamsError: If the message does not identify the question that it answers.
        Refused: If the run does not wait for an answer, or an answer is invalid.
        RunOver: If the run is over.
    """
    gateway.check_accepting()
    pending = task.pending
    if not pending and (inputs := inputs_of(message)):
        # Answers are allowed while other calls are still in progress.
        pending = [each for each in await list_pending_inputs(gateway, record) if each.input_id in inputs]
        if not pending and not inputs.keys().isdisjoint(await _answered(gateway, record)):
            # A late answer is refused instead of being sent to the model as a message.
            await answer_run(gateway, record, inputs)
            return
    if pending:
        await answer_run(gateway, record, answers_of(message, pending))
    else:
        said = Message.user(content_of(message), message_id=message.message_id)
        await gateway.runtime.send(record.task_id, said)


async def _answered(gateway: Gateway, record: RunRecord) -> Collection[str]:
    """Return the ids of answered questions."""
    return (await read_log(gateway.runtime.log.snapshot, record.task_id)).state.answers.keys()


ExtendedCard = pb.AgentCard | Callable[[Principal], pb.AgentCard]
_PAGE = 50


@dataclass(frozen=True, slots=True)
class Served:
    """Agent and settings for A2A requests."""

    gateway: Gateway
    agent: str
    card: pb.AgentCard
    extended: ExtendedCard | None
    address: Callable[[pb.AgentCard, Request], pb.AgentCard]
    """Function that adds the request's URL to a card."""
    thoughts: bool
    push: Push | None

    async def record(self, principal: Principal, task_id: str) -> RunRecord:
        """Return the record of a task.

        Raises:
            Refused: If the task does not exist or is not accessible to the principal.
            TaskNotFoundError: If the task belongs to another agent.
        """
        record = await self.gateway.find_run(principal, task_id)
        if record.agent_name != self.agent:
            raise TaskNotFoundError
        return record

    async def fold(self, task_id: str) -> TaskFold:
        """Load a task from the log."""
        return folded(await read_log(self.gateway.runtime.log.read, task_id), thoughts=self.thoughts)


class Tasks(RequestHandler):
    """Stateless request handler, based on the event log. A task is the fold of a run."""

    def __init__(self, served: Served) -> None:
        """Initialize the handler for an agent."""
        self._served = served

    @override
    async def on_get_task(self, params: pb.GetTaskRequest, context: ServerCallContext) -> pb.Task | None:
        served, asked = self._served, asked_of(context)
        with asked.in_words_of_a2a():
            validate_proto_required_fields(params)
            validate_history_length(params)
            record = await served.record(asked.principal, params.id)
            return apply_history_length((await served.fold(record.task_id)).task, params)

    @override
    async def on_list_tasks(self, params: pb.ListTasksRequest, context: ServerCallContext) -> pb.ListTasksResponse:
        asked = asked_of(context)
        with asked.in_words_of_a2a():
            validate_history_length(params)
            if params.HasField("page_size"):
                validate_page_size(params.page_size)
            return await self._listed(params, asked.principal)

    async def _listed(self, params: pb.ListTasksRequest, principal: Principal) -> pb.ListTasksResponse:
        served = self._served
        states: list[State] | None = None
        if params.status:
            states = [state for state, its in STATES.items() if its == params.status]
            if not states:
                return pb.ListTasksResponse(page_size=params.page_size or _PAGE)
        found = await read_log(
            served.gateway.runtime.log.list_runs,
            agent_name=served.agent,
            context_id=params.context_id or None,
            states=states,
            owner=None if "others" in principal.scopes else principal.id,
        )
        since = params.status_timestamp_after.ToMilliseconds() if params.HasField("status_timestamp_after") else None
        shown = [each for each in found if principal.may_see(each) and (since is None or each.updated >= since)]
        # A2A requires the most recently updated tasks first, but logs list runs by start time.
        shown.sort(key=_place, reverse=True)
        total, size = len(shown), params.page_size or _PAGE
        if params.page_token:
            after = decode_list_tasks_cursor(params.page_token)
            if after is None or after.timestamp_ns is None:
                raise InvalidParamsError("the pageToken is not one of this server")
            shown = [each for each in shown if _place(each) < (after.timestamp_ns, after.task_id)]
        page = shown[:size]
        answer = pb.ListTasksResponse(page_size=size, total_size=total)
        for record in page:
            task = (await served.fold(record.task_id)).task
            if not params.include_artifacts:
                task.ClearField("artifacts")
            answer.tasks.append(apply_history_length(task, params))
        if len(shown) > size:
            updated, task_id = _place(page[-1])
            answer.next_page_token = encode_list_tasks_cursor(ListTasksCursor(updated, task_id))
        return answer

    @override
    async def on_cancel_task(self, params: pb.CancelTaskRequest, context: ServerCallContext) -> pb.Task | None:
        served, asked = self._served, asked_of(context)
        with asked.in_words_of_a2a():
            validate_proto_required_fields(params)
            record = await served.record(asked.principal, params.id)
            if record.state in OVER:
                raise TaskNotCancelableError
            await cancel_run(served.gateway, record.task_id)
            return (await served.fold(record.task_id)).task

    @override
    async def on_message_send(self, params: pb.SendMessageRequest, context: ServerCallContext) -> pb.Task | pb.Message:
        served, asked = self._served, asked_of(context)
        with asked.in_words_of_a2a():
            runtime, config = served.gateway.runtime, params.configuration
            self._check(params)
            if config.return_immediately:
                task_id, _ = await self._begin(asked, params)
            else:
                # Reserve the stream first, so a refused request does not start a run.
                with served.gateway.reserve_stream(asked.principal) as slot:
                    task_id, after = await self._begin(asked, params)
                    events = runtime.follow(task_id, after=after).pipe(until_final())
                    await read_to_end(slot, events, disconnected=partial(wait_disconnected, asked.request.receive))
            return apply_history_length((await served.fold(task_id)).task, config)

    @override
    async def on_message_send_stream(
        self, params: pb.SendMessageRequest, context: ServerCallContext
    ) -> AsyncGenerator[Any]:
        asked = asked_of(context)
        with asked.in_words_of_a2a():
            self._check(params)
            task_id, after = await self._begin(asked, params)
            async with aclosing(self._told(task_id, after)) as told:
                async for update in told:
                    if isinstance(update, pb.Task):
                        update = apply_history_length(update, params.configuration)
                    yield update

    @override
    async def on_subscribe_to_task(
        self, params: pb.SubscribeToTaskRequest, context: ServerCallContext
    ) -> AsyncGenerator[Any]:
        served, asked = self._served, asked_of(context)
        with asked.in_words_of_a2a():
            validate_proto_required_fields(params)
            record = await served.record(asked.principal, params.id)
            if record.state in OVER:
                raise UnsupportedOperationError("the task is over, and nothing more comes of it")
            async with aclosing(self._told(record.task_id, _cursor(record))) as told:
                async for update in told:
                    yield update

    async def _told(self, task_id: str, after: str | None) -> AsyncGenerator[Update]:
        """Yield task updates until the task is idle.

        Args:
            task_id: Task id.
            after: Cursor of earlier events, which are sent as a complete task. None starts with the first event.
        """
        runtime, thoughts = self._served.gateway.runtime, self._served.thoughts
        before: list[Event] = []
        if after is not None:
            seen = read_cursor(after, strict=True).seq
            before = [event for event in await read_log(runtime.log.read, task_id) if event.seq <= seen]
        events = runtime.follow(task_id, after=after).pipe(until_final(), updates(before, thoughts=thoughts))
        async with aclosing(aiter(events)) as reader:
            async for update in reader:
                yield update

    def _check(self, params: pb.SendMessageRequest) -> None:
        validate_proto_required_fields(params)
        validate_history_length(params.configuration)
        if params.message.role != pb.ROLE_USER:
            raise InvalidParamsError("a client's message has the role ROLE_USER")
        validate_input_modes(params.message, self._served.card)

    async def _begin(self, asked: Asked, params: pb.SendMessageRequest) -> tuple[str, str | None]:
        """Start or continue a task.

        Returns:
            The task id, and the cursor of earlier events (None for a new task).
        """
        served, config = self._served, params.configuration
        wanted = config.task_push_notification_config if config.HasField("task_push_notification_config") else None
        if wanted is not None:
            await self._push.check(wanted)
        if not params.message.task_id:
            record, after, seen = await starting(served.gateway, served.agent, asked, params), None, 0
        else:
            record = await served.record(asked.principal, params.message.task_id)
            if params.message.context_id and params.message.context_id != record.context_id:
                raise InvalidParamsError("the contextId is not that of the task")
            if record.state in OVER:
                raise UnsupportedOperationError("the task is over: send the message without its taskId")
            task = await served.fold(record.task_id)
            # The question being answered may be newer than the record.
            after, seen = task.cursor, task.seq
            try:
                await going_on(served.gateway, record, params.message, task)
            except RunOver:
                raise UnsupportedOperationError("the task is over: send the message without its taskId") from None
        if wanted is not None:
            await self._push.keep(record, wanted, after_seq=seen)
        return record.task_id, after

    # -- push notifications

    @property
    def _push(self) -> Push:
        if self._served.push is None:
            raise PushNotificationNotSupportedError
        return self._served.push

    @override
    async def on_create_task_push_notification_config(
        self, params: pb.TaskPushNotificationConfig, context: ServerCallContext
    ) -> pb.TaskPushNotificationConfig:
        asked = asked_of(context)
        with asked.in_words_of_a2a():
            push = self._push
            validate_proto_required_fields(params)
            record = await self._served.record(asked.principal, params.task_id)
            await push.check(params)
            return await push.keep(record, params, after_seq=record.seq)

    @override
    async def on_get_task_push_notification_config(
        self, params: pb.GetTaskPushNotificationConfigRequest, context: ServerCallContext
    ) -> pb.TaskPushNotificationConfig:
        asked = asked_of(context)
        with asked.in_words_of_a2a():
            push = self._push
            validate_proto_required_fields(params)
            record = await self._served.record(asked.principal, params.task_id)
            found = {each.id: each for each in await push.configs(record.task_id)}
            if params.id not in found:
                raise TaskNotFoundError
            return found[params.id]

    @override
    async def on_list_task_push_notification_configs(
        self, params: pb.ListTaskPushNotificationConfigsRequest, context: ServerCallContext
    ) -> pb.ListTaskPushNotificationConfigsResponse:
        asked = asked_of(context)
        with asked.in_words_of_a2a():
            push = self._push
            validate_proto_required_fields(params)
            record = await self._served.record(asked.principal, params.task_id)
            return pb.ListTaskPushNotificationConfigsResponse(configs=await push.configs(record.task_id))

    @override
    async def on_delete_task_push_notification_config(
        self, params: pb.DeleteTaskPushNotificationConfigRequest, context: ServerCallContext
    ) -> None:
        asked = asked_of(context)
        with asked.in_words_of_a2a():
            push = self._push
            validate_proto_required_fields(params)
            record = await self._served.record(asked.principal, params.task_id)
            await push.remove(record.task_id, params.id)

    # -- agent card

    @override
    async def on_get_extended_agent_card(
        self, params: pb.GetExtendedAgentCardRequest, context: ServerCallContext
    ) -> pb.AgentCard:
        served, asked = self._served, asked_of(context)
        with asked.in_words_of_a2a():
            if not served.card.capabilities.extended_agent_card:
                raise UnsupportedOperationError("there is no extended card")
            if served.extended is None:
                raise ExtendedAgentCardNotConfiguredError
            card = served.extended if isinstance(served.extended, pb.AgentCard) else served.extended(asked.principal)
            return served.address(card, asked.request)


def _cursor(record: RunRecord) -> str:
    return f"{record.task_id}/{record.attempt}.{record.seq}.0"


def _place(record: RunRecord) -> tuple[int, str]:
    """Return the sort key for listing tasks: update time in nanoseconds and task id."""
    return record.updated * 1_000_000, record.task_id
