"""Event union, JSON schema, lookup by class, and normalisation of events before publication."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from operator import itemgetter
from typing import Annotated, Any, TypeVar, Union, cast

from pydantic import Field, TypeAdapter

from rxloop.errors import ConfigurationError, InvalidEvent
from rxloop.protocol.envelope import Event as Event
from rxloop.protocol.json_data import (
    MAX_INTEGER,
    MIN_INTEGER,
    allows_extra,
    freeze_field,
    freeze_json,
    plan_fields,
    replace_surrogates,
)
from rxloop.protocol.messages import PendingInput as PendingInput
from rxloop.protocol.model import EMPTY_DICT, mutable_fields
from rxloop.protocol.run_events import WAITING as WAITING
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
    ToolsUnavailableEvent,
)
from rxloop.protocol.run_events import QuestionEvent as QuestionEvent
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
    UsageEvent,
)
from rxloop.protocol.step_events import SessionLink as SessionLink
from rxloop.protocol.step_events import ThoughtSource as ThoughtSource
from rxloop.protocol.step_events import ThoughtType as ThoughtType
from rxloop.protocol.step_events import Verbosity as Verbosity
from rxloop.protocol.tool_events import (
    GoalsUpdatedEvent,
    MemoryForgottenEvent,
    MemoryNotedEvent,
    MemoryRecalledEvent,
    ThinkingFailedEvent,
    ThinkingNotedEvent,
    ToolCompleteEvent,
    ToolProgressEvent,
    ToolStartEvent,
    ToolVoidedEvent,
)

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
        ThinkingNotedEvent,
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
        MemoryNotedEvent,
        MemoryRecalledEvent,
        MemoryForgottenEvent,
        GoalsUpdatedEvent,
        CustomEvent,
        GapEvent,
    ],
    Field(discriminator="kind"),
]
"""Union of all event classes, discriminated by kind."""

from_json = Event.from_json


def ends_attempt(event: Event) -> bool:
    """Return True if an event is the last of its attempt. The final event of a nested run only ends the nested run."""
    return isinstance(event, StatusUpdateEvent) and event.final and event.parent_task_id is None


SUPERSEDED = "superseded"
"""Reason and error code of a waiting run that was ended by a later run of the conversation."""


RELEASED = "released"
"""Reason of the last event of an attempt whose process stopped working on the run without ending it."""


def is_superseded(event: Event) -> bool:
    """Return True if an event ends a run because a later run of the conversation dropped its questions."""
    return isinstance(event, StatusUpdateEvent) and event.reason == SUPERSEDED and ends_attempt(event)


def public_events(events: Iterable[Event]) -> list[Event]:
    """Return the public form of events, excluding private events."""
    return [public for event in events if (public := event.to_public()) is not None]


_ENVELOPE = ("version", "kind", "contextId", "taskId", "seq", "sub", "attempt", "timestamp")
"""Fields in the JSON of every event."""


def protocol_schema() -> dict[str, Any]:
    """Return the JSON Schema of the protocol. Readers must ignore unknown fields."""
    adapter: TypeAdapter[Event] = TypeAdapter(AnyEvent)
    schema = _simplify_schema(adapter.json_schema(mode="serialization"))
    for definition in schema["$defs"].values():
        if "seq" in definition.get("properties", ()):
            # Fields with other defaults are omitted if they are empty.
            own = [name for name in definition.get("required", ()) if name not in _ENVELOPE]
            definition["required"] = [*_ENVELOPE, *own]
    return schema


def _simplify_schema(schema: Any) -> Any:
    """Remove pydantic's generated titles, and allow additional fields so that later versions can add some."""
    if isinstance(schema, list):
        return [_simplify_schema(item) for item in cast("list[Any]", schema)]
    if not isinstance(schema, dict):
        return schema
    return {
        key: _simplify_schema(value)
        for key, value in cast("dict[str, Any]", schema).items()
        if not (key == "title" and isinstance(value, str)) and not (key == "additionalProperties" and value is False)
    }


# Read the slot directly, because pydantic searches other places first if the slot is empty.
_is_normalised, _set_normalised = vars(Event)["_normalised"].__get__, vars(Event)["_normalised"].__set__


def normalise(event: Event) -> dict[str, Any]:
    """Convert the fields of an event to immutable JSON data, in place.

    Fields are only checked once. Ids are checked on each call, because they may change between calls. The result is
    cached.

    Returns:
        The fields, as returned by `mutable_fields`.

    Raises:
        InvalidEvent: A field has the wrong type or cannot be encoded as JSON. The event must not be used any more.
    """
    fields = mutable_fields(event)
    try:
        if _is_normalised(event) and fields["metadata"] is EMPTY_DICT and _are_printable(*_ids(fields)):
            return fields
    except (AttributeError, KeyError, TypeError):  # not normalised yet, or invalid ids
        pass
    try:
        _normalise_fields(event, fields, plain=fields["metadata"] is EMPTY_DICT and _has_printable_ids(fields))
    except KeyError as error:
        raise InvalidEvent(f"{type(event).__name__} has no {error}; create events with their constructor") from error
    _set_normalised(event, True)
    return fields


def _normalise_fields(event: Event, fields: dict[str, Any], plain: bool) -> None:
    plan = plan_fields(type(event))
    for name, default, classes, type_ in plan.own_fields if plain else plan.fields:
        value = fields[name]
        if value is default:
            continue
        cls = value.__class__
        if cls not in classes:
            fields[name] = freeze_field(fields, name, classes, type_)
        elif cls is str:
            if not value.isascii():
                fields[name] = replace_surrogates(value)
        elif (cls is int or cls is float) and not MIN_INTEGER <= value <= MAX_INTEGER:
            raise InvalidEvent(f"{name} of {fields['kind']} must be a finite number of at most 64 bits, got {value}")
    for name, choices in plan.choices:
        if fields[name] not in choices:
            expected = ", ".join(map(str, choices))
            raise InvalidEvent(f"{name} of {fields['kind']} must be one of {expected}, got {fields[name]!r}")
    if plan.is_foreign:
        if event.__pydantic_extra__:
            extra = freeze_json(event.__pydantic_extra__, fields["kind"])
            object.__setattr__(event, "__pydantic_extra__", extra)
        _check_round_trip(event)
    if not plain:
        try:
            event.check_ids()
        except ConfigurationError as error:
            raise InvalidEvent(str(error)) from error


_ids = itemgetter("context_id", "task_id", "parent_task_id", "agent_path", "step", "branch")


def _has_printable_ids(fields: dict[str, Any]) -> bool:
    """Return True if all ids of an event are valid."""
    try:
        return _are_printable(*_ids(fields))
    except TypeError:  # an unhashable value is not an id
        return False


# `typed` is required because values of other types may be equal to a string.
@lru_cache(maxsize=256, typed=True)
def _are_printable(*ids: Any) -> bool:
    for name in ids:
        if name is not None and name != () and not (name.__class__ is str and name.isprintable()):
            return False
    return True


def _check_round_trip(event: Event) -> None:
    """Check that a user-defined event can be encoded and decoded."""
    kind = vars(event).get("kind")
    try:
        decoded = event.from_json(event.to_json())
    except Exception as error:
        raise InvalidEvent(
            f"events of kind {kind!r} cannot be encoded as JSON and decoded again: {error}. "
            f"Change the field types of {type(event).__name__}."
        ) from error
    cls = type(decoded)
    if cls.__module__.startswith("rxloop.") and not (isinstance(event, cls) or allows_extra(cls)):
        raise InvalidEvent(
            f"the kind of {type(event).__name__} must be unique, got {kind!r} of {cls.__name__}. Use another kind."
        )


T = TypeVar("T")


class EventTable(dict[type[Event], T | None]):
    """Lookup table by event class. If a class is missing, its nearest base class is used."""

    def __missing__(self, cls: type[Event]) -> T | None:
        value = self[cls] = next((entry for base in cls.__mro__ if (entry := self.get(base)) is not None), None)
        return value
