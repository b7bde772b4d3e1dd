"""Chat changes, which adapters encode in their protocols.

Each change contains the public event that caused it, for its cursor, branch and nested run. A step's content is emitted
between `StepBegan` and `StepEnded`. Each start has exactly one end.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from rxloop.protocol.events import Event, ToolCompleteEvent, ToolProgressEvent, ToolStartEvent
from rxloop.protocol.messages import ToolCall


class StepBegan(NamedTuple):
    """Emitted when the model is called."""

    event: Event
    id: str
    """Message id, `task:step`. The second attempt of a step uses `task:step:2`."""


class StepEnded(NamedTuple):
    """Emitted when a model call ends."""

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
    """Segment id, `task:step:reasoning`. The second segment of a step uses `task:step:reasoning:2`."""


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
    """Emitted when a tool call starts. Several calls of a message may be open at the same time."""

    event: Event
    id: str
    """Call id: `task:step:index`, or `task:step:2:index` for the second model call of a step.

    The id is the same for all readers, including readers that missed the start of a discarded step. Vendor ids are not
    unique.
    """
    name: str
    message: str
    """Message id of the call."""
    place: int
    """Call index within the message. Together with the event's run and step, it identifies the call in `pending`."""


class CallDelta(NamedTuple):
    """A chunk of arguments."""

    event: Event
    id: str
    delta: str


class CallEnded(NamedTuple):
    """End of the arguments."""

    event: Event
    id: str
    call: ToolCall


class CallRevised(NamedTuple):
    """Emitted when a guard edits arguments that were already shown."""

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
    """Emitted with a call's result from the tool, the client, or a rejection."""

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
