"""Chat state, including the conversation ID, copied history, selected model and total cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import uuid6
from typing_extensions import Unpack

from rxloop.cli.agent_loader import AgentOptions, LoadedAgent
from rxloop.cli.arguments.inputs import add_attachments
from rxloop.cli.database import find_run, shorten_ids
from rxloop.cli.live_run import LiveRuns
from rxloop.cli.options import ThoughtLevel
from rxloop.errors import ConfigurationError
from rxloop.operators.views.cost import Spending
from rxloop.pipeline.event_log import EventLog
from rxloop.pipeline.interfaces import Provider
from rxloop.pipeline.records import ConversationQuery, RunRecord
from rxloop.protocol.events import Event, UsageEvent
from rxloop.protocol.ids import make_conversation_key
from rxloop.protocol.messages import Message
from rxloop.protocol.parts import FilePart, ImagePart
from rxloop.run.handle import Run
from rxloop.state.fold import fold_all
from rxloop.state.run_state import get_final_history
from rxloop.storage.conversation import conversation

_COPIED_FROM = "copied_from"
"""Metadata key for the position whose history a copied conversation starts with."""
_MAX_SEQ_DIGITS = 5
"""Maximum number of digits of an event number. Longer numbers are run ids."""


class Position(NamedTuple):
    """Position in a recorded conversation, used as the end of copied history."""

    context_id: str
    task_id: str
    seq: int | None = None
    """Number of the last event to copy. None copies the whole run."""


@dataclass(frozen=True, slots=True)
class Costs:
    """Total usage and price."""

    input_tokens: int
    output_tokens: int
    dollars: float
    unpriced: tuple[str, ...]
    """Models without known prices."""


@dataclass(slots=True)
class Conversation:
    """Conversation of a chat.

    `/undo` and `/fork` continue in a new conversation, whose first run contains a copy of the history. The log keeps
    all runs.
    """

    ready: LoadedAgent
    live: LiveRuns
    log: EventLog
    options: AgentOptions
    context_id: str
    attachments: Sequence[ImagePart | FilePart] = ()
    """Images and files attached to the next question."""
    origin: Position | None = None
    """Source of copied history for new conversations."""
    owner: str | None = None
    """Owner of all runs."""
    _models: AsyncExitStack = field(default_factory=AsyncExitStack)
    _runs: dict[str, None] = field(default_factory=dict[str, None])
    """Ids of all runs of this chat, including removed ones."""

    async def __aenter__(self) -> Conversation:
        self._runs = dict.fromkeys(record.task_id for record in await self.list_runs())
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._models.aclose()

    @property
    def model(self) -> Provider:
        """Model of the following runs."""
        return self.ready.model or self.ready.agent.model

    @property
    def thoughts(self) -> ThoughtLevel:
        """Level of detail for thoughts."""
        return self.live.display.thoughts

    def show_thoughts(self, level: ThoughtLevel) -> None:
        """Select the thought level for subsequent runs."""
        self.live = replace(self.live, display=replace(self.live.display, thoughts=level))

    async def list_runs(self, **query: Unpack[ConversationQuery]) -> Sequence[RunRecord]:
        """Return the stored runs of the conversation."""
        return await self.log.list_conversation(make_conversation_key(self.context_id, self.owner), **query)

    async def switch_model(self, name: str) -> None:
        """Switch subsequent runs to a different model.

        Raises:
            ConfigurationError: The model is unknown or needs a key.
        """
        # An agent without tools is sufficient, because only its model is used.
        loaded = AgentOptions(model=name, base_url=self.options.base_url).make()
        await self._models.enter_async_context(loaded)
        self.ready = self.live.limit_cost(replace(self.ready, model=loaded.owned_model))

    async def make_run(self, question: str) -> Run[Any]:
        """Create a run for a question."""
        message = add_attachments(question, self.attachments)
        prompt: list[Message | str] = [message]
        metadata: dict[str, Any] = {}
        if self.origin is not None and await self._find_last() is None:
            prompt = [*await self.read_messages(), message]
            metadata[_COPIED_FROM] = self.origin._asdict()
        run = self.ready.agent.run(
            prompt,
            context_id=self.context_id,
            owner=self.owner,
            model=self.ready.model,
            strategy=self.options.strategy,
            metadata=metadata or None,
        )
        self._runs[run.task_id] = None
        self.attachments = ()
        return run

    def resume(self, task_id: str, inputs: Mapping[str, Any]) -> Run[Any]:
        """Resume a run using the user's answers."""
        return self.ready.agent.resume(task_id, inputs=inputs, model=self.ready.model, strategy=self.options.strategy)

    async def read_messages(self) -> list[Message]:
        """Return the message history for the next run."""
        position = await self._find_last() or self.origin
        return [] if position is None else await self._read_history(position)

    async def undo(self) -> str | None:
        """Remove the last exchange from the conversation. Returns its question, or None if there is no exchange."""
        last = await self._find_last() or self.origin
        if last is None:
            return None
        events = await self.log.read(last.task_id)
        question = _find_question(events)
        self.origin, self.context_id = await self._find_previous(last, events[0]), _make_id()
        return question

    async def fork(self, place: str) -> None:
        """Switch to a new conversation with copied history.

        Args:
            place: Last copied run, or number of the last copied event within the most recent run. Defaults to copying
                everything.

        Raises:
            ConfigurationError: There is nothing to copy, or the number is too large.
            UnknownRun: The run does not exist.
        """
        last = await self._find_last() or self.origin
        if place and not (place.isdecimal() and len(place) <= _MAX_SEQ_DIGITS):
            record = await find_run(self.log, place)
            last = Position(record.context_id, record.task_id)
        elif last is None:
            raise ConfigurationError(
                "cannot copy an empty conversation; ask a question first, or pass a run ID such as /fork 9f3ac2"
            )
        elif place:
            seq, end = int(place), (await self.log.get_record(last.task_id)).seq
            if not 1 <= seq <= end:
                raise ConfigurationError(
                    f"SEQ must be between 1 and {end}, got {seq}; list events with rxloop show {last.task_id[-6:]}"
                )
            last = last._replace(seq=seq)
        self.origin, self.context_id = last, _make_id()

    def clear(self) -> None:
        """Start a new conversation."""
        self.origin, self.context_id = None, _make_id()

    async def find_short_id(self) -> str | None:
        """Return the shortest unique suffix of the conversation id, or None if the conversation is not stored."""
        records = await self.log.list_runs() if self.live.log is not None else ()
        contexts = list(dict.fromkeys(record.context_id for record in records))
        return shorten_ids(contexts).get(self.context_id)

    async def measure_costs(self) -> Costs:
        """Return the tokens and the price of all runs of this chat, including removed ones."""
        spending, tokens_in, tokens_out = Spending(None), 0, 0
        known = {record.task_id for record in await self.log.list_runs()}
        for task_id in self._runs:
            for event in await self.log.read(task_id) if task_id in known else ():
                spending.add(event)
                if isinstance(event, UsageEvent):
                    tokens_in, tokens_out = tokens_in + event.input_tokens, tokens_out + event.output_tokens
        return Costs(tokens_in, tokens_out, spending.dollars, tuple(spending.unpriced))

    async def _find_last(self) -> Position | None:
        """Return the end of the last run in this conversation."""
        records = await self.list_runs(newest_first=True, limit=1)
        return Position(self.context_id, records[0].task_id) if records else None

    async def _find_previous(self, position: Position, first: Event) -> Position | None:
        """Return the position before a run, following copied history across conversations."""
        earlier = await self.log.get_record(position.task_id)
        ids = [record.task_id for record in await self.log.list_conversation(earlier.conversation)]
        index = ids.index(position.task_id)
        if index:
            return Position(position.context_id, ids[index - 1])
        source = first.metadata.get(_COPIED_FROM)
        return None if source is None else Position(**source)

    async def _read_history(self, position: Position) -> list[Message]:
        record = await self.log.get_record(position.task_id)
        before = await conversation(self.log, record.conversation, position.task_id)
        events = await self.log.read(position.task_id)
        copied = [event for event in events if position.seq is None or event.seq <= position.seq]
        return [*before.messages, *get_final_history(fold_all(copied))]


def _find_question(events: Sequence[Event]) -> str:
    messages: Sequence[Message] = getattr(events[0], "messages", ())
    return messages[-1].text if messages else ""


def _make_id() -> str:
    return str(uuid6.uuid7())
