"""Limits per tenant in procrastinate's tables."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterable, Sequence

from procrastinate.connector import BaseConnector
from procrastinate.exceptions import ConnectorException, UniqueViolation
from procrastinate.jobs import Job, Notification, Status
from procrastinate.manager import JobManager, NotificationCallback
from typing_extensions import override

log = logging.getLogger("rxloop")

_TAKE = """
WITH going AS MATERIALIZED (
    SELECT args->>'tenant' AS tenant, lock FROM procrastinate_jobs
    WHERE status = 'doing' AND starts_with(lock, %(name)s::text || ':')
), crowded AS MATERIALIZED (
    SELECT tenant FROM going GROUP BY tenant HAVING count(*) >= %(limit)s::int
), next AS (
    SELECT id, args->>'tenant' AS tenant FROM procrastinate_jobs
    WHERE status = 'todo' AND (%(queues)s::varchar[] IS NULL OR queue_name = ANY(%(queues)s))
    AND (%(agents)s::text[] IS NULL OR args->>'agent' IS NULL OR args->>'agent' = ANY(%(agents)s))
    AND (scheduled_at IS NULL OR scheduled_at <= now())
    AND (args->>'tenant' IS NULL OR args->>'tenant' NOT IN (SELECT tenant FROM crowded))
    ORDER BY priority DESC, id LIMIT 1 FOR UPDATE SKIP LOCKED
)
UPDATE procrastinate_jobs AS job SET status = 'doing', worker_id = %(worker)s, lock = (
    SELECT place FROM generate_series(0, %(limit)s::int - 1) AS n, concat_ws(':', %(name)s::text, tenant, n) AS place
    WHERE tenant IS NOT NULL AND place NOT IN (SELECT lock FROM going) ORDER BY random() LIMIT 1
)
FROM next WHERE job.id = next.id
RETURNING job.id, job.status, job.task_name, job.priority, job.lock, job.queueing_lock, job.args, job.scheduled_at,
    job.queue_name, job.attempts, job.worker_id
"""
"""The first bell for one of these agents, or for none, whose tenant has a free place, with that as its lock: only those
that are answered have one."""

_ONE_BY_ONE = "procrastinate_jobs_lock_idx_v1"
"""The index that gives no place twice."""

_ANSWERED = """
DELETE FROM procrastinate_jobs
WHERE id = %(id)s AND status = 'doing' AND queueing_lock IS NOT DISTINCT FROM %(queueing_lock)s
"""
"""A bell by its run, too: a server that has lost its last moments gives the same numbers again."""

_REGISTERED = "INSERT INTO procrastinate_workers (id) OVERRIDING SYSTEM VALUE VALUES (%(id)s)"


class Places(JobManager):
    """The jobs of procrastinate, each taken within the places of its tenant.

    procrastinate has `lock=` for that. There a bell has its place before it is answered: one that nobody answers keeps
    it, those of a tenant wait for the same one while others are free, and each look compares all that waits with all
    that waits. Here a bell is given its place when it is taken, and until then it stands in nobody's way.
    """

    def __init__(self, connector: BaseConnector, name: str, limit: int | None) -> None:
        """Take bells of the queue `name`, at most `limit` at once for each tenant; None is no limit."""
        super().__init__(connector)
        self.agents: Sequence[str] | None = None
        """Those for whom bells are taken; None is all."""
        self._name, self._limit = name, limit
        self._heard = 0
        self._wake: NotificationCallback | None = None
        self._untold: list[Job] = []
        """The bells that are answered, as the server does not know yet."""

    @override
    async def fetch_job(self, queues: Iterable[str] | None, worker_id: int) -> Job | None:
        while True:
            heard = self._heard
            try:
                job = await self._taken(queues, worker_id)
            except UniqueViolation as error:
                if error.constraint_name != _ONE_BY_ONE:
                    raise
                # Somebody else was quicker with that place.
                continue
            # The worker forgets what has rung while it looked, and this look may not have seen it.
            if job is not None or heard == self._heard:
                return job

    async def _taken(self, queues: Iterable[str] | None, worker_id: int) -> Job | None:
        rows = await self.connector.execute_query_all_async(
            _TAKE, name=self._name, limit=self._limit, queues=queues, agents=self.agents, worker=worker_id
        )
        return Job.from_row(rows[0]) if rows else None

    @override
    async def register_worker(self) -> int:
        # Not the next number: where the server has lost who had it, two would live under one, and the bells of the one
        # that dies would never ring again.
        worker_id = 1 + secrets.randbits(62)
        await self.connector.execute_query_async(_REGISTERED, id=worker_id)
        return worker_id

    @override
    async def listen_for_jobs(
        self, *, on_notification: NotificationCallback, queues: Iterable[str] | None = None
    ) -> None:
        async def heard(*, channel: str, notification: Notification) -> None:
            self._heard += 1
            await on_notification(channel=channel, notification=notification)

        self._wake = heard
        await super().listen_for_jobs(on_notification=heard, queues=queues)

    @override
    async def finish_job(self, job: Job, status: Status, delete_job: bool) -> None:
        # Whatever has become of the run stands in its log: no bell is kept.
        await self._finish(job)

    async def _finish(self, job: Job) -> None:
        try:
            await self.connector.execute_query_async(_ANSWERED, id=job.id, queueing_lock=job.queueing_lock)
        except ConnectorException:
            log.debug("the server has not heard that the bell %s is answered; it is told again", job.id)
            self._untold.append(job)
            return
        # Nothing tells of a place that is free again, and who has had it has room.
        if job.lock is not None and job.id is not None and self._wake is not None:
            await self._wake(channel="", notification={"type": "job_inserted", "job_id": job.id})

    async def tell_again(self) -> None:
        """Tell of the bells whose answer the server has not heard: they keep their places while this worker lives."""
        untold, self._untold = self._untold, []
        for job in untold:
            await self._finish(job)
