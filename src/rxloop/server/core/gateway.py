"""Authentication, limits and the end of a server, shared by all adapters of a runtime."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from hashlib import sha256
from secrets import compare_digest
from typing import Any, Literal
from weakref import WeakKeyDictionary, WeakValueDictionary

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
_Locks = WeakValueDictionary[tuple[str, str], asyncio.Lock]
_locks: WeakKeyDictionary[Runtime, _Locks] = WeakKeyDictionary()
"""Those of a runtime, which all of its doors share."""


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


class Host:
    """A runtime for clients."""

    def __init__(self, runtime: Runtime, auth: Auth | None, limits: ServerLimits) -> None:
        self.runtime, self.limits = runtime, limits
        self.draining = False
        self._last_words = False
        self._auth = auth
        self._streams: Counter[str] = Counter()
        self._locks = _locks.setdefault(runtime, _Locks())
        self._open: set[anyio.CancelScope] = set()
        self._closed = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def secured(self) -> bool:
        """Whether clients have to say who they are."""
        return self._auth is not None

    # -- who asks

    async def principal(self, request: HTTPConnection) -> Principal:
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

    async def record(self, principal: Principal, task_id: str) -> RunRecord:
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

    async def check_context(self, principal: Principal, context_id: str) -> bool:
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

    def check_open(self) -> None:
        """See that something new may begin.

        Raises:
            Refused: The server drains, or has not begun.
        """
        if self.draining:
            raise draining()
        if not self.runtime.open:
            if not self.runtime.entered:
                log.error(
                    "the runtime is not entered: do so by `async with runtime:` in the lifespan of the application"
                )
            raise draining()

    @asynccontextmanager
    async def starting(self, principal: Principal) -> AsyncGenerator[None]:
        """Let a principal start one more run; its starts come one after the other, so that all of them count.

        Raises:
            Refused: Too many of its runs go on.
        """
        self.check_open()
        most = self.limits.runs
        if self._auth is None or most is None:
            yield
            return
        log = self.runtime.log
        async with self._locks.setdefault(("principal", principal.id), asyncio.Lock()):
            found = await read_log(log.list_runs, owner=principal.id, states=("submitted", "working"), limit=most)
            if len(found) >= most:
                raise _too_many("runs", most)
            yield

    @asynccontextmanager
    async def in_context(self, context_id: str | None, *, everywhere: bool = False) -> AsyncGenerator[None]:
        """Let the starts in a conversation come one after the other, so that each finds what those before it made.

        Args:
            context_id: The conversation; None is for a new one, in which nothing can come before.
            everywhere: Also those of other processes on the same log.
        """
        if context_id is None:
            yield
            return
        async with self._locks.setdefault(("context", context_id), asyncio.Lock()):
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
        """See that a principal may read one more stream, before anything is done that it is to read.

        Raises:
            Refused: Too many are read already, or the server goes away.
        """
        if self._last_words:
            raise draining()
        most = self.limits.streams
        if self._auth is not None and most is not None and self._streams[principal.id] >= most:
            raise _too_many("streams", most)

    def take_stream(self, principal: Principal) -> None:
        """Take one more stream for a principal; it is given back by `streaming`.

        Raises:
            Refused: As for `check_stream`.
        """
        self.check_stream(principal)
        self._streams[principal.id] += 1

    @contextmanager
    def streaming(self, principal: Principal, scope: anyio.CancelScope) -> Generator[None]:
        """Read a stream that was taken, and give it back; `drain` cancels the scope."""
        self._open.add(scope)
        self._closed.clear()
        try:
            yield
        finally:
            self._streams[principal.id] -= 1
            self._streams += Counter()  # without what is 0
            self._open.discard(scope)
            if not self._open:
                self._closed.set()

    # -- the end

    def later(self, work: Coroutine[Any, Any, None]) -> None:
        """Do something that does not end with the request that wants it."""
        with within(None):
            task = asyncio.create_task(work, name="rxloop-server")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def refuse(self) -> None:
        """Take nothing new from now on; `/readyz` says so."""
        self.draining = True

    async def end_streams(self) -> None:
        """End each stream with a last word, and what was begun by those that are over; for a few seconds."""
        self.draining = self._last_words = True
        for scope in list(self._open):
            scope.cancel()
        with suppress(TimeoutError):
            async with asyncio.timeout(LAST_WORDS_IN):
                if self._open:
                    await self._closed.wait()
                await asyncio.gather(*self._tasks, return_exceptions=True)

    async def drain(self, seconds: float | None = None) -> None:
        """Take nothing new, let runs end or give them up, then end the streams; see `Adapter.drain`."""
        self.refuse()
        try:
            await self.runtime.drain(seconds)
        finally:
            await self.end_streams()


def _ignore() -> None:
    """Do nothing when the lease is lost: a start takes milliseconds, and is the same run by its key."""


def _too_many(what: str, most: int) -> Refused:
    return Refused(429, "too_many", f"at most {most} {what} at once", headers={"retry-after": "2"})
