"""Run handle, as returned by `agent.run()`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Generator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Self

from typing_extensions import TypeVar

from rxloop.errors import ConfigurationError, EventLogError
from rxloop.operators.views.text import text
from rxloop.protocol.events import AnyEvent, PendingInput, StatusUpdateEvent
from rxloop.protocol.ids import has_unread, read_cursor
from rxloop.protocol.messages import Message
from rxloop.run.attempt import Attempt
from rxloop.run.ownership import OwnedRuns, RunHold
from rxloop.run.result import MisuseErrors, Result, copy_error, make_result, raise_failure
from rxloop.stream.back_pressure import Overflow
from rxloop.stream.stream import Pipeable, Stream, check_reader
from rxloop.support.misuse import check_positive

if TYPE_CHECKING:
    from rxloop.pipeline.artifacts import Artifacts
    from rxloop.protocol.tool_events import Goal, GoalChange

O = TypeVar("O", default=str)  # noqa: E741


class Run(MisuseErrors, Pipeable[AnyEvent], Generic[O]):
    """Handle of an agent run: an awaitable result, and an async iterable of events.

    The run starts on first use. Awaiting it works like awaiting a task: cancelling the awaiter also cancels the run.
    Leaving `async with` cancels the run unless finished. Stopping iteration doesn't cancel it, but dropping the last
    reference does. When a task is cancelled while reading, all locals of its functions are dropped.
    """

    def __init__(self, attempt: Attempt, owned: OwnedRuns) -> None:
        self._attempt = attempt
        self.hold = RunHold(attempt, owned)
        """Ownership shared by the handle and its streams."""

    @property
    def task_id(self) -> str:
        """Id of the run."""
        return self._attempt.task_id

    @property
    def context_id(self) -> str:
        """Conversation id."""
        return self._attempt.context_id

    @property
    def artifacts(self) -> Artifacts:
        """Read-only artifacts of the conversation. Without a log and store, only includes this run."""
        # Imported here because few programs read artifacts.
        from rxloop.pipeline.artifacts import Artifacts

        return Artifacts(self._attempt.artifact_writes().store, self._attempt.conversation)

    @property
    def started(self) -> bool:
        """True once the run has been started."""
        return self.hold.task is not None

    @property
    def pending(self) -> list[PendingInput]:
        """Unanswered questions, available even while other calls are running.

        Use `agent.get_run(run.task_id).answer({input_id: value})` to answer. See also `result.pending`.
        """
        return self.hold.pending

    @property
    def events(self) -> Stream[AnyEvent]:
        """Stream of all events so far and in the future. Can be read several times."""
        return Stream(self.hold.events(), self.hold)

    def _pipe(self, operators: Sequence[Callable[[Any], Any]]) -> Any:
        return self.events.pipe(*operators)

    def stream(
        self, *, overflow: Overflow = "coalesce", buffer: int = 1024, after: str | None = None
    ) -> Stream[AnyEvent]:
        """Return a stream with options for handling slow readers.

        Args:
            overflow: What to do when `buffer` is exceeded. `coalesce` merges adjacent deltas, `block` pauses the
                model's socket, `drop_oldest` drops transient events and reports them in a `gap` event, and `error`
                raises `SlowReader` while iterating. Durable events are never merged or dropped.
            buffer: Maximum number of waiting items.
            after: Cursor of the last event already received.
        """
        check_reader(overflow, buffer)
        return Stream(self.hold.events(after), self.hold, overflow=overflow, buffer=buffer).pipe()

    def text(self) -> Stream[str]:
        """Return the answer's text as it is streamed.

        An answer interrupted by `send(..., interrupt=True)` is followed by the new answer. In `events`, they are
        separated by a `content-complete` event with the finish reason `interrupted`.

        Raises:
            LimitReached: A limit ended the run. Raised after the last item.
            RunError: The run failed. Raised after the last item. Cancelled runs just end the stream.
        """
        return self.pipe(text(), raise_failure(self._attempt))

    def sse(self, after: str | None = None, heartbeat: float | None = 15) -> AsyncIterator[bytes]:
        """Return public events encoded as server-sent events.

        Args:
            after: `Last-Event-ID` sent by a reconnecting client.
            heartbeat: Seconds of silence before sending a comment line, or None to disable.

        Raises:
            ConfigurationError: The heartbeat isn't positive.
        """
        seconds: Any = heartbeat
        if seconds is not None and not (isinstance(seconds, int | float) and seconds > 0):
            raise ConfigurationError(f"heartbeat must be a positive number of seconds or None, got {heartbeat!r}")
        # Imported here to keep `import rxloop` fast.
        from rxloop.operators.views.filters import public
        from rxloop.stream.readers import Frames

        # The cursor is sent by a client, so invalid values are treated as unknown.
        source = self.hold.events(after or None, strict=False)
        return Frames(aiter(Stream(source, self.hold).pipe(public())), heartbeat)

    async def has_more(self, after: str | None) -> bool:
        """Return True if a client that reconnects with this `Last-Event-ID` would receive any events.

        Otherwise respond with a 204, because an `EventSource` reconnects until it receives one.
        """
        final = self._attempt.final
        return final is None or not after or has_unread(read_cursor(after, strict=False), final)

    def __aiter__(self) -> AsyncIterator[AnyEvent]:
        return aiter(self.events)

    def __await__(self) -> Generator[Any, None, Result[O]]:
        return self.result().__await__()

    async def result(self) -> Result[O]:
        """Wait for the run and return its result. Supports `asyncio.run` and `TaskGroup.create_task`.

        Raises:
            LimitReached: A limit ended the run.
            RunError: The provider, pipeline, tool machinery or log failed.
            RunCancelled: The run was cancelled.
            RxloopError: The run was refused, for example due to an unknown id, busy conversation, or invalid input.
        """
        await self.hold.wait()
        return make_result(self._attempt)

    def start(self) -> Self:
        """Start the run without waiting for it. Keep a reference, because unreferenced runs are cancelled.

        Raises:
            RxloopError: No event loop is running, or the run belongs to another one.
        """
        self.hold.start()
        return self

    async def begin(self) -> Self:
        """Start the run, and wait until its first events have been logged.

        Errors are raised before sending any model request. Runs that are working or finished are accepted.

        Raises:
            ContextBusy: The conversation has an unfinished run.
            RunExists: The `task_id` is already in use.
            UnknownRun: The run to resume or fork isn't in the log.
            InvalidInput: An answer doesn't fit the resumed run.
            EventLogError: Reading or writing the log failed.
            RxloopError: The run was refused for other reasons, such as a missing event loop.
        """
        attempt, task = self._attempt, self.hold.start()
        await attempt.lifetime.wait_open(task)
        refusal = task.exception() if task.done() else None
        if refusal is not None:
            attempt.is_observed = True
            raise copy_error(refusal)
        try:
            await attempt.durable()
        except EventLogError:
            attempt.is_observed = True
            raise
        return self

    def send(self, message: str | Message | Sequence[Message | str], *, interrupt: bool = False) -> None:
        """Send a message to the model while running. Can be called from any thread.

        The message is added to the history immediately, or after any open message and its tool results. A model that
        is answering or has just answered is called again. Messages sent before starting are added after the prompt.

        Args:
            message: Text, user or system message, or a sequence of them.
            interrupt: Whether to interrupt the current answer. Its text stays in the history, its tool calls aren't
                executed, and the model continues with the new message. Running tools aren't interrupted.

        Raises:
            RunOver: The run is already ending. The message wasn't sent.
            ConfigurationError: The message is invalid.
        """
        # Imported here because few programs send messages.
        from rxloop.run.steering import send_messages, to_sent_messages

        send_messages(self._attempt, to_sent_messages(message), interrupt=interrupt)

    def update_goals(self, *changes: GoalChange) -> tuple[Goal, ...]:
        """Add or change goals from any thread, and return all goals; see `rxloop.tools.update_goals`.

        The next model request contains them, if the loop has `op.goals()`.

        Raises:
            RunOver: The run has not started yet, or is already ending.
            ConfigurationError: A change is invalid. The goals stay unchanged.
        """
        from rxloop.run.steering import send_goals

        return send_goals(self._attempt, changes)

    def cancel(self, reason: str | None = None) -> None:
        """Cancel the run without waiting. Use `await run.aclose()` to wait."""
        self.hold.cancel(reason)

    async def release(self, grace: float = 0) -> None:
        """Stop executing the run without ending it, and wait until this process is done with it.

        The log still shows it as working. Any process can continue it using `agent.get_run(task_id).execute` or
        `agent.resume`. Subscribers receive a final event in state `working` with code `released`, which isn't logged.

        Args:
            grace: Seconds to wait for running tools that aren't idempotent. No new calls are started. Calls that take
                longer are interrupted, and reported as such by the next attempt.

        Raises:
            ConfigurationError: The run has no log.
        """
        if self._attempt.info.log is None:
            raise ConfigurationError(f"cannot release run {self.task_id} because it has no log; cancel or await it")
        check_positive(zero=True, grace=grace)
        await self.hold.release(grace)

    async def aclose(self) -> None:
        """Cancel an unfinished run and wait for it. Never raises the error of the run."""
        self._attempt.is_observed = True
        await self.hold.aclose("closed")

    async def __aenter__(self) -> Self:
        self.hold.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.hold.aclose("its `async with` block has ended")

    def __repr__(self) -> str:
        attempt, name = self._attempt, self._attempt.info.agent_name
        if not self.started:
            # Using `asyncio.create_task(run)` is an error, and its message includes this text.
            return f"<Run {self.task_id} of {name!r}, not started: await it, or create_task(run.result())>"
        final = attempt.final
        state = final.state if isinstance(final, StatusUpdateEvent) else "refused" if attempt.refusal else "running"
        return f"<Run {self.task_id} of {name!r}, {state}>"
