"""Push notifications to webhooks, with delivery at least once, including after a restart.

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
from rxloop.pipeline.log_retry import read_log
from rxloop.pipeline.records import RunRecord
from rxloop.protocol.events import Event, StatusUpdateEvent, ends_attempt
from rxloop.recorded.follow import OVER, follow, is_over
from rxloop.server.a2a.task_fold import TaskFold, folded
from rxloop.server.a2a.webhook_addresses import Unsafe, post, read_url, safe_addresses
from rxloop.server.core.gateway import ANYBODY, Gateway, StreamSlot
from rxloop.support.http_environment import name_variables
from rxloop.support.tasks import wait_all

log = logging.getLogger("rxloop")

PLACE = "a2a\x1fpush"
"""Conversation id for webhook artifacts. Its control character prevents a conflict with actual conversations."""
_MOST = 16
"""Maximum number of webhooks per task."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PushOptions:
    """Webhook options.

    Attributes:
        private: Whether to allow private addresses. Clients that may register webhooks can then make this server call
            any reachable host.
        timeout: Request timeout in seconds.
        tries: Maximum number of delivery attempts.
        pause: Delay in seconds before the second attempt. It doubles with each attempt, up to a minute.
        look_every: Interval in seconds between searches for webhooks of crashed processes.
    """

    private: bool = False
    timeout: float = 10.0
    tries: int = 8
    pause: float = 1.0
    look_every: float = 30.0


@dataclass(slots=True)
class _Hook:
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
                f"{event_log!r} keeps no artifacts, and webhooks have to be kept somewhere: push=None, or another log"
            )
        self._store: ArtifactStore = event_log.artifacts
        self._log, self._options, self._thoughts = event_log, options, thoughts
        self._tasks: dict[tuple[str, str], asyncio.Task[None]] = {}
        self._over: set[str] = set()
        """Finished tasks with fully notified webhooks."""
        self._client: httpx.AsyncClient | None = None
        self._started = False

    def start(self, gateway: Gateway) -> None:
        """Start delivering notifications, including those of crashed processes, until the server shuts down."""
        if not self._started and not gateway.is_draining:
            with name_variables():
                client = httpx.AsyncClient(timeout=self._options.timeout, trust_env=False)
            self._started = True
            gateway.spawn(self._work(gateway.reserve_stream(ANYBODY), client))

    async def _work(self, slot: StreamSlot, client: httpx.AsyncClient) -> None:
        with slot, slot.scope:
            async with client as self._client:
                try:
                    await self._look()
                finally:
                    self._client, tasks = None, [*self._tasks.values()]
                    for task in tasks:
                        task.cancel()
                    await wait_all(tasks)

    # -- registration

    async def check(self, config: pb.TaskPushNotificationConfig) -> None:
        """Validate a webhook configuration.

        Raises:
            InvalidParamsError: If the URL is invalid or not allowed, or another field is invalid.
        """
        try:
            url = read_url(config.url)
            if not self._options.private:
                await safe_addresses(url)
        except Unsafe as error:
            raise InvalidParamsError(f"the url of the webhook cannot be used: {error}") from None
        values = (config.id, config.token, config.authentication.scheme, config.authentication.credentials)
        if any(len(value) > 4_000 or not value.isprintable() for value in values):
            raise InvalidParamsError("a field of the webhook is too long, or has control characters")
        if not "".join(values[1:]).isascii():
            raise InvalidParamsError("what goes into a header of a notification has to be ASCII")

    async def keep(
        self, record: RunRecord, config: pb.TaskPushNotificationConfig, *, after_seq: int
    ) -> pb.TaskPushNotificationConfig:
        """Register a webhook for all events after a sequence number.

        Raises:
            InvalidParamsError: If the task already has the maximum number of webhooks.
        """
        kept = pb.TaskPushNotificationConfig()
        kept.CopyFrom(config)
        kept.task_id, kept.tenant = record.task_id, ""
        kept.id = config.id or str(uuid4())
        hooks = await self._hooks(record.task_id)
        if kept.id not in hooks and len(hooks) >= _MOST:
            raise InvalidParamsError(f"a task has at most {_MOST} webhooks")
        await self._note(record.task_id, {"set": MessageToDict(kept), "seq": after_seq})
        self._begin(record.task_id, kept.id)
        return kept

    async def configs(self, task_id: str) -> list[pb.TaskPushNotificationConfig]:
        """Return a task's webhooks."""
        return [hook.config for hook in (await self._hooks(task_id)).values()]

    async def remove(self, task_id: str, config_id: str) -> None:
        """Remove a webhook if it exists."""
        if config_id in await self._hooks(task_id):
            await self._note(task_id, {"remove": config_id})
        task = self._tasks.get((task_id, config_id))
        if task is not None:
            task.cancel()

    async def _hooks(self, task_id: str) -> dict[str, _Hook]:
        try:
            written = await self._store.read(PLACE, task_id)
        except UnknownArtifact:
            return {}
        hooks: dict[str, _Hook] = {}
        for line in written.splitlines():
            change: dict[str, Any] = orjson.loads(line)
            if "set" in change:
                config = ParseDict(change["set"], pb.TaskPushNotificationConfig())
                hooks[config.id] = _Hook(config, change["seq"])
            elif "remove" in change:
                hooks.pop(change["remove"], None)
            elif change["told"] in hooks:
                hooks[change["told"]].seq = max(change["seq"], hooks[change["told"]].seq)
        return hooks

    async def _note(self, task_id: str, change: dict[str, Any]) -> None:
        """Append a change to the task's artifact, creating the artifact for the first webhook."""
        options: dict[str, Any] = {"name": task_id, "media_type": "application/x-ndjson", "override": False}
        # Ignore an existing artifact.
        with suppress(ArtifactError):
            await self._store.create(PLACE, task_id, key="webhooks", now=_now(), **options)
        line = orjson.dumps(change) + b"\n"
        await self._store.append(PLACE, task_id, line, version=None, last=False, key=str(uuid4()), now=_now())

    # -- delivery

    def _begin(self, task_id: str, config_id: str) -> None:
        key = task_id, config_id
        if self._client is None or key in self._tasks:
            return
        task = self._tasks[key] = asyncio.create_task(self._tell(task_id, config_id), name="rxloop-a2a-webhook")
        task.add_done_callback(lambda done: self._tasks.pop(key, None))

    async def _look(self) -> None:
        """Periodically search for webhooks without an active process."""
        while True:
            try:
                for artifact in await self._store.list(PLACE):
                    if artifact.artifact_id not in self._over:
                        for config_id in await self._left(artifact.artifact_id):
                            self._begin(artifact.artifact_id, config_id)
            except Exception as error:
                log.warning("webhooks that were left cannot be looked for: %s; trying again", error)
            await asyncio.sleep(self._options.look_every)

    async def _left(self, task_id: str) -> list[str]:
        """Return the ids of webhooks with undelivered events."""
        try:
            record = await read_log(self._log.get_record, task_id)
        except UnknownRun:
            return []
        over = await is_over(self._log, record)
        left = [each for each, hook in (await self._hooks(task_id)).items() if hook.seq < record.seq or not over]
        if over and not left:
            self._over.add(task_id)
        return left

    async def _tell(self, task_id: str, config_id: str) -> None:
        place, lost = f"{PLACE}/{task_id}/{config_id}", asyncio.Event()
        try:
            if not await self._log.acquire_lease(place, task_id, lost.set):
                # Another process serves this webhook. If that process has crashed, the next search will find it.
                return
            try:
                await self._tell_all(task_id, config_id, lost)
            finally:
                await self._log.release_lease(place, task_id)
        except Exception as error:
            # The next search will retry it.
            log.warning("the webhooks of the task %s are not told for now: %s", task_id, error)

    async def _tell_all(self, task_id: str, config_id: str, lost: asyncio.Event) -> None:
        hook = (await self._hooks(task_id)).get(config_id)
        if hook is None:
            return
        events = await read_log(self._log.read, task_id)
        fold = folded([each for each in events if each.seq <= hook.seq], thoughts=self._thoughts)
        before = next((each for each in reversed(events) if each.seq <= hook.seq), None)
        if before is not None and _is_end(before):
            return
        after = before.cursor if before is not None else None
        async for event in follow(self._log, task_id, after=after, until="end"):
            if lost.is_set():
                return
            if not await self._tell_of(event, fold, hook) or _is_end(event):
                return

    async def _tell_of(self, event: Event, fold: TaskFold, hook: _Hook) -> bool:
        """Deliver the updates for an event, returning False if the webhook no longer exists."""
        told = fold.add(event)
        for update in told:
            body = orjson.dumps(MessageToDict(to_stream_response(update)))
            if not await self._send(event.root_task_id, hook.config.id, body):
                return False
        if told:
            # Record the delivery even during shutdown, to avoid a duplicate notification.
            with anyio.CancelScope(shield=True):
                await self._note(hook.config.task_id, {"told": hook.config.id, "seq": event.seq})
        return True

    async def _send(self, task_id: str, config_id: str, body: bytes) -> bool:
        """Deliver a notification with retries, returning True on success."""
        assert self._client is not None
        pause = self._options.pause
        for left in reversed(range(self._options.tries)):
            # Reload the webhook, because another process can change or remove it.
            hook = (await self._hooks(task_id)).get(config_id)
            if hook is None:
                return False
            config, anywhere = hook.config, self._options.private
            try:
                async with asyncio.timeout(self._options.timeout):
                    status = await post(self._client, config.url, body, _headers(config), anywhere=anywhere)
                if 200 <= status < 300:
                    return True
                said = f"it answers {status}"
            except (httpx.HTTPError, Unsafe, TimeoutError) as error:
                said = str(error) or type(error).__name__
            log.info("a notification for the task %s has not arrived: %s; %d tries left", task_id, said, left)
            if left:
                await asyncio.sleep(pause)
                pause = min(2 * pause, 60.0)
        log.warning("the webhook %s of the task %s is given up", config_id, task_id)
        await self._note(task_id, {"remove": config_id})
        return False


def _headers(config: pb.TaskPushNotificationConfig) -> dict[str, str]:
    headers = {"content-type": "application/a2a+json", "a2a-version": "1.0"}
    if config.token:
        headers["x-a2a-notification-token"] = config.token
    if config.authentication.scheme and config.authentication.credentials:
        headers["authorization"] = f"{config.authentication.scheme} {config.authentication.credentials}"
    return headers


def _is_end(event: Event) -> bool:
    return isinstance(event, StatusUpdateEvent) and ends_attempt(event) and event.state in OVER


def _now() -> int:
    return time.time_ns() // 1_000_000
