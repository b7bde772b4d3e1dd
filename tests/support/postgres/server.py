"""PostgreSQL servers and databases for tests.

The fixture `postgres` is a database shared by all tests, each with its own schema. The fixture `postgres_database` is
a database for one test. Both are URLs. `PostgresServer` is a server in a temporary folder that tests can stop, kill
and restart. Mark tests that use these with `@pytest.mark.service("postgres")`.
"""

from __future__ import annotations

import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pytest

from support.processes.bound_processes import start_process

if TYPE_CHECKING:
    from support.processes.hosts import Host

START_TIMEOUT = 30
"""Time in seconds for a server to accept connections."""


def _program_folder() -> Path | None:
    """Return the program folder of the newest PostgreSQL version."""
    folders = [path.parent for path in Path("/usr/lib/postgresql").glob("*/bin/initdb")]
    initdb = shutil.which("initdb")
    # Other programs are not necessarily linked in this folder.
    folders += [Path(initdb).resolve().parent] if initdb else []
    return max(folders, default=None, key=lambda path: (len(path.parent.name), path.parent.name))


def server_user() -> str | None:
    """Return the user for a server process, because PostgreSQL refuses to run as root."""
    if os.geteuid() != 0:
        return None
    names = {entry.pw_name for entry in pwd.getpwall()}
    return next((name for name in ("postgres", "nobody") if name in names), None)


@cache
def _running_server() -> str | None:
    """Return the DSN of a running server on which databases can be created."""
    import psycopg

    configured = os.environ.get("RXLOOP_TEST_PG")
    candidates = (
        [configured]
        if configured
        else ["host=127.0.0.1 user=postgres dbname=postgres", "user=postgres dbname=postgres"]
    )
    for dsn in candidates:
        with suppress(psycopg.Error), psycopg.connect(dsn, connect_timeout=2) as connection:
            row = connection.execute("SELECT rolcreatedb FROM pg_roles WHERE rolname = current_user").fetchone()
            if row and row[0]:
                return dsn
    return None


def is_available() -> bool:
    """Return True if a server is running or can be started."""
    try:
        import psycopg as psycopg
    except ImportError:
        return False
    return _running_server() is not None or _program_folder() is not None


def can_start() -> bool:
    """Return True if a `PostgresServer` can be started."""
    return _program_folder() is not None


class PostgresServer:
    """Server in a temporary folder, removed at the end of the `with` block.

    Attributes:
        dsn: DSN of the database `postgres`.
        port: Port at 127.0.0.1 or at the address of the host.
    """

    def __init__(
        self,
        *,
        standby_of: PostgresServer | None = None,
        host: Host | None = None,
        data: Path | None = None,
        wal: Path | None = None,
        **settings: Any,
    ) -> None:
        """Create a server. Entering the `with` block starts it.

        Args:
            standby_of: Running server to replicate. Sets `primary_conninfo`.
            host: Host that runs the server. The default is this machine.
            data: Empty folder for the data. The default is the temporary folder.
            wal: Empty folder for the write-ahead log. The default is the data folder.
            **settings: Settings of `postgresql.conf`.
        """
        folder = _program_folder()
        assert folder is not None
        self._programs = folder
        self._settings, self._primary, self._host = settings, standby_of, host
        self._wanted, self._wal = data, wal
        self._user = server_user()
        self._folder = self._data = Path()
        self._process: subprocess.Popen[bytes] | None = None
        self.port = 0
        self.dsn = ""

    def __enter__(self) -> PostgresServer:
        self._folder = Path(tempfile.mkdtemp(prefix="rxloop-pg-"))
        self._data = self._wanted or self._folder / "data"
        for folder in (self._folder, self._wanted, self._wal):
            if self._user is not None and folder is not None:
                shutil.chown(folder, self._user)
        data = f"--pgdata={self._data}"
        if self._primary is None:
            options = ("--auth=trust", "--username=postgres", "--encoding=UTF8", "--no-locale")
            options += () if self._wal is None else (f"--waldir={self._wal}", "--wal-segsize=1")
            process = self._start("initdb", data, "--no-sync", *options)
        else:
            options = ("--username=postgres", "--host=127.0.0.1", f"--port={self._primary.port}", "--checkpoint=fast")
            process = self._start("pg_basebackup", data, "--no-sync", *options)
        assert process.wait(START_TIMEOUT) == 0, (self._folder / "log").read_text()
        if self._primary is not None:
            (self._data / "standby.signal").touch()
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        address = "127.0.0.1"
        if self._host is not None:
            address = self._host.address
            with (self._data / "pg_hba.conf").open("a", encoding="utf-8") as file:
                file.write("host all all samenet trust\n")
        # The server stops after clients that have connected without sending anything, such as blocked tests.
        settings = {"fsync": "off", "listen_addresses": address, "authentication_timeout": "10s", **self._settings}
        settings |= {"port": self.port, "unix_socket_directories": self._folder}
        with (self._data / "postgresql.conf").open("a", encoding="utf-8") as file:
            file.writelines(f"{name} = '{value}'\n" for name, value in settings.items())
        self.dsn = f"postgresql://postgres@{address}:{self.port}/postgres"
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop(crash=True)
        shutil.rmtree(self._folder, ignore_errors=True)

    def start(self) -> None:
        """Start the server and wait until it accepts connections."""
        import psycopg

        deadline = time.monotonic() + START_TIMEOUT
        while time.monotonic() < deadline:
            if self._process is None or self._process.poll() is not None:
                # Child processes of a killed server can delay a restart.
                self._process = self._start("postgres", "-D", str(self._data))
            with suppress(psycopg.Error), psycopg.connect(self.dsn, connect_timeout=5):
                return
            time.sleep(0.02)
        raise AssertionError(f"cannot start the server at {self.dsn}: {(self._folder / 'log').read_text()}")

    def stop(self, *, crash: bool = False) -> None:
        """Stop the server and all sessions, or simulate a crash."""
        self._end(signal.SIGQUIT if crash else signal.SIGINT)

    def kill(self) -> None:
        """Kill the main process. Its child processes notice it themselves."""
        self._end(signal.SIGKILL)
        (self._data / "postmaster.pid").unlink(missing_ok=True)

    def promote(self) -> None:
        """Promote a standby to primary and wait until it has finished recovery."""
        import psycopg

        with psycopg.connect(self.dsn, autocommit=True) as connection:
            # A waiting statement would block the replay.
            connection.execute("SELECT pg_promote(wait => false)")
            deadline = time.monotonic() + START_TIMEOUT
            while connection.execute("SELECT pg_is_in_recovery()").fetchone() == (True,):
                assert time.monotonic() < deadline, (self._folder / "log").read_text()
                time.sleep(0.02)

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the main process."""
        assert self._process is not None
        self._process.send_signal(number)

    def _end(self, number: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is not None and process.poll() is None:
            process.send_signal(number)
            process.wait(START_TIMEOUT)

    def _start(self, program: str, *arguments: str) -> subprocess.Popen[bytes]:
        with (self._folder / "log").open("ab") as log:
            command = [str(self._programs / program), *arguments]
            user = self._user
            if self._host is not None and user is not None:
                # Only root may enter the namespace.
                role = ("--pdeathsig=KILL", f"--reuid={user}", "--clear-groups")
                command = [*self._host.command_prefix, "setpriv", *role, *command]
                user = None
            return start_process(command, user=user, cwd=self._folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log)


@contextmanager
def database(server: str) -> Generator[str]:
    """Create a database, yield its URL, and drop it at the end."""
    import psycopg
    from psycopg.conninfo import conninfo_to_dict

    name = f"rxloop_test_{secrets.token_hex(6)}"
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE \"{name}\" TEMPLATE template0 ENCODING 'UTF8'".encode())
        # The data need not survive a power failure.
        connection.execute(f'ALTER DATABASE "{name}" SET synchronous_commit = off'.encode())
    parts = {"user": "postgres", "host": "", "port": "5432", **conninfo_to_dict(server)}
    password = f":{quote(str(parts['password']))}" if "password" in parts else ""
    location = f"{parts['host']}:{parts['port']}" if parts["host"] else ""
    try:
        yield f"postgresql://{parts['user']}{password}@{location}/{name}"
    finally:
        with psycopg.connect(server, autocommit=True) as connection:
            connection.execute(f'DROP DATABASE "{name}" WITH (FORCE)'.encode())


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    """DSN of a server on which databases can be created."""
    running = _running_server()
    if running is not None:
        yield running
        return
    if _program_folder() is None:
        pytest.skip("there is no PostgreSQL (Debian: apt-get install postgresql)")
    with PostgresServer() as server:
        wait_until_old(server.dsn)
        yield server.dsn


@pytest.fixture(scope="session")
def postgres(postgres_server: str) -> Iterator[str]:
    """URL of a database for this session. Each test creates its own schema."""
    with database(postgres_server) as address:
        yield address


@pytest.fixture
def postgres_database(postgres_server: str) -> Iterator[str]:
    """Database URL for a single test."""
    with database(postgres_server) as address:
        yield address


def wait_until_old(dsn: str) -> None:
    """Wait until clients no longer treat the server as just started."""
    import psycopg

    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("SELECT pg_sleep(greatest(0, 5.1 - extract(epoch FROM now() - pg_postmaster_start_time())))")


def clear_log(address: str) -> str:
    """Delete all rows of the log in the schema `rxloop`, which is faster than creating a database. Return the URL."""
    import psycopg

    with psycopg.connect(address, autocommit=True) as connection:
        tables = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'rxloop'").fetchall()
        for (table,) in tables:
            if table != "version":
                connection.execute(f"DELETE FROM rxloop.{table}".encode())
    return address


def new_schema() -> str:
    """Return an unused schema name."""
    return f"t_{secrets.token_hex(6)}"
