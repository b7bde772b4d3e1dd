"""Postgres schema and migrations."""

from __future__ import annotations

from rxloop.errors import EventLogError
from rxloop.storage.postgres import psycopg, sql
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
    """
    ALTER TABLE $s.runs RENAME COLUMN at_rest TO idle;
    ALTER TABLE $s.runs RENAME COLUMN holder TO holder_id;
    ALTER TABLE $s.runs RENAME COLUMN taken TO last_command;
    ALTER TABLE $s.runs RENAME COLUMN arrived TO inserted_at;
    ALTER INDEX $s.runs_under_way RENAME TO runs_active;
    ALTER TABLE $s.turns RENAME TO leases;
    ALTER TABLE $s.leases RENAME COLUMN holder TO holder_id;
    ALTER TABLE $s.leases RENAME COLUMN key TO lock_key;
    ALTER INDEX $s.turns_pkey RENAME TO leases_pkey;
    ALTER TABLE $s.mail RENAME TO commands;
    ALTER INDEX $s.mail_pkey RENAME TO commands_pkey;
    ALTER INDEX $s.mail_key_key RENAME TO commands_key_key;
    ALTER INDEX $s.mail_by_run RENAME TO commands_by_run;
    ALTER SEQUENCE $s.mail_number_seq RENAME TO commands_number_seq;
    UPDATE $s.commands SET kind = 'message', json = '{"kind":"message"'::bytea || substring(json FROM 14)
        WHERE kind = 'say';
    ALTER TABLE $s.artifact_chunks RENAME COLUMN place TO position;
    """,
    # Any role that can connect to the database can listen to a channel and send to it, so its name is a secret.
    """
    ALTER TABLE $s.version ADD COLUMN channel text NOT NULL
        DEFAULT 'rxloop_' || replace(gen_random_uuid()::text, '-', '');
    """,
    # Folds and artifacts of a conversation belong to the owner of its first run. Folds with runs of several owners are
    # deleted.
    """
    ALTER TABLE $s.runs ADD COLUMN conversation text NOT NULL GENERATED ALWAYS AS (
        CASE WHEN coalesce(owner, '') = '' THEN context_id ELSE chr(31) || owner || chr(31) || context_id END
    ) STORED;
    CREATE INDEX runs_by_conversation ON $s.runs (conversation, number);
    DELETE FROM $s.folds WHERE (
        SELECT count(DISTINCT r.conversation) FROM $s.runs r WHERE r.context_id = folds.context_id
    ) > 1;
    UPDATE $s.folds f SET context_id = r.conversation FROM $s.runs r
        WHERE r.number = f.first AND r.conversation <> f.context_id;
    UPDATE $s.leases l SET context_id = r.conversation FROM $s.runs r WHERE r.task_id = l.task_id AND r.owner <> '';
    UPDATE $s.artifacts a SET context_id = f.conversation FROM (
        SELECT DISTINCT ON (context_id) context_id, conversation FROM $s.runs ORDER BY context_id, number
    ) AS f WHERE f.context_id = a.context_id AND f.conversation <> f.context_id;
    """,
)
"""Schema migrations. The schema version is the number of applied migrations."""

_MIN_SERVER_VERSION = 140_000
"""Minimum server version, which supports `idle_session_timeout`."""


async def check(connection: Connection, address: Address) -> bool:
    """Return True if the schema is current, or False if it is missing or outdated.

    Raises:
        EventLogError: If the schema is too new, the server is too old, or the database encoding does not support
            Unicode.
    """
    if connection.info.server_version < _MIN_SERVER_VERSION:
        raise EventLogError(
            f"The event log {address} requires PostgreSQL 14 or later, got {connection.info.server_version // 10_000}.",
            retryable=False,
        )
    encoding = connection.info.parameter_status("server_encoding")
    if encoding not in ("UTF8", "SQL_ASCII"):
        raise EventLogError(
            f"The database of the event log {address} must have the encoding UTF8, got {encoding}. Create a database "
            "with ENCODING 'UTF8' TEMPLATE template0.",
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
            f"The event log {address} was written by a newer version of rxloop (schema {version}, supported "
            f"{len(SCHEMA)}). Install that version.",
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
            [[schema_oid]] = await cursor.fetchall()
            if schema_oid is None:
                # The owner of a schema does not necessarily have permission to create schemas.
                await connection.execute(address.sql("CREATE SCHEMA $s"))
            await connection.execute(address.sql("CREATE TABLE $s.version (number int NOT NULL)"))
            await connection.execute(address.sql("INSERT INTO $s.version VALUES (0)"))
        if not await check(connection, address):
            cursor = await connection.execute(address.sql("SELECT number FROM $s.version"))
            [[version]] = await cursor.fetchall()
            # One round trip, because the server may be far away.
            await connection.execute(address.sql("".join(SCHEMA[version:])))
            await connection.execute(address.sql("UPDATE $s.version SET number = %s"), (len(SCHEMA),))
        if grant is not None:
            role = sql.Identifier(grant).as_string(None)
            await connection.execute(address.sql(f"GRANT USAGE ON SCHEMA $s TO {role}"))
            await connection.execute(
                address.sql(f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA $s TO {role}")
            )
            await connection.execute(address.sql(f"REVOKE INSERT, UPDATE, DELETE ON $s.version FROM {role}"))
