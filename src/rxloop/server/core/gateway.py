"""Authentication, limits and the end of a server, shared by all adapters of a runtime."""

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
"""`others`: the runs of everybody. `internal`: what is not for clients, such as hidden tools and states."""


@dataclass(frozen=True, slots=True)
class Principal:
    """Somebody who is known to the server, such as a user or a tenant.

    Attributes:
        id: Is the `owner` of the runs that are started.
        scopes: What is allowed beside one's own runs, as clients may see them.
    """

    id: str
    scopes: frozenset[Scope] = frozenset()

    def may_see(self, record: RunRecord) -> bool:
        """Whether a run is this principal's, or may be seen by it all the same."""
        return "others" in self.scopes or (record.owner or "") == self.id


ANYBODY = Principal("", frozenset({"others"}))
"""Who asks where nobody has to say so."""

Auth = Callable[[HTTPConnection], Any]
"""Tells who asks, plain or async: gives a `Principal`, or None for somebody who is not known."""


def bearer(tokens: Mapping[str, Principal | str]) -> Auth:
    """Know clients by the token in their `Authorization: Bearer` header.

    Args:
        tokens: The principal of each token, or its id.
    """
    known = [(_digest(token), Principal(who) if isinstance(who, str) else who) for token, who in tokens.items()]

    async def auth(request: HTTPConnection) -> Principal | None:
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        given = _digest(token.strip()) if scheme.lower() == "bearer" else b""
        found: Principal | None = None
        # All of them, so that the time tells nothing.
        for digest, who in known:
            if compare_digest(digest, given):
                found = who
        return found

    return auth


def _digest(token: str) -> bytes:
    return sha256(token.encode(errors="surrogateescape")).digest()


log = logging.getLogger("rxloop")

_AUTH_IN = 10.0
"""Seconds that it may take to find out who asks."""
_STARTS = "starts\x1f"
"""Prefix of the lease under which runs are started in a conversation; no conversation can have such an id."""
_PAUSE, _LONGEST_PAUSE = 0.005, 0.1
"""Seconds between two tries for that lease: another process needs it for a few milliseconds."""
LAST_WORDS_IN = 5.0
"""Seconds that streams have to end in."""


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """How much clients may take.

    Attributes:
        body: Bytes of the body of a request.
        body_seconds: How long the body may take to come.
        log_seconds: How long the log may take for each thing that is asked of it before the answer begins; then that
            is 503. Runs, and streams that go on, wait longer.
        runs: Runs of one principal that go on at once; None is no limit. It does not hold where there is no `auth`.
        streams: Streams that one principal reads at once in this process; None is no limit. As for `runs`.
        stalled: Seconds after which a client that takes nothing of its stream is let go; it may come back.
        wait: Seconds that `?wait=` may ask for.
    """

    body: int = 1 << 20
    body_seconds: float = 30.0
    log_seconds: float = 5.0
    runs: int | None = 8
    streams: int | None = 32
    stalled: float = 30.0
    wait: float = 60.0


class Gateway:
    """A runtime for clients."""

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
        """Whether clients have to say who they are."""
        return self._auth is not None

    # -- who asks

    async def authenticate(self, request: HTTPConnection) -> Principal:
        """Find out who asks.

        Raises:
            Refused: It is not known.
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
        """What the log knows of a run.

        Raises:
            Refused: There is none, or it is somebody else's.
        """
        try:
            record = await self.runtime.get_record(task_id)
        except UnknownRun:
            raise not_found() from None
        if not principal.may_see(record):
            raise not_found()
        return record

    async def find_context(self, principal: Principal, context_id: str) -> bool:
        """See that a conversation is nobody else's; whoever began it has it.

        Returns:
            Whether there is such a conversation.

        Raises:
            Refused: It is somebody else's.
        """
        first = await read_log(self.runtime.log.list_runs, context_id=context_id, limit=1)
        if first and not principal.may_see(first[0]):
            raise Refused(404, "not_found", "there is no such conversation")
        return bool(first)

    # -- how much at once

    def check_accepting(self) -> None:
        """See that something new may begin.

        Raises:
            Refused: The server drains, or has not begun.
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
        """Let a principal start one more run; its starts come one after the other, so that all of them count.

        Raises:
            Refused: Too many of its runs go on.
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
        """Let the starts in a conversation come one after the other, so that each finds what those before it made.

        Args:
            context_id: The conversation; None is for a new one, in which nothing can come before.
            everywhere: Also those of other processes on the same log.
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
        """Check that a principal may read one more stream, before a run is started or answered for it.

        Raises:
            Refused: The principal reads too many streams, or the server goes away.
        """
        if self._last_words:
            raise draining()
        most = self.limits.streams
        if self._auth is not None and most is not None and self._streams[principal.id] >= most:
            raise _too_many("streams", most)

    def reserve_stream(self, principal: Principal) -> StreamSlot:
        """Reserve one of the streams that a principal may read; enter the slot to read, also to release it.

        Raises:
            Refused: As for `check_stream`.
        """
        self.check_stream(principal)
        self._streams[principal.id] += 1
        return StreamSlot(self, principal)

    def enter_stream(self, slot: StreamSlot) -> None:
        """Cancel the scope of the slot when the server drains, and wait for its end."""
        self._open.add(slot)
        self._closed.clear()

    def release_stream(self, slot: StreamSlot) -> None:
        """Release a slot that was entered."""
        self._streams[slot.principal.id] -= 1
        self._streams += Counter()  # without what is 0
        self._open.discard(slot)
        if not self._open:
            self._closed.set()

    # -- the end

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Do something that does not end with the request that wants it."""
        with within(None):
            task = asyncio.create_task(work, name="rxloop-server")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def stop_accepting(self) -> None:
        """Take nothing new from now on; `/readyz` says so."""
        self.is_draining = True

    async def end_streams(self) -> None:
        """End each stream with a last word, and what was begun by those that are over; for a few seconds."""
        self.is_draining = self._last_words = True
        for slot in list(self._open):
            slot.scope.cancel()
        with suppress(TimeoutError):
            async with asyncio.timeout(LAST_WORDS_IN):
                if self._open:
                    await self._closed.wait()
                await asyncio.gather(*self._tasks, return_exceptions=True)

    async def drain(self, seconds: float | None = None) -> None:
        """Take nothing new, let runs end or give them up, then end the streams; see `Adapter.drain`."""
        self.stop_accepting()
        try:
            await self.runtime.drain(seconds)
        finally:
            await self.end_streams()


class StreamSlot:
    """One of the streams that a principal reads at once, from its reservation until the slot is left.

    Attributes:
        scope: Cancelled when the server drains. Read the stream within it, and the last words outside of it.
    """

    def __init__(self, gateway: Gateway, principal: Principal) -> None:
        self.gateway, self.principal, self.scope = gateway, principal, anyio.CancelScope()

    def __enter__(self) -> Self:
        self.gateway.enter_stream(self)
        return self

    def __exit__(self, *exception: object) -> None:
        self.gateway.release_stream(self)


def _ignore() -> None:
    """Do nothing when the lease is lost: a start takes milliseconds, and is the same run by its key."""


def _too_many(what: str, most: int) -> Refused:
    return Refused(429, "too_many", f"at most {most} {what} at once", headers={"retry-after": "2"})
