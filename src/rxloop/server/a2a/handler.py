"""A2A operations on a runtime and its event log."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

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
from rxloop.pipeline.log_retry import process_events, read_log
from rxloop.pipeline.records import RunRecord
from rxloop.protocol.events import WAITING
from rxloop.protocol.ids import read_cursor
from rxloop.protocol.run_events import State
from rxloop.recorded.follow import FINAL_STATES
from rxloop.recorded.questions import read_status
from rxloop.server.a2a.calls import A2aRequest, get_request
from rxloop.server.a2a.message_runs import continue_task, start_task
from rxloop.server.a2a.parts import remove_data
from rxloop.server.a2a.push import Push
from rxloop.server.a2a.task_fold import STATES, TaskFold, Update, fold_task, updates
from rxloop.server.core.gateway import Gateway, Principal
from rxloop.server.core.runs import cancel_run
from rxloop.server.core.stream import read_to_end, wait_disconnected

ExtendedCard = pb.AgentCard | Callable[[Principal], pb.AgentCard]
_PAGE = 50
_FINISHED = "the task is finished; send the message without taskId to start a new task"


@dataclass(frozen=True, slots=True)
class ServedAgent:
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
        fold = TaskFold(thoughts=self.thoughts)
        await self.gateway.computations.fold_events(self.gateway.runtime.log, task_id, fold.add)
        return fold

    async def load(self, task_id: str) -> pb.Task:
        """Load a task from the log, with the state after all stored answers."""
        log = self.gateway.runtime.log
        while True:
            task = await self.fold(task_id)
            if not task.pending:
                return task.task
            status = await read_status(log, await read_log(log.get_record, task_id))
            if task.last is not None and status.record.seq <= task.last.seq:
                break
        if status.state not in WAITING:
            task.task.status.ClearField("message")
            task.task.status.state = STATES[status.state]
        return task.task


class TaskHandler(RequestHandler):
    """Stateless request handler, based on the event log. A task is the fold of a run."""

    def __init__(self, served: ServedAgent) -> None:
        """Initialize the handler for an agent."""
        self._served = served

    @override
    async def on_get_task(self, params: pb.GetTaskRequest, context: ServerCallContext) -> pb.Task | None:
        served, request = self._served, get_request(context)
        with request.convert_errors():
            validate_proto_required_fields(params)
            validate_history_length(params)
            record = await served.record(request.principal, params.id)
            return apply_history_length(await served.load(record.task_id), params)

    @override
    async def on_list_tasks(self, params: pb.ListTasksRequest, context: ServerCallContext) -> pb.ListTasksResponse:
        request = get_request(context)
        with request.convert_errors():
            validate_history_length(params)
            if params.HasField("page_size"):
                validate_page_size(params.page_size)
            return await self._list_tasks(params, request.principal)

    async def _list_tasks(self, params: pb.ListTasksRequest, principal: Principal) -> pb.ListTasksResponse:
        served = self._served
        states: list[State] | None = None
        if params.status:
            states = [state for state, a2a_state in STATES.items() if a2a_state == params.status]
            if not states:
                return pb.ListTasksResponse(page_size=params.page_size or _PAGE)
        records = await read_log(
            served.gateway.runtime.log.list_runs,
            agent_name=served.agent,
            context_id=params.context_id or None,
            states=states,
            owner=None if "others" in principal.scopes else principal.id,
        )
        since = params.status_timestamp_after.ToMilliseconds() if params.HasField("status_timestamp_after") else None
        visible = [each for each in records if principal.may_see(each) and (since is None or each.updated >= since)]
        # A2A requires the most recently updated tasks first, but logs list runs by start time.
        visible.sort(key=_sort_key, reverse=True)
        total, size = len(visible), params.page_size or _PAGE
        if params.page_token:
            after = decode_list_tasks_cursor(params.page_token)
            if after is None or after.timestamp_ns is None:
                raise InvalidParamsError(f"invalid pageToken {params.page_token[:100]!r}")
            visible = [each for each in visible if _sort_key(each) < (after.timestamp_ns, after.task_id)]
        page = visible[:size]
        answer = pb.ListTasksResponse(page_size=size, total_size=total)
        for record in page:
            task = await served.load(record.task_id)
            if params.status and task.status.state != params.status:
                continue  # changed since the list was read
            if not params.include_artifacts:
                task.ClearField("artifacts")
            answer.tasks.append(apply_history_length(task, params))
        if len(visible) > size:
            updated, task_id = _sort_key(page[-1])
            answer.next_page_token = encode_list_tasks_cursor(ListTasksCursor(updated, task_id))
        return answer

    @override
    async def on_cancel_task(self, params: pb.CancelTaskRequest, context: ServerCallContext) -> pb.Task | None:
        served, request = self._served, get_request(context)
        with request.convert_errors():
            validate_proto_required_fields(params)
            record = await served.record(request.principal, params.id)
            if record.state in FINAL_STATES:
                raise TaskNotCancelableError
            await cancel_run(served.gateway, record.task_id)
            return await served.load(record.task_id)

    @override
    async def on_message_send(self, params: pb.SendMessageRequest, context: ServerCallContext) -> pb.Task | pb.Message:
        served, request = self._served, get_request(context)
        with request.convert_errors():
            runtime, config = served.gateway.runtime, params.configuration
            self._check(params)
            if config.return_immediately:
                task_id, _ = await self._start_or_continue(request, params)
            else:
                # Reserve the stream first, so a refused request does not start a run.
                with served.gateway.reserve_stream(request.principal) as slot:
                    task_id, after = await self._start_or_continue(request, params)
                    events = runtime.follow(task_id, after=after).pipe(until_final())
                    await read_to_end(slot, events, disconnected=partial(wait_disconnected, request.http.receive))
            return apply_history_length(await served.load(task_id), config)

    @override
    async def on_message_send_stream(
        self, params: pb.SendMessageRequest, context: ServerCallContext
    ) -> AsyncGenerator[Any]:
        request = get_request(context)
        with request.convert_errors():
            self._check(params)
            task_id, after = await self._start_or_continue(request, params)
            async with aclosing(self._stream_updates(task_id, after)) as stream:
                async for update in stream:
                    if isinstance(update, pb.Task):
                        update = apply_history_length(update, params.configuration)
                    yield update

    @override
    async def on_subscribe_to_task(
        self, params: pb.SubscribeToTaskRequest, context: ServerCallContext
    ) -> AsyncGenerator[Any]:
        served, request = self._served, get_request(context)
        with request.convert_errors():
            validate_proto_required_fields(params)
            record = await served.record(request.principal, params.id)
            if record.state in FINAL_STATES:
                raise UnsupportedOperationError("the task is finished")
            async with aclosing(self._stream_updates(record.task_id, record.cursor)) as stream:
                async for update in stream:
                    yield update

    async def _stream_updates(self, task_id: str, after: str | None) -> AsyncGenerator[Update]:
        """Yield task updates until the task is idle.

        Args:
            task_id: Task id.
            after: Cursor of earlier events, which are sent as a complete task. None starts with the first event.
        """
        runtime, thoughts = self._served.gateway.runtime, self._served.thoughts
        fold: TaskFold | None = None
        if after is not None:
            fold_earlier = partial(fold_task, last_seq=read_cursor(after, strict=True).seq, thoughts=thoughts)
            fold = await process_events(runtime.log, task_id, fold_earlier)
        events = runtime.follow(task_id, after=after).pipe(until_final(), updates(fold, thoughts=thoughts))
        async with aclosing(aiter(events)) as reader:
            async for update in reader:
                yield update

    def _check(self, params: pb.SendMessageRequest) -> None:
        validate_proto_required_fields(remove_data(params))
        validate_history_length(params.configuration)
        if params.message.role != pb.ROLE_USER:
            raise InvalidParamsError("the role of the message must be ROLE_USER")
        validate_input_modes(params.message, self._served.card)

    async def _start_or_continue(self, request: A2aRequest, params: pb.SendMessageRequest) -> tuple[str, str | None]:
        """Start or continue a task.

        Returns:
            The task id, and the cursor of earlier events (None for a new task).
        """
        served, config = self._served, params.configuration
        webhook = config.task_push_notification_config if config.HasField("task_push_notification_config") else None
        if webhook is not None:
            await self._push.check(webhook, request.principal)
        if not params.message.task_id:
            record, after, seq = await start_task(served.gateway, served.agent, request, params), None, 0
        else:
            record = await served.record(request.principal, params.message.task_id)
            if params.message.context_id and params.message.context_id != record.context_id:
                raise InvalidParamsError("contextId does not match the task")
            if record.state in FINAL_STATES:
                raise UnsupportedOperationError(_FINISHED)
            task = await served.fold(record.task_id)
            # The question being answered may be newer than the record.
            after, seq = (None, 0) if task.last is None else (task.last.cursor, task.last.seq)
            try:
                await continue_task(served.gateway, request.principal, record, params.message, task)
            except RunOver:
                raise UnsupportedOperationError(_FINISHED) from None
        if webhook is not None:
            await self._push.register(record, webhook, after_seq=seq)
        return record.task_id, after

    # -- push notifications

    @property
    def _push(self) -> Push:
        if self._served.push is None:
            raise PushNotificationNotSupportedError
        return self._served.push

    @asynccontextmanager
    async def _open_push(self, params: Any, context: ServerCallContext) -> AsyncGenerator[tuple[Push, RunRecord]]:
        """Validate a request for a webhook. Yield the registry of webhooks and the record of the task."""
        request = get_request(context)
        with request.convert_errors():
            push = self._push
            validate_proto_required_fields(params)
            yield push, await self._served.record(request.principal, params.task_id)

    @override
    async def on_create_task_push_notification_config(
        self, params: pb.TaskPushNotificationConfig, context: ServerCallContext
    ) -> pb.TaskPushNotificationConfig:
        async with self._open_push(params, context) as (push, record):
            await push.check(params, get_request(context).principal)
            return await push.register(record, params, after_seq=record.seq)

    @override
    async def on_get_task_push_notification_config(
        self, params: pb.GetTaskPushNotificationConfigRequest, context: ServerCallContext
    ) -> pb.TaskPushNotificationConfig:
        async with self._open_push(params, context) as (push, record):
            configs = {each.id: each for each in await push.list_configs(record.task_id)}
            if params.id not in configs:
                raise TaskNotFoundError
            return configs[params.id]

    @override
    async def on_list_task_push_notification_configs(
        self, params: pb.ListTaskPushNotificationConfigsRequest, context: ServerCallContext
    ) -> pb.ListTaskPushNotificationConfigsResponse:
        async with self._open_push(params, context) as (push, record):
            return pb.ListTaskPushNotificationConfigsResponse(configs=await push.list_configs(record.task_id))

    @override
    async def on_delete_task_push_notification_config(
        self, params: pb.DeleteTaskPushNotificationConfigRequest, context: ServerCallContext
    ) -> None:
        async with self._open_push(params, context) as (push, record):
            await push.remove(record.task_id, params.id)

    # -- agent card

    @override
    async def on_get_extended_agent_card(
        self, params: pb.GetExtendedAgentCardRequest, context: ServerCallContext
    ) -> pb.AgentCard:
        served, request = self._served, get_request(context)
        with request.convert_errors():
            if not served.card.capabilities.extended_agent_card:
                raise UnsupportedOperationError("this agent has no extended card")
            if served.extended is None:
                raise ExtendedAgentCardNotConfiguredError
            card = served.extended if isinstance(served.extended, pb.AgentCard) else served.extended(request.principal)
            return served.address(card, request.http)


def _sort_key(record: RunRecord) -> tuple[int, str]:
    """Return the sort key for listing tasks: update time in nanoseconds and task id."""
    return record.updated * 1_000_000, record.task_id
