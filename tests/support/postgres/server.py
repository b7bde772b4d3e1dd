"""PostgreSQL for tests: databases of one's own in a server that is there, and servers of one's own.

`postgres` is the fixture of a database that tests share, each in a schema of its own, and `postgres_database` that of
one for a test alone, both as addresses; `PostgresServer` is a server in a temporary
folder, which can be stopped, killed and started again. Mark what needs either with `@pytest.mark.service("postgres")`.
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

from support.processes.bound_processes import started

if TYPE_CHECKING:
    from support.processes.hosts import Host

STARTS_IN = 30
"""Seconds that a server may take to answer."""


def _programs() -> Path | None:
    """Where the programs of the newest PostgreSQL are."""
    found = [path.parent for path in Path("/usr/lib/postgresql").glob("*/bin/initdb")]
    here = shutil.which("initdb")
    # What is beside it may not be linked to.
    found += [Path(here).resolve().parent] if here else []
    return max(found, default=None, key=lambda path: (len(path.parent.name), path.parent.name))


def nobody() -> str | None:
    """Who runs a server of one's own: it does not run as root."""
    if os.geteuid() != 0:
        return None
    names = {entry.pw_name for entry in pwd.getpwall()}
    return next((name for name in ("postgres", "nobody") if name in names), None)


@cache
def _running() -> str | None:
    """The DSN of a server that is there, and lets one make databases."""
    import psycopg

    given = os.environ.get("RXLOOP_TEST_PG")
    places = [given] if given else ["host=127.0.0.1 user=postgres dbname=postgres", "user=postgres dbname=postgres"]
    for dsn in places:
        with suppress(psycopg.Error), psycopg.connect(dsn, connect_timeout=2) as connection:
            row = connection.execute("SELECT rolcreatedb FROM pg_roles WHERE rolname = current_user").fetchone()
            if row and row[0]:
                return dsn
    return None


def there() -> bool:
    """Whether there is a PostgreSQL, or one can be started."""
    try:
        import psycopg as psycopg
    except ImportError:
        return False
    return _running() is not None or _programs() is not None


def startable() -> bool:
    """Whether a `PostgresServer` can be started."""
    return _programs() is not None


class PostgresServer:
    """A server of one's own in a temporary folder, which is gone at the end of the `with` block.

    Attributes:
        dsn: That of its database `postgres`.
        port: Where it listens, at 127.0.0.1 or at its host.
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
        """Make a server; it is started by `with`.

        Args:
            standby_of: A server that runs, of which this one is a copy that follows it; `primary_conninfo` is among its
                settings.
            host: Where it is, if not beside this process.
            data: An empty folder for its data, if not the temporary one.
            wal: An empty folder for its write-ahead log, if not the one of its data.
            **settings: Of `postgresql.conf`.
        """
        programs = _programs()
        assert programs is not None
        self._programs = programs
        self._settings, self._primary, self._host = settings, standby_of, host
        self._wanted, self._wal = data, wal
        self._user = nobody()
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
            made = self._started("initdb", data, "--no-sync", *options)
        else:
            options = ("--username=postgres", "--host=127.0.0.1", f"--port={self._primary.port}", "--checkpoint=fast")
            made = self._started("pg_basebackup", data, "--no-sync", *options)
        assert made.wait(STARTS_IN) == 0, (self._folder / "log").read_text()
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
        settings = {"fsync": "off", "listen_addresses": address, **self._settings}
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
        """Start it, and wait until it answers."""
        import psycopg

        deadline = time.monotonic() + STARTS_IN
        while time.monotonic() < deadline:
            if self._process is None or self._process.poll() is not None:
                # One that was killed may still have children, and then it does not start yet.
                self._process = self._started("postgres", "-D", str(self._data))
            with suppress(psycopg.Error), psycopg.connect(self.dsn, connect_timeout=5):
                return
            time.sleep(0.02)
        raise AssertionError(f"the server at {self.dsn} does not start: {(self._folder / 'log').read_text()}")

    def stop(self, *, crash: bool = False) -> None:
        """Stop it, and so end all sessions; or let it crash, by its own signals."""
        self._end(signal.SIGQUIT if crash else signal.SIGINT)

    def kill(self) -> None:
        """Kill its first process without a word; the others find out by themselves."""
        self._end(signal.SIGKILL)
        (self._data / "postmaster.pid").unlink(missing_ok=True)

    def promote(self) -> None:
        """Make a standby a primary, and wait until it is."""
        import psycopg

        with psycopg.connect(self.dsn, autocommit=True) as connection:
            # A statement that waits for it would hold up what is still to be replayed.
            connection.execute("SELECT pg_promote(wait => false)")
            deadline = time.monotonic() + STARTS_IN
            while connection.execute("SELECT pg_is_in_recovery()").fetchone() == (True,):
                assert time.monotonic() < deadline, (self._folder / "log").read_text()
                time.sleep(0.02)

    def send(self, number: signal.Signals) -> None:
        """Send a signal to its first process."""
        assert self._process is not None
        self._process.send_signal(number)

    def _end(self, number: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is not None and process.poll() is None:
            process.send_signal(number)
            process.wait(STARTS_IN)

    def _started(self, program: str, *arguments: str) -> subprocess.Popen[bytes]:
        with (self._folder / "log").open("ab") as log:
            command = [str(self._programs / program), *arguments]
            user = self._user
            if self._host is not None and user is not None:
                # Only root may go there.
                role = ("--pdeathsig=KILL", f"--reuid={user}", "--clear-groups")
                command = [*self._host.within, "setpriv", *role, *command]
                user = None
            return started(command, user=user, cwd=self._folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log)


@contextmanager
def database(server: str) -> Generator[str]:
    """A new database in a server, as an address; it is dropped after the block."""
    import psycopg
    from psycopg.conninfo import conninfo_to_dict

    name = f"rxloop_test_{secrets.token_hex(6)}"
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE \"{name}\" TEMPLATE template0 ENCODING 'UTF8'".encode())
        # Nothing in it is to outlive the power.
        connection.execute(f'ALTER DATABASE "{name}" SET synchronous_commit = off'.encode())
    parts = {"user": "postgres", "host": "", "port": "5432", **conninfo_to_dict(server)}
    password = f":{quote(str(parts['password']))}" if "password" in parts else ""
    place = f"{parts['host']}:{parts['port']}" if parts["host"] else ""
    try:
        yield f"postgresql://{parts['user']}{password}@{place}/{name}"
    finally:
        with psycopg.connect(server, autocommit=True) as connection:
            connection.execute(f'DROP DATABASE "{name}" WITH (FORCE)'.encode())


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    """A server, as the address of somebody who may make databases in it."""
    running = _running()
    if running is not None:
        yield running
        return
    if _programs() is None:
        pytest.skip("there is no PostgreSQL (Debian: apt-get install postgresql)")
    with PostgresServer() as server:
        wait_until_old(server.dsn)
        yield server.dsn


@pytest.fixture(scope="session")
def postgres(postgres_server: str) -> Iterator[str]:
    """A database of this test session, as an address: make a schema of your own in it."""
    with database(postgres_server) as address:
        yield address


@pytest.fixture
def postgres_database(postgres_server: str) -> Iterator[str]:
    """A database of one test, as an address."""
    with database(postgres_server) as address:
        yield address


def wait_until_old(dsn: str) -> None:
    """Wait until nobody thinks that the server has started just now."""
    import psycopg

    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("SELECT pg_sleep(greatest(0, 5.1 - extract(epoch FROM now() - pg_postmaster_start_time())))")


def emptied(address: str) -> str:
    """An address whose log, which is in the schema `rxloop`, has nothing in it: quicker than to make another one."""
    import psycopg

    with psycopg.connect(address, autocommit=True) as connection:
        tables = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'rxloop'").fetchall()
        for (table,) in tables:
            if table != "version":
                connection.execute(f"DELETE FROM rxloop.{table}".encode())
    return address


def new_schema() -> str:
    """The name of a schema that nobody has."""
    return f"t_{secrets.token_hex(6)}"
