"""Postgres schema and migrations."""

from __future__ import annotations

import psycopg
from psycopg import sql

from rxloop.errors import EventLogError
from rxloop.storage.postgres.address import Address, Connection

SCHEMA = (
    """
    CREATE TABLE $s.runs (
        number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        task_id text NOT NULL UNIQUE,
        context_id text NOT NULL,
        agent_name text NOT NULL,
        state text NOT NULL,
        at_rest boolean NOT NULL,
        attempt int NOT NULL,
        seq int NOT NULL,
        created bigint NOT NULL,
        updated bigint NOT NULL,
        writer text NOT NULL,
        holder text,
        taken bigint NOT NULL,
        arrived timestamptz NOT NULL DEFAULT now(),
        model text NOT NULL,
        owner text,
        metadata text,
        labels text[] NOT NULL,
        usage text,
        error text
    ) WITH (fillfactor = 70);
    CREATE INDEX runs_by_context ON $s.runs (context_id, number);
    CREATE INDEX runs_by_owner ON $s.runs (owner, number) WHERE owner IS NOT NULL;
    CREATE INDEX runs_by_time ON $s.runs (created);
    CREATE INDEX runs_by_label ON $s.runs USING gin (labels);
    CREATE INDEX runs_unfinished ON $s.runs (number) WHERE state NOT IN ('completed', 'failed');
    CREATE INDEX runs_under_way ON $s.runs (number) WHERE NOT at_rest;
    CREATE TABLE $s.events (
        run bigint NOT NULL,
        seq int NOT NULL,
        sub int NOT NULL,
        json bytea NOT NULL,
        PRIMARY KEY (run, seq, sub)
    );
    CREATE TABLE $s.turns (
        context_id text PRIMARY KEY,
        task_id text NOT NULL,
        holder text NOT NULL,
        key bigint NOT NULL
    );
    CREATE TABLE $s.mail (
        number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        run bigint NOT NULL,
        kind text NOT NULL,
        key text NOT NULL UNIQUE,
        json bytea NOT NULL
    );
    CREATE INDEX mail_by_run ON $s.mail (run, number);
    CREATE TABLE $s.folds (
        number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        context_id text NOT NULL,
        first bigint NOT NULL,
        last bigint NOT NULL,
        runs int NOT NULL,
        events bigint NOT NULL,
        version int NOT NULL,
        crc bigint NOT NULL,
        summary bytea NOT NULL,
        messages bytea NOT NULL
    );
    CREATE INDEX folds_by_context ON $s.folds (context_id, first);
    CREATE TABLE $s.artifacts (
        number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        context_id text NOT NULL,
        artifact_id text NOT NULL,
        version int NOT NULL,
        name text NOT NULL,
        media_type text NOT NULL,
        created bigint NOT NULL,
        updated bigint NOT NULL,
        size bigint NOT NULL,
        chunks int NOT NULL,
        complete boolean NOT NULL,
        key text NOT NULL,
        UNIQUE (context_id, artifact_id, version)
    );
    CREATE TABLE $s.artifact_chunks (
        artifact bigint NOT NULL,
        place int NOT NULL,
        start bigint NOT NULL,
        key text NOT NULL,
        data bytea NOT NULL,
        PRIMARY KEY (artifact, key)
    );
    CREATE INDEX artifact_chunks_by_start ON $s.artifact_chunks (artifact, start, place);
    """,
    # Separate indexes, because many runs may be waiting while few are active.
    """
    DROP INDEX $s.runs_under_way;
    CREATE INDEX runs_under_way ON $s.runs (number) WHERE NOT at_rest AND state <> 'submitted';
    CREATE INDEX runs_waiting ON $s.runs (state, number)
        WHERE state IN ('submitted', 'input-required', 'auth-required');
    """,
)
"""Schema migrations. The schema version is the number of applied migrations."""

_OLDEST = 140_000
"""Minimum server version, which supports `idle_session_timeout`."""


async def check(connection: Connection, address: Address) -> bool:
    """Return True if the schema is current, or False if it is missing or outdated.

    Raises:
        EventLogError: If the schema is too new, the server is too old, or the database encoding does not support
            Unicode.
    """
    if connection.info.server_version < _OLDEST:
        raise EventLogError(
            f"the server of the event log {address} is PostgreSQL {connection.info.server_version // 10_000}: "
            "version 14 or later is needed",
            retryable=False,
        )
    encoding = connection.info.parameter_status("server_encoding")
    if encoding not in ("UTF8", "SQL_ASCII"):
        raise EventLogError(
            f"the database of the event log {address} has the encoding {encoding}, and UTF8 is needed for all texts: "
            "make one with ENCODING 'UTF8' TEMPLATE template0",
            retryable=False,
        )
    try:
        cursor = await connection.execute(address.sql("SELECT number FROM $s.version"))
        row = await cursor.fetchone()
    except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName):
        return False
    version = row[0] if row else 0
    if version > len(SCHEMA):
        raise EventLogError(
            f"the event log {address} was written by a newer version of rxloop (schema {version}; this one knows "
            f"{len(SCHEMA)}): install that version",
            retryable=False,
        )
    return version == len(SCHEMA)


async def migrate(connection: Connection, address: Address, grant: str | None = None) -> None:
    """Apply pending migrations in one transaction, with a lock against concurrent migrations.

    Args:
        connection: Connection of a role that can create tables.
        address: Database address.
        grant: Role that receives the minimum permissions for using the log.
    """
    async with connection.transaction():
        # The lock is specific to the schema, so that logs in the same database are independent.
        await connection.execute(
            b"SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", (f"rxloop {address.schema}",)
        )
        cursor = await connection.execute(b"SELECT to_regclass(%s)", (f'"{address.schema}".version',))
        row = await cursor.fetchone()
        if row is None or row[0] is None:
            cursor = await connection.execute(b"SELECT to_regnamespace(%s)", (f'"{address.schema}"',))
            [[there]] = await cursor.fetchall()
            if there is None:
                # The owner of a schema does not necessarily have permission to create schemas.
                await connection.execute(address.sql("CREATE SCHEMA $s"))
            await connection.execute(address.sql("CREATE TABLE $s.version (number int NOT NULL)"))
            await connection.execute(address.sql("INSERT INTO $s.version VALUES (0)"))
        if not await check(connection, address):
            cursor = await connection.execute(address.sql("SELECT number FROM $s.version"))
            [[version]] = await cursor.fetchall()
            for step in SCHEMA[version:]:
                await connection.execute(address.sql(step))
            await connection.execute(address.sql("UPDATE $s.version SET number = %s"), (len(SCHEMA),))
        if grant is not None:
            role = sql.Identifier(grant).as_string(None)
            await connection.execute(address.sql(f"GRANT USAGE ON SCHEMA $s TO {role}"))
            await connection.execute(
                address.sql(f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA $s TO {role}")
            )
            await connection.execute(address.sql(f"REVOKE INSERT, UPDATE, DELETE ON $s.version FROM {role}"))
