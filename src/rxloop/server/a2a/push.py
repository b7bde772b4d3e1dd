"""Push notifications to webhooks. Each event is delivered at least once, also after a restart.

Webhooks are stored in the log's artifacts, as one artifact of JSON lines per task. Folding the lines returns the
current webhooks. Each webhook is served by the process that holds its lease. After a crash, another process continues
after the last delivered event.
"""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any
from uuid import uuid4

import anyio
import httpx
import orjson
from a2a.types import a2a_pb2 as pb
from a2a.utils.errors import InvalidParamsError
from a2a.utils.proto_utils import to_stream_response
from google.protobuf.json_format import MessageToDict, ParseDict

from rxloop.errors import ArtifactError, ConfigurationError, UnknownArtifact, UnknownRun
from rxloop.pipeline.artifacts import ArtifactStore
from rxloop.pipeline.event_log import EventLog
from rxloop.pipeline.log_retry import process_events, read_log
from rxloop.pipeline.records import RunRecord
from rxloop.protocol.events import Event, StatusUpdateEvent, ends_attempt
from rxloop.recorded.follow import FINAL_STATES, follow, is_over
from rxloop.server.a2a.task_fold import TaskFold, fold_task
from rxloop.server.a2a.webhook_addresses import UnsafeAddress, post, read_url, resolve_addresses
from rxloop.server.core.errors import Refused
from rxloop.server.core.gateway import Gateway, Principal, StreamSlot
from rxloop.support.http_environment import name_variables
from rxloop.support.tasks import wait_all
from rxloop.support.threads import run_in_thread

log = logging.getLogger("rxloop")

PUSH_CONTEXT_ID = "a2a\x1fpush"
"""Conversation id for webhook artifacts. Its control character prevents a conflict with actual conversations."""
_MAX_WEBHOOKS = 16
"""Maximum number of webhooks per task."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PushOptions:
    """Webhook options.

    Attributes:
        allow_private: Whether to allow private addresses. Clients can then make this server call any reachable host.
        timeout: Request timeout in seconds.
        max_attempts: Maximum number of delivery attempts.
        retry_delay: Delay in seconds before the second attempt. It doubles with each attempt, up to a minute.
        scan_interval: Interval in seconds between searches for webhooks of crashed processes.
    """

    allow_private: bool = False
    timeout: float = 10.0
    max_attempts: int = 8
    retry_delay: float = 1.0
    scan_interval: float = 30.0


@dataclass(slots=True)
class _Webhook:
    config: pb.TaskPushNotificationConfig
    seq: int
    """Sequence number of the last delivered event."""


class Push:
    """Webhook storage and delivery for an agent's tasks."""

    def __init__(self, event_log: EventLog, options: PushOptions, *, thoughts: bool) -> None:
        """Initialize webhook storage in an event log.

        Raises:
            ConfigurationError: If the log does not support artifacts.
        """
        if event_log.artifacts is None:
            raise ConfigurationError(
                f"webhooks require an event log with artifacts, got {event_log!r}; pass push=False or use another log"
            )
        self._store: ArtifactStore = event_log.artifacts
        self._log, self._options, self._thoughts = event_log, options, thoughts
        self._tasks: dict[tuple[str, str], asyncio.Task[None]] = {}
        self._finished: set[str] = set()
        """Finished tasks whose webhooks have received all events."""
        self._client: httpx.AsyncClient | None = None
        self._gateway: Gateway | None = None
        self._started = False

    async def start(self, gateway: Gateway) -> None:
        """Start delivering notifications, including those of crashed processes, until the server shuts down.

        Webhooks that are registered while the HTTP client is being created are found by the first search.

        Raises:
            ConfigurationError: If an environment variable prevents creating the client.
        """
        self._gateway = gateway
        if self._started or gateway.is_draining:
            return
        self._started = True
        try:
            # Loading certificates takes 50 milliseconds.
            client = await run_in_thread(self._create_client)
        except BaseException:
            self._started = False
            raise
        if not gateway.is_draining:
            gateway.spawn(self._run(gateway.reserve_stream(None), client))

    def _create_client(self) -> httpx.AsyncClient:
        with name_variables():
            return httpx.AsyncClient(timeout=self._options.timeout, trust_env=False)

    async def _run(self, slot: StreamSlot, client: httpx.AsyncClient) -> None:
        with slot, slot.scope:
            async with client as self._client:
                try:
                    await self._scan_periodically()
                finally:
                    self._client, tasks = None, [*self._tasks.values()]
                    for task in tasks:
                        task.cancel()
                    await wait_all(tasks)

    # -- registration

    async def check(self, config: pb.TaskPushNotificationConfig, principal: Principal) -> None:
        """Validate a webhook configuration before starting a task.

        Raises:
            InvalidParamsError: If the URL is invalid or not allowed, or another field is invalid.
            Refused: If the principal has too many webhooks of unfinished tasks.
        """
        if self._gateway is not None:
            self._gateway.reserve(principal, "webhooks").release()
        try:
            url = read_url(config.url)
            if not self._options.allow_private:
                await resolve_addresses(url, owner=principal.id or None)
        except UnsafeAddress as error:
            raise InvalidParamsError(f"the webhook url is not allowed: {error}") from None
        values = (config.id, config.token, config.authentication.scheme, config.authentication.credentials)
        if any(len(value) > 4_000 or not value.isprintable() for value in values):
            raise InvalidParamsError("webhook fields must have at most 4000 printable characters")
        if not "".join(values[1:]).isascii():
            raise InvalidParamsError("webhook tokens and credentials must be ASCII")

    async def register(
        self, record: RunRecord, config: pb.TaskPushNotificationConfig, *, after_seq: int
    ) -> pb.TaskPushNotificationConfig:
        """Register a webhook for all events after a sequence number.

        Raises:
            InvalidParamsError: If the task already has the maximum number of webhooks.
        """
        registered = pb.TaskPushNotificationConfig()
        registered.CopyFrom(config)
        registered.task_id, registered.tenant = record.task_id, ""
        registered.id = config.id or str(uuid4())
        webhooks = await self._load_webhooks(record.task_id)
        if registered.id not in webhooks and len(webhooks) >= _MAX_WEBHOOKS:
            raise InvalidParamsError(f"tasks can have at most {_MAX_WEBHOOKS} webhooks")
        await self._append_change(record.task_id, {"set": MessageToDict(registered), "seq": after_seq})
        self._start_delivery(record, registered.id)
        return registered

    async def list_configs(self, task_id: str) -> list[pb.TaskPushNotificationConfig]:
        """Return a task's webhooks."""
        return [webhook.config for webhook in (await self._load_webhooks(task_id)).values()]

    async def remove(self, task_id: str, config_id: str) -> None:
        """Remove a webhook if it exists."""
        if config_id in await self._load_webhooks(task_id):
            await self._append_change(task_id, {"remove": config_id})
        task = self._tasks.get((task_id, config_id))
        if task is not None:
            task.cancel()

    async def _load_webhooks(self, task_id: str) -> dict[str, _Webhook]:
        try:
            content = await self._store.read(PUSH_CONTEXT_ID, task_id)
        except UnknownArtifact:
            return {}
        webhooks: dict[str, _Webhook] = {}
        for line in content.splitlines():
            change: dict[str, Any] = orjson.loads(line)
            if "set" in change:
                config = ParseDict(change["set"], pb.TaskPushNotificationConfig())
                webhooks[config.id] = _Webhook(config, change["seq"])
            elif "remove" in change:
                webhooks.pop(change["remove"], None)
            elif change["told"] in webhooks:
                webhooks[change["told"]].seq = max(change["seq"], webhooks[change["told"]].seq)
        return webhooks

    async def _append_change(self, task_id: str, change: dict[str, Any]) -> None:
        """Append a change to the task's artifact, creating the artifact for the first webhook."""
        options: dict[str, Any] = {"name": task_id, "media_type": "application/x-ndjson", "override": False}
        # Ignore an existing artifact.
        with suppress(ArtifactError):
            await self._store.create(PUSH_CONTEXT_ID, task_id, key="webhooks", now=_now(), **options)
        line = orjson.dumps(change) + b"\n"
        await self._store.append(PUSH_CONTEXT_ID, task_id, line, version=None, last=False, key=str(uuid4()), now=_now())

    # -- delivery

    def _start_delivery(self, record: RunRecord, config_id: str) -> None:
        """Deliver events to a webhook, unless the owner of the run has too many.

        A webhook that was registered nevertheless waits for the next search.
        """
        key = record.task_id, config_id
        if self._client is None or self._gateway is None or key in self._tasks:
            return
        try:
            reservation = self._gateway.reserve(Principal(record.owner or ""), "webhooks")
        except Refused:
            return
        task = self._tasks[key] = asyncio.create_task(self._deliver(*key, record.owner), name="rxloop-a2a-webhook")

        def release(_: asyncio.Task[None]) -> None:
            self._tasks.pop(key, None)
            reservation.release()

        task.add_done_callback(release)

    async def _scan_periodically(self) -> None:
        """Periodically search for webhooks without an active process."""
        while True:
            try:
                for artifact in await self._store.list(PUSH_CONTEXT_ID):
                    if artifact.artifact_id not in self._finished:
                        for record, config_id in await self._find_undelivered(artifact.artifact_id):
                            self._start_delivery(record, config_id)
            except Exception as error:
                log.warning("Cannot scan for undelivered webhooks, retrying: %s", error)
            await asyncio.sleep(self._options.scan_interval)

    async def _find_undelivered(self, task_id: str) -> list[tuple[RunRecord, str]]:
        """Return the run and the ids of webhooks with undelivered events."""
        try:
            record = await read_log(self._log.get_record, task_id)
        except UnknownRun:
            return []
        is_finished = await is_over(self._log, record)
        webhooks = await self._load_webhooks(task_id)
        remaining = [each for each, webhook in webhooks.items() if webhook.seq < record.seq or not is_finished]
        if is_finished and not remaining:
            self._finished.add(task_id)
        return [(record, config_id) for config_id in remaining]

    async def _deliver(self, task_id: str, config_id: str, owner: str | None) -> None:
        lease_name, lost = f"{PUSH_CONTEXT_ID}/{task_id}/{config_id}", asyncio.Event()
        try:
            if not await self._log.acquire_lease(lease_name, task_id, lost.set):
                # Another process serves this webhook. If that process has crashed, the next search will find it.
                return
            try:
                await self._deliver_events(task_id, config_id, owner, lost)
            finally:
                await self._log.release_lease(lease_name, task_id)
        except Exception as error:
            # The next search will retry it.
            log.warning("Webhook delivery for task %s failed, retrying later: %s", task_id, error)

    async def _deliver_events(self, task_id: str, config_id: str, owner: str | None, lost: asyncio.Event) -> None:
        webhook = (await self._load_webhooks(task_id)).get(config_id)
        if webhook is None:
            return
        fold = await process_events(
            self._log, task_id, partial(fold_task, last_seq=webhook.seq, thoughts=self._thoughts)
        )
        if fold.last is not None and _is_end(fold.last):
            return
        after = None if fold.last is None else fold.last.cursor
        async for event in follow(self._log, task_id, after=after, until="end"):
            if lost.is_set():
                return
            if not await self._deliver_event(event, fold, webhook, owner) or _is_end(event):
                return

    async def _deliver_event(self, event: Event, fold: TaskFold, webhook: _Webhook, owner: str | None) -> bool:
        """Deliver the updates for an event, returning False if the webhook no longer exists."""
        updates = fold.add(event)
        for update in updates:
            body = orjson.dumps(MessageToDict(to_stream_response(update)))
            if not await self._send(event.root_task_id, webhook.config.id, body, owner):
                return False
        if updates:
            # Record the delivery even during shutdown, to avoid a duplicate notification.
            with anyio.CancelScope(shield=True):
                await self._append_change(webhook.config.task_id, {"told": webhook.config.id, "seq": event.seq})
        return True

    async def _send(self, task_id: str, config_id: str, body: bytes, owner: str | None) -> bool:
        """Deliver a notification with retries, returning True on success."""
        assert self._client is not None
        delay = self._options.retry_delay
        for remaining in reversed(range(self._options.max_attempts)):
            # Reload the webhook, because another process can change or remove it.
            webhook = (await self._load_webhooks(task_id)).get(config_id)
            if webhook is None:
                return False
            config, allow_private = webhook.config, self._options.allow_private
            try:
                async with asyncio.timeout(self._options.timeout):
                    status = await post(
                        self._client, config.url, body, _headers(config), owner=owner, allow_private=allow_private
                    )
                if 200 <= status < 300:
                    return True
                failure = f"HTTP status {status}"
            except (httpx.HTTPError, UnsafeAddress, TimeoutError) as error:
                failure = str(error) or type(error).__name__
            log.info("Notification for task %s failed: %s; %d attempts left", task_id, failure, remaining)
            if remaining:
                await asyncio.sleep(delay)
                delay = min(2 * delay, 60.0)
        log.warning("Abandoning webhook %s of task %s", config_id, task_id)
        await self._append_change(task_id, {"remove": config_id})
        return False


def _headers(config: pb.TaskPushNotificationConfig) -> dict[str, str]:
    headers = {"content-type": "application/a2a+json", "a2a-version": "1.0"}
    if config.token:
        headers["x-a2a-notification-token"] = config.token
    if config.authentication.scheme and config.authentication.credentials:
        headers["authorization"] = f"{config.authentication.scheme} {config.authentication.credentials}"
    return headers


def _is_end(event: Event) -> bool:
    return isinstance(event, StatusUpdateEvent) and ends_attempt(event) and event.state in FINAL_STATES


def _now() -> int:
    return time.time_ns() // 1_000_000
