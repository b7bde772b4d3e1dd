"""The seams of event logs: what a log must do, and what it may do beside that."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeGuard, runtime_checkable

from rxloop.protocol.events import Event, State

if TYPE_CHECKING:
    from rxloop.pipeline.values import Histories, KeptFold, Mark, Parts, RunRecord, Until
    from rxloop.protocol.mail import Mail


class EventLog(Protocol):
    """Keeps the durable events of runs."""

    @property
    def keeps_deltas(self) -> bool:
        """Whether transient events are to be appended too; such a log gives them back on demand."""
        ...

    async def append(self, task_id: str, events: Sequence[Event], *, expected_seq: int, writer: str = "") -> None:
        """Append a batch to a run; when it returns, the batch is durable.

        The log keeps with each run the writer of its last batch. One that did not hear whether a batch was written
        appends it again: what of it is there already, byte for byte and from the same writer, is not written twice. To
        everybody else, a writer with no name above all, it is a conflict, though the bytes be equal.

        Args:
            task_id: The run.
            events: Events in order: durable ones, and transient ones if the log keeps them.
            expected_seq: The last `seq` that the log holds of the run; 0 for a new one.
            writer: Who appends: a random token that no other writer has.

        Raises:
            ConflictError: The log holds another last `seq`: somebody else writes this run.
            EventLogError: The batch could not be written.
        """
        ...

    async def read(self, task_id: str, *, after_seq: int = 0, deltas: bool = False) -> Sequence[Event]:
        """Read the durable events of a run after `after_seq`, in order, and with `deltas` the transient ones.

        Raises:
            UnknownRun: The log holds no such run.
        """
        ...

    def follow(
        self, task_id: str, *, after_seq: int = 0, deltas: bool = False, until: Until = "attempt"
    ) -> AsyncIterator[Event]:
        """Give the durable events after `after_seq`, then those that come, until the final one of an attempt.

        Args:
            task_id: The run.
            after_seq: The last `seq` that is not wanted.
            deltas: Give the transient events too, where the log keeps them; those of `after_seq` come again.
            until: `"end"` goes on over pauses and attempts until the run is completed or failed.

        Raises:
            UnknownRun: The log holds no such run; raised by the first step of the iteration.
            LogWentBack: The log lacks an event that was given, or has another one in its place, as after a restore,
                where it can go back at all.
        """
        ...

    async def record(self, task_id: str) -> RunRecord:
        """Tell what is known of a run without its events.

        Raises:
            UnknownRun: The log holds no such run.
        """
        ...

    async def runs(
        self,
        *,
        context_id: str | None = None,
        unfinished: bool = False,
        states: Collection[State] | None = None,
        agent_name: str | None = None,
        owner: str | None = None,
        since: int | None = None,
        until: int | None = None,
        metadata: Mapping[str, Any] | None = None,
        latest_only: bool = False,
        newest_first: bool = False,
        after: str | None = None,
        limit: int | None = None,
    ) -> Sequence[RunRecord]:
        """List runs in the order in which the log got them, never by a clock: all of them, or those like this.

        Args:
            context_id: Of this conversation.
            unfinished: Neither completed nor failed.
            states: In one of these states.
            agent_name: Of the agent with this name.
            owner: Whose they are.
            since: Created at this time or later, in milliseconds since 1970.
            until: Created before this time.
            metadata: With these values in their metadata, and maybe others.
            latest_only: Of the runs like that, only the newest one of each conversation: a list of conversations.
            newest_first: The other way round.
            after: The last run of the page before; the list begins after it.
            limit: How many at most.

        Raises:
            UnknownRun: The log does not hold the run `after`.
            ConfigurationError: `limit` is less than one.
        """
        ...

    async def aclose(self) -> None:
        """Close files and connections; may be called more than once."""
        ...


@runtime_checkable
class AppendsNow(Protocol):
    """What an event log may have beside `append`, to spare a run a turn of the event loop."""

    def append_now(self, task_id: str, events: Sequence[Event], *, expected_seq: int, writer: str = "") -> bool:
        """Append a batch if that takes no waiting, as `append` does and with its errors; False if it was not done."""
        ...


@runtime_checkable
class PassesDeltas(Protocol):
    """What an event log may have beside `keeps_deltas`, if it gives transient events to those who follow meanwhile."""

    @property
    def passes_deltas(self) -> bool:
        """Whether transient events are to be appended, for those who follow at that moment, though none is kept."""
        ...


def takes_deltas(log: EventLog) -> bool:
    """Tell whether transient events are to be appended to a log, since it keeps them, or passes them on at least."""
    return log.keeps_deltas or (isinstance(log, PassesDeltas) and log.passes_deltas)


def appends_now(log: object) -> TypeGuard[AppendsNow]:
    """Tell whether a log is to be asked by `append_now`: not where a subclass has only an `append` of its own."""
    if not isinstance(log, AppendsNow):
        return False
    order = (vars(log), *map(vars, type(log).__mro__))
    first = next((names for names in order if "append" in names or "append_now" in names), order[0])
    return "append_now" in first or "append" not in first


@runtime_checkable
class ReadsConversations(Protocol):
    """What an event log may have beside `read`: a conversation in one round trip, and only what is new of it."""

    async def histories(self, context_id: str, *, before: str, after: Mark | None = None) -> Histories:
        """Read the durable events of the runs of a conversation that come before a run, in one go.

        Args:
            context_id: The conversation.
            before: The run; where the log does not hold it, all runs of the conversation come before it.
            after: Where an earlier answer ended. Only what comes after it is given, if what comes before it is as it
                was: no run was deleted there and none went on.
        """
        ...


@runtime_checkable
class KeepsFolds(Protocol):
    """What an event log may have in place of `histories`: what runs add to a conversation, kept beside their events.

    The events alone count. A fold that is damaged, of another version, or of before one of its runs went on or was
    removed, is not given, and neither is one that was never kept: then whoever reads the conversation makes it anew.
    """

    async def parts(self, context_id: str, *, before: str, after: Mark | None = None, version: int) -> Parts:
        """Read the runs of a conversation that come before a run, in one go, as `histories` does.

        Args:
            context_id: The conversation.
            before: The run; where the log does not hold it, all runs of the conversation come before it.
            after: Where an earlier answer ended. Only what comes after it is given, if what comes before it is as it
                was.
            version: That of the folds that the caller understands.

        Raises:
            EventLogError: The log cannot be read.
        """
        ...

    def keep_folds(self, context_id: str, folds: Sequence[KeptFold], *, version: int) -> None:
        """Keep folds of a conversation when there is time, each in place of those of the same runs.

        One whose runs are not as they were is left out. If it fails, nothing is lost but time.
        """
        ...


@runtime_checkable
class HasIdentity(Protocol):
    """What an event log may have beside its methods, if several objects may keep the same runs."""

    @property
    def identity(self) -> Hashable:
        """Two log objects of one process with equal identities are one log: its conversations have one turn each."""
        ...


@runtime_checkable
class TakesTurns(Protocol):
    """What an event log may have beside its methods, if several processes may use it at once.

    The turn of a conversation belongs to one run and to one log object, its holder, and dies with it: killed or frozen,
    the holder loses its turns, and what it appends to their runs from then on is refused with `Fenced`.
    """

    @property
    def lease(self) -> float | None:
        """Seconds without a sign of life after which a holder counts as dead; None if it cannot be frozen alone."""
        ...

    async def take_turn(self, context_id: str, task_id: str, lost: Callable[[], None]) -> bool:
        """Take the turn of a conversation for a run.

        Args:
            context_id: The conversation.
            task_id: The run, which the log need not hold yet.
            lost: Called once, in the event loop of the caller, when the turn turns out to belong to somebody else.

        Returns:
            False if a run has the turn, and its holder is alive: whichever run, and this log object included.

        Raises:
            EventLogError: The log cannot be asked.
        """
        ...

    async def has_turn(self, context_id: str, task_id: str) -> bool:
        """Tell whether this log object still has the turn for a run, by what is stored and not by what it remembers.

        A run asks that has not moved for a while, since its process may have been frozen for longer than the lease.

        Returns:
            False if anybody else has had the turn since it was taken, though it be free again.

        Raises:
            EventLogError: The log cannot be asked.
        """
        ...

    async def give_turn_back(self, context_id: str, task_id: str) -> None:
        """Give the turn back; one that is lost, or was never had, is passed over.

        Raises:
            EventLogError: The log cannot be asked. The turn is free when the holder would be found dead.
        """
        ...

    async def orphans(
        self, *, submitted_before: float = 30, submitted_limit: int | None = None, submitted_after: str | None = None
    ) -> Sequence[RunRecord]:
        """List the runs that wait for somebody to go on with them, in the order in which the log got them.

        No living holder has a turn for them. They are under way; or they were submitted, and nobody began them, or
        whoever did has died with their turn; or they wait, and there is a letter for them that they have not taken,
        and that is an answer or a cancel.

        Args:
            submitted_before: Seconds that a submitted run is left to those who were told of it, since the log got it,
                and never by the clock of whoever submitted it.
            submitted_limit: Of the submitted ones that nobody began at most that many, the first ones; None is all of
                them, and 0 none.
            submitted_after: Of those the ones that the log got after this run; from the first one, where it is None, or
                the log has no such run.

        Raises:
            EventLogError: The log cannot be asked.
        """
        ...


@runtime_checkable
class Mailbox(Protocol):
    """What an event log may have beside its methods: mail for runs that somebody else drives, or nobody at the moment.

    A letter stays until its run is deleted. It is taken once, since the event that it becomes has its number in the
    metadata, as `mail_id`, and the fold keeps the highest.
    """

    async def send(self, task_id: str, mail: Mail) -> int:
        """Put a letter into the mail of a run; when it returns, the letter is durable.

        Returns:
            Its number, which is greater than that of any letter before it, of whatever run of the log.

        Raises:
            UnknownRun: The log holds no such run.
            EventLogError: The letter could not be written.
        """
        ...

    async def mail(self, task_id: str, *, after: int = 0) -> Sequence[tuple[int, Mail]]:
        """Read the letters of a run after that number, in order, each with its number.

        Raises:
            UnknownRun: The log holds no such run.
            EventLogError: The log cannot be read.
        """
        ...

    def watch(self, task_id: str, arrived: Callable[[], None]) -> Callable[[], None]:
        """Be told when there may be new mail for a run, from whatever process. It costs next to nothing until then.

        Letters that were there before are not told of: begin to watch, and read what there is then.

        Args:
            task_id: The run, which the log need not hold yet.
            arrived: Called in the event loop of the caller; now and then for nothing.

        Returns:
            Call it to stop watching; may be called more than once, from any thread.
        """
        ...
