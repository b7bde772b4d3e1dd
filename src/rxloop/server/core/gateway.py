"""Shared authentication, limits and shutdown for all adapters of a runtime."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Collection, Coroutine, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from secrets import compare_digest
from typing import Any, Literal, Self, TypeVar, get_args

import anyio
from starlette.requests import HTTPConnection, Request

from rxloop.errors import ConfigurationError, EventLogError, UnknownRun
from rxloop.pipeline.log_retry import limit_log_time, read_log
from rxloop.pipeline.records import RunRecord
from rxloop.protocol.ids import make_conversation_key, make_id
from rxloop.protocol.messages import InputKind, PendingInput
from rxloop.runtime.runtime import Runtime
from rxloop.server.core.account import Account, Reservation, Resource, ServerLimits, make_limit_error
from rxloop.server.core.bodies import read_bytes
from rxloop.server.core.computations import Computations
from rxloop.server.core.errors import Refused, draining, make_not_found_error
from rxloop.server.core.request_slots import RequestSlots, release_slot
from rxloop.server.core.signals import listen_for_signals
from rxloop.support.threads import call_user_function

T = TypeVar("T")

Scope = Literal["others", "internal", "effects", "metrics", "cases"]
"""Extra permissions: `others` for runs of other principals, `internal` for hidden tools and internal state, `effects`
for forks that repeat calls of the original run or replace results of server tools, `metrics` for metrics, `cases`
for adding runs to the cases of the server."""


@dataclass(frozen=True, slots=True)
class Principal:
    """An authenticated identity, such as a user or a tenant.

    Attributes:
        id: Recorded as the `owner` of the principal's runs.
        scopes: Permissions in addition to the public view of its own runs.
        answers: Kinds of questions that the principal may answer; see `PendingInput.input_kind`. True means all kinds.
            False means that another principal must answer all questions. Results of client tools are always accepted.
    """

    id: str
    scopes: frozenset[Scope] = frozenset()
    answers: bool | Collection[InputKind] = True

    def __post_init__(self) -> None:
        kinds: Any = self.answers
        if isinstance(kinds, bool):
            return
        if isinstance(kinds, str) or not set(kinds) <= set(get_args(InputKind)):
            names = ", ".join(get_args(InputKind))
            raise ConfigurationError(f"answers must be True, False, or a set of {names}, got {kinds!r}")

    def may_answer(self, question: PendingInput) -> bool:
        """Return True if the principal may answer a question of a run to which it has access."""
        kind = question.input_kind
        return kind == "tool" or (self.answers if isinstance(self.answers, bool) else kind in self.answers)

    def get_conversation(self, context_id: str) -> str:
        """Return the key of the principal's own conversation with this id, whether or not it exists."""
        return make_conversation_key(context_id, self.id)

    def may_see(self, record: RunRecord) -> bool:
        """Return True if the principal owns the run or has access to runs of other principals."""
        return "others" in self.scopes or (record.owner or "") == self.id


ANONYMOUS = Principal("", frozenset({"others"}))
"""Principal of all requests if authentication is disabled."""

Auth = Callable[[HTTPConnection], Any]
"""Sync or async function that returns the `Principal` of a request, or None if authentication fails."""


def bearer(tokens: Mapping[str, Principal | str]) -> Auth:
    """Authenticate clients by a bearer token in the `Authorization` header.

    Args:
        tokens: Principal, or principal id, of each token.
    """
    principals = [
        (_hash_token(token), Principal(principal) if isinstance(principal, str) else principal)
        for token, principal in tokens.items()
    ]

    async def auth(request: HTTPConnection) -> Principal | None:
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        presented = _hash_token(token.strip()) if scheme.lower() == "bearer" else b""
        match: Principal | None = None
        # Compare all tokens, to avoid a timing attack.
        for digest, principal in principals:
            if compare_digest(digest, presented):
                match = principal
        return match

    return auth


def _hash_token(token: str) -> bytes:
    return sha256(token.encode(errors="surrogateescape")).digest()


log = logging.getLogger("rxloop")

_AUTH_TIMEOUT = 10.0
"""Authentication timeout in seconds."""
_START_LEASE = "starts\x1f"
"""Lease prefix for starting runs in a conversation. Conversation keys cannot have this prefix."""
_MIN_PAUSE, _MAX_PAUSE = 0.005, 0.1
"""Minimum and maximum retry delay in seconds. This lease is held only for milliseconds."""
CLOSE_TIMEOUT = 5.0
"""Timeout in seconds for closing streams."""


class Gateway:
    """Access to a runtime on behalf of clients."""

    def __init__(self, runtime: Runtime, auth: Auth | None, limits: ServerLimits) -> None:
        self.runtime, self.limits = runtime, limits
        self.is_draining = False
        self.drains_on_signal = True
        """True to end all streams after a shutdown signal."""
        self.drain_delay = 0.25
        """Delay after a signal in seconds. A program that calls `drain` during the delay keeps its streams open."""
        self.has_signal = False
        """True after a shutdown signal."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_closing = False
        self._auth = auth
        self._account = runtime.log.local.get(Account)
        self.slots = runtime.log.local.get(RequestSlots)
        self.computations = runtime.log.local.get(Computations)
        self._open: set[StreamSlot] = set()
        self._closed = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._ending: asyncio.Task[None] | None = None

    @property
    def requires_auth(self) -> bool:
        """True if clients must authenticate."""
        return self._auth is not None

    # -- authentication

    async def authenticate(self, request: HTTPConnection) -> Principal:
        """Authenticate a client request.

        Raises:
            Refused: If authentication fails or times out.
        """
        if self._auth is None:
            return ANONYMOUS
        try:
            async with asyncio.timeout(_AUTH_TIMEOUT):
                principal = await call_user_function(self._auth, request)
        except TimeoutError as error:
            log.warning("Authentication timed out after %g s", _AUTH_TIMEOUT)
            raise Refused(503, "auth", "authentication timed out", headers={"retry-after": "5"}) from error
        if not isinstance(principal, Principal):
            headers = {"www-authenticate": "Bearer"}
            raise Refused(401, "unauthorized", "a valid token is required", headers=headers)
        return principal

    async def find_run(self, principal: Principal, task_id: str) -> RunRecord:
        """Return a run's record.

        Raises:
            Refused: If the run does not exist or is not accessible to the principal.
        """
        try:
            record = await self.runtime.get_record(task_id)
        except UnknownRun:
            raise make_not_found_error() from None
        if not principal.may_see(record):
            raise make_not_found_error()
        return record

    async def has_conversation(self, principal: Principal, context_id: str) -> bool:
        """Return True if the principal has a conversation with this id. Conversations of others do not count."""
        return bool(await read_log(self.runtime.log.list_conversation, principal.get_conversation(context_id), limit=1))

    # -- concurrency limits

    def check_accepting(self) -> None:
        """Raise an error if new work is not accepted.

        Raises:
            Refused: If the server is shutting down, or the runtime is not open.
        """
        if self.is_draining:
            raise draining()
        if not self.runtime.open:
            if not self.runtime.entered:
                log.error("Runtime is not open; use `async with runtime:` in the lifespan of the application")
            raise draining()

    @asynccontextmanager
    async def reserve_run(self, principal: Principal) -> AsyncGenerator[None]:
        """Reserve a run for a principal while the block starts the run.

        Starts of the same principal are serialized, so that the limit includes concurrent requests.

        Raises:
            Refused: If the principal has too many active runs.
        """
        self.check_accepting()
        limit = self.limits.runs
        if self._auth is None or limit is None:
            yield
            return
        log = self.runtime.log
        async with self.runtime.start_locks.setdefault(("principal", principal.id), asyncio.Lock()):
            active = await read_log(log.list_runs, owner=principal.id, states=("submitted", "working"), limit=limit)
            if len(active) >= limit:
                raise make_limit_error("runs", limit)
            yield

    @asynccontextmanager
    async def lock_conversation(self, key: str | None, *, across_processes: bool = False) -> AsyncGenerator[None]:
        """Serialize starts in a conversation, because each start must see earlier messages and runs.

        Args:
            key: Conversation key, or None for a new conversation, which needs no lock.
            across_processes: Whether the lock includes other processes that use the same event log.
        """
        if key is None:
            yield
            return
        async with self.runtime.start_locks.setdefault(("context", key), asyncio.Lock()):
            if not across_processes:
                yield
                return
            leases, name, holder = self.runtime.log, f"{_START_LEASE}{key}", make_id()
            pause = _MIN_PAUSE
            # Ignore a lost lease. Starting takes milliseconds, and the idempotency key prevents a second run.
            while not await read_log(leases.acquire_lease, name, holder, lambda: None):
                await asyncio.sleep(pause)
                pause = min(2 * pause, _MAX_PAUSE)
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
        if self._is_closing:
            raise draining()
        self._account.check(principal.id, "streams", self._get_limit("streams"))

    def reserve_stream(self, principal: Principal | None) -> StreamSlot:
        """Reserve a stream for a principal. Entering the slot is required, because leaving it releases the reservation.

        Args:
            principal: Principal of the request. None reserves a stream for the server itself, which is not counted.

        Raises:
            Refused: As for `check_stream`.
        """
        if principal is None:
            if self._is_closing:
                raise draining()
            return StreamSlot(self, None)
        self.check_stream(principal)
        return StreamSlot(self, self.reserve(principal, "streams"))

    def reserve(
        self, principal: Principal, resource: Literal["requests", "streams", "sessions", "webhooks"]
    ) -> Reservation:
        """Reserve a unit of a resource until the reservation is released or exits as a context manager.

        Raises:
            Refused: If the principal has reached the limit of the resource.
        """
        return self._account.reserve(principal.id, resource, self._get_limit(resource))

    @asynccontextmanager
    async def acquire_slot(self, principal: Principal, request: Request, body_size: int = 0) -> AsyncGenerator[None]:
        """Wait for a slot to process a request; see `RequestSlots.acquire`. Opening a stream releases the slot."""
        slot = nullcontext(False) if self._auth is None else self.slots.acquire(principal.id, body_size)
        async with slot as is_queued:
            if is_queued and await request.is_disconnected():
                self.slots.note_abandoned(principal.id)
                raise Refused(499, "disconnected", "the client disconnected before its request was processed")
            yield

    async def read_body(self, principal: Principal, request: Request) -> bytes:
        """Read the body of a request; see `read_bytes` and `RequestSlots.pace_body`.

        Raises:
            Refused: As for `read_bytes`.
        """
        pace = None if self._auth is None else partial(self.slots.pace_body, principal.id)
        return await read_bytes(request, self.limits, pace=pace)

    def reserve_command(self, record: RunRecord, size: int) -> AbstractAsyncContextManager[None]:
        """Count a message or an answer of `size` bytes that is sent to a run inside the block.

        Raises:
            Refused: If the run or its owner has too many unprocessed messages and answers.
        """
        count, size_limit = self._get_limit("commands"), self._get_limit("command_bytes")
        return self._account.reserve_command(self.runtime.log, record, size, count_limit=count, size_limit=size_limit)

    def _get_limit(self, resource: Resource) -> int | None:
        # Without authentication, all clients are a single principal.
        return None if self._auth is None else getattr(self.limits, resource)

    def enter_stream(self, slot: StreamSlot) -> None:
        """Register an open stream, to be cancelled and awaited when draining."""
        release_slot()
        self._open.add(slot)
        self._closed.clear()
        if self.drains_on_signal:
            self._loop = asyncio.get_running_loop()
            listen_for_signals(self)

    def release_stream(self, slot: StreamSlot) -> None:
        """Release a reserved stream."""
        if slot.reservation is not None:
            slot.reservation.release()
        self._open.discard(slot)
        if not self._open:
            self._closed.set()

    # -- shutdown

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a background coroutine independently of the request."""
        with limit_log_time(None):
            task = asyncio.create_task(work, name="rxloop-server")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def stop_accepting(self) -> None:
        """Refuse new work; `/readyz` then reports 503."""
        self.is_draining = True

    async def end_streams(self) -> None:
        """Close all streams with a closing frame, and wait a few seconds for the streams and background tasks."""
        self.is_draining = self._is_closing = True
        for slot in list(self._open):
            slot.scope.cancel()
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_TIMEOUT):
                if self._open:
                    await self._closed.wait()
                await asyncio.gather(*self._tasks, return_exceptions=True)

    def handle_signal(self) -> None:
        """End all streams after a short delay, because servers such as uvicorn wait for open streams."""
        self.has_signal = True
        if self._loop is not None and self.drains_on_signal:
            with suppress(RuntimeError):  # the event loop is closed
                self._loop.call_soon_threadsafe(self._loop.call_later, self.drain_delay, self._end_after_signal)

    def _end_after_signal(self) -> None:
        if not self.is_draining:
            self._ending = asyncio.ensure_future(self.end_streams())

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

    def __init__(self, gateway: Gateway, reservation: Reservation | None) -> None:
        self.gateway, self.reservation, self.scope = gateway, reservation, anyio.CancelScope()

    def __enter__(self) -> Self:
        self.gateway.enter_stream(self)
        return self

    def __exit__(self, *exception: object) -> None:
        self.gateway.release_stream(self)
