"""Union of all kinds, tables by kind, normal form before publication."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from operator import itemgetter
from typing import Annotated, Any, TypeVar, Union, cast

from pydantic import Field, TypeAdapter

from rxloop.errors import ConfigurationError, InvalidEvent
from rxloop.protocol.envelope import Event as Event
from rxloop.protocol.json_data import LARGEST, LEAST, plan_of, readable, settled, storable, takes_any
from rxloop.protocol.messages import PendingInput as PendingInput
from rxloop.protocol.model import EMPTY_DICT, stamp
from rxloop.protocol.run_events import (
    ArtifactUpdateEvent,
    AuthRequiredEvent,
    CheckpointEvent,
    ContextCompressedEvent,
    CustomEvent,
    GapEvent,
    InputReceivedEvent,
    InputRequiredEvent,
    MessageAddedEvent,
    StageEvent,
    StatusUpdateEvent,
    SubtaskEvent,
    TaskEvent,
    ThinkingFailedEvent,
    ToolsUnavailableEvent,
)
from rxloop.protocol.run_events import AskingEvent as AskingEvent
from rxloop.protocol.run_events import State as State
from rxloop.protocol.step_events import THOUGHT_TYPES as THOUGHT_TYPES
from rxloop.protocol.step_events import (
    ContentCompleteEvent,
    ContentDeltaEvent,
    LLMCallEvent,
    LLMFailedEvent,
    LLMNoticeEvent,
    ServerToolEvent,
    ThoughtDeltaEvent,
    ThoughtStreamEvent,
    ToolCallDeltaEvent,
    ToolCompleteEvent,
    ToolProgressEvent,
    ToolStartEvent,
    ToolVoidedEvent,
    UsageEvent,
)
from rxloop.protocol.step_events import SessionLink as SessionLink
from rxloop.protocol.step_events import ThoughtSource as ThoughtSource
from rxloop.protocol.step_events import ThoughtType as ThoughtType
from rxloop.protocol.step_events import Verbosity as Verbosity

AnyEvent = Annotated[
    Union[  # noqa: UP007
        TaskEvent,
        StatusUpdateEvent,
        LLMCallEvent,
        ContentDeltaEvent,
        ContentCompleteEvent,
        ToolCallDeltaEvent,
        ThoughtDeltaEvent,
        ThoughtStreamEvent,
        ToolStartEvent,
        ToolProgressEvent,
        ToolCompleteEvent,
        ToolVoidedEvent,
        UsageEvent,
        MessageAddedEvent,
        CheckpointEvent,
        ContextCompressedEvent,
        ThinkingFailedEvent,
        ToolsUnavailableEvent,
        InputRequiredEvent,
        InputReceivedEvent,
        StageEvent,
        LLMFailedEvent,
        LLMNoticeEvent,
        ServerToolEvent,
        AuthRequiredEvent,
        ArtifactUpdateEvent,
        SubtaskEvent,
        CustomEvent,
        GapEvent,
    ],
    Field(discriminator="kind"),
]
"""Every kind of the protocol."""

from_json = Event.from_json


def ends_attempt(event: Event) -> bool:
    """Tell whether an event is the last of its attempt; that of a nested agent's run ends only that run."""
    return isinstance(event, StatusUpdateEvent) and event.final and event.parent_task_id is None


SUPERSEDED = "superseded"
"""The reason and the error code of a run that a later run of its conversation ended while it waited for an answer."""


def is_superseded(event: Event) -> bool:
    """Tell whether a run ends with an event because a later run of its conversation dropped its questions."""
    return isinstance(event, StatusUpdateEvent) and event.reason == SUPERSEDED and ends_attempt(event)


def external(events: Iterable[Event]) -> list[Event]:
    """Return the events as clients may see them, in order."""
    return [form for event in events if (form := event.for_clients()) is not None]


def protocol_schema() -> dict[str, Any]:
    """Make the JSON Schema of the whole protocol, as it is on the wire; readers skip unknown fields."""
    adapter: TypeAdapter[Event] = TypeAdapter(AnyEvent)
    return _plain(adapter.json_schema(mode="serialization"))


def _plain(schema: Any) -> Any:
    """Return a schema without the titles that pydantic makes of field names, and open to fields of later versions."""
    if isinstance(schema, list):
        return [_plain(item) for item in cast("list[Any]", schema)]
    if not isinstance(schema, dict):
        return schema
    return {
        key: _plain(value)
        for key, value in cast("dict[str, Any]", schema).items()
        if not (key == "title" and isinstance(value, str)) and not (key == "additionalProperties" and value is False)
    }


# The slot itself: where it is empty, pydantic would look for the name in other places first.
_is_settled, _set_settled = vars(Event)["_settled"].__get__, vars(Event)["_settled"].__set__


def normalise(event: Event) -> dict[str, Any]:
    """Make of what an event holds what can be written and read again, and freeze it, in place.

    What is such already stays as it is, and costs a look at each field, once for each event; the ids, which many events
    share and which may be given later, cost one.

    Returns:
        The fields, as `stamp` gives them.

    Raises:
        InvalidEvent: A field cannot be written, or does not have its type; it is named, and the event is not an event.
    """
    fields = stamp(event)
    try:
        if _is_settled(event) and fields["metadata"] is EMPTY_DICT and _printable(*_ids(fields)):
            return fields
    except (AttributeError, KeyError, TypeError):  # It is not, or has no proper ids.
        pass
    try:
        _settle_fields(event, fields, plain=fields["metadata"] is EMPTY_DICT and _has_printable_ids(fields))
    except KeyError as error:
        raise InvalidEvent(f"{type(event).__name__} has no {error}: make events by their constructor") from error
    _set_settled(event, True)
    return fields


def _settle_fields(event: Event, fields: dict[str, Any], plain: bool) -> None:
    plan = plan_of(type(event))
    for name, default, classes, type_ in plan.beside if plain else plan.fields:
        value = fields[name]
        if value is default:
            continue
        cls = value.__class__
        if cls not in classes:
            fields[name] = settled(fields, name, classes, type_)
        elif cls is str:
            if not value.isascii():
                fields[name] = readable(value)
        elif (cls is int or cls is float) and not LEAST <= value <= LARGEST:
            raise InvalidEvent(f"{fields['kind']}: {name}={value}: give a finite number of 64 bits")
    for name, choices in plan.choices:
        if fields[name] not in choices:
            known = ", ".join(map(str, choices))
            raise InvalidEvent(f"{fields['kind']}: {name}={fields[name]!r} is not one of {known}")
    if plan.own:
        if event.__pydantic_extra__:
            extra = storable(event.__pydantic_extra__, fields["kind"])
            object.__setattr__(event, "__pydantic_extra__", extra)
        _check_own(event)
    if not plain:
        try:
            event.check_ids()
        except ConfigurationError as error:
            raise InvalidEvent(str(error)) from error


_ids = itemgetter("context_id", "task_id", "parent_task_id", "agent_path", "step", "branch")


def _has_printable_ids(fields: dict[str, Any]) -> bool:
    """Tell whether the ids of an event are known to be printable."""
    try:
        return _printable(*_ids(fields))
    except TypeError:  # what is not an id, and has no hash
        return False


# Typed, since what equals a text need not be one.
@lru_cache(maxsize=256, typed=True)
def _printable(*ids: Any) -> bool:
    return all(name is None or name == () or (name.__class__ is str and name.isprintable()) for name in ids)


def _check_own(event: Event) -> None:
    """See that an event of a kind that is not ours, whose fields may be of any type, can be written and read."""
    kind = vars(event).get("kind")
    try:
        read = event.from_json(event.to_json())
    except Exception as error:
        raise InvalidEvent(
            f"an event of kind {kind!r} cannot be written as JSON and read again: {error}; "
            f"give the fields of {type(event).__name__} types that can"
        ) from error
    known = type(read)
    if known.__module__.startswith("rxloop.") and not (isinstance(event, known) or takes_any(known)):
        raise InvalidEvent(
            f"{kind!r} is the kind of {known.__name__}, as which this {type(event).__name__} would be read: "
            "give the class a kind of its own"
        )


T = TypeVar("T")


class ByClass(dict[type[Event], T | None]):
    """A table by class; a subclass has what the nearest class that it comes from has, and None is for the others."""

    def __missing__(self, cls: type[Event]) -> T | None:
        value = self[cls] = next((found for base in cls.__mro__ if (found := self.get(base)) is not None), None)
        return value
