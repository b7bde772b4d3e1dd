"""Changes in a chat, which the adapters encode in their protocols.

Each change refers to the public event that caused it, for its cursor, branch and nested run. All content of a step is
between `StepBegan` and `StepEnded`, and everything that starts also ends exactly once.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from rxloop.protocol.events import Event, ToolCompleteEvent, ToolProgressEvent, ToolStartEvent
from rxloop.protocol.messages import ToolCall


class StepBegan(NamedTuple):
    """Start of a model call."""

    event: Event
    id: str
    """Message id: `task:step`, or `task:step:2` for the second attempt of a step."""


class StepEnded(NamedTuple):
    """End of a model call."""

    event: Event
    id: str
    outcome: Literal["complete", "canceled", "void"]
    """Outcome of the step. Content of a `canceled` step is not part of the conversation. A `void` step starts again."""


class TextBegan(NamedTuple):
    """Start of a text segment. All text segments of a message share the message id."""

    event: Event
    id: str


class TextDelta(NamedTuple):
    """A chunk of text."""

    event: Event
    id: str
    delta: str


class TextEnded(NamedTuple):
    """End of a text segment."""

    event: Event
    id: str


class ReasoningBegan(NamedTuple):
    """Start of a reasoning segment."""

    event: Event
    id: str
    """Segment id: `task:step:reasoning`, or `task:step:reasoning:2` for the second segment of a step."""


class ReasoningDelta(NamedTuple):
    """A chunk of reasoning."""

    event: Event
    id: str
    delta: str


class ReasoningEnded(NamedTuple):
    """End of a reasoning segment."""

    event: Event
    id: str


class CallBegan(NamedTuple):
    """Start of a tool call. Several calls of a message may be open at the same time."""

    event: Event
    id: str
    """Call id: `task:step:index`, or `task:step:2:index` for the second model call of a step.

    The id is the same for all readers, including readers that missed the start of a discarded step. Vendor ids are not
    unique.
    """
    name: str
    message: str
    """Id of the message that contains the call."""
    place: int
    """Index of the call in the message. With the run and step of the event, it identifies the call in `pending`."""


class CallDelta(NamedTuple):
    """A chunk of the arguments."""

    event: Event
    id: str
    delta: str


class CallEnded(NamedTuple):
    """End of the arguments."""

    event: Event
    id: str
    call: ToolCall


class CallRevised(NamedTuple):
    """Edit of a call's arguments by a guard, after the arguments were shown."""

    event: Event
    id: str
    call: ToolCall


class CallVoided(NamedTuple):
    """Withdrawal of a call, with complete or partial arguments. The call is not executed."""

    event: Event
    id: str


class CallStarted(NamedTuple):
    """Start of a tool execution."""

    event: ToolStartEvent
    id: str


class CallProgress(NamedTuple):
    """Progress of a tool execution."""

    event: ToolProgressEvent
    id: str


class CallResult(NamedTuple):
    """Result of a call, from the tool, the client, or a rejection."""

    event: ToolCompleteEvent
    id: str


Change = (
    StepBegan
    | StepEnded
    | TextBegan
    | TextDelta
    | TextEnded
    | ReasoningBegan
    | ReasoningDelta
    | ReasoningEnded
    | CallBegan
    | CallDelta
    | CallEnded
    | CallRevised
    | CallVoided
    | CallStarted
    | CallProgress
    | CallResult
)
