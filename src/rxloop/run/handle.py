"""The hot face of a run: what `agent.run()` gives."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Generator, Sequence
from copy import copy
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Self, TypedDict, cast, overload

from reactivex import Observable
from typing_extensions import TypeVar, Unpack

from rxloop.errors import (
    ConfigurationError,
    EventLogError,
    RxloopError,
)
from rxloop.operators.views.after import after as after_cursor
from rxloop.operators.views.text import text
from rxloop.protocol.cursor import is_behind, read_cursor
from rxloop.protocol.events import AnyEvent, Event, PendingInput, StatusUpdateEvent
from rxloop.protocol.messages import Message
from rxloop.run.attempt import Attempt
from rxloop.run.ownership import OwnedRuns, RunHold
from rxloop.run.result import Result, or_failure, outcome
from rxloop.stream.back_pressure import Overflow
from rxloop.stream.stream import A, B, C, D, E, Pipes, Stream, V, check_reader

if TYPE_CHECKING:
    from rxloop.pipeline.artifacts import Artifacts

O = TypeVar("O", default=str)  # noqa: E741


class StreamOptions(TypedDict, total=False):
    """How a stream treats a reader that is slow, and where it starts; see `Run.stream`."""

    overflow: Overflow
    buffer: int
    after: str | None


def _raised_again(error: BaseException) -> BaseException:
    """Copy an exception for one more who awaits: one that is raised again and again has a longer and longer trace."""
    try:
        fresh = copy(error).with_traceback(error.__traceback__)
    except Exception:
        return error
    fresh.__cause__ = error.__cause__
    return fresh


class Run(Pipes[AnyEvent], Generic[O]):
    """A run of an agent: a stream of events, an awaitable result, and a handle to cancel it.

    The first use starts it, exactly once. Awaiting it is like awaiting a task: cancelling the awaiter cancels the run.
    Leaving `async with` cancels what is unfinished. Reading never does; letting go of the last holder does. A task that
    is cancelled while it reads lets go of everything that its functions hold.
    """

    def __init__(self, attempt: Attempt, owned: OwnedRuns) -> None:
        self._attempt = attempt
        self.hold = RunHold(attempt, owned)
        """What the handle and its streams hold of the run."""
        # A reader also gets kinds of your own, which a type checker finds by `isinstance` or `match`.
        self._source = cast("Observable[AnyEvent]", attempt.recorder.hub.events)

    @property
    def task_id(self) -> str:
        """The id of the run."""
        return self._attempt.task_id

    @property
    def context_id(self) -> str:
        """The id of the conversation."""
        return self._attempt.context_id

    @property
    def artifacts(self) -> Artifacts:
        """The files of the conversation, to read; without a log and a store of its own, those of this run."""
        # Few programs read them.
        from rxloop.pipeline.artifacts import Artifacts

        return Artifacts(self._attempt.writes.store, self.context_id)

    @property
    def started(self) -> bool:
        """Whether anybody has used the run yet."""
        return self.hold.driver is not None

    @property
    def pending(self) -> list[PendingInput]:
        """The questions that have no answer yet, also while other calls of the run are at work.

        Answer them with `agent.get_run(run.task_id).answer({input_id: value})`. `result.pending` has the questions of a
        paused run.
        """
        return self.hold.pending

    @property
    def events(self) -> Stream[AnyEvent]:
        """Every event of the run, from the first one, for each subscriber and each iterator."""
        return Stream(self._retained(), self.hold)

    def _through(self, operators: Sequence[Callable[[Any], Any]]) -> Any:
        return self.events.pipe(*operators)

    @overload
    def stream(self, /, **options: Unpack[StreamOptions]) -> Stream[AnyEvent]: ...
    @overload
    def stream(self, a: V[AnyEvent, A], /, **options: Unpack[StreamOptions]) -> Stream[A]: ...
    @overload
    def stream(self, a: V[AnyEvent, A], b: V[A, B], /, **options: Unpack[StreamOptions]) -> Stream[B]: ...
    @overload
    def stream(self, a: V[AnyEvent, A], b: V[A, B], c: V[B, C], /, **options: Unpack[StreamOptions]) -> Stream[C]: ...
    @overload
    def stream(
        self, a: V[AnyEvent, A], b: V[A, B], c: V[B, C], d: V[C, D], /, **options: Unpack[StreamOptions]
    ) -> Stream[D]: ...
    @overload
    def stream(
        self, a: V[AnyEvent, A], b: V[A, B], c: V[B, C], d: V[C, D], e: V[D, E], /, **options: Unpack[StreamOptions]
    ) -> Stream[E]: ...
    @overload
    def stream(
        self,
        a: V[AnyEvent, A],
        b: V[A, B],
        c: V[B, C],
        d: V[C, D],
        e: V[D, E],
        f: V[E, Any],
        /,
        *more: Callable[[Any], Any],
        **options: Unpack[StreamOptions],
    ) -> Any: ...
    def stream(
        self,
        *views: Callable[[Any], Any],
        overflow: Overflow = "coalesce",
        buffer: int = 1024,
        after: str | None = None,
    ) -> Any:
        """A stream with a policy for a reader that is slow.

        Args:
            views: As for `pipe`.
            overflow: What to do with an item when `buffer` items wait to be read. `coalesce` merges adjacent deltas,
                `block` holds the model's socket back, `drop_oldest` drops transient events and reports it by a `gap`
                event, `error` raises `SlowReader` from the iteration. Durable events are never merged or dropped.
            buffer: The number of items.
            after: The cursor of the last event that the reader has; only what follows it is delivered.
        """
        check_reader(overflow, buffer)
        source = self._retained() if after is None else after_cursor(after)(self._whole())
        return Stream(source, self.hold, overflow=overflow, buffer=buffer).pipe(*views)

    def text(self) -> Stream[str]:
        """The text of the answer, as it streams.

        An answer that `send(..., interrupt=True)` has cut off is followed by the new one; `events` shows where: a
        `content-complete` with the finish reason `interrupted` comes between them.

        Raises:
            LimitReached: After the last piece, if a limit ended the run.
            RunError: After the last piece, if the run failed. A cancelled one just ends.
        """
        return self.pipe(text(), or_failure(self._attempt))

    def sse(self, after: str | None = None, heartbeat: float | None = 15) -> AsyncIterator[bytes]:
        """The public events as server-sent events.

        Args:
            after: The `Last-Event-ID` of a client that comes back.
            heartbeat: Seconds of silence after which a comment line is sent; None sends none.

        Raises:
            ConfigurationError: The heartbeat is not more than 0.
        """
        if heartbeat is not None and not heartbeat > 0:
            raise ConfigurationError(f"heartbeat must be more than 0 seconds, or None for none, not {heartbeat!r}")
        # Imported here: importing rxloop is quicker without.
        from rxloop.operators.views.filters import public
        from rxloop.stream.readers import Frames

        # The id comes from a client: one that is not a cursor is as good as one that is unknown.
        source = after_cursor(after, strict=False)(self._whole()) if after else self._retained()
        return Frames(aiter(Stream(source, self.hold).pipe(public())), heartbeat)

    async def has_more(self, after: str | None) -> bool:
        """Whether a client that comes back gets anything.

        Answer 204 where it does not: an `EventSource` comes back after every end, and 204 tells it to stay away.

        Args:
            after: Its `Last-Event-ID`.
        """
        final = self._attempt.final
        return final is None or not after or is_behind(read_cursor(after, strict=False), final)

    def _retained(self) -> Observable[AnyEvent]:
        """The events of this attempt: out of the log what is not in memory any more."""
        attempt = self._attempt
        if not attempt.recorder.hub.trimmed:
            return self._source
        return self._whole(attempt.first_attempt)

    def _whole(self, first_attempt: int = 1) -> Observable[AnyEvent]:
        """The events of the run from an attempt on, those of earlier ones out of the log."""
        attempt = self._attempt
        log = attempt.log
        if log is None:
            return self._source
        # Imported here: importing rxloop is quicker without.
        from rxloop.stream.readers import with_past

        async def read(before: int) -> Sequence[Event]:
            await attempt.durable()
            return [
                event
                for event in await log.read(attempt.task_id)
                if event.attempt >= first_attempt and event.seq < before
            ]

        return cast("Observable[AnyEvent]", with_past(self._source, read))

    def __aiter__(self) -> AsyncIterator[AnyEvent]:
        return aiter(self.events)

    def __await__(self) -> Generator[Any, None, Result[O]]:
        return self.result().__await__()

    async def result(self) -> Result[O]:
        """The result of the run; a coroutine, for `asyncio.run` and `TaskGroup.create_task`.

        Raises:
            LimitReached: A limit ended it.
            RunError: The provider, the pipeline, the tool machinery or the log failed.
            RunCancelled: It was cancelled.
            RxloopError: It was refused before it began, by an unknown id, a busy conversation, or wrong inputs.
        """
        driver = self.hold.start()
        if self._attempt.scope.owns(asyncio.current_task()):
            raise RxloopError(f"a tool of the run {self.task_id} awaits the run itself: neither could ever end")
        try:
            await asyncio.wait([driver])
        except asyncio.CancelledError:
            await self.hold.aclose("the task that awaited the run was cancelled")
            raise
        self._attempt.noticed = True
        refusal = driver.exception()
        if refusal is not None:
            raise _raised_again(refusal)
        return outcome(self._attempt)

    def start(self) -> Self:
        """Start the run without waiting for anything, and give it back; keep it, since a run that nobody holds ends.

        Raises:
            RxloopError: There is no running event loop, or the run belongs to another one.
        """
        self.hold.start()
        return self

    async def begin(self) -> Self:
        """Start the run, wait until it is accepted, and give it back: its first events are in the log then.

        What refuses a run is raised before a request is sent. A run that goes on, or is over, is accepted.

        Raises:
            ContextBusy: The conversation has a run that has not ended.
            RunExists: There is a run of this `task_id`.
            UnknownRun: The log does not have the run that is to be resumed, or forked.
            InvalidInput: An answer does not fit the run that is resumed.
            EventLogError: The log cannot be read or written.
            RxloopError: It was refused for another reason, such as a missing event loop.
        """
        attempt, driver = self._attempt, self.hold.start()
        await attempt.life.until_open(driver)
        refusal = driver.exception() if driver.done() else None
        if refusal is not None:
            attempt.noticed = True
            raise _raised_again(refusal)
        try:
            await attempt.durable()
        except EventLogError:
            attempt.noticed = True
            raise
        return self

    def send(self, message: str | Message | Sequence[Message | str], *, interrupt: bool = False) -> None:
        """Say something to the model while the run goes on; from any thread, from tools and from readers.

        It enters the history at once; where the model is writing, or tools are running, after that message and the
        results of all its calls. A model that has just answered, or is answering, is asked once more, as long as the
        limits of the run allow it. What is said before the run begins follows its prompt.

        Args:
            message: A text of the user, a message of the user or the system, or several.
            interrupt: Cut off the answer that is being written: what there is of it stands in the history, its tool
                calls are not carried out, and the model goes on with the new message. Tools that run are not cut off.

        Raises:
            RunOver: The end of the run is decided; nothing was said.
            ConfigurationError: It is no message that can be said to a run.
        """
        # Imported here: most runs are not steered, and importing rxloop is quicker without.
        from rxloop.run.steering import as_said, say

        say(self._attempt, as_said(message), interrupt=interrupt)

    def cancel(self, reason: str | None = None) -> None:
        """Begin to cancel the run; returns at once. `await run.aclose()` waits until nothing is left of it."""
        self.hold.cancel(reason)

    async def release(self, grace: float = 0) -> None:
        """Give the run up without ending it, and wait until nothing of it is left here.

        The log then says that it is working, and any process continues it at once with `agent.get_run(task_id).execute`
        or `agent.resume`. Nothing is cancelled in the log: calls and messages that are open stay open. The readers of
        this attempt get an end that the log does not have, in state `working`, with the code `released`.

        Args:
            grace: The seconds to wait for tools that are not idempotent, whose calls nobody can make again; no call
                begins meanwhile. What is not over by then is cut off, and reads "interrupted" in the next attempt.

        Raises:
            ConfigurationError: The run has no log, out of which anybody could go on with it.
        """
        if self._attempt.log is None:
            raise ConfigurationError(
                f"the run {self.task_id} has no log, so that nobody could go on with it: cancel it, or await it"
            )
        if not grace >= 0:
            raise ConfigurationError(f"grace must be 0 seconds or more, not {grace!r}")
        await self.hold.release(grace)

    async def aclose(self) -> None:
        """Cancel what is unfinished, and wait until nothing is left of it. Never raises what the run raised."""
        self._attempt.noticed = True
        await self.hold.aclose("closed")

    async def __aenter__(self) -> Self:
        self.hold.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.hold.aclose("its `async with` was left")

    def __repr__(self) -> str:
        attempt = self._attempt
        if not self.started:
            # `asyncio.create_task(run)` shows this, and wants a coroutine.
            return (
                f"<Run {self.task_id} of {attempt.agent_name!r}, not started: await it, or create_task(run.result())>"
            )
        final = attempt.final
        state = final.state if isinstance(final, StatusUpdateEvent) else "refused" if attempt.refusal else "under way"
        return f"<Run {self.task_id} of {attempt.agent_name!r}, {state}>"

    if not TYPE_CHECKING:
        # A type checker tells these mistakes by itself, as long as it does not see that they are provided for.

        def __getattr__(self, name: str) -> Any:
            if name in Result.__dataclass_fields__ or name == "output":
                raise AttributeError(f"a run has no {name!r}, its result has: await it first, `(await run).{name}`")
            raise AttributeError(f"'Run' object has no attribute {name!r}")

        def __iter__(self) -> Any:
            raise TypeError("a run is read with `async for event in run`; in an Rx pipeline it is `run.events`")

        def __enter__(self) -> Any:
            raise TypeError("a run is held with `async with agent.run(...) as run`")

        def __exit__(self, *exception: object) -> None:
            """For `with`, which looks for it before it calls `__enter__`."""
