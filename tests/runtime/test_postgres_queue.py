"""PostgreSQL queue."""

from __future__ import annotations

import asyncio
import logging
import secrets
import traceback
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta, tzinfo
from itertools import count
from pathlib import Path
from typing import Any, Self

import psycopg
import pytest
from procrastinate import PsycopgConnector
from procrastinate.exceptions import ConnectorException
from procrastinate.jobs import Job

from rxloop.errors import ConfigurationError
from rxloop.runtime import PostgresQueue
from rxloop.runtime import postgres_queue as module
from rxloop.runtime.tenant_slots import TenantSlots
from support.postgres.logs import query_rows
from support.postgres.queues import JobRecorder, open_queue, serve_queue
from support.postgres.server import PostgresServer, database

pytestmark = pytest.mark.service("postgres")
DOCUMENT = Path(__file__).parents[2] / "docs/machines.md"


@pytest.fixture
def dsn(postgres: str) -> Iterator[str]:
    with database(postgres) as url:
        yield url


async def test_job_enqueued_repeatedly_before_its_execution_is_delivered_once(dsn: str) -> None:
    async with open_queue(dsn) as queue:
        for _ in range(5):
            await queue.enqueue("a")
        await queue.enqueue("b")
        assert await queue.waiting() == 2
        answers = JobRecorder(2)
        async with serve_queue(queue, answers):
            await answers.all.wait()
            assert answers.jobs == ["a", "b"]
            # The run was executed, so it can be enqueued again, and the worker is notified immediately.
            answers.all.clear()
            await queue.enqueue("a")
            async with asyncio.timeout(0.9):
                await answers.all.wait()
        assert await queue.waiting() == 0


async def test_queue_works_with_a_server_in_another_language(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LANGUAGE", "de")
    with PostgresServer(lc_messages="C.UTF-8") as server:
        with psycopg.connect(server.dsn) as connection:
            try:
                connection.execute("SELECT 1 / 0")
            except psycopg.errors.DivisionByZero as error:
                if "Division durch Null" not in str(error):
                    pytest.skip("this PostgreSQL has only English messages")
        answers = JobRecorder(3)

        async def execute(task_id: str) -> None:
            await answers(task_id)
            if len(answers.jobs) == 1:
                # Enqueue again before this job fails.
                await queue.enqueue("a")
                raise RuntimeError("not yet")

        async with open_queue(server.dsn, tenant_limit=1) as queue:
            for _ in range(2):
                await queue.enqueue("a", tenant="t")
            await queue.enqueue("b", tenant="t")
            assert await queue.waiting() == 2
            async with serve_queue(queue, execute, concurrency=2), asyncio.timeout(20):
                await answers.all.wait()
            assert sorted(answers.jobs) == ["a", "a", "b"]


async def test_role_with_the_documented_rights_can_use_the_queue(dsn: str) -> None:
    grants = [line for line in DOCUMENT.read_text(encoding="utf-8").splitlines() if " SCHEMA queue TO app;" in line]
    role = f"rxloop_{secrets.token_hex(4)}"
    in_schema = f"{dsn}?options=-csearch_path%3Dqueue"
    await query_rows(dsn, f"CREATE ROLE {role} LOGIN PASSWORD 'x'")
    try:
        await query_rows(dsn, "CREATE SCHEMA queue")
        async with open_queue(in_schema) as owner, open_queue(in_schema.replace("postgres@", f"{role}:x@")) as queue:
            assert await owner.waiting() == 0
            with pytest.raises(ConnectorException, match=r"no schema .* \(docs/machines.md, Rights\)"):
                await queue.waiting()
            for grant in grants:
                await query_rows(dsn, grant.replace("TO app", f"TO {role}"))
            answers = JobRecorder(1)
            await queue.enqueue("a")
            async with serve_queue(queue, answers), asyncio.timeout(20):
                await answers.all.wait()
    finally:
        await query_rows(dsn, f"DROP OWNED BY {role}")
        await query_rows(dsn, f"DROP ROLE {role}")


async def test_jobs_are_delivered_by_priority_and_time(dsn: str) -> None:
    async with open_queue(dsn) as queue:
        await queue.enqueue("low", priority=-1)
        await queue.enqueue("later", at=datetime.now(UTC) + timedelta(seconds=1))
        await queue.enqueue("usual")
        await queue.enqueue("high", priority=3)
        assert await queue.waiting() == 3
        answers = JobRecorder(4)
        async with serve_queue(queue, answers):
            await answers.all.wait()
        assert answers.jobs == ["high", "usual", "low", "later"]


async def test_failed_or_canceled_job_is_delivered_again(dsn: str) -> None:
    attempts: Counter[str] = Counter()
    done, stuck = asyncio.Event(), asyncio.Event()

    async def execute(task_id: str) -> None:
        attempts[task_id] += 1
        if task_id == "stuck":
            stuck.set()
            await asyncio.Event().wait()
        if attempts[task_id] < 3:
            raise RuntimeError("not yet")
        done.set()

    async with open_queue(dsn) as queue:
        await queue.enqueue("fails")
        await queue.enqueue("stuck")
        async with serve_queue(queue, execute, concurrency=2):
            await done.wait()
            await stuck.wait()
        assert await queue.waiting() == 1
        answers = JobRecorder(1)
        async with serve_queue(queue, answers):
            await answers.all.wait()
        assert answers.jobs == ["stuck"]


async def test_retry_of_a_job_uses_the_clock_of_the_server(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class ClockAhead(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> Self:
            return super().now(tz) + timedelta(hours=1)

    monkeypatch.setattr(module, "datetime", ClockAhead, raising=False)
    answers, times = JobRecorder(2), list[float]()

    async def execute(task_id: str) -> None:
        times.append(asyncio.get_running_loop().time())
        await answers(task_id)
        if len(answers.jobs) == 1:
            raise RuntimeError("not yet")

    async with open_queue(dsn) as queue:
        await queue.enqueue("a")
        async with serve_queue(queue, execute):
            async with asyncio.timeout(20):
                await answers.all.wait()
        # Delay retries, so that jobs do not bounce between unsuitable workers.
        assert times[1] - times[0] > 0.9


async def test_worker_gets_jobs_of_its_version_and_jobs_without_version(dsn: str) -> None:
    async with open_queue(dsn) as queue:
        await queue.enqueue("one", version="1")
        await queue.enqueue("two", version="2")
        await queue.enqueue("any")
        answers = JobRecorder(2)
        async with serve_queue(queue, answers, version="2"):
            await answers.all.wait()
        assert sorted(answers.jobs) == ["any", "two"]
        assert await queue.waiting("1") == 1


async def test_worker_gets_jobs_of_its_agents_and_jobs_without_agent(dsn: str) -> None:
    async with open_queue(dsn) as queue:
        await queue.enqueue("other", agent="b", priority=5)
        await queue.enqueue("mine", agent="a")
        await queue.enqueue("any")
        answers = JobRecorder(2)
        async with serve_queue(queue, answers, agents=["a", "c"]):
            await answers.all.wait()
        assert answers.jobs == ["mine", "any"]
        assert await queue.waiting() == 1


async def test_retried_job_keeps_its_agent(dsn: str) -> None:
    async def execute(task_id: str) -> None:
        raise RuntimeError("not yet")

    async with open_queue(dsn) as queue:
        await queue.enqueue("run", agent="a")
        async with serve_queue(queue, execute, agents=["a"]):
            with psycopg.connect(dsn, autocommit=True) as connection:
                delayed = "SELECT args FROM procrastinate_jobs WHERE scheduled_at IS NOT NULL"
                while not (job_args := connection.execute(delayed).fetchall()):  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
        assert job_args == [({"task_id": "run", "tenant": None, "agent": "a"},)]


async def test_jobs_of_older_and_newer_programs_are_delivered(dsn: str) -> None:
    async with open_queue(dsn) as queue:
        for job_args in (
            '{"task_id": "old", "tenant": "t"}',
            '{"task_id": "new", "tenant": null, "agent": "a", "more": 1}',
        ):
            await queue.enqueue("run")
            with psycopg.connect(dsn) as connection:
                connection.execute(
                    "UPDATE procrastinate_jobs SET args = %s, queueing_lock = NULL WHERE queueing_lock = 'run'",
                    (job_args,),
                )
        answers = JobRecorder(2)
        async with serve_queue(queue, answers, agents=["a"]):
            await answers.all.wait()
        assert answers.jobs == ["old", "new"]


async def test_job_of_a_dead_worker_is_delivered_before_other_jobs(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_STALLED_AFTER", 0.4)
    monkeypatch.setattr(module, "_HEARTBEAT", 0.1)
    async with open_queue(dsn) as queue:
        await queue.enqueue("left")
        app = await queue._get_app()
        worker_id = await app.job_manager.register_worker()
        assert await app.job_manager.fetch_job(None, worker_id) is not None
        for number in range(3):
            await queue.enqueue(f"other{number}")
        answers = JobRecorder(4)

        async def execute_slowly(task_id: str) -> None:
            await answers(task_id)
            await asyncio.sleep(0.6)

        async with serve_queue(queue, execute_slowly):
            await answers.all.wait()
        assert answers.jobs.index("left") < 3


async def test_job_of_a_dead_worker_is_kept_until_it_is_enqueued_again(
    dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_STALLED_AFTER", 0.4)
    monkeypatch.setattr(module, "_HEARTBEAT", 0.1)
    enqueue_job, failures = PostgresQueue._enqueue, iter([True, True])

    async def fail_twice(self: PostgresQueue, *arguments: Any) -> None:
        if next(failures, False):
            raise ConnectorException("the server does not answer in time")
        await enqueue_job(self, *arguments)

    async with open_queue(dsn) as queue:
        await queue.enqueue("left")
        manager = (await queue._get_app()).job_manager
        assert await manager.fetch_job(None, await manager.register_worker()) is not None
        monkeypatch.setattr(PostgresQueue, "_enqueue", fail_twice)
        answers = JobRecorder(1)
        async with serve_queue(queue, answers), asyncio.timeout(20):
            await answers.all.wait()
    assert answers.jobs == ["left"]


async def test_concurrent_processes_create_the_tables_once(dsn: str) -> None:
    queues = [PostgresQueue(dsn) for _ in range(5)]
    await asyncio.gather(*(queue.enqueue(f"r{number}") for number, queue in enumerate(queues)))
    assert await queues[0].waiting() == 5
    for queue in queues:
        await queue.aclose()


def count_connections(dsn: str) -> int:
    with psycopg.connect(dsn) as connection:
        rows = connection.execute("SELECT application_name FROM pg_stat_activity WHERE datname = current_database()")
        return rows.fetchall().count(("rxloop-queue",))


async def test_worker_uses_two_connections(dsn: str) -> None:
    async with open_queue(dsn) as queue:
        answers = JobRecorder(10)
        async with serve_queue(queue, answers, concurrency=10):
            # The listening connection may be opened after the first job.
            while count_connections(dsn) < 2:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
            for number in range(10):
                await queue.enqueue(f"a{number}")
            await answers.all.wait()
            assert count_connections(dsn) == 2


async def test_queue_closed_while_it_opens_leaks_no_connection(dsn: str) -> None:
    queue = PostgresQueue(dsn)
    enqueue_task = asyncio.create_task(queue.enqueue("r1"))
    await asyncio.sleep(0)
    await queue.aclose()
    with suppress(ConnectorException):
        await enqueue_task
    async with asyncio.timeout(10):
        # The server notices with a delay.
        while count_connections(dsn):  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def test_worker_that_can_no_longer_listen_ends(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail_connection() -> None:
        raise psycopg.OperationalError("the server is away for a moment")

    listener = "FROM pg_stat_activity WHERE datname = current_database() AND query LIKE 'LISTEN%'"
    async with open_queue(dsn) as queue, serve_queue(queue, JobRecorder(1)) as worker:
        with psycopg.connect(dsn, autocommit=True) as connection:
            while not connection.execute(f"SELECT 1 {listener}").fetchall():  # noqa: ASYNC110
                await asyncio.sleep(0.02)
            monkeypatch.setattr((await queue._get_app()).connector, "_get_standalone_connection", fail_connection)
            connection.execute(f"SELECT pg_terminate_backend(pid) {listener}")
        done, _ = await asyncio.wait([worker], timeout=30)
        assert done


async def test_new_worker_continues_after_a_server_restart(monkeypatch: pytest.MonkeyPatch) -> None:
    with PostgresServer() as server:
        async with open_queue(server.dsn) as queue:
            answers = JobRecorder(2)

            async def serve_repeatedly() -> None:
                while True:
                    with suppress(Exception):
                        await queue.serve(answers, concurrency=2)
                    await asyncio.sleep(0.2)

            server_task = asyncio.create_task(serve_repeatedly())
            await queue.enqueue("before")
            while not answers.jobs:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
            await asyncio.to_thread(server.stop, crash=True)
            await asyncio.to_thread(server.start)
            while True:
                try:
                    await queue.enqueue("after")
                    break
                except Exception:
                    await asyncio.sleep(0.2)
            await answers.all.wait()
            server_task.cancel()
            with suppress(asyncio.CancelledError):
                await server_task
    assert set(answers.jobs) == {"before", "after"}


def test_queue_rejects_tenant_limit_below_one() -> None:
    with pytest.raises(ConfigurationError, match="at least 1"):
        PostgresQueue("postgresql://localhost/app", tenant_limit=0)


@pytest.mark.parametrize("name", ["", "a%", "a:b", "a" * 24])
def test_queue_rejects_invalid_name(name: str) -> None:
    with pytest.raises(ConfigurationError, match="name must have"):
        PostgresQueue("postgresql://localhost/app", name=name)


async def test_waiting_counts_jobs_by_version_and_queue(dsn: str) -> None:
    async with open_queue(dsn) as queue:
        second_queue = PostgresQueue(dsn, name="rx_oop")
        await queue.enqueue("gone", version="7")
        await queue.enqueue("mine", version="8")
        await queue.enqueue("any")
        assert [await queue.waiting(version) for version in (None, "7", "8", "9")] == [1, 2, 2, 1]
        assert await second_queue.waiting("8") == 0
        await second_queue.aclose()


async def test_version_can_be_as_long_as_a_commit_hash(dsn: str) -> None:
    commit = "5737d7e" * 6
    async with open_queue(dsn) as queue:
        await queue.enqueue("other", version=commit + "1")
        answers = JobRecorder(1)
        async with serve_queue(queue, answers, version=commit):
            await queue.enqueue("a", version=commit)
            await answers.all.wait()
        assert answers.jobs == ["a"]


async def test_job_enqueued_during_a_fetch_is_not_missed(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_POLL_INTERVAL", 3600.0)
    async with open_queue(dsn) as queue:
        job_manager = (await queue._get_app()).job_manager
        assert isinstance(job_manager, TenantSlots)
        answers, fetch_job = JobRecorder(1), job_manager._fetch

        async def enqueue_meanwhile(queues: Iterable[str] | None, worker_id: int) -> Job | None:
            job, notification_count = await fetch_job(queues, worker_id), job_manager._notifications
            if job is None and not answers.jobs:
                await queue.enqueue("meanwhile")
                while job_manager._notifications == notification_count:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            return job

        async with serve_queue(queue, answers) as task:
            # Wait until the worker listens and the queue is empty, because waiting jobs cause no further notification.
            task_ids = (f"first{number}" for number in count())
            while not job_manager._notifications:
                await queue.enqueue(next(task_ids))
                await asyncio.sleep(0.01)
            while await queue.waiting():  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            monkeypatch.setattr(job_manager, "_fetch", enqueue_meanwhile)
            answers.jobs.clear()
            answers.all.clear()
            assert job_manager._wake is not None
            await job_manager._wake(channel="", payload="")
            await answers.all.wait()
            assert not task.done()
        assert answers.jobs == ["meanwhile"]


@pytest.mark.parametrize(
    "dsn",
    [
        "postgresql://app:se%cret@db/app",
        "postgresql://app:se cret@db/app",
        "postgresql://app:x@secret@db/app",
        "postgresql://app:x/secret@db/app",
        "host=db password='secret",
    ],
)
def test_error_of_an_invalid_url_hides_the_password(dsn: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        PostgresQueue(dsn)
    assert "cret" not in "".join(traceback.format_exception(caught.value)) + repr(caught.value)


async def test_error_of_an_unreachable_server_hides_the_password(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    queue = PostgresQueue("postgresql://app:secret@127.0.0.1:1/app?connect_timeout=1")
    with pytest.raises(ConnectorException) as caught:
        await queue.waiting()
    output = "".join(traceback.format_exception(caught.value)) + repr(queue) + caplog.text
    assert "secret" not in output


async def test_error_of_the_server_is_passed_on(dsn: str) -> None:
    async with open_queue(dsn) as queue:
        assert await queue.waiting() == 0
        with psycopg.connect(dsn) as connection:
            connection.execute("ALTER TABLE procrastinate_jobs RENAME TO jobs")
        for call in (queue.enqueue("run"), queue.waiting()):
            with pytest.raises(ConnectorException, match='relation "procrastinate_jobs" does not exist'):
                await call


async def test_listening_connection_has_a_tcp_user_timeout(dsn: str) -> None:
    async with open_queue(dsn) as queue:
        connector = (await queue._get_app()).connector
        assert isinstance(connector, PsycopgConnector)
        async with connector._get_standalone_connection() as listener:
            cursor = await listener.execute("SHOW tcp_user_timeout")
            assert await cursor.fetchone() == ("5000",)
