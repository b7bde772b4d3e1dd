"""Shared authentication, limits and shutdown for all adapters of a runtime."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from hashlib import sha256
from secrets import compare_digest
from typing import Any, Literal, Self

import anyio
from starlette.requests import HTTPConnection

from rxloop.errors import EventLogError, UnknownRun
from rxloop.pipeline.log_retry import read_log, within
from rxloop.pipeline.records import RunRecord
from rxloop.protocol.ids import make_id
from rxloop.runtime.runtime import Runtime
from rxloop.server.core.errors import Refused, draining, not_found
from rxloop.support.threads import call_user_function

Scope = Literal["others", "internal"]
"""Extra permissions: `others` for runs of other principals, `internal` for hidden tools and internal state."""


@dataclass(frozen=True, slots=True)
class Principal:
    """An authenticated identity, such as a user or a tenant.

    Attributes:
        id: Recorded as the `owner` of the principal's runs.
        scopes: Permissions in addition to the public view of its own runs.
    """

    id: str
    scopes: frozenset[Scope] = frozenset()

    def may_see(self, record: RunRecord) -> bool:
        """True if the principal owns the run or has access to runs of other principals."""
        return "others" in self.scopes or (record.owner or "") == self.id


ANYBODY = Principal("", frozenset({"others"}))
"""Principal of all requests if authentication is disabled."""

Auth = Callable[[HTTPConnection], Any]
"""Sync or async function that returns the `Principal` of a request, or None if authentication fails."""


def bearer(tokens: Mapping[str, Principal | str]) -> Auth:
    """Authenticate clients by a bearer token in the `Authorization` header.

    Args:
        tokens: Principal, or principal id, of each token.
    """
    known = [(_digest(token), Principal(who) if isinstance(who, str) else who) for token, who in tokens.items()]

    async def auth(request: HTTPConnection) -> Principal | None:
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        given = _digest(token.strip()) if scheme.lower() == "bearer" else b""
        found: Principal | None = None
        # Compare all tokens, to avoid a timing attack.
        for digest, who in known:
            if compare_digest(digest, given):
                found = who
        return found

    return auth


def _digest(token: str) -> bytes:
    return sha256(token.encode(errors="surrogateescape")).digest()


log = logging.getLogger("rxloop")

_AUTH_IN = 10.0
"""Authentication timeout in seconds."""
_STARTS = "starts\x1f"
"""Lease prefix for starting runs in a conversation. Conversation ids cannot have this prefix."""
_PAUSE, _LONGEST_PAUSE = 0.005, 0.1
"""Minimum and maximum retry delay in seconds. This lease is held only for milliseconds."""
LAST_WORDS_IN = 5.0
"""Timeout in seconds for closing streams."""


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """Client limits.

    Attributes:
        body: Maximum body size in bytes.
        body_seconds: Timeout for reading a body.
        log_seconds: Timeout for each event log operation before the response starts; the response is then 503. Runs and
            open streams have a longer timeout.
        runs: Maximum number of active runs per principal; None for no limit. Ignored without `auth`.
        streams: Maximum number of open streams per principal in this process; None for no limit. Ignored without
            `auth`.
        stalled: Seconds after which a client that does not read from its stream is disconnected. The client can
            reconnect.
        wait: Upper limit for `?wait=` in seconds; longer waits are shortened.
    """

    body: int = 1 << 20
    body_seconds: float = 30.0
    log_seconds: float = 5.0
    runs: int | None = 8
    streams: int | None = 32
    stalled: float = 30.0
    wait: float = 60.0


class Gateway:
    """Access to a runtime on behalf of clients."""

    def __init__(self, runtime: Runtime, auth: Auth | None, limits: ServerLimits) -> None:
        self.runtime, self.limits = runtime, limits
        self.is_draining = False
        self._last_words = False
        self._auth = auth
        self._streams: Counter[str] = Counter()
        self._open: set[StreamSlot] = set()
        self._closed = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def secured(self) -> bool:
        """True if clients must authenticate."""
        return self._auth is not None

    # -- authentication

    async def authenticate(self, request: HTTPConnection) -> Principal:
        """Authenticate a client request.

        Raises:
            Refused: If authentication fails or times out.
        """
        if self._auth is None:
            return ANYBODY
        try:
            async with asyncio.timeout(_AUTH_IN):
                who = await call_user_function(self._auth, request)
        except TimeoutError as error:
            log.warning("who asks was not found out in %g s", _AUTH_IN)
            raise Refused(503, "auth", "who asks cannot be found out", headers={"retry-after": "5"}) from error
        if not isinstance(who, Principal):
            headers = {"www-authenticate": "Bearer"}
            raise Refused(401, "unauthorized", "say who you are by a valid token", headers=headers)
        return who

    async def find_run(self, principal: Principal, task_id: str) -> RunRecord:
        """Return a run's record.

        Raises:
            Refused: If the run does not exist or is not accessible to the principal.
        """
        try:
            record = await self.runtime.get_record(task_id)
        except UnknownRun:
            raise not_found() from None
        if not principal.may_see(record):
            raise not_found()
        return record

    async def find_context(self, principal: Principal, context_id: str) -> bool:
        """Check that the principal has access to a conversation, which belongs to the owner of its first run.

        Returns:
            True if the conversation exists.

        Raises:
            Refused: If the conversation belongs to another principal.
        """
        first = await read_log(self.runtime.log.list_runs, context_id=context_id, limit=1)
        if first and not principal.may_see(first[0]):
            raise Refused(404, "not_found", "there is no such conversation")
        return bool(first)

    # -- concurrency limits

    def check_accepting(self) -> None:
        """Check that new work is accepted.

        Raises:
            Refused: If the server is shutting down, or the runtime is not open.
        """
        if self.is_draining:
            raise draining()
        if not self.runtime.open:
            if not self.runtime.entered:
                log.error(
                    "the runtime is not entered: do so by `async with runtime:` in the lifespan of the application"
                )
            raise draining()

    @asynccontextmanager
    async def reserve_run(self, principal: Principal) -> AsyncGenerator[None]:
        """Reserve a run for a principal while the block starts the run.

        Starts of the same principal are serialized, so that the limit includes concurrent requests.

        Raises:
            Refused: If the principal has too many active runs.
        """
        self.check_accepting()
        most = self.limits.runs
        if self._auth is None or most is None:
            yield
            return
        log = self.runtime.log
        async with self.runtime.start_locks.setdefault(("principal", principal.id), asyncio.Lock()):
            found = await read_log(log.list_runs, owner=principal.id, states=("submitted", "working"), limit=most)
            if len(found) >= most:
                raise _too_many("runs", most)
            yield

    @asynccontextmanager
    async def lock_context(self, context_id: str | None, *, everywhere: bool = False) -> AsyncGenerator[None]:
        """Serialize starts in a conversation, because each start must see earlier messages.

        Args:
            context_id: Conversation id, or None for a new conversation, which needs no lock.
            everywhere: Whether the lock includes other processes that use the same event log.
        """
        if context_id is None:
            yield
            return
        async with self.runtime.start_locks.setdefault(("context", context_id), asyncio.Lock()):
            if not everywhere:
                yield
                return
            leases, name, holder = self.runtime.log, f"{_STARTS}{context_id}", make_id()
            pause = _PAUSE
            while not await read_log(leases.acquire_lease, name, holder, _ignore):
                await asyncio.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)
            try:
                yield
            finally:
                with anyio.CancelScope(shield=True), suppress(EventLogError):
                    await leases.release_lease(name, holder)

    def check_stream(self, principal: Principal) -> None:
        """Check a principal's stream limit before starting or answering a run.

        Raises:
            Refused: If the principal has too many open streams, or the server is shutting down.
        """
        if self._last_words:
            raise draining()
        most = self.limits.streams
        if self._auth is not None and most is not None and self._streams[principal.id] >= most:
            raise _too_many("streams", most)

    def reserve_stream(self, principal: Principal) -> StreamSlot:
        """Reserve a stream for a principal. Entering the slot is required, because leaving it releases the reservation.

        Raises:
            Refused: As for `check_stream`.
        """
        self.check_stream(principal)
        self._streams[principal.id] += 1
        return StreamSlot(self, principal)

    def enter_stream(self, slot: StreamSlot) -> None:
        """Register an open stream, to be cancelled and awaited when draining."""
        self._open.add(slot)
        self._closed.clear()

    def release_stream(self, slot: StreamSlot) -> None:
        """Release a reserved stream."""
        self._streams[slot.principal.id] -= 1
        self._streams += Counter()  # drops zero counts
        self._open.discard(slot)
        if not self._open:
            self._closed.set()

    # -- shutdown

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a background coroutine independently of the request."""
        with within(None):
            task = asyncio.create_task(work, name="rxloop-server")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def stop_accepting(self) -> None:
        """Refuse new work; `/readyz` then reports 503."""
        self.is_draining = True

    async def end_streams(self) -> None:
        """Close all streams with a closing frame, and wait a few seconds for the streams and background tasks."""
        self.is_draining = self._last_words = True
        for slot in list(self._open):
            slot.scope.cancel()
        with suppress(TimeoutError):
            async with asyncio.timeout(LAST_WORDS_IN):
                if self._open:
                    await self._closed.wait()
                await asyncio.gather(*self._tasks, return_exceptions=True)

    async def drain(self, seconds: float | None = None) -> None:
        """Refuse new work, wait for active runs, then close all streams; see `Adapter.drain`."""
        self.stop_accepting()
        try:
            await self.runtime.drain(seconds)
        finally:
            await self.end_streams()


class StreamSlot:
    """Reservation for one of a principal's streams, released when the context manager exits.

    Attributes:
        scope: Cancelled when the server drains. Read the stream inside this scope and send the closing frame outside
            it.
    """

    def __init__(self, gateway: Gateway, principal: Principal) -> None:
        self.gateway, self.principal, self.scope = gateway, principal, anyio.CancelScope()

    def __enter__(self) -> Self:
        self.gateway.enter_stream(self)
        return self

    def __exit__(self, *exception: object) -> None:
        self.gateway.release_stream(self)


def _ignore() -> None:
    """Ignore a lost lease. Starting takes milliseconds, and the idempotency key prevents a second run."""


def _too_many(what: str, most: int) -> Refused:
    return Refused(429, "too_many", f"at most {most} {what} at once", headers={"retry-after": "2"})
