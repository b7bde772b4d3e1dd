"""Help for tests: a scripted model, virtual time, marble lines, and an offline model behind a real socket."""

from rxloop.providers.scripted import ScriptedModel, ScriptExhausted, call, frames, turn
from rxloop.testing.clock import VirtualTime, virtual_time
from rxloop.testing.loop import NothingLeft
from rxloop.testing.marbles import assert_marbles, marbles

__all__ = [
    "NothingLeft",
    "ScriptExhausted",
    "ScriptedModel",
    "VirtualTime",
    "assert_marbles",
    "call",
    "frames",
    "marbles",
    "turn",
    "virtual_time",
]
