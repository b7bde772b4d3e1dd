"""What happens in a chat: the changes that the doors write down in the words of their protocols.

Each change has the public event that it comes of, for its cursor, its branch and the run that it is nested in. What a
step shows stands between `StepBegan` and `StepEnded`, and whatever has begun ends once.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from rxloop.protocol.events import Event, ToolCompleteEvent, ToolProgressEvent, ToolStartEvent
from rxloop.protocol.messages import ToolCall


class StepBegan(NamedTuple):
    """The model is called."""

    event: Event
    id: str
    """`task:step`, and `task:step:2` where the step is tried again; the id of the message that comes of it."""


class StepEnded(NamedTuple):
    """The model has answered, or this try came to nothing."""

    event: Event
    id: str
    outcome: Literal["complete", "canceled", "void"]
    """`canceled`: what was shown is not part of the conversation. `void`: neither, and the step begins once more."""


class TextBegan(NamedTuple):
    """Text follows. A message whose text goes on after something else has several pieces, all under its id."""

    event: Event
    id: str


class TextDelta(NamedTuple):
    """A piece of the text."""

    event: Event
    id: str
    delta: str


class TextEnded(NamedTuple):
    """Something else follows, or nothing."""

    event: Event
    id: str


class ReasoningBegan(NamedTuple):
    """Reasoning of the model follows."""

    event: Event
    id: str
    """`task:step:reasoning`; a step that goes on reasoning after something else counts on: `task:step:reasoning:2`."""


class ReasoningDelta(NamedTuple):
    """A piece of the reasoning."""

    event: Event
    id: str
    delta: str


class ReasoningEnded(NamedTuple):
    """Something else follows, or nothing."""

    event: Event
    id: str


class CallBegan(NamedTuple):
    """The model calls a tool; its arguments follow. Several calls of a message may be open at once."""

    event: Event
    id: str
    """The slot of the call: `task:step:index`; `task:step:2:index` where the model was asked again for the step.

    It is the same for all readers, and again once a step was void whose beginning a reader has missed. Vendors' repeat.
    """
    name: str
    message: str
    """The id of the message that it stands in."""
    place: int
    """Its place there, by which the questions of `pending` name it, with the run and the step of the event."""


class CallDelta(NamedTuple):
    """A piece of the arguments, as the model writes them."""

    event: Event
    id: str
    delta: str


class CallEnded(NamedTuple):
    """The arguments are complete."""

    event: Event
    id: str
    call: ToolCall


class CallRevised(NamedTuple):
    """A guard changed the arguments of a call after they were shown."""

    event: Event
    id: str
    call: ToolCall


class CallVoided(NamedTuple):
    """The call came to nothing, before its arguments were complete or after: it is not carried out."""

    event: Event
    id: str


class CallStarted(NamedTuple):
    """The tool begins to work."""

    event: ToolStartEvent
    id: str


class CallProgress(NamedTuple):
    """The tool says how far it is."""

    event: ToolProgressEvent
    id: str


class CallResult(NamedTuple):
    """The call is answered: by its tool, by the client, by a refusal."""

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
