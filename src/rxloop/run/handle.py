"""Handle of a run, as returned by `agent.run()`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Generator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Self

from typing_extensions import TypeVar

from rxloop.errors import ConfigurationError, EventLogError, RxloopError
from rxloop.operators.views.text import text
from rxloop.protocol.events import AnyEvent, PendingInput, StatusUpdateEvent
from rxloop.protocol.ids import has_unread, read_cursor
from rxloop.protocol.messages import Message
from rxloop.run.attempt import Attempt
from rxloop.run.ownership import OwnedRuns, RunHold
from rxloop.run.result import Misuse, Result, copy_error, or_failure, outcome
from rxloop.stream.back_pressure import Overflow
from rxloop.stream.stream import Pipeable, Stream, check_reader

if TYPE_CHECKING:
    from rxloop.pipeline.artifacts import Artifacts

O = TypeVar("O", default=str)  # noqa: E741


class Run(Misuse, Pipeable[AnyEvent], Generic[O]):
    """A run of an agent: a stream of events, an awaitable result, and a handle to cancel it.

    The first use starts it, exactly once. Awaiting it is like awaiting a task: cancelling the awaiter cancels the run.
    Leaving `async with` cancels an unfinished run. Reading never cancels it, but the end of its last holder does. A
    task that is cancelled while it reads drops everything that its functions hold.
    """

    def __init__(self, attempt: Attempt, owned: OwnedRuns) -> None:
        self._attempt = attempt
        self.hold = RunHold(attempt, owned)
        """Ownership of the run, shared by the handle and its streams."""

    @property
    def task_id(self) -> str:
        """Id of the run."""
        return self._attempt.task_id

    @property
    def context_id(self) -> str:
        """Id of the conversation."""
        return self._attempt.context_id

    @property
    def artifacts(self) -> Artifacts:
        """Artifacts of the conversation, read-only. Without a log and a store, only those of this run."""
        # Imported here, because few programs read artifacts.
        from rxloop.pipeline.artifacts import Artifacts

        return Artifacts(self._attempt.artifact_writes().store, self.context_id)

    @property
    def started(self) -> bool:
        """True if the run was started."""
        return self.hold.driver is not None

    @property
    def pending(self) -> list[PendingInput]:
        """Questions without an answer, also while other calls of the run work.

        Answer them with `agent.get_run(run.task_id).answer({input_id: value})`. `result.pending` has the questions of a
        paused run.
        """
        return self.hold.pending

    @property
    def events(self) -> Stream[AnyEvent]:
        """Every event of the run, from the first one, for each subscriber and each iterator."""
        return Stream(self.hold.events(), self.hold)

    def _pipe(self, operators: Sequence[Callable[[Any], Any]]) -> Any:
        return self.events.pipe(*operators)

    def stream(
        self, *, overflow: Overflow = "coalesce", buffer: int = 1024, after: str | None = None
    ) -> Stream[AnyEvent]:
        """Return a stream with a policy for a slow reader.

        Args:
            overflow: Policy for an item while `buffer` items wait. `coalesce` merges adjacent deltas, `block` pauses
                the model's socket, `drop_oldest` drops transient events and reports them by a `gap` event, `error`
                raises `SlowReader` from the iteration. Durable events are never merged or dropped.
            buffer: Maximum number of items that wait.
            after: Cursor of the last event that the reader has. The stream starts with the next event.
        """
        check_reader(overflow, buffer)
        return Stream(self.hold.events(after), self.hold, overflow=overflow, buffer=buffer).pipe()

    def text(self) -> Stream[str]:
        """Return the text of the answer, as it streams.

        An answer that `send(..., interrupt=True)` interrupts is followed by the new one. In `events`, a
        `content-complete` with the finish reason `interrupted` comes between them.

        Raises:
            LimitReached: After the last piece, if a limit ended the run.
            RunError: After the last piece, if the run failed. The stream of a cancelled run ends without an error.
        """
        return self.pipe(text(), or_failure(self._attempt))

    def sse(self, after: str | None = None, heartbeat: float | None = 15) -> AsyncIterator[bytes]:
        """Return the public events as server-sent events.

        Args:
            after: The `Last-Event-ID` of a client that reconnects.
            heartbeat: Seconds of silence before a comment line is sent, or None for no comment lines.

        Raises:
            ConfigurationError: The heartbeat is not more than 0.
        """
        if heartbeat is not None and not heartbeat > 0:
            raise ConfigurationError(f"heartbeat must be more than 0 seconds, or None for none, not {heartbeat!r}")
        # Imported here, because `import rxloop` is faster without these modules.
        from rxloop.operators.views.filters import public
        from rxloop.stream.readers import Frames

        # The cursor comes from a client, so an invalid one counts as unknown.
        source = self.hold.events(after or None, strict=False)
        return Frames(aiter(Stream(source, self.hold).pipe(public())), heartbeat)

    async def has_more(self, after: str | None) -> bool:
        """Return True if a client that reconnects gets an event. Otherwise, answer 204.

        An `EventSource` reconnects after every end of its stream, except after a 204.

        Args:
            after: The `Last-Event-ID` of the client.
        """
        final = self._attempt.final
        return final is None or not after or has_unread(read_cursor(after, strict=False), final)

    def __aiter__(self) -> AsyncIterator[AnyEvent]:
        return aiter(self.events)

    def __await__(self) -> Generator[Any, None, Result[O]]:
        return self.result().__await__()

    async def result(self) -> Result[O]:
        """Return the result of the run. A coroutine, for `asyncio.run` and `TaskGroup.create_task`.

        Raises:
            LimitReached: A limit ended the run.
            RunError: The provider, the pipeline, the tool machinery or the log failed.
            RunCancelled: The run was cancelled.
            RxloopError: The run was refused before it began: unknown id, busy conversation, or invalid inputs.
        """
        driver = self.hold.start()
        if self._attempt.info.scope.owns(asyncio.current_task()):
            raise RxloopError(f"a tool of the run {self.task_id} awaits the run itself: neither could ever end")
        try:
            await asyncio.wait([driver])
        except asyncio.CancelledError:
            await self.hold.aclose("the task that awaited the run was cancelled")
            raise
        self._attempt.noticed = True
        refusal = driver.exception()
        if refusal is not None:
            raise copy_error(refusal)
        return outcome(self._attempt)

    def start(self) -> Self:
        """Start the run without waiting, and return it. Keep the handle, because a run without holders ends.

        Raises:
            RxloopError: There is no running event loop, or the run belongs to another one.
        """
        self.hold.start()
        return self

    async def begin(self) -> Self:
        """Start the run, wait until it is accepted and its first events are in the log, and return it.

        A refusal is raised before any request to the model. A run that is working or over is accepted.

        Raises:
            ContextBusy: The conversation has an unfinished run.
            RunExists: A run of this `task_id` exists.
            UnknownRun: The log does not have the run to resume or to fork.
            InvalidInput: An answer does not fit the resumed run.
            EventLogError: The log cannot be read or written.
            RxloopError: The run was refused for another reason, such as a missing event loop.
        """
        attempt, driver = self._attempt, self.hold.start()
        await attempt.life.until_open(driver)
        refusal = driver.exception() if driver.done() else None
        if refusal is not None:
            attempt.noticed = True
            raise copy_error(refusal)
        try:
            await attempt.durable()
        except EventLogError:
            attempt.noticed = True
            raise
        return self

    def send(self, message: str | Message | Sequence[Message | str], *, interrupt: bool = False) -> None:
        """Send a message to the model during the run. Safe from any thread, from tools and from readers.

        The message enters the history at once, or after the open message and the results of all its calls. A model that
        is answering, or has just answered, is called once more within the limits of the run. Messages that are sent
        before the run begins follow its prompt.

        Args:
            message: Text or message of the user, message of the system, or a sequence of them.
            interrupt: Interrupt the open answer. Its text so far stays in the history, its tool calls are not executed,
                and the model continues with the new message. Running tools are not interrupted.

        Raises:
            RunOver: The end of the run is decided, so the message was not sent.
            ConfigurationError: The message is invalid.
        """
        # Imported here, because few programs send messages.
        from rxloop.run.steering import as_said, say

        say(self._attempt, as_said(message), interrupt=interrupt)

    def cancel(self, reason: str | None = None) -> None:
        """Cancel the run without waiting. `await run.aclose()` waits for its end."""
        self.hold.cancel(reason)

    async def release(self, grace: float = 0) -> None:
        """Stop owning the run without ending it, and wait until this process has stopped working on it.

        In the log the run is working, with its open calls and messages, and any process can continue it at once by
        `agent.get_run(task_id).execute` or `agent.resume`. The readers of this attempt get a final event that is not in
        the log, in state `working` with the code `released`.

        Args:
            grace: Seconds to wait for running tools that are not idempotent. No call begins in this time. A call that
                takes longer is interrupted, and the next attempt reports it as such.

        Raises:
            ConfigurationError: The run has no log, so no process could continue it.
        """
        if self._attempt.info.log is None:
            raise ConfigurationError(
                f"the run {self.task_id} has no log, so that nobody could go on with it: cancel it, or await it"
            )
        if not grace >= 0:
            raise ConfigurationError(f"grace must be 0 seconds or more, not {grace!r}")
        await self.hold.release(grace)

    async def aclose(self) -> None:
        """Cancel the run if it is unfinished, and wait for its end. Never raises the error of the run."""
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
        attempt, name = self._attempt, self._attempt.info.agent_name
        if not self.started:
            # `asyncio.create_task(run)` needs a coroutine, and its error shows this text.
            return f"<Run {self.task_id} of {name!r}, not started: await it, or create_task(run.result())>"
        final = attempt.final
        state = final.state if isinstance(final, StatusUpdateEvent) else "refused" if attempt.refusal else "under way"
        return f"<Run {self.task_id} of {name!r}, {state}>"
