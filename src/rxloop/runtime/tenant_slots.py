"""Tenant limits, implemented in procrastinate's tables."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterable, Sequence

from procrastinate.connector import BaseConnector, Notify
from procrastinate.exceptions import ConnectorException, UniqueViolation
from procrastinate.jobs import Job, Status
from procrastinate.manager import JobManager, NotificationCallback, get_channel_for_queues
from typing_extensions import override

log = logging.getLogger("rxloop")

_FETCH = """
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
"""Takes the first job for any of these agents, or for no agent, whose tenant has a free slot. The slot becomes the
job's lock, so only running jobs have one."""

_LOCK_INDEX = "procrastinate_jobs_lock_idx_v1"
"""Unique index that prevents using a slot twice."""

_DELETE = """
DELETE FROM procrastinate_jobs
WHERE id = %(id)s AND status = 'doing' AND queueing_lock IS NOT DISTINCT FROM %(queueing_lock)s
"""
"""Also matches the run, because a server that lost recent writes reuses job numbers."""

_REGISTER = "INSERT INTO procrastinate_workers (id) OVERRIDING SYSTEM VALUE VALUES (%(id)s)"


class TenantSlots(JobManager):
    """Job manager for procrastinate that limits running jobs per tenant.

    With procrastinate's own `lock=`, a job gets its slot before being taken. It keeps the slot while waiting, jobs wait
    for one slot while others are free, and fetching compares all waiting jobs with each other. Here, a job gets its
    slot when it is taken, and doesn't block other jobs before.
    """

    def __init__(self, connector: BaseConnector, name: str, limit: int | None) -> None:
        """Create a manager for the queue `name`. `limit` is the maximum number of jobs per tenant, or None."""
        super().__init__(connector)
        self.agents: Sequence[str] | None = None
        """Agents whose jobs are fetched, or None for all."""
        self._name, self._limit = name, limit
        self._notifications = 0
        self._wake: Notify | None = None
        self._undeleted: list[Job] = []
        """Finished jobs that couldn't be deleted yet."""

    @override
    async def fetch_job(self, queues: Iterable[str] | None, worker_id: int) -> Job | None:
        while True:
            count = self._notifications
            try:
                job = await self._fetch(queues, worker_id)
            except UniqueViolation as error:
                if error.constraint_name != _LOCK_INDEX:
                    raise
                # Another worker has just taken this slot.
                continue
            # Check again if notified meanwhile, because the worker drops those notifications and we may not have seen
            # their jobs.
            if job is not None or count == self._notifications:
                return job

    async def _fetch(self, queues: Iterable[str] | None, worker_id: int) -> Job | None:
        rows = await self.connector.execute_query_all_async(
            _FETCH, name=self._name, limit=self._limit, queues=queues, agents=self.agents, worker=worker_id
        )
        return Job.from_row(rows[0]) if rows else None

    @override
    async def register_worker(self) -> int:
        # Not sequential: after losing recent writes, the server could assign a number twice, and jobs of one of these
        # workers would never be rescued.
        worker_id = 1 + secrets.randbits(62)
        await self.connector.execute_query_async(_REGISTER, id=worker_id)
        return worker_id

    @override
    async def listen_for_jobs(
        self, *, on_notification: NotificationCallback, queues: Iterable[str] | None = None
    ) -> None:
        async def notify(*, channel: str, payload: str) -> None:
            # The payload isn't trusted, because any role that can connect to the database can send it. procrastinate
            # would abort jobs, and end the worker if the payload isn't JSON.
            self._notifications += 1
            await on_notification(channel=channel, notification={"type": "job_inserted", "job_id": 0})

        self._wake = notify
        await self.connector.listen_notify(on_notification=notify, channels=get_channel_for_queues(queues=queues))

    @override
    async def finish_job(self, job: Job, status: Status, delete_job: bool) -> None:
        # The result is in the run's log, so jobs aren't kept.
        await self._finish(job)

    async def _finish(self, job: Job) -> None:
        try:
            await self.connector.execute_query_async(_DELETE, id=job.id, queueing_lock=job.queueing_lock)
        except ConnectorException:
            log.debug("Could not delete finished job %s, retrying later", job.id)
            self._undeleted.append(job)
            return
        # There is no notification for a freed slot, so wake ourselves.
        if job.lock is not None and job.id is not None and self._wake is not None:
            await self._wake(channel="", payload="")

    async def retry_deletes(self) -> None:
        """Delete finished jobs that couldn't be deleted earlier. They keep their slots while this worker is alive."""
        jobs, self._undeleted = self._undeleted, []
        for job in jobs:
            await self._finish(job)
