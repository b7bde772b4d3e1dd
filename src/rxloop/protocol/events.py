"""The event protocol: every kind of event, in one union discriminated by `kind`."""

from collections.abc import Iterable
from typing import Annotated, Any, Union, cast

from pydantic import Field, TypeAdapter

from rxloop.protocol.envelope import Event as Event
from rxloop.protocol.questions import PendingInput as PendingInput
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
