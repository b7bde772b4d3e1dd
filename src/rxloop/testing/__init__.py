"""Help for tests: virtual time, marble diagrams, recorded runs, workers that are killed (`chaos/`)."""

from rxloop.demo.conversation import Conversation, PastCall, Reply, Rule
from rxloop.demo.offline import OfflineModel, demo_model, serve_in_thread
from rxloop.providers.scripted import ScriptedCall, ScriptedModel, ScriptExhausted, call, frames, turn
from rxloop.testing.clock import VirtualTime, virtual_time
from rxloop.testing.marbles import assert_marbles, marbles
from rxloop.testing.recorded import recorded, recorded_events
from rxloop.testing.virtual_loop import NothingLeft

__all__ = [
    "Conversation",
    "NothingLeft",
    "OfflineModel",
    "PastCall",
    "Reply",
    "Rule",
    "ScriptExhausted",
    "ScriptedCall",
    "ScriptedModel",
    "VirtualTime",
    "assert_marbles",
    "call",
    "demo_model",
    "frames",
    "marbles",
    "recorded",
    "recorded_events",
    "serve_in_thread",
    "turn",
    "virtual_time",
]
