"""Changes to a chat, which protocol adapters encode for their clients.

Each change contains the public event that caused it, which has the cursor, the branch and the nested run. The content
of a step is emitted between `StepBegan` and `StepEnded`. Each start has exactly one end.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from rxloop.protocol.events import Event, ToolCompleteEvent, ToolProgressEvent, ToolStartEvent
from rxloop.protocol.messages import ToolCall


class StepBegan(NamedTuple):
    """Model call start."""

    event: Event
    id: str
    """Message id, `task:step`. The second attempt of a step uses `task:step:2`."""


class StepEnded(NamedTuple):
    """Model call end."""

    event: Event
    id: str
    outcome: Literal["complete", "canceled", "discarded"]
    """Outcome of the step.

    Content of a `canceled` step is not part of the conversation. A `discarded` step starts again.
    """


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
    """Text segment end."""

    event: Event
    id: str


class ReasoningBegan(NamedTuple):
    """Reasoning segment start."""

    event: Event
    id: str
    """Segment id, `task:step:reasoning`. The second segment of a step uses `task:step:reasoning:2`."""


class ReasoningDelta(NamedTuple):
    """A chunk of reasoning."""

    event: Event
    id: str
    delta: str


class ReasoningEnded(NamedTuple):
    """Reasoning segment end."""

    event: Event
    id: str


class CallBegan(NamedTuple):
    """Tool call start. Several calls per message can be open."""

    event: Event
    id: str
    """Call id, `task:step:index`. A second model call for the step uses `task:step:2:index`.

    All readers see the same id, even if they missed the start of a discarded step. Vendor ids are not unique.
    """
    name: str
    message: str
    """Id of the calling message."""
    call_index: int
    """Index of the call within its message. A question in `pending` names its call by run, step and index."""


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


class CallDiscarded(NamedTuple):
    """Withdrawal of a tool call whose arguments may be incomplete. The call is not executed."""

    event: Event
    id: str


class CallStarted(NamedTuple):
    """Start of a tool execution."""

    event: ToolStartEvent
    id: str


class CallProgress(NamedTuple):
    """Progress report from a tool."""

    event: ToolProgressEvent
    id: str


class CallResult(NamedTuple):
    """Result of a tool call from the tool or the client, or its rejection."""

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
    | CallDiscarded
    | CallStarted
    | CallProgress
    | CallResult
)
